"""A trained SEPS and the split to evaluate, for the commands after training."""
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.engine.checkpoint import fill_model, read_weights_file
from demo_sdtps.engine.distributed import check_single
from demo_sdtps.engine.runtime import choose_device, set_seed
from demo_sdtps.seps.evaluation import RetrievalData, make_retrieval_data, read_caption_splits
from demo_sdtps.seps.model import SEPS, make_seps
from demo_sdtps.seps.towers import load_tokenizer

EXAMPLE = "runs/SEPS/flickr30k/best.pth"


def load_seps_and_data(cfg: CfgNode) -> tuple[SEPS, RetrievalData]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the data of TEST.SPLIT.

    The data set may differ from the one of training. Only the tokenizer and the configuration of MODEL.TEXT_TOWER are read, not
    its weights. Raises `UserError` for weights, a tower or data that are missing or do not fit.
    """
    check_single("an evaluation")
    if not cfg.TEST.WEIGHT:
        raise UserError(f"No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint such as {EXAMPLE}.")
    set_seed(cfg.SOLVER.SEED)
    device = choose_device(cfg)
    path = Path(cfg.TEST.WEIGHT)
    weights, _ = read_weights_file(path, EXAMPLE)
    split = read_caption_splits(cfg, (cfg.TEST.SPLIT,))[cfg.TEST.SPLIT]
    tokenizer = load_tokenizer(cfg)
    model, _ = make_seps(cfg, pretrained=False)
    if not weights.keys() & model.state_dict().keys():
        raise UserError(f"The file {path} holds no weights of SEPS (none of its {len(weights)} tensors has one of its names); "
                        "give a checkpoint that train_seps.py wrote.")
    fill_model(model, weights, path)
    return model.eval().to(device), make_retrieval_data(cfg, split, tokenizer, cfg.TEST.FOLDS)
