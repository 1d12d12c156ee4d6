"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""
import logging
from pathlib import Path

from config import UserError
from config.cli import config_parser, parse, run
from datasets import identity_labels, read_splits
from datasets.loaders import train_loader
from datasets.pictures import verify
from engine.evaluate import make_test_data
from engine.record import RECORD, recorded
from engine.runtime import choose_device, compile_model, log_to, set_seed
from engine.train import BEST, CONFIG, LAST, METRICS, train
from modeling import make_model
from modeling.pretrained import load_pretrained

RESULTS = (METRICS, LAST, BEST)

logger = logging.getLogger("train_net")


def main() -> None:
    parser = config_parser(
        "Train a model and evaluate it as it learns. OUTPUT_DIR receives config.yml, run.json (seed, commit, versions), "
        "metrics.json, log.txt, TensorBoard scalars, last.pth and best.pth.",
        "example: python train_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml SOLVER.MAX_EPOCHS 10")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in OUTPUT_DIR")
    arguments, cfg = parse(parser)

    device = choose_device(cfg)
    check_output(Path(cfg.OUTPUT_DIR), arguments.overwrite)
    splits = read_splits(cfg)
    samples = [sample for split in splits.values() for sample in split]
    if cfg.DATASETS.VERIFY:
        verify(samples)
    set_seed(cfg.SOLVER.SEED)
    model = make_model(cfg, len(identity_labels(splits["train"])), 1 + max(sample.camera for sample in samples))
    report = load_pretrained(model.trunk, cfg.MODEL.TRANSFORMER_TYPE, cfg.MODEL.PRETRAIN_PATH_T)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    loader = train_loader(cfg, splits["train"])
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])

    # Only now, with the input checked, is anything written or replaced.
    output = make_output(Path(cfg.OUTPUT_DIR))
    (output / CONFIG).write_text(cfg.dump(), encoding="utf-8")
    with log_to(output), recorded(output, cfg, device):
        logger.info("%s: %s", cfg.DATASETS.NAMES, ", ".join(f"{len(found)} {split}" for split, found in splits.items()))
        logger.info(report)
        train(cfg, model.to(device), loader, test_data, output)
        logger.info("the run is in %s", output)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise `UserError` where the folder holds a run that must not be lost."""
    earlier = [name for name in RESULTS if (output / name).exists()]
    if earlier and not overwrite:
        raise UserError(f"OUTPUT_DIR {output} already holds a run ({earlier[0]}); choose another OUTPUT_DIR or pass "
                        "--overwrite to replace it.")


def make_output(output: Path) -> Path:
    """The run's folder, without the files of an earlier run. Raises `UserError` where it cannot be made."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in (*RESULTS, CONFIG, RECORD, "log.txt", "events.out.tfevents.*"):
            for file in output.glob(name):
                file.unlink()
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another.") from None
    return output


if __name__ == "__main__":
    run(main)
