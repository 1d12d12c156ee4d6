"""Write the features of a split as numpy arrays: python tools/export_features.py --weight W --output X.npz"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import add_overwrite, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.config.files import atomic_write, check_apart, check_output_file, locked
from demo_sdtps.config.load import with_values
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets import SPLITS, Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.engine import distributed
from demo_sdtps.engine.evaluation.extraction import extract_features
from demo_sdtps.engine.evaluation.protocol import normalise
from demo_sdtps.engine.load import load_model_and_data, weight_flag
from demo_sdtps.engine.search.gallery import origin_of
from demo_sdtps.engine.shards import (
    LOCK,
    check_own,
    find_shards,
    parts,
    remove_shards,
    samples_digest,
    write_manifest,
    write_shard,
)
from demo_sdtps.modeling import DeMo

SHARD_ROWS = 8192  # 50 MB of float32 features of width 1,536
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def main() -> None:
    parser = config_parser("Write the features of a split to an .npz file: features (n, D) float32; ids, cams and scenes (n,), "
                           "identities as named on disk, cameras from 0, scenes 0 where there are none; paths (n, 3) in the "
                           "order RGB, NI, TI, or (n, 1) where one image holds the three side by side; and, as single "
                           "values, return_pattern, split, data_set, checkpoint (its path), checkpoint_sha256 (of its "
                           "content), normalised (whether the features are) and configuration (JSON: the keys on which "
                           "features depend, with their values). With --shards, write the same in parts to a folder "
                           "(docs/scale.md): an interrupted export goes on when the command is called again. Processes of "
                           "torchrun share the work; those of several nodes need a shared file system for the output.",
                           checkpoint=weight_flag())
    parser.add_argument("--return_pattern", type=int, choices=RETURN_PATTERNS, default=3,
                        help="1 original, 2 enhanced, 3 both (default: 3)")
    parser.add_argument("--split", choices=SPLITS, default="gallery", help="default: gallery")
    parser.add_argument("--output", type=Path, required=True, metavar="X.npz",
                        help="the file to write, or with --shards the folder")
    parser.add_argument("--shards", type=positive_int, nargs="?", const=SHARD_ROWS, metavar="N",
                        help=f"write a folder of memory-mapped shards of N rows (default: {SHARD_ROWS}), one at a time")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the features in shards (default: float32)")
    parser.add_argument("--normalise", action="store_true", help="L2-normalise the features, as evaluation does")
    add_overwrite(parser, "replace an output that exists, which is refused otherwise; shards are all exported anew")
    with distributed.init_distributed():
        arguments, own = parse(parser)
        cfg = distributed.broadcast_from_main(lambda: own)
        check_output(arguments, cfg)
        model, splits = load_model_and_data(cfg, (arguments.split,), several=True)
        export = export_shards if arguments.shards else export_file
        export(cfg, arguments, model, splits[arguments.split])


def check_output(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Raise `UserError` for an output that cannot be written."""
    inputs = [arguments.config_file, *arguments.inputs(cfg)]
    if not arguments.shards:
        if arguments.dtype != "float32":
            raise UserError(f"--dtype is {arguments.dtype}, but only shards can have it; give --shards too.")
        check_output_file(arguments.output, ".npz", arguments.overwrite, inputs)
    else:
        check_apart(f"The output {arguments.output}", arguments.output, inputs)
        if arguments.output.exists():
            check_own(arguments.output)


def export_file(cfg: CfgNode, arguments: argparse.Namespace, model: DeMo, samples: Sequence[Sample]) -> None:
    """Write the features of all samples as one file."""
    loader = test_loader(cfg, distributed.shard_for_rank(samples))
    features = chosen(cfg, arguments, extract_features(cfg, model, loader, total=len(samples)))
    if not distributed.is_main():
        return
    recorded = about(cfg) | origin_in(cfg, arguments)
    recorded["configuration"] = json.dumps(recorded["configuration"])
    # An open file, because numpy would add .npz to a name.
    with atomic_write(arguments.output) as temporary, open(temporary, "wb") as file:
        np.savez(file, features=features.numpy(), ids=np.array([sample.identity for sample in samples]),
                 cams=np.array([sample.camera for sample in samples]), scenes=np.array([sample.scene for sample in samples]),
                 paths=np.array([sample.paths for sample in samples]), **recorded)
    print_lines(f"Wrote {features.shape[0]} features of {features.shape[1]} numbers to {arguments.output}")


def export_shards(cfg: CfgNode, arguments: argparse.Namespace, model: DeMo, samples: Sequence[Sample]) -> None:
    """Write the features in shards, those alone that are not complete."""
    folder, slices = arguments.output, parts(len(samples), arguments.shards)
    # Samples are seen once, so that caching their images is of no use.
    settings = with_values(cfg, {"DATASETS.CACHE": "no"})
    with reserved(folder):
        origin, records = distributed.broadcast_from_main(lambda: find(cfg, arguments, samples))
        missing = [number for number, record in enumerate(records) if record is None]
        own = {}
        for number in progress(missing[distributed.rank()::distributed.world_size()], "exporting", unit="shard"):
            part = samples[slices[number]]
            features = chosen(cfg, arguments, extract_features(settings, model, test_loader(settings, part)))
            own[number] = write_shard(folder, number, in_dtype(features, arguments.dtype).numpy(), part, origin)
        written = {number: record for part in distributed.all_gather_object(own) for number, record in part.items()}
        records = [record or written[number] for number, record in enumerate(records)]
        if distributed.is_main():
            write_manifest(folder, origin, about(cfg), records)
    if distributed.is_main():
        print_lines(f"Wrote {len(missing)} shards to {folder}, {len(records) - len(missing)} were there: {len(samples)} "
                    f"features of {records[0]['width']} numbers, {arguments.dtype}")


def chosen(cfg: CfgNode, arguments: argparse.Namespace, cases: list[dict[int, torch.Tensor]]) -> torch.Tensor:
    """The features that are to be written (n, D) float32, of those by case and return pattern."""
    features = cases[0][arguments.return_pattern]
    return normalise(cfg, features) if arguments.normalise else features


def in_dtype(features: torch.Tensor, dtype: str) -> torch.Tensor:
    """Features (n, D) as written. Raises `UserError` where they do not fit."""
    found = features.to(DTYPES[dtype])
    if not found.isfinite().all():
        raise UserError(f"Features are up to {features.abs().max():.3g}, more than {dtype} holds; pass --normalise, or --dtype "
                        "float32.")
    return found


def find(cfg: CfgNode, arguments: argparse.Namespace, samples: Sequence[Sample]) -> tuple[dict[str, Any], list]:
    """What the features depend on, and the records of the shards that are complete, None for others. Raises `UserError`."""
    origin = {**origin_in(cfg, arguments), "dtype": arguments.dtype, "rows": len(samples), "shard_rows": arguments.shards,
              "samples_sha256": samples_digest(samples)}
    if arguments.overwrite:
        remove_shards(arguments.output)
    return origin, find_shards(arguments.output, origin, len(parts(len(samples), arguments.shards)))


def origin_in(cfg: CfgNode, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the features depend on, but for the images, as a file and shards record it."""
    weights, _, *configuration = origin_of(cfg, arguments.return_pattern).items()
    return {"checkpoint_sha256": weights[1], "return_pattern": arguments.return_pattern, "split": arguments.split,
            "normalised": arguments.normalise and cfg.TEST.FEAT_NORM == "yes",
            "configuration": {**dict(configuration), "TEST.MISS": cfg.TEST.MISS}}


def about(cfg: CfgNode) -> dict[str, str]:
    """What else a file and shards record."""
    return {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES}


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Inside, no other export uses the folder; the main process alone holds its lock. Raises `UserError`."""
    if distributed.is_main():
        with locked(folder / LOCK, f"The output {folder}"):
            yield
    else:
        yield


if __name__ == "__main__":
    run(main)
