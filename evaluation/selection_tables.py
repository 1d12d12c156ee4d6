"""What tools/selection_quality.py reads and prints: the patches on the person, and the tables of a `Quality`."""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.images import decode
from demo_sdtps.datasets.masks import mask_path
from demo_sdtps.evaluation.selection import SHARES, Measures, Quality
from demo_sdtps.evaluation.tables import CASE_WIDTH, case_name
from demo_sdtps.modeling.backbones import Backbone
from demo_sdtps.runtime.progress import progress


def foreground(cfg: CfgNode, backbone: Backbone, samples: list[Sample]) -> torch.Tensor:
    """Whether at least half of a patch's pixels are on the person: (images, N) bool. Raises `UserError` without such masks."""
    paths = [mask_path(sample) for sample in samples]
    if absent := next((path for path in paths if not path.exists()), None):
        raise UserError(f"The foreground mask {absent} is missing, so it is not known where the person is; write the masks "
                        "with tools/make_masks.py, or set DATASETS.ROOT_DIR to data of tools/make_synthetic.py.")
    patch, stride = backbone.vit.patch_embed.patch_size, cfg.MODEL.STRIDE_SIZE

    def on_person(path: Path) -> torch.Tensor:
        mask = (decode(str(path))[:1] > 127).byte()  # black and white: 0 and 255
        # By the nearest pixel, so that it stays a mask.
        resized = resize(mask, list(cfg.INPUT.SIZE_TEST), InterpolationMode.NEAREST_EXACT)
        return F.avg_pool2d(resized.float(), patch, stride).flatten() >= 0.5

    with ThreadPoolExecutor() as pool:
        masks = pool.map(on_person, paths)
        found = torch.stack(list(progress(masks, "reading masks", len(paths), unit="mask")))
    if not found.any():
        raise UserError(f"No mask in {paths[0].parent} has a patch that is at least half on the person, so there is nothing to "
                        "find; check the masks, or use smaller patches.")
    return found


def caption(cfg: CfgNode, quality: Quality, split: str) -> str:
    left_out = f", {quality.left_out} of them without a patch on the person and not in AP or recall" if quality.left_out else ""
    guide = "" if cfg.MODEL.SDTPS_GUIDE_MISSING else ", global features of missing modalities do not guide"
    where = "; behind the first stage, base rate and AP are among the patches that are left" if len(quality.choices) > 1 else ""
    return (f"{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {quality.images} {split} triplets{left_out}, "
            f"{cfg.TEST.WEIGHT}{guide}, in percent{where}; a random order has AP {100 * quality.random_order:.1f}")


def as_tables(quality: Quality) -> list[str]:
    """A table per stage and for SDTPS, under their names where there are stages, and the globals' mean cosines."""
    lines = []
    for name, cases in quality.choices.items():
        groups = {case_name(case): rows for case, rows in cases.items()}
        groups |= {f"nothing, {light}": found[name] for light, found in quality.lights.items()}
        lines += [*([f"{name}:"] if quality.stages else []), as_table(groups)]
    cosines = ", ".join(f"{modality} {value:.3f}" for modality, value in quality.mean_global_cosine.items())
    return [*lines, f"mean cosine of the globals of two different images: {cosines}"]


def as_table(groups: dict[str, Measures]) -> str:
    """One row per group and present modality, in percent."""
    columns = {name: name.replace("_", " ") for name in SHARES} | {name: f"AP {name}" for name in detectors(groups)}
    lines = ["missing".ljust(CASE_WIDTH) + "patches of" + "".join(column.rjust(11) for column in columns.values())]
    for title, rows in groups.items():
        for index, (modality, row) in enumerate(rows.items()):
            cells = (f"{100 * row[name]:.1f}" if name in row else "–" for name in columns)
            lines.append((title if index == 0 else "").ljust(CASE_WIDTH) + modality.ljust(len("patches of"))
                         + "".join(cell.rjust(11) for cell in cells))
    return "\n".join(lines)


def detectors(groups: dict[str, Measures]) -> list[str]:
    """The detectors of all rows, the score first."""
    return list(dict.fromkeys(name for rows in groups.values() for row in rows.values() for name in row if name not in SHARES))
