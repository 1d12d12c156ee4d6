"""Configuration keys of SEPS (docs/seps.md). A key that re-identification has too keeps its name and, where it means the same,
its row."""

from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config.common import RANDOM_WEIGHTS
from demo_sdtps.config.keys import (
    DEMO_SCHEMA,
    NOT_NEGATIVE,
    POSITIVE,
    RATIO,
    SIZE,
    Key,
    Schema,
    Values,
    between,
)
from demo_sdtps.runtime.errors import UserError, nearest_name

SHARED_KEYS = (
    *("OUTPUT_DIR", "RESUME", "MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.PATCH_SIZE"),
    *("MODEL.SDTPS_SPARSE_RATIO", "MODEL.SDTPS_AGGR_RATIO", "MODEL.SDTPS_BETA"),
    *("MODEL.SDTPS_USE_GUMBEL", "MODEL.SDTPS_GUMBEL_TAU"),
    *("INPUT.PROB", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"),
    *("DATASETS.ROOT_DIR", "DATASETS.CACHE", "DATALOADER.NUM_WORKERS", "DATALOADER.TIMEOUT"),
    *("SOLVER.SEED", "SOLVER.AMP", "SOLVER.EVAL_PERIOD", "SOLVER.LOG_PERIOD"),
    *("SOLVER.CHECKPOINT_PERIOD", "TEST.WEIGHT"),
)
CHANGED_KEYS: dict[str, dict[str, Any]] = {
    "MODEL.DROP_PATH": {"default": 0.0},
    "MODEL.PRETRAIN_PATH_T": {
        "description": "weights of the image tower: a file, 'hub' (timm downloads them), or 'none' (random; '' too, with a "
        "warning)"
    },
    "SOLVER.MAX_EPOCHS": {"default": 30},
    "SOLVER.BASE_LR": {
        "default": 2e-4,
        "description": "learning rate of everything but the towers",
    },
    "SOLVER.WEIGHT_DECAY": {"default": 0.01},
}
"""What differs from the row of re-identification."""
WORDS = Values(lambda value: value >= 3, "3 or greater, since two tokens are special")


def _are_steps(value) -> bool:
    are_epochs = all(type(epoch) is int and epoch > 0 for epoch in value)
    return are_epochs and list(value) == sorted(set(value))


KEYS = (
    *(DEMO_SCHEMA.by_name[name] for name in SHARED_KEYS),
    *(DEMO_SCHEMA.by_name[name]._replace(**changed) for name, changed in CHANGED_KEYS.items()),
    Key(
        "MODEL.TRANSFORMER_TYPE",
        "vit_base_patch16_224",
        "image tower: a Vision Transformer of timm with at most one class token, or a Swin Transformer such as "
        "swin_base_patch4_window7_224",
    ),
    Key(
        "MODEL.TEXT_TOWER",
        "bert-base-uncased",
        "text tower: a folder with a BERT of transformers and its tokenizer, or a name on the Hugging Face hub",
    ),
    Key(
        "MODEL.EMBED_SIZE",
        512,
        "width of the joint embedding of patches and words",
        between(1, 8192),
    ),
    Key("MODEL.PAPER_VERSION", True, "network of the paper; False: network of the published code"),
    Key("MODEL.DUAL_AGGR", True, "aggregate by caption and long caption together (paper version)"),
    Key(
        "MODEL.TOP_K",
        5,
        "number of largest maxima of words and of tokens in the MLP of the paper version",
        between(1, 4096),
    ),
    Key("INPUT.SIZE", [224, 224], "[height, width] of the images", SIZE),
    Key(
        "INPUT.MIN_CROP",
        0.6,
        "least share of the area in a random crop of 3:4 to 4:3; 1: the whole image, or the middle of a longer one",
        RATIO,
    ),
    Key("INPUT.MAX_WORDS", 64, "tokens to which a caption is truncated, special ones too", WORDS),
    Key("INPUT.MAX_LONG_WORDS", 256, "tokens of a long caption, likewise", WORDS),
    Key("DATASETS.NAMES", "f30k", "data set: the name of its folder, such as f30k, coco or shapes"),
    Key(
        "DATASETS.LONG_CAPTIONS",
        "auto",
        "use long captions: yes, no, or auto (where the data set has them)",
        ("auto", "yes", "no"),
    ),
    Key("SOLVER.OPTIMIZER_NAME", "AdamW", "the optimiser; SEPS has no other", ("AdamW",)),
    Key(
        "SOLVER.IMS_PER_BATCH",
        128,
        "captions, each with its image, per training batch",
        Values(
            lambda value: value >= 2, "2 or greater, since every caption needs a negative image"
        ),
    ),
    Key("SOLVER.TOWER_LR_FACTOR", 1.0, "learning rate of the towers over BASE_LR", POSITIVE),
    Key(
        "SOLVER.STEPS",
        (9, 15, 20, 25),
        "epochs, counted from 0, before which the learning rates are multiplied by GAMMA",
        Values(_are_steps, "strictly increasing whole numbers above 0"),
    ),
    Key("SOLVER.GAMMA", 0.3, "factor of the learning rates at each of STEPS", POSITIVE),
    Key("SOLVER.GRAD_CLIP", 2.0, "norm to which larger gradients are clipped", POSITIVE),
    Key(
        "SOLVER.ALL_NEGATIVES_EPOCHS",
        1,
        "number of first epochs with all negatives; then the loss takes the hardest of each image and caption",
        NOT_NEGATIVE,
    ),
    Key("SOLVER.MARGIN", 0.2, "margin of the contrastive loss", NOT_NEGATIVE),
    Key("SOLVER.RATIO_WEIGHT", 2.0, "weight of the ratio loss", NOT_NEGATIVE),
    Key("SOLVER.TARGET_RATIO", 0.5, "target share of kept patches of the ratio loss", RATIO),
    Key("SOLVER.LAMBDA_SPARSE", 1.0, "weight of captions in the ratio loss", NOT_NEGATIVE),
    Key("SOLVER.LAMBDA_DENSE", 1.0, "weight of long captions in the ratio loss", NOT_NEGATIVE),
    Key("TEST.IMS_PER_BATCH", 128, "images or captions per evaluation batch", POSITIVE),
    Key("TEST.SPLIT", "test", "split that seps test evaluates", ("train", "dev", "test")),
    Key("TEST.FOLDS", 1, "equal parts of the split, scored apart and averaged", POSITIVE),
)


def check_seps_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first invalid combination of values."""
    if cfg.MODEL.PATCH_SIZE and cfg.MODEL.PRETRAIN_PATH_T not in RANDOM_WEIGHTS:
        raise UserError(
            f"MODEL.PATCH_SIZE is {cfg.MODEL.PATCH_SIZE}, but pretrained weights have a patch size of their own; set it to 0, "
            "or MODEL.PRETRAIN_PATH_T to 'none'."
        )
    import timm  # slow to import

    name = cfg.MODEL.TRANSFORMER_TYPE
    if not timm.is_model(name):
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE is {name!r}, but must be a model of timm such as 'vit_base_patch16_224'"
            f"{nearest_name(name, timm.list_models())}."
        )


SEPS_SCHEMA = Schema({key.name: key for key in KEYS}, check_seps_cfg)
