"""A trained model and its data, for every command after training."""
from collections.abc import Sequence

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample, read_splits, reader_of
from demo_sdtps.engine.checkpoint import load_weights, read_checkpoint
from demo_sdtps.engine.distributed import check_single
from demo_sdtps.engine.runtime import choose_device, compile_model, set_seed
from demo_sdtps.modeling import DeMo, make_model


def load_model_and_data(cfg: CfgNode, splits: Sequence[str] = ("query", "gallery")) -> tuple[DeMo, dict[str, list[Sample]]]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the samples by split.

    The numbers of identities and cameras come from the checkpoint, so the training split is not read. Raises `UserError` for
    weights or data that are missing or do not fit each other.
    """
    check_single("an evaluation")
    if not cfg.TEST.WEIGHT:
        raise UserError("No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint such as "
                        "runs/RGBNT201/DeMo_SDTPS/best.pth.")
    reader_of(cfg)
    set_seed(cfg.SOLVER.SEED)
    device = choose_device(cfg)
    checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(cfg, model, checkpoint)
    found = read_splits(cfg, splits)
    cameras = 1 + max(sample.camera for samples in found.values() for sample in samples)
    if model.backbone.camera_embedding is not None and cameras > len(model.backbone.camera_embedding):
        raise UserError(f"The weights {checkpoint.path} know {len(model.backbone.camera_embedding)} cameras, but "
                        f"{cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has {cameras}; use weights trained on this data.")
    model = model.eval().to(device)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    return model, found
