"""Write the features of a split as numpy arrays: python tools/export_features.py --weight W --output X.npz"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import numpy as np

from demo_sdtps.config import RETURN_PATTERNS
from demo_sdtps.config.cli import add_output, config_parser, parse, run
from demo_sdtps.config.files import atomic_write, sha256
from demo_sdtps.config.printing import print_lines
from demo_sdtps.datasets import SPLITS
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.engine.checkpoint import weight_flag
from demo_sdtps.engine.evaluation.extraction import extract_features
from demo_sdtps.engine.evaluation.protocol import normalise
from demo_sdtps.engine.load import load_model_and_data


def main() -> None:
    parser = config_parser("Write the features of a split to an .npz file: features (n, D) float32; ids, cams and scenes (n,), "
                           "identities as named on disk, cameras from 0, scenes 0 where there are none; paths (n, 3) in the "
                           "order RGB, NI, TI, or (n, 1) where one image holds the three side by side; and, as single "
                           "values, return_pattern, split, checkpoint (its path), checkpoint_sha256 (of its content) and "
                           "normalised (whether the features are).", checkpoint=weight_flag())
    parser.add_argument("--return_pattern", type=int, choices=RETURN_PATTERNS, default=3,
                        help="1 original, 2 enhanced, 3 both (default: 3)")
    parser.add_argument("--split", choices=SPLITS, default="gallery", help="default: gallery")
    add_output(parser, "--output", ".npz", required=True, help="the file to write")
    parser.add_argument("--normalise", action="store_true", help="L2-normalise the features, as evaluation does")
    arguments, cfg = parse(parser)
    model, splits = load_model_and_data(cfg, (arguments.split,))
    samples = splits[arguments.split]
    (patterns,) = extract_features(cfg, model, test_loader(cfg, samples))
    features = patterns[arguments.return_pattern]
    if arguments.normalise:
        features = normalise(cfg, features)
    # An open file, because numpy would add .npz to a name.
    with atomic_write(arguments.output) as temporary, open(temporary, "wb") as file:
        np.savez(file, features=features.numpy(), ids=np.array([sample.identity for sample in samples]),
                 cams=np.array([sample.camera for sample in samples]), scenes=np.array([sample.scene for sample in samples]),
                 paths=np.array([sample.paths for sample in samples]), return_pattern=arguments.return_pattern,
                 split=arguments.split, checkpoint=cfg.TEST.WEIGHT, checkpoint_sha256=sha256(cfg.TEST.WEIGHT),
                 normalised=arguments.normalise and cfg.TEST.FEAT_NORM == "yes")
    print_lines(f"Wrote {features.shape[0]} features of {features.shape[1]} numbers to {arguments.output}")


if __name__ == "__main__":
    run(main)
