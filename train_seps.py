"""Train SEPS, image-text matching: python train_seps.py --config_file configs/SEPS/flickr30k.yml [KEY VALUE …]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import demo_sdtps.script  # noqa: F401

import logging

from yacs.config import CfgNode

from demo_sdtps.config.cli import add_overwrite, config_parser, parse, run
from demo_sdtps.config.load import flat
from demo_sdtps.config.printing import print_lines
from demo_sdtps.engine.coordination import check_agreement, ending_together, fetched, once_per_machine, read_once
from demo_sdtps.engine.distributed import check_shares, is_main, processes, share
from demo_sdtps.engine.load import same_device
from demo_sdtps.engine.run.data import check_data
from demo_sdtps.engine.run.folder import REPLACE_RUN, locked_output, run_folder
from demo_sdtps.engine.run.record import mark_finished, restore_threads
from demo_sdtps.engine.run.resume import find_run
from demo_sdtps.engine.run.state import sampler_of
from demo_sdtps.engine.run.tracking import check_tracking
from demo_sdtps.engine.runtime import set_seed
from demo_sdtps.seps.captions import caption_loader
from demo_sdtps.seps.evaluation import data_folders, data_warnings, make_retrieval_data, read_caption_splits
from demo_sdtps.seps.model import make_seps
from demo_sdtps.seps.schema import SEPS_SCHEMA
from demo_sdtps.seps.towers import load_tokenizer
from demo_sdtps.seps.training import SEPSTrainer, data_texts

logger = logging.getLogger("train_seps")


def main() -> None:
    parser = config_parser(
        "Train SEPS on images with captions and evaluate it as it learns. OUTPUT_DIR receives config.yml, run.json (seed, "
        "commit, versions), metrics.json, log.txt, TensorBoard scalars, last.pth and best.pth. RESUME auto continues it.",
        "example: python train_seps.py --config_file configs/SEPS/shapes.yml SOLVER.MAX_EPOCHS 10", SEPS_SCHEMA)
    add_overwrite(parser, REPLACE_RUN)
    with processes():
        with ending_together():
            arguments, cfg = parse(parser)
            check_shares(cfg, cfg.SOLVER.IMS_PER_BATCH, "captions")
        with locked_output(cfg, data_folders(cfg)):
            train_run(cfg, arguments.overwrite)


def train_run(cfg: CfgNode, overwrite: bool) -> None:
    """Start or resume the run of `cfg`, in each of the connected processes."""
    check_agreement({**flat(cfg, SEPS_SCHEMA), "--overwrite": overwrite}, "start all of them with the same configuration")
    device = same_device(cfg)
    resumed = once_per_machine(lambda: find_run(cfg, overwrite, SEPS_SCHEMA))
    check_agreement({"what OUTPUT_DIR holds": resumed.progress if resumed else "no run"}, "let them see the same folder")
    if resumed and resumed.is_finished(cfg):
        if is_main():
            mark_finished(resumed)
            print_lines(resumed.all_done)
        return
    if resumed:
        restore_threads(resumed.path.parent)
    with ending_together():
        check_tracking(cfg)
        splits = read_caption_splits(cfg)
    tokenizer = fetched(lambda: load_tokenizer(cfg))
    set_seed(cfg.SOLVER.SEED)
    model, report = read_once(lambda is_reading: make_seps(cfg, pretrained=is_reading and not resumed))
    with ending_together():
        loader = caption_loader(cfg, splits["train"], tokenizer)
        dev = make_retrieval_data(cfg, splits["dev"], tokenizer)
        test = make_retrieval_data(cfg, splits["test"], tokenizer, cfg.TEST.FOLDS)
    sampler_of(loader).share = share
    files = {f"{name} images": split.paths for name, split in splits.items()}
    data = check_data(cfg, resumed, loader, files, data_texts(splits, {"train": loader, "dev": dev, "test": test}))

    # Nothing is written or replaced before the input has been checked.
    with run_folder(cfg, device, resumed) as output:
        sizes = (f"{len(split.captions)} captions of {len(split.paths)} images to {name}" for name, split in splits.items())
        logger.info("%s: %s, %s long captions", cfg.DATASETS.NAMES, ", ".join(sizes),
                    "with" if splits["train"].long_captions else "without")
        logger.info(data.report)
        for warning in (*data.warnings, *data_warnings(splits)):
            logger.warning(warning)
        logger.info(f"the weights are those of {resumed.path}" if resumed else report)
        SEPSTrainer(cfg, model.to(device), loader, dev, test, data.fingerprint).run(output, resumed)


if __name__ == "__main__":
    run(main)
