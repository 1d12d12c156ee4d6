"""What a configuration key is, every key (name, default, effect, possible values), and the combinations of values that cannot
run.

Names and, where they do not depend on a machine, defaults are DeMo's, so that DeMo's YAML files load; CHECKPOINT_PERIOD is 1,
as a run resumes at the end of its last epoch. DeMo's keys that have a single value or no effect are rows of left.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config import common
from demo_sdtps.config.common import MISSING_CASES, MODALITIES
from demo_sdtps.config.ranges import EXAMPLE, parse_range
from demo_sdtps.runtime.errors import UserError


@dataclass(frozen=True)
class Values:
    """The values that `allows` accepts, and `text`, which says so after "it must be"."""

    allows: Callable[[Any], bool]
    text: str


class Key(NamedTuple):
    """One key: its full name, its default, whose type its values have, its effect in one line, and the values that it allows:
    a tuple of them, a condition, which holds for each entry of a list, or all."""

    name: str
    default: Any
    description: str
    allowed: tuple | Values | None = None

    def expected(self, value: Any) -> str:
        """What `value` must be; "" where the key allows it. A list has the length of a default that is not empty."""
        default, allowed, alike = self.default, self.allowed, f"a value such as {self.default!r}"
        if type(value) is not type(default):
            return alike
        if isinstance(allowed, tuple):
            return "" if value in allowed else " or ".join(map(repr, allowed))
        entries = value if isinstance(value, list) else [value]
        if entries is value and default and [*map(type, value)] != [*map(type, default)]:
            return alike
        return "" if allowed is None or all(map(allowed.allows, entries)) else allowed.text


class Schema(NamedTuple):
    """The keys of one kind of run, and `check`, which raises `UserError` for a combination of values that cannot run."""

    by_name: dict[str, Key]
    check: Callable[[CfgNode], None]


def between(least: float, most: float) -> Values:
    """The numbers from `least` to `most`."""
    return Values(lambda value: least <= value <= most, f"from {least} to {most}")


YES_NO = ("yes", "no")
AMP = ("auto", "bf16", "fp16", "off")
METRIC_LOSSES = ("triplet", "center", "triplet_center")
FINITE = Values(math.isfinite, "a finite number")
POSITIVE = Values(lambda value: 0 < value < math.inf, "greater than 0")
NOT_NEGATIVE = Values(lambda value: 0 <= value < math.inf, "0 or greater")
TWO_OR_MORE = Values(lambda value: value >= 2, "2 or greater, as BatchNorm needs")
RATIO = Values(lambda value: 0 < value <= 1, "in (0, 1]")
PROBABILITY = Values(lambda value: 0 <= value <= 1, "in [0, 1]")
BELOW_ONE = Values(lambda value: 0 <= value < 1, "in [0, 1)")
LONGEST_SIDE = 4096
SIZE = Values(
    lambda side: 0 < side <= LONGEST_SIDE,
    f"two whole numbers of pixels [vertical, horizontal], at most {LONGEST_SIDE}",
)
GPU = Values(lambda value: value.isdecimal() and len(value) < 4, "the number of one GPU")
DEVICE = Values(
    lambda value: re.fullmatch("auto|cpu|cuda(:[0-9]{1,3})?", value) is not None,
    "'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …",
)
SOME_MODALITIES = tuple([*some] for count in (3, 2, 1) for some in combinations(MODALITIES, count))
RANGE = Values(
    lambda entry: parse_range(entry) is not None,
    f"a list of MODALITY=LOW:HIGH such as {EXAMPLE}, or TI=1%:99%, with LOW below HIGH",
)
TEXT = Values(lambda entry: type(entry) is str, "a list of texts")
BLOCK = Values(lambda block: type(block) is int, "a list of whole numbers such as [4, 8]")
SHARE = Values(
    lambda share: type(share) in (int, float) and RATIO.allows(share),
    "a list of shares in (0, 1] such as [0.5, 0.5]",
)

ROWS: tuple[tuple, ...] = (
    ("OUTPUT_DIR", "", "folder of the run; '' is runs/<folder of the configuration>/<its name>"),
    ("RESUME", "no", "continue the run; auto: where there is one", ("no", "yes", "auto")),
    (
        "MODEL.MODALITIES",
        list(MODALITIES),
        "modalities of the model, in this order",
        SOME_MODALITIES,
    ),
    ("MODEL.DEVICE", "auto", "auto (CUDA where there is one), cpu, cuda or cuda:N", DEVICE),
    ("MODEL.DEVICE_ID", "0", "number of the GPU that MODEL.DEVICE auto or cuda means", GPU),
    ("MODEL.DIST_TRAIN", False, "refuse to train in one process; torchrun starts several"),
    (
        "MODEL.TRANSFORMER_TYPE",
        "vit_base_patch16_224",
        "the backbone: ViT-B-16 (CLIP's), vit_base_patch16_224 (ImageNet's), or any VisionTransformer or Eva of timm with a "
        "class token and a position embedding (docs/method.md)",
    ),
    ("MODEL.PRETRAIN_PATH_T", "", "weights: a file, 'hub' (download), or 'none' (random, as '')"),
    ("MODEL.TEACHER", "", "checkpoint whose outputs training follows (distillation); '': none"),
    ("MODEL.PATCH_SIZE", 0, "side of a patch of random weights; 0: its own", NOT_NEGATIVE),
    ("MODEL.DEPTH", 0, "number of blocks of random weights; 0: its own", NOT_NEGATIVE),
    ("MODEL.STRIDE_SIZE", [16, 16], "step between patches; below the patch they overlap", SIZE),
    ("MODEL.DROP_PATH", 0.1, "stochastic depth of the last block; not in CLIP's", BELOW_ONE),
    ("MODEL.DROP_OUT", 0.0, "dropout in the backbone; not in CLIP's", BELOW_ONE),
    ("MODEL.ATT_DROP_RATE", 0.0, "dropout on attention weights; not in CLIP's", BELOW_ONE),
    ("MODEL.SIE_CAMERA", True, "add a learned embedding of the camera (side information)"),
    ("MODEL.SIE_COE", 3.0, "weight of the camera embedding", FINITE),
    ("MODEL.SIE_UNKNOWN", 0.0, "share of training batches without known cameras", PROBABILITY),
    ("MODEL.FROZEN", False, "train all but the backbone's weights; its camera embedding too"),
    ("MODEL.COMPILE", False, "torch.compile of the blocks, on one GPU of model and loss"),
    ("MODEL.GLOBAL_LOCAL", False, "PIFE: mix the mean of the patches into the global feature"),
    (
        "MODEL.SLIM_BLOCKS",
        [],
        "blocks of the backbone after which patches are dropped (token pruning, 'slimming'), rising, 0 for the input",
        BLOCK,
    ),
    ("MODEL.SLIM_KEEP", [], "share of the remaining patches that each of them keeps", SHARE),
    (
        "MODEL.SLIM_SCORE",
        "saliency",
        "score by which patches are kept: saliency (docs/method.md), or package.module:Class, a subclass of vit_slim.Score",
    ),
    ("MODEL.SLIM_SHARED", True, "keep equal positions in all modalities; False: each its own"),
    ("MODEL.SLIM_MERGE", True, "merge the dropped patches, into one token or as the score says"),
    ("MODEL.USE_SDTPS", False, "select and aggregate patch tokens after the backbone (SDTPS)"),
    ("MODEL.SDTPS_SPARSE_RATIO", 0.5, "share of the patches that SDTPS keeps", RATIO),
    ("MODEL.SDTPS_AGGR_RATIO", 0.4, "share of the kept patches after aggregation", RATIO),
    ("MODEL.SDTPS_BETA", 0.25, "weight of the guidance by global features", between(0, 0.5)),
    ("MODEL.SDTPS_USE_GUMBEL", False, "straight-through gradients with Gumbel noise"),
    ("MODEL.SDTPS_GUMBEL_TAU", 1.0, "temperature of the straight-through softmax", POSITIVE),
    ("MODEL.SDTPS_GUMBEL_SELECT", False, "let that noise choose patches too, in training alone"),
    ("MODEL.SDTPS_GUIDE_MISSING", True, "let a missing modality (TEST.MISS) guide the others"),
    ("MODEL.SDTPS_LOSS_WEIGHT", 1.0, "weight of the SDTPS feature's losses", NOT_NEGATIVE),
    ("MODEL.SDTPS_FEEDS_HDM", True, "HDM attends to the tokens of SDTPS, not to all patches"),
    ("MODEL.HDM", False, "hierarchical decoupling: a feature per subset of the modalities"),
    ("MODEL.ATM", False, "attention-triggered mixture of experts (ATMoE) over HDM's features"),
    ("MODEL.HEAD", 12, "heads of the mixture of experts", POSITIVE),
    ("MODEL.DIRECT", 1, "1: one head on the globals concatenated; 0: one each", (0, 1)),
    ("MODEL.ID_LOSS_WEIGHT", 1.0, "weight of the identity loss", NOT_NEGATIVE),
    ("MODEL.IF_LABELSMOOTH", "on", "label smoothing 0.1 in the identity loss", ("on", "off")),
    ("MODEL.METRIC_LOSS_TYPE", "triplet", "losses of features", METRIC_LOSSES),
    ("MODEL.TRIPLET_LOSS_WEIGHT", 1.0, "weight of the triplet loss", NOT_NEGATIVE),
    ("MODEL.NO_MARGIN", True, "soft-margin triplet loss; False: the margin SOLVER.MARGIN"),
    ("MODEL.IF_WITH_CENTER", "no", "'yes' requires a METRIC_LOSS_TYPE with center", YES_NO),
    ("INPUT.SIZE_TRAIN", [256, 128], "[height, width] of the images in training", SIZE),
    ("INPUT.SIZE_TEST", [256, 128], "[height, width] in evaluation; as in training", SIZE),
    ("INPUT.PROB", 0.5, "probability of a horizontal flip", PROBABILITY),
    ("INPUT.RE_PROB", 0.5, "probability of random erasing", PROBABILITY),
    ("INPUT.PADDING", 10, "pixels of padding before the crop", between(0, LONGEST_SIDE)),
    ("INPUT.JOINT_AUGMENTATION", False, "draw flip and crop once for all images of a triplet"),
    ("INPUT.MODALITY_DROPOUT", 0.0, "probability of an image to be zeros, not all", BELOW_ONE),
    ("INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], "mean to normalise images with", FINITE),
    ("INPUT.PIXEL_STD", [0.5, 0.5, 0.5], "deviation to normalise with", POSITIVE),
    (
        "INPUT.RANGES",
        [],
        "values that become black and white, of own images of 16 bits or floats: MODALITY=LOW:HIGH, one scale for all images, "
        f"such as {EXAMPLE} (centikelvin from 0 to 40 °C), or percentiles of each image, by default 1%:99%",
        RANGE,
    ),
    (
        "DATASETS.NAMES",
        "RGBNT201",
        "the data set: RGBNT201, RGBNT100, MSVR310, WMVeID863, Synthetic; own data: Folder, CSV, "
        "and Images without labels (docs/own_data.md)",
    ),
    (
        "DATASETS.ROOT_DIR",
        "./data",
        "folder that holds the data set's own; of Folder the one with train, query and gallery, of CSV the table",
    ),
    (
        "DATASETS.FOLDERS",
        [],
        "NAME=FOLDER for folders of Folder with other names than train, query, gallery, RGB, NI, TI, "
        "'.' for none, such as [train=bounding_box_train, RGB=.]",
        TEXT,
    ),
    (
        "DATASETS.PATTERN",
        r"(?P<identity>\d{6})_cam(?P<camera>\d+)",
        "regular expression of identity and, where there are cameras, camera in the names of Folder's images",
    ),
    ("DATASETS.VALIDATION", 0.0, "share of training identities that choose best.pth", BELOW_ONE),
    ("DATASETS.CACHE", "auto", "keep images in memory; auto: up to 1 GB", ("auto", *YES_NO)),
    (
        "DATALOADER.NUM_WORKERS",
        -1,
        "processes that load images; 0: the training's own; -1: one per core, at most 8",
        between(-1, 256),
    ),
    ("DATALOADER.TIMEOUT", 1800.0, "seconds to wait for a batch; 0: no limit", NOT_NEGATIVE),
    (
        "DATALOADER.SAMPLER",
        "softmax_triplet",
        "batches of NUM_INSTANCE triplets of each identity; softmax: shuffled triplets, without the triplet loss",
        ("softmax_triplet", "softmax"),
    ),
    ("DATALOADER.NUM_INSTANCE", 16, "triplets per identity in a batch", POSITIVE),
    ("SOLVER.SEED", 1111, "seed of everything random", between(0, 2**32 - 1)),
    ("SOLVER.OPTIMIZER_NAME", "SGD", "the optimiser", ("SGD", "Adam", "AdamW")),
    ("SOLVER.MAX_EPOCHS", 120, "epochs of training", POSITIVE),
    ("SOLVER.IMS_PER_BATCH", 128, "triplets per batch, a multiple of NUM_INSTANCE", TWO_OR_MORE),
    ("SOLVER.BASE_LR", 0.009, "learning rate of everything but the backbone", POSITIVE),
    ("SOLVER.BIAS_LR_FACTOR", 2.0, "learning rate of biases over BASE_LR", POSITIVE),
    ("SOLVER.LARGE_FC_LR", False, "double the learning rate of the classifiers"),
    ("SOLVER.MOMENTUM", 0.9, "momentum of SGD", BELOW_ONE),
    ("SOLVER.WEIGHT_DECAY", 0.0001, "weight decay", NOT_NEGATIVE),
    ("SOLVER.WEIGHT_DECAY_BIAS", 0.0001, "weight decay of biases", NOT_NEGATIVE),
    ("SOLVER.WARMUP_ITERS", 10, "epochs of warm-up", NOT_NEGATIVE),
    ("SOLVER.MARGIN", 0.3, "margin of the triplet loss where NO_MARGIN is False", NOT_NEGATIVE),
    ("SOLVER.AMP", "auto", "mixed precision in training; auto: where the hardware has it", AMP),
    ("SOLVER.EVAL_PERIOD", 1, "epochs between evaluations, and at the last", POSITIVE),
    ("SOLVER.EVAL_UNTRAINED", False, "evaluate before the first epoch too, as epoch 0"),
    ("SOLVER.LOG_PERIOD", 10, "iterations between updates of the progress bar", POSITIVE),
    ("SOLVER.CHECKPOINT_PERIOD", 1, "epochs between writes of last.pth", POSITIVE),
    ("SOLVER.GRAD_CLIP", 0.0, "maximum norm of the gradient; 0: no clipping", NOT_NEGATIVE),
    ("SOLVER.CENTER_LR", 0.5, "learning rate of the centers, by SGD", POSITIVE),
    ("SOLVER.CENTER_LOSS_WEIGHT", 0.0005, "weight of the center loss", POSITIVE),
    (
        "SOLVER.DISTILL_WEIGHT",
        1.0,
        "weight of the loss that follows the teacher's logits",
        NOT_NEGATIVE,
    ),
    ("SOLVER.DISTILL_TEMPERATURE", 4.0, "temperature of both softmaxes in this loss", POSITIVE),
    (
        "SOLVER.DISTILL_FEATURES",
        10.0,
        "weight of the loss that follows the teacher's features",
        NOT_NEGATIVE,
    ),
    ("TEST.IMS_PER_BATCH", 256, "triplets per evaluation batch", POSITIVE),
    ("TEST.AMP", "off", "half precision of the backbone in evaluation, as SOLVER.AMP", AMP),
    ("TEST.WEIGHT", "", "checkpoint: a file or a folder"),
    ("TEST.RETURN_PATTERN", 3, "features: 1 original, 2 enhanced, 3 both", common.RETURN_PATTERNS),
    (
        "TEST.MISS",
        "None",
        "modalities zeroed in evaluation: r, n, t, rn, rt or nt; 'None' or 'nothing': none; all (demo-sdtps test): every case",
        ("None", "nothing", *MISSING_CASES, "all"),
    ),
    ("TEST.CROSS_MODAL", False, "every set of modalities of the query against every other"),
    (
        "TEST.CROSS_MODAL_DISTANCE",
        "shared",
        "columns in the distance of triplets that lack modalities: all, or those of shared modalities (docs/method.md)",
        common.CROSS_MODAL_DISTANCES,
    ),
    ("TEST.UNKNOWN_CAMERAS", False, "test images as of cameras that the model does not know"),
    ("TEST.FEAT_NORM", "yes", "L2-normalise features before distances", YES_NO),
    ("TEST.NECK_FEAT", "before", "features before or after the BatchNorm", ("before", "after")),
    ("TEST.RE_RANKING", "no", "k-reciprocal re-ranking, of L2-normalised features", YES_NO),
)

KEYS = tuple(Key(*row) for row in ROWS)


def check_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first combination of values that cannot run."""
    check_stage_keys(cfg.MODEL)
    for sentence in _mistakes(cfg):
        raise UserError(sentence)


def check_stage_keys(model: CfgNode) -> None:
    """Raise `UserError` where MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP do not fit each other."""
    blocks, keep = model.SLIM_BLOCKS, model.SLIM_KEEP
    if len(blocks) != len(keep) or blocks != sorted(set(blocks)):
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {blocks} and MODEL.SLIM_KEEP {keep}; give rising blocks, and one share for each."
        )


def _mistakes(cfg: CfgNode) -> Iterator[str]:
    model, test, size = cfg.MODEL, cfg.TEST, cfg.INPUT.SIZE_TRAIN
    batch, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if model.ATM and not model.HDM:
        yield "MODEL.ATM is True and MODEL.HDM False, which makes its inputs; make them equal."
    if model.SDTPS_GUMBEL_SELECT and not model.SDTPS_USE_GUMBEL:
        yield "MODEL.SDTPS_GUMBEL_SELECT is True and MODEL.SDTPS_USE_GUMBEL False, which draws its noise; make them equal."
    if model.IF_WITH_CENTER == "yes" and "center" not in model.METRIC_LOSS_TYPE:
        yield "MODEL.IF_WITH_CENTER is 'yes', so MODEL.METRIC_LOSS_TYPE must be 'center' or 'triplet_center'."
    if size != cfg.INPUT.SIZE_TEST:
        yield f"INPUT.SIZE_TEST is {cfg.INPUT.SIZE_TEST} and INPUT.SIZE_TRAIN {size}; make them equal."
    if common.CLIP_BACKBONE == model.TRANSFORMER_TYPE or model.PRETRAIN_PATH_T == common.HUB:
        for key in ("PATCH_SIZE", "DEPTH"):
            if model[key]:
                yield f"MODEL.{key} is {model[key]}, but published weights have one of their own; set it to 0."
    if test.CROSS_MODAL and (test.RE_RANKING == "yes" or test.MISS not in ("None", "nothing")):
        yield "TEST.CROSS_MODAL is True, which compares all cases without re-ranking; leave TEST.MISS and TEST.RE_RANKING out."
    letters = {name[0].lower() for name in model.MODALITIES}
    if test.MISS in MISSING_CASES and not set(test.MISS) < letters:
        yield f"TEST.MISS is {test.MISS!r}, but MODEL.MODALITIES is {model.MODALITIES}; leave out some of these, not all."
    if cfg.DATALOADER.SAMPLER == "softmax":
        return
    if instances == 1 and "triplet" in model.METRIC_LOSS_TYPE:
        yield "DATALOADER.NUM_INSTANCE is 1, so the triplet loss finds no positive in a batch; set it to 2 or more."
    if batch % instances or batch == instances:
        yield (
            f"SOLVER.IMS_PER_BATCH is {batch}, but must be a multiple of DATALOADER.NUM_INSTANCE, which is {instances}, from "
            f"{2 * instances} on, as an identity needs another; correct it."
        )


DEMO_SCHEMA = Schema({key.name: key for key in KEYS}, check_cfg)
"""Configuration of train_net.py and of all commands but those of SEPS."""
