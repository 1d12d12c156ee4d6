"""The digest of a run's data: order, names and sizes of the files, and texts. A run resumes with the same data only."""
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from demo_sdtps.config import UserError
from demo_sdtps.training.resume import Resumed

DIGEST = "files"
"""Entry of last.pth."""


def digest_data(root: str, files: Mapping[str, Sequence[str]], texts: Mapping[str, Iterable[str]] | None = None,
                ) -> dict[str, str]:
    """A digest of each part of the data, such as "query NI": of paths below `root` and their sizes, or of texts. Contents of
    images are not read."""
    entries: dict[str, Iterable[str]] = {
        part: (f"{os.path.relpath(path, root)} {os.path.getsize(path)}" for path in paths) for part, paths in files.items()}
    found = {}
    for part, lines in (entries | dict(texts or {})).items():
        digest = blake2b(digest_size=16)
        for line in lines:
            digest.update(line.encode(errors="surrogatepass") + b"\0")
        found[part] = digest.hexdigest()
    return found


def check_unchanged(resumed: Resumed, now: Mapping[str, str]) -> None:
    """Raise `UserError` where the data have changed since; a checkpoint of an earlier version has no digest of them."""
    before = resumed.state.get(DIGEST, now)
    changed = [part for part in {**now, **before} if before.get(part) != now.get(part)]
    if changed:
        raise UserError(f"The data are not those that the run in {resumed.path} started with: files of '{changed[0]}' were "
                        "added, removed, renamed or changed in size, or its texts edited; put back what it had, or start "
                        "another run in another OUTPUT_DIR.")
