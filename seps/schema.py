"""Configuration keys of SEPS (docs/seps.md). A key that re-identification has too keeps its name and, where it means the same,
its row."""

from demo_sdtps.config.keys import (
    BELOW_ONE,
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

SHARED_KEYS = (
    *("OUTPUT_DIR", "RESUME", "MODEL.DEVICE", "MODEL.DEVICE_ID"),
    *("MODEL.PRETRAIN_PATH_T", "MODEL.PATCH_SIZE"),
    *("MODEL.SDTPS_SPARSE_RATIO", "MODEL.SDTPS_AGGR_RATIO", "MODEL.SDTPS_BETA"),
    *("MODEL.SDTPS_USE_GUMBEL", "MODEL.SDTPS_GUMBEL_TAU"),
    *("INPUT.PROB", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"),
    *("DATASETS.ROOT_DIR", "DATASETS.CACHE", "DATALOADER.NUM_WORKERS", "DATALOADER.TIMEOUT"),
    *("SOLVER.SEED", "SOLVER.AMP", "SOLVER.EVAL_PERIOD", "SOLVER.LOG_PERIOD"),
    *("SOLVER.CHECKPOINT_PERIOD", "TEST.WEIGHT"),
)
WIDTH = between(1, 8192)
WORDS = Values(lambda value: value >= 3, "3 or greater, since two tokens are special")

ROWS: tuple[tuple, ...] = (
    (
        "MODEL.TRANSFORMER_TYPE",
        "vit_base_patch16_224",
        "image tower: a Vision Transformer of timm with at most one class token, or a Swin Transformer such as "
        "swin_base_patch4_window7_224",
    ),
    (
        "MODEL.TEXT_TOWER",
        "bert-base-uncased",
        "text tower: a folder with a BERT of transformers and its tokenizer, or a name on the Hugging Face hub",
    ),
    ("MODEL.EMBED_SIZE", 512, "width of the joint embedding of patches and words", WIDTH),
    ("MODEL.PAPER_VERSION", True, "network of the paper; False: network of the published code"),
    ("MODEL.DUAL_AGGR", True, "aggregate by caption and long caption together (paper version)"),
    (
        "MODEL.TOP_K",
        5,
        "number of largest maxima of words and of tokens in the MLP of the paper version",
        WIDTH,
    ),
    ("MODEL.DROP_PATH", 0.0, "stochastic depth of the last block of the image tower", BELOW_ONE),
    ("INPUT.SIZE", [224, 224], "[height, width] of the images", SIZE),
    (
        "INPUT.MIN_CROP",
        0.6,
        "least share of the area in a random crop of 3:4 to 4:3; 1: the whole image, or the middle of a longer one",
        RATIO,
    ),
    ("INPUT.MAX_WORDS", 64, "tokens to which a caption is truncated, special ones too", WORDS),
    ("INPUT.MAX_LONG_WORDS", 256, "tokens of a long caption, likewise", WORDS),
    ("DATASETS.NAMES", "f30k", "data set: the name of its folder, such as f30k, coco or shapes"),
    (
        "DATASETS.LONG_CAPTIONS",
        "auto",
        "use long captions: yes, no, or auto (where the data set has them)",
        ("auto", "yes", "no"),
    ),
    ("SOLVER.OPTIMIZER_NAME", "AdamW", "the optimiser; SEPS has no other", ("AdamW",)),
    ("SOLVER.MAX_EPOCHS", 30, "epochs of training", POSITIVE),
    ("SOLVER.IMS_PER_BATCH", 128, "captions, each with its image, per training batch", POSITIVE),
    ("SOLVER.BASE_LR", 2e-4, "learning rate", POSITIVE),
    (
        "SOLVER.STEPS",
        (9, 15, 20, 25),
        "epochs, counted from 0, before which the learning rates are multiplied by GAMMA",
        Values(
            lambda steps: all(type(step) is int and step > 0 for step in steps), "epochs above 0"
        ),
    ),
    ("SOLVER.GAMMA", 0.3, "factor of the learning rates at each of STEPS", POSITIVE),
    ("SOLVER.WEIGHT_DECAY", 0.01, "weight decay", NOT_NEGATIVE),
    ("SOLVER.GRAD_CLIP", 2.0, "norm to which larger gradients are clipped", POSITIVE),
    (
        "SOLVER.ALL_NEGATIVES_EPOCHS",
        1,
        "number of first epochs with all negatives; then the loss takes the hardest of each image and caption",
        NOT_NEGATIVE,
    ),
    ("SOLVER.MARGIN", 0.2, "margin of the contrastive loss", NOT_NEGATIVE),
    ("SOLVER.RATIO_WEIGHT", 2.0, "weight of the ratio loss", NOT_NEGATIVE),
    ("SOLVER.TARGET_RATIO", 0.5, "target share of kept patches of the ratio loss", RATIO),
    ("SOLVER.LAMBDA_SPARSE", 1.0, "weight of captions in the ratio loss", NOT_NEGATIVE),
    ("SOLVER.LAMBDA_DENSE", 1.0, "weight of long captions in the ratio loss", NOT_NEGATIVE),
    ("TEST.IMS_PER_BATCH", 128, "images or captions per evaluation batch", POSITIVE),
    ("TEST.SPLIT", "test", "split that seps test evaluates", ("train", "dev", "test")),
    ("TEST.FOLDS", 1, "equal parts of the split, scored apart and averaged", POSITIVE),
)
KEYS = (
    *(DEMO_SCHEMA.by_name[name] for name in SHARED_KEYS),
    *(Key(*row) for row in ROWS),
)

SEPS_SCHEMA = Schema({key.name: key for key in KEYS}, lambda cfg: None)
