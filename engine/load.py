"""A trained model from a configuration and its TEST.WEIGHT: what every command after training begins with."""
from yacs.config import CfgNode

from config import UserError
from engine.checkpoint import load_weights, read_checkpoint
from engine.runtime import choose_device, set_seed
from modeling import DeMo, make_model


def load_model(cfg: CfgNode) -> DeMo:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device.

    The numbers of identities and cameras come from the checkpoint, so the training split is not needed. Raises
    `UserError` for weights that are missing or do not fit.
    """
    if not cfg.TEST.WEIGHT:
        raise UserError("No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint such as "
                        "runs/RGBNT201/DeMo_SDTPS/best.pth.")
    set_seed(cfg.SOLVER.SEED)
    device = choose_device(cfg)
    checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(cfg, model, checkpoint)
    return model.eval().to(device)
