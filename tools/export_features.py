"""Write the features of a split as numpy arrays: python tools/export_features.py --weight W --output X.npz"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import add_overwrite, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import SPLITS, Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.command import load_model_and_data, weight_flag
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.modeling import DeMo
from demo_sdtps.retrieval.feature_sets import LABELS, columns_of, samples_digest
from demo_sdtps.retrieval.gallery import origin_of
from demo_sdtps.retrieval.store import LOCK, SUFFIX, Store, check_origin, check_own, open_store
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.files import atomic_write, check_output_file, locked
from demo_sdtps.runtime.progress import progress

SHARD_ROWS = 8192  # 50 MB of float32 features of width 1,536
ANEW = "choose another folder, or pass --overwrite to export all of them anew"
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
                        help=f"write a folder of shards of N rows (default: {SHARD_ROWS}), one at a time")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the features in shards (default: float32)")
    parser.add_argument("--normalise", action="store_true", help="L2-normalise the features, as evaluation does")
    add_overwrite(parser, "replace an output that exists, which is refused otherwise; shards are all exported anew")
    with distributed.init_distributed():
        arguments, own = parse(parser)
        cfg = distributed.broadcast_from_main(lambda: own)
        check_output(arguments)
        model, splits = load_model_and_data(cfg, (arguments.split,), several=True)
        export = export_shards if arguments.shards else export_file
        export(cfg, arguments, model, splits[arguments.split])


def check_output(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for an output that cannot be written."""
    if arguments.shards:
        check_own(arguments.output)
        return
    if arguments.dtype != "float32":
        raise UserError(f"--dtype is {arguments.dtype}, but only shards can have it; give --shards too.")
    check_output_file(arguments.output, ".npz", arguments.overwrite)


def export_file(cfg: CfgNode, arguments: argparse.Namespace, model: DeMo, samples: Sequence[Sample]) -> None:
    """Write the features of all samples as one file."""
    loader = test_loader(cfg, distributed.shard_for_rank(samples))
    features = chosen(cfg, arguments, extract_features(cfg, model, loader, total=len(samples)))
    if not distributed.is_main():
        return
    recorded: dict[str, Any] = about(cfg) | origin_in(cfg, arguments)
    recorded["configuration"] = json.dumps(recorded["configuration"])
    # An open file, because numpy would add .npz to a name.
    with atomic_write(arguments.output) as temporary, open(temporary, "wb") as file:
        recorded |= {name: np.array([getattr(sample, label) for sample in samples]) for name, label in LABELS.items()}
        paths = np.array([[path or "" for path in sample.paths] for sample in samples])
        np.savez(file, features=features.numpy(), paths=paths, **recorded)
    print_lines(f"Wrote {features.shape[0]} features of {features.shape[1]} numbers to {arguments.output}")


def export_shards(cfg: CfgNode, arguments: argparse.Namespace, model: DeMo, samples: Sequence[Sample]) -> None:
    """Write the features in shards, those alone that are not there yet. Each of several processes writes some of them."""
    folder, rows = arguments.output, arguments.shards
    origin = {**origin_in(cfg, arguments), "dtype": arguments.dtype, "rows": len(samples), "shard_rows": rows,
              "samples_sha256": samples_digest(samples)}
    parts = {f"shard-{number:05}{SUFFIX}": samples[start:start + rows]
             for number, start in enumerate(range(0, len(samples), rows))}
    store = Store(folder, origin, "run the export again; several nodes need a folder that they share", about(cfg))
    settings = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once
    with ExitStack() as stack:
        if distributed.is_main():
            stack.enter_context(locked(folder / LOCK, f"The output {folder}"))
            begin(store, parts, arguments.overwrite)
        done = distributed.broadcast_from_main(lambda: store.shards)
        missing = [shard for shard in parts if shard not in done]
        for shard in progress(missing[distributed.rank()::distributed.world_size()], "exporting", unit="shard"):
            features = chosen(cfg, arguments, extract_features(settings, model, test_loader(settings, parts[shard])))
            features = in_dtype(features, arguments.dtype)
            store.write(shard, features.numpy(), columns_of(parts[shard]))
        distributed.all_gather_object(None)
        if distributed.is_main():
            store.shards = list(parts)
            width = store.features().width  # where a shard is missing, nodes do not share the folder
            store.commit()
            print_lines(f"Wrote {len(missing)} shards to {folder}, {len(done)} were there: {len(samples)} features of {width} "
                        f"numbers, {arguments.dtype}")


def begin(store: Store, parts: Mapping[str, Sequence[Sample]], overwrite: bool) -> None:
    """Begin a store, or continue one with the same origin, with those of its shards that are whole. Raises `UserError`."""
    found = None if overwrite else open_store(store.folder, ANEW)
    if found:
        check_origin(found, store.origin)
        store.shards = [shard for shard, part in parts.items() if is_whole(found, shard, len(part))]
    store.commit()


def is_whole(store: Store, shard: str, rows: int) -> bool:
    try:
        return store.shape(shard)[0] == rows
    except UserError:
        return False


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


def origin_in(cfg: CfgNode, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the features depend on, but for the images, as a file and shards record it."""
    origin = origin_of(cfg, arguments.return_pattern)
    return {**origin, "split": arguments.split, "normalised": arguments.normalise and cfg.TEST.FEAT_NORM == "yes",
            "configuration": origin["configuration"] | {"TEST.MISS": cfg.TEST.MISS}}


def about(cfg: CfgNode) -> dict[str, str]:
    """What else a file and shards record."""
    return {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES}


if __name__ == "__main__":
    run(main)
