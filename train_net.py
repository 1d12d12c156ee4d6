"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import demo_sdtps.script  # noqa: F401

import argparse
import logging

from yacs.config import CfgNode

from demo_sdtps.config.cli import add_overwrite, config_parser, parse, run
from demo_sdtps.config.load import flat
from demo_sdtps.config.printing import print_lines
from demo_sdtps.datasets import data_folders, identity_labels, read_splits
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import train_loader
from demo_sdtps.engine.coordination import check_agreement, ending_together, once_per_machine, read_once
from demo_sdtps.engine.distributed import check_launch, is_main, processes, share
from demo_sdtps.engine.evaluation.protocol import data_warnings, make_test_data
from demo_sdtps.engine.load import same_device
from demo_sdtps.engine.reid import ReIDTrainer, data_files
from demo_sdtps.engine.run.data import check_data
from demo_sdtps.engine.run.folder import REPLACE_RUN, locked_output, run_folder
from demo_sdtps.engine.run.record import mark_finished, restore_threads
from demo_sdtps.engine.run.resume import find_run
from demo_sdtps.engine.run.state import sampler_of
from demo_sdtps.engine.run.tracking import check_tracking
from demo_sdtps.engine.runtime import compile_model, set_seed
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.pretrained import load_pretrained

logger = logging.getLogger("train_net")


def main() -> None:
    parser = config_parser(
        "Train a model and evaluate it as it learns. OUTPUT_DIR receives config.yml, run.json (seed, commit, versions), "
        "metrics.json, log.txt, TensorBoard scalars, last.pth and best.pth. RESUME auto continues it.",
        "example: python train_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml SOLVER.MAX_EPOCHS 10")
    add_overwrite(parser, REPLACE_RUN)
    # Passed by old versions of torch.distributed.launch; the environment has it too.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    with processes():
        with ending_together():
            arguments, cfg = parse(parser)
            check_launch(cfg)
            missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for test_net.py
        with locked_output(cfg, data_folders(cfg)):
            train_run(cfg, arguments.overwrite)


def train_run(cfg: CfgNode, overwrite: bool) -> None:
    """Start or resume the run of `cfg`, in each of the connected processes."""
    check_agreement({**flat(cfg), "--overwrite": overwrite}, "start all of them with the same configuration")
    device = same_device(cfg)
    resumed = once_per_machine(lambda: find_run(cfg, overwrite))
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
        splits = read_splits(cfg)
        samples = [sample for split in splits.values() for sample in split]
        if cfg.DATASETS.VERIFY:
            verify(samples)
        set_seed(cfg.SOLVER.SEED)
        model = make_model(cfg, len(identity_labels(splits["train"])), 1 + max(sample.camera for sample in samples))
        loader = train_loader(cfg, splits["train"])
        test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    sampler_of(loader).share = share
    data = check_data(cfg, resumed, loader, data_files(cfg, splits))

    def pretrained(is_reading: bool) -> tuple[DeMo, str]:
        source = cfg.MODEL.PRETRAIN_PATH_T
        return model, load_pretrained(model.backbone, cfg.MODEL.TRANSFORMER_TYPE, source) if is_reading else ""

    report = f"the weights are those of {resumed.path}" if resumed else read_once(pretrained)[1]
    with ending_together():
        if cfg.MODEL.COMPILE:
            compile_model(model, device)

    # Nothing is written or replaced before the input has been checked.
    with run_folder(cfg, device, resumed) as output:
        logger.info("%s: %s", cfg.DATASETS.NAMES, ", ".join(f"{len(found)} {split}" for split, found in splits.items()))
        logger.info(data.report)
        for warning in (*data.warnings, *data_warnings(cfg, splits, test_data.matched)):
            logger.warning(warning)
        logger.info(report)
        ReIDTrainer(cfg, model.to(device), loader, test_data, data.fingerprint).run(output, resumed)


if __name__ == "__main__":
    run(main)
