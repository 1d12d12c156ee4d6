"""Pictures from disk: decoding, with an error that names the file, and a check of all of them."""
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from config import UserError
from config.progress import progress
from datasets.base import Sample

ADVICE = "; replace it or remove its triplet."


def decode(path: str) -> torch.Tensor:
    """A picture as uint8 (3, H, W). Raises `UserError` naming a file that cannot be read."""
    try:
        with Image.open(path) as picture:
            return pil_to_tensor(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or ("it is empty" if _is_empty(path) else error)
        raise UserError(f"The picture {path} cannot be read ({reason}){ADVICE}") from None


def verify(samples: Iterable[Sample]) -> None:
    """Decode every picture once. Raises one `UserError` that lists all files that cannot be read."""
    paths = sorted({path for sample in samples for path in sample.paths})
    with ThreadPoolExecutor() as pool:
        errors = [error for error in progress(pool.map(_error_of, paths), "verifying pictures", len(paths), unit="picture")
                  if error]
    if errors:
        raise UserError(f"{len(errors)} of {len(paths)} pictures cannot be read; replace them or remove their triplets:"
                        + "".join(f"\n  {error}" for error in errors))


def decode_all(samples: Sequence[Sample]) -> list[tuple[torch.Tensor, ...]]:
    """The decoded pictures of every sample, to be kept in memory. Raises `UserError`."""
    with ThreadPoolExecutor() as pool:
        triplets = pool.map(lambda sample: tuple(map(decode, sample.paths)), samples)
        return list(progress(triplets, "reading pictures", len(samples), unit="triplet"))


def _error_of(path: str) -> str | None:
    try:
        decode(path)
    except UserError as error:
        return str(error).removeprefix("The picture ").removesuffix(ADVICE)
    return None


def _is_empty(path: str) -> bool:
    with open(path, "rb") as file:
        return not file.read(1)
