"""Every configuration key of SEPS, the image-text original (docs/seps.md): train_seps.py and test_seps.py.

A key that re-identification has too keeps its name, and its row where it means the very same.
"""
import difflib

from yacs.config import CfgNode

from demo_sdtps.config.check import check_device
from demo_sdtps.config.common import UserError
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.config.schema import NOT_NEGATIVE, POSITIVE, RATIO, SIZE, Key, Schema


def rising(value) -> bool:
    return all(type(epoch) is int and epoch > 0 for epoch in value) and list(value) == sorted(set(value))


def words(value) -> bool:
    return value >= 3


def _shared(name: str, **changed: object) -> Key:
    """A row of re-identification, with another default or description."""
    return DEMO_SCHEMA.by_name[name]._replace(**changed)


WORDS = (words, "3 or greater, as a caption begins and ends with a word of its own")

KEYS = (
    _shared("OUTPUT_DIR"),
    _shared("RESUME"),

    _shared("MODEL.DEVICE"),
    _shared("MODEL.DEVICE_ID"),
    Key("MODEL.TRANSFORMER_TYPE", "vit_base_patch16_224",
        "the image tower: a Vision Transformer of timm's with one class token or none, or a Swin Transformer such as "
        "swin_base_patch4_window7_224"),
    _shared("MODEL.PRETRAIN_PATH_T",
            description="weights of the image tower: a file, 'hub' (timm downloads them), or '' (random)"),
    _shared("MODEL.PATCH_SIZE",
            description="side of a patch in pixels for an image tower without pretrained weights; 0: the tower's own"),
    _shared("MODEL.DROP_PATH", default=0.0, description="stochastic depth of the image tower's last block, rising from 0"),
    Key("MODEL.TEXT_TOWER", "bert-base-uncased",
        "the text tower: a folder with a BERT of transformers' and its tokenizer, or a name that the Hugging Face hub knows"),
    Key("MODEL.EMBED_SIZE", 512, "width of the joint space of patches and words", *POSITIVE),
    Key("MODEL.PAPER_VERSION", True, "the network as the paper has it; False: as its code was published"),
    Key("MODEL.DUAL_AGGR", True, "aggregate the patches of the caption's and of the long caption's choice together; in the "
        "paper version alone"),
    Key("MODEL.TOP_K", 5, "best words and best tokens that the paper version's learned term of the similarity sees", *POSITIVE),
    _shared("MODEL.SDTPS_SPARSE_RATIO", description="share of the patches that are kept for a caption"),
    _shared("MODEL.SDTPS_AGGR_RATIO", description="share of the kept patches that remains after their aggregation"),
    _shared("MODEL.SDTPS_BETA"),
    _shared("MODEL.SDTPS_USE_GUMBEL"),
    _shared("MODEL.SDTPS_GUMBEL_TAU"),

    Key("INPUT.SIZE", [224, 224], "[height, width] of the images", *SIZE),
    _shared("INPUT.PROB"),
    Key("INPUT.MIN_CROP", 0.6, "least share of an image that a random crop keeps in training; 1: the whole", *RATIO),
    _shared("INPUT.PIXEL_MEAN"),
    _shared("INPUT.PIXEL_STD"),
    Key("INPUT.MAX_WORDS", 64, "word pieces of a caption, with those that mark its begin and end; a longer one is cut", *WORDS),
    Key("INPUT.MAX_LONG_WORDS", 256, "word pieces of a long caption, likewise", *WORDS),

    Key("DATASETS.NAMES", "f30k", "the data set: the name of its folder, such as f30k, coco or shapes"),
    _shared("DATASETS.ROOT_DIR"),
    Key("DATASETS.LONG_CAPTIONS", "auto", "long captions beside the captions: yes, no, or auto (where the data set has them)",
        ("auto", "yes", "no")),
    _shared("DATASETS.CACHE"),
    _shared("DATALOADER.NUM_WORKERS"),

    _shared("SOLVER.SEED"),
    Key("SOLVER.OPTIMIZER_NAME", "AdamW", "the optimiser", ("AdamW",), "SEPS is trained with no other"),
    _shared("SOLVER.MAX_EPOCHS", default=30),
    Key("SOLVER.IMS_PER_BATCH", 128, "captions, each with its image, per training batch",
        lambda value: value >= 2, "2 or greater, as every caption needs an image that is not its own"),
    _shared("SOLVER.BASE_LR", default=2e-4, description="learning rate of everything but the two towers"),
    Key("SOLVER.TOWER_LR_FACTOR", 1.0, "learning rate of the image and the text tower over BASE_LR", *POSITIVE),
    _shared("SOLVER.WEIGHT_DECAY", default=0.01),
    Key("SOLVER.STEPS", (9, 15, 20, 25), "epochs, counted from 0, before which the learning rates are multiplied by GAMMA",
        rising, "rising whole numbers above 0"),
    Key("SOLVER.GAMMA", 0.3, "what the learning rates are multiplied by at each of STEPS", *POSITIVE),
    Key("SOLVER.GRAD_CLIP", 2.0, "largest norm of the gradient of all parameters; a longer one is shortened to it", *POSITIVE),
    Key("SOLVER.ALL_NEGATIVES_EPOCHS", 1, "first epochs in which all pairs that do not belong together count; afterwards the "
        "hardest of each image and of each caption", *NOT_NEGATIVE),
    Key("SOLVER.MARGIN", 0.2, "margin of the contrastive loss", *NOT_NEGATIVE),
    Key("SOLVER.RATIO_WEIGHT", 2.0, "weight of the loss that holds the share of kept patches at TARGET_RATIO", *NOT_NEGATIVE),
    Key("SOLVER.TARGET_RATIO", 0.5, "the share of patches that this loss aims at", *RATIO),
    Key("SOLVER.LAMBDA_SPARSE", 1.0, "weight in it of the patches kept for captions", *NOT_NEGATIVE),
    Key("SOLVER.LAMBDA_DENSE", 1.0, "weight in it of the patches kept for long captions", *NOT_NEGATIVE),
    _shared("SOLVER.AMP"),
    _shared("SOLVER.EVAL_PERIOD", description="epochs between evaluations on the dev split; the last is always evaluated"),
    _shared("SOLVER.LOG_PERIOD"),
    _shared("SOLVER.CHECKPOINT_PERIOD"),
    _shared("SOLVER.CHECKPOINT_MINUTES"),

    Key("TEST.IMS_PER_BATCH", 128, "images or captions per evaluation batch", *POSITIVE),
    _shared("TEST.WEIGHT"),
    Key("TEST.SPLIT", "test", "split that test_seps.py evaluates", ("train", "dev", "test")),
    Key("TEST.FOLDS", 1, "equal parts of the test split that are searched one by one and averaged; 5 for COCO's 1K figures",
        *POSITIVE),
)


def check_seps_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first combination of values that cannot run."""
    if not cfg.MODEL.DUAL_AGGR and not cfg.MODEL.PAPER_VERSION:
        raise UserError("MODEL.DUAL_AGGR and MODEL.PAPER_VERSION are both False, but only the paper version can aggregate "
                        "twice; set DUAL_AGGR to True, which changes nothing, or PAPER_VERSION to True.")
    if cfg.MODEL.PATCH_SIZE and cfg.MODEL.PRETRAIN_PATH_T:
        raise UserError(f"MODEL.PATCH_SIZE is {cfg.MODEL.PATCH_SIZE}, but pretrained weights (MODEL.PRETRAIN_PATH_T) have a "
                        "patch size of their own; set it to 0.")
    if not cfg.MODEL.TEXT_TOWER:
        raise UserError("MODEL.TEXT_TOWER is empty, but captions need a tower; give a folder with a BERT, or a name such as "
                        "'bert-base-uncased'.")
    _check_image_tower(cfg.MODEL.TRANSFORMER_TYPE)
    check_device(cfg)


def _check_image_tower(name: str) -> None:
    import timm  # a slow import, needed only to know the names

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"; the nearest known is {near[0]!r}" if near else ""
        raise UserError(f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be a name of timm's such as 'vit_base_patch16_224' "
                        f"or 'swin_base_patch4_window7_224'{hint}.")


SEPS_SCHEMA = Schema(KEYS, check_seps_cfg, "seps/schema.py", "configs/SEPS/flickr30k.yml", "train_seps.py",
                     "a checkpoint of train_net.py belongs to test_net.py")
