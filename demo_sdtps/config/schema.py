"""Every configuration key: default, effect, possible values.

Names and, where they do not depend on a machine, defaults are DeMo's, so that DeMo's YAML files load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import CROSS_MODAL_DISTANCES, MISSING_CASES, MODALITIES


class Key(NamedTuple):
    """One key. `allowed` is a tuple of the possible values or a predicate; `allowed_text` explains it."""

    name: str
    default: object
    description: str
    allowed: tuple | Callable | None = None
    allowed_text: str = ""


class Schema(NamedTuple):
    """The keys of one kind of run, and `check`, which raises `UserError` for a combination of values that cannot run."""

    keys: tuple[Key, ...]
    check: Callable[[CfgNode], None]
    example: str  # a configuration of this kind

    @property
    def by_name(self) -> dict[str, Key]:
        return {key.name: key for key in self.keys}


UNUSED = "no effect, as in DeMo; only its default is accepted, so that DeMo's files load"
UNUSED_KEYS: dict[str, dict[str, object]] = {
    "the learning rate follows a cosine with WARMUP_ITERS epochs of warm-up": {
        "SOLVER.STEPS": (40, 70),
        "SOLVER.GAMMA": 0.1,
        "SOLVER.WARMUP_FACTOR": 0.01,
        "SOLVER.WARMUP_METHOD": "linear",
    },
    "there is no cluster, cosine or range loss": {
        "SOLVER.CLUSTER_MARGIN": 0.3,
        "SOLVER.COSINE_MARGIN": 0.5,
        "SOLVER.COSINE_SCALE": 30,
        "SOLVER.RANGE_K": 2,
        "SOLVER.RANGE_MARGIN": 0.3,
        "SOLVER.RANGE_ALPHA": 0,
        "SOLVER.RANGE_BETA": 1,
        "SOLVER.RANGE_LOSS_WEIGHT": 1,
    },
}
"""By the reason: keys and defaults."""
NOT_DEMO = "it belongs to MambaPro and is not part of DeMo"
ON_OFF = ("on", "off")
YES_NO = ("yes", "no")
AMP = ("auto", "bf16", "fp16", "off")
LONGEST_SIDE, MOST_WORKERS, WIDEST = 4096, 256, 8192


POSITIVE = (lambda value: 0 < value < math.inf, "greater than 0")
NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "0 or greater")
WIDTH = (lambda value: 0 < value <= WIDEST, f"greater than 0, at most {WIDEST}")
RATIO = (lambda value: 0 < value <= 1, "in (0, 1]")
PROBABILITY = (lambda value: 0 <= value <= 1, "in [0, 1]")
BELOW_ONE = (lambda value: 0 <= value < 1, "in [0, 1)")
SIZE = (
    lambda value: (
        len(value) == 2 and all(type(side) is int and 0 < side <= LONGEST_SIDE for side in value)
    ),
    f"two whole numbers of pixels [vertical, horizontal], at most {LONGEST_SIDE}",
)


def three_numbers(value, least: float = -1e9) -> bool:
    """Whether there are three numbers, greater than `least`."""
    return len(value) == 3 and all(
        type(number) in (int, float) and least < number < 1e9 for number in value
    )


KEYS = (
    Key("OUTPUT_DIR", "", "folder of the run; '' is runs/<folder of the configuration>/<its name>"),
    Key(
        "RESUME",
        "no",
        "continue the run in OUTPUT_DIR: no, yes, or auto (where there is one; otherwise it starts)",
        ("no", "yes", "auto"),
    ),
    Key("MODEL.NAME", "DeMo", "the model", ("DeMo",)),
    Key(
        "MODEL.MODALITIES",
        list(MODALITIES),
        "modalities that the model reads, in this order; images of others are not",
        lambda value: value and value == [name for name in MODALITIES if name in value],
        "some of RGB, NI, TI, in this order",
    ),
    Key(
        "MODEL.DEVICE", "auto", "auto (CUDA where there is one, else the CPU), cpu, cuda or cuda:N"
    ),
    Key(
        "MODEL.DEVICE_ID",
        "0",
        "number of the GPU that MODEL.DEVICE auto or cuda means",
        lambda value: value.isdecimal() and len(value) < 4,
        "the number of one GPU",
    ),
    Key(
        "MODEL.DIST_TRAIN",
        False,
        "refuse to train in a single process: torchrun starts several, with or without this key",
    ),
    Key(
        "MODEL.TRANSFORMER_TYPE",
        "vit_base_patch16_224",
        "the backbone: ViT-B-16 (CLIP's), vit_base_patch16_224 (ImageNet's), or any VisionTransformer or Eva of timm with a "
        "class token and a position embedding (docs/method.md)",
    ),
    Key(
        "MODEL.PRETRAIN_PATH_T",
        "",
        "weights of the backbone: a file, 'hub' (timm downloads them), or 'none' (random; "
        "'' too, with a warning)",
    ),
    Key(
        "MODEL.PATCH_SIZE",
        0,
        "side of a patch in pixels for a backbone without published weights; 0: the backbone's own",
        *NOT_NEGATIVE,
    ),
    Key(
        "MODEL.STRIDE_SIZE",
        [16, 16],
        "step between patches [vertical, horizontal]; below the patch they overlap",
        *SIZE,
    ),
    Key(
        "MODEL.DROP_PATH",
        0.1,
        "stochastic depth of the last block, rising linearly from 0; not for CLIP's backbone",
        *BELOW_ONE,
    ),
    Key(
        "MODEL.DROP_OUT",
        0.0,
        "dropout in the backbone, on its tokens, after attention and in its MLPs; not for CLIP's "
        "backbone",
        *BELOW_ONE,
    ),
    Key(
        "MODEL.ATT_DROP_RATE",
        0.0,
        "dropout on the backbone's attention weights; not for CLIP's backbone",
        *BELOW_ONE,
    ),
    Key(
        "MODEL.SIE_CAMERA",
        True,
        "add a learned embedding of the camera to the tokens (side information embedding)",
    ),
    Key(
        "MODEL.SIE_VIEW",
        False,
        "add a learned embedding of the view",
        (False,),
        "the data sets have camera labels but no view labels",
    ),
    Key(
        "MODEL.SIE_COE",
        3.0,
        "weight of the side information embedding",
        math.isfinite,
        "a finite number",
    ),
    Key(
        "MODEL.FROZEN",
        False,
        "keep the backbone's weights fixed; the camera embedding, PIFE and everything after it learn",
    ),
    Key("MODEL.PROMPT", False, "prompts of MambaPro, DeMo's sister", (False,), NOT_DEMO),
    Key("MODEL.ADAPTER", False, "adapters of MambaPro, DeMo's sister", (False,), NOT_DEMO),
    Key(
        "MODEL.COMPILE",
        False,
        "compile the backbone's blocks (torch.compile), which takes up to half a minute at first, and "
        "a C++ compiler on a CPU",
    ),
    Key(
        "MODEL.GLOBAL_LOCAL",
        False,
        "PIFE: mix the mean of the patch tokens into each modality's global feature",
    ),
    Key(
        "MODEL.SLIM_BLOCKS",
        [],
        "blocks of the backbone after which patches are dropped (token pruning, 'slimming'), "
        "strictly increasing, 0 for the input; []: none",
        lambda value: all(type(block) is int for block in value),
        "a list of whole numbers such as [4, 8]",
    ),
    Key(
        "MODEL.SLIM_KEEP",
        [],
        "share of the remaining patches that each of SLIM_BLOCKS keeps",
        lambda value: all(type(share) in (int, float) and 0 < share <= 1 for share in value),
        "a list of shares in (0, 1] such as [0.5, 0.5]",
    ),
    Key(
        "MODEL.SLIM_SCORE",
        "saliency",
        "score by which patches are kept: one of config/scores.py, or package.module:Class of "
        "your own",
    ),
    Key(
        "MODEL.SLIM_SHARED",
        True,
        "keep the same positions in all modalities, by the sum of the scores of those present; "
        "False: each its own",
    ),
    Key(
        "MODEL.SLIM_MERGE",
        True,
        "merge the dropped patches of each of SLIM_BLOCKS as the score says, by default into one "
        "extra token",
    ),
    Key(
        "MODEL.SLIM_LOSS_WEIGHT",
        5.0,
        "weight of the loss of SLIM_SCORE supervised against the masks, and of self_supervised "
        "against pseudo-masks",
        *NOT_NEGATIVE,
    ),
    Key(
        "MODEL.USE_SDTPS",
        False,
        "select and aggregate patch tokens after the backbone (sparse and dense token-aware patch "
        "selection)",
    ),
    Key("MODEL.SDTPS_SPARSE_RATIO", 0.5, "share of the patches that SDTPS keeps", *RATIO),
    Key(
        "MODEL.SDTPS_AGGR_RATIO",
        0.4,
        "share of the kept patches that remains after their aggregation",
        *RATIO,
    ),
    Key(
        "MODEL.SDTPS_BETA",
        0.25,
        "weight of the guidance: score = (1 - 2 beta) MLP + beta (others + 2 own)",
        lambda value: 0 <= value <= 0.5,
        "in [0, 0.5]",
    ),
    Key(
        "MODEL.SDTPS_USE_GUMBEL",
        False,
        "straight-through gradients with Gumbel noise through the choice of patches",
    ),
    Key("MODEL.SDTPS_GUMBEL_TAU", 1.0, "temperature of the straight-through softmax", *POSITIVE),
    Key(
        "MODEL.SDTPS_GUMBEL_SELECT",
        False,
        "let that noise also perturb which patches are kept in training (Gumbel-top-k); "
        "never in evaluation",
    ),
    Key(
        "MODEL.SDTPS_GUIDE_MISSING",
        True,
        "use the global feature of a missing modality (TEST.MISS) as a guide of the others",
    ),
    Key("MODEL.SDTPS_LOSS_WEIGHT", 1.0, "weight of the SDTPS feature's losses", *NOT_NEGATIVE),
    Key(
        "MODEL.SDTPS_FEEDS_HDM",
        True,
        "HDM attends to the tokens of SDTPS, as published, and not to all patches",
    ),
    Key(
        "MODEL.HDM",
        False,
        "hierarchical decoupling module (HDM): one feature per subset of the modalities",
    ),
    Key("MODEL.ATM", False, "attention-triggered mixture of experts (ATMoE) over HDM's features"),
    Key("MODEL.HEAD", 12, "heads of the mixture of experts", *POSITIVE),
    Key(
        "MODEL.DIRECT",
        1,
        "1: one head on the three globals concatenated; 0: one head per modality",
        (0, 1),
    ),
    Key(
        "MODEL.NECK",
        "bnneck",
        "the neck between a feature and its classifier",
        ("bnneck",),
        "DeMo has no other neck",
    ),
    Key(
        "MODEL.ID_LOSS_TYPE",
        "softmax",
        "loss of the identity logits",
        ("softmax",),
        "DeMo's classifiers are linear",
    ),
    Key("MODEL.ID_LOSS_WEIGHT", 1.0, "weight of the identity loss", *NOT_NEGATIVE),
    Key("MODEL.IF_LABELSMOOTH", "on", "label smoothing 0.1 in the identity loss", ON_OFF),
    Key(
        "MODEL.METRIC_LOSS_TYPE",
        "triplet",
        "losses of the features",
        ("triplet", "center", "triplet_center"),
    ),
    Key("MODEL.TRIPLET_LOSS_WEIGHT", 1.0, "weight of the triplet loss", *NOT_NEGATIVE),
    Key("MODEL.NO_MARGIN", True, "soft-margin triplet loss; False: the margin SOLVER.MARGIN"),
    Key(
        "MODEL.IF_WITH_CENTER",
        "no",
        "'yes' requires a MODEL.METRIC_LOSS_TYPE that contains center, which is what enables "
        "the center loss",
        YES_NO,
    ),
    Key("INPUT.SIZE_TRAIN", [256, 128], "[height, width] of the images in training", *SIZE),
    Key(
        "INPUT.SIZE_TEST",
        [256, 128],
        "[height, width] of the images in evaluation; as in training",
        *SIZE,
    ),
    Key("INPUT.PROB", 0.5, "probability of a horizontal flip", *PROBABILITY),
    Key("INPUT.RE_PROB", 0.5, "probability of random erasing", *PROBABILITY),
    Key(
        "INPUT.PADDING",
        10,
        "pixels of padding before the random crop",
        lambda value: 0 <= value <= LONGEST_SIDE,
        f"0 or greater, at most {LONGEST_SIDE}",
    ),
    Key(
        "INPUT.JOINT_AUGMENTATION",
        False,
        "draw flip and crop once for the three modalities of a triplet, so that a "
        "patch is the same place in each",
    ),
    Key(
        "INPUT.MODALITY_DROPOUT",
        0.0,
        "probability of each modality of a training triplet to be dropped (its image becomes "
        "zeros), never of all",
        *BELOW_ONE,
    ),
    Key(
        "INPUT.PIXEL_MEAN",
        [0.5, 0.5, 0.5],
        "mean that images in [0, 1] are normalised with",
        three_numbers,
        "three numbers",
    ),
    Key(
        "INPUT.PIXEL_STD",
        [0.5, 0.5, 0.5],
        "standard deviation that they are normalised with",
        lambda value: three_numbers(value, least=0),
        "three positive numbers",
    ),
    Key(
        "DATASETS.NAMES",
        "RGBNT201",
        "the data set: RGBNT201, RGBNT100, MSVR310, WMVeID863, Synthetic; own data: Folder, CSV, "
        "and Images without labels (docs/own_data.md)",
    ),
    Key(
        "DATASETS.ROOT_DIR",
        "./data",
        "folder that holds the data set's own folder; of Folder the one with train, query and "
        "gallery, of CSV the table, of Images that of the images",
    ),
    Key(
        "DATASETS.FOLDERS",
        [],
        "NAME=FOLDER for folders of Folder with other names than train, query, gallery, RGB, NI, TI, "
        "'.' for none, such as [train=bounding_box_train, RGB=.]",
        lambda value: all(type(entry) is str for entry in value),
        "a list of texts NAME=FOLDER",
    ),
    Key(
        "DATASETS.PATTERN",
        r"(?P<identity>\d{6})_cam(?P<camera>\d+)",
        "regular expression of identity and camera in the names of Folder's images",
    ),
    Key(
        "DATASETS.VERIFY",
        False,
        "decode every image before training and list those that cannot be read",
    ),
    Key(
        "DATASETS.CACHE",
        "auto",
        "keep decoded images in memory: yes, no, or auto (where all fit into 1 GB)",
        ("auto", *YES_NO),
    ),
    Key(
        "DATALOADER.NUM_WORKERS",
        -1,
        "processes that load images; 0: a thread instead; -1: one per CPU core, at most 8, and "
        "0 for images in memory on two cores or fewer",
        lambda value: -1 <= value <= MOST_WORKERS,
        f"-1 or greater, at most {MOST_WORKERS}",
    ),
    Key(
        "DATALOADER.TIMEOUT",
        1800.0,
        "seconds without any batch from the loading processes after which a command ends; 0: no "
        "limit",
        *NOT_NEGATIVE,
    ),
    Key(
        "DATALOADER.SAMPLER",
        "softmax_triplet",
        "softmax_triplet: batches of identities with NUM_INSTANCE triplets each; "
        "softmax: shuffled triplets, without the triplet loss",
        ("softmax_triplet", "softmax"),
    ),
    Key(
        "DATALOADER.NUM_INSTANCE",
        16,
        "triplets per identity in a batch (SAMPLER softmax_triplet)",
        *POSITIVE,
    ),
    Key(
        "SOLVER.SEED",
        1111,
        "seed of everything random",
        lambda value: 0 <= value < 2**32,
        "in [0, 2^32)",
    ),
    Key("SOLVER.OPTIMIZER_NAME", "SGD", "the optimiser", ("SGD", "Adam", "AdamW")),
    Key("SOLVER.MAX_EPOCHS", 120, "epochs of training", *POSITIVE),
    Key(
        "SOLVER.IMS_PER_BATCH",
        128,
        "triplets per training batch, a multiple of DATALOADER.NUM_INSTANCE (SAMPLER "
        "softmax_triplet)",
        *POSITIVE,
    ),
    Key("SOLVER.BASE_LR", 0.009, "learning rate of everything but the backbone", *POSITIVE),
    Key("SOLVER.BIAS_LR_FACTOR", 2.0, "learning rate of biases over BASE_LR", *POSITIVE),
    Key("SOLVER.LARGE_FC_LR", False, "double the learning rate of the classifiers"),
    Key("SOLVER.MOMENTUM", 0.9, "momentum of SGD", *BELOW_ONE),
    Key("SOLVER.WEIGHT_DECAY", 0.0001, "weight decay", *NOT_NEGATIVE),
    Key("SOLVER.WEIGHT_DECAY_BIAS", 0.0001, "weight decay of biases", *NOT_NEGATIVE),
    Key("SOLVER.WARMUP_ITERS", 10, "epochs of warm-up", *NOT_NEGATIVE),
    Key(
        "SOLVER.MARGIN",
        0.3,
        "margin of the triplet loss where MODEL.NO_MARGIN is False",
        *NOT_NEGATIVE,
    ),
    Key(
        "SOLVER.AMP",
        "auto",
        "mixed precision in training: auto (where the hardware has it), bf16, fp16 or off",
        AMP,
    ),
    Key(
        "SOLVER.EVAL_PERIOD",
        1,
        "epochs between evaluations; the last epoch is always evaluated",
        *POSITIVE,
    ),
    Key(
        "SOLVER.EVAL_UNTRAINED",
        False,
        "evaluate before the first epoch as well (recorded as epoch 0)",
    ),
    Key("SOLVER.LOG_PERIOD", 10, "iterations between updates of the progress bar", *POSITIVE),
    Key(
        "SOLVER.WANDB",
        "",
        "project of Weights & Biases that receives what TensorBoard does (pip install -e '.[wandb]'); '': "
        "none",
        lambda value: len(value) <= 128 and not set(value) & set("/\\#?%:"),
        r"a name of at most 128 characters without / \ # ? % :",
    ),
    Key(
        "SOLVER.CHECKPOINT_PERIOD",
        10,
        "epochs between writes of last.pth; written after the last epoch too",
        *POSITIVE,
    ),
    Key(
        "SOLVER.CHECKPOINT_MINUTES",
        10.0,
        "minutes after which last.pth is written within an epoch too; 0: never",
        *NOT_NEGATIVE,
    ),
    Key(
        "SOLVER.GRAD_CLIP",
        0.0,
        "maximum norm of the gradient of the model's parameters, to which it is clipped; 0: no "
        "clipping",
        *NOT_NEGATIVE,
    ),
    Key(
        "SOLVER.CENTER_LR",
        0.5,
        "learning rate of the centers, by SGD whatever the optimiser",
        *POSITIVE,
    ),
    Key("SOLVER.CENTER_LOSS_WEIGHT", 0.0005, "weight of the center loss", *POSITIVE),
    *(
        Key(name, default, UNUSED, (default,), why)
        for why, unused in UNUSED_KEYS.items()
        for name, default in unused.items()
    ),
    Key("TEST.IMS_PER_BATCH", 256, "triplets per evaluation batch", *POSITIVE),
    Key(
        "TEST.AMP",
        "off",
        "half precision of the backbone in evaluation: off (float32, as the reference evaluates), auto "
        "(where the hardware has it), bf16 or fp16",
        AMP,
    ),
    Key(
        "TEST.WEIGHT",
        "",
        "checkpoint to evaluate: a file, a folder of one, or owner/name on the Hugging Face hub",
    ),
    Key(
        "TEST.RETURN_PATTERN",
        3,
        "features that best.pth is chosen by and rank lists show: 1 original, 2 enhanced, 3 both",
        (1, 2, 3),
    ),
    Key(
        "TEST.MISS",
        "None",
        "modalities whose images are zeroed in evaluation: r, n, t, rn, rt or nt; "
        "'None' or 'nothing': complete triplets; all (test_net.py): a table of all cases",
        ("None", "nothing", *MISSING_CASES, "all"),
    ),
    Key(
        "TEST.CROSS_MODAL",
        False,
        "every set of modalities of the query against every one of the gallery (test_net.py)",
    ),
    Key(
        "TEST.CROSS_MODAL_DISTANCE",
        "shared",
        "distance between unequal sets of modalities: of all columns, of those of "
        "shared modalities, or the mean over pairs of one modality of each (docs/method.md)",
        CROSS_MODAL_DISTANCES,
    ),
    Key("TEST.FEAT_NORM", "yes", "L2-normalise features before distances", YES_NO),
    Key(
        "TEST.NECK_FEAT",
        "before",
        "features before or after the BatchNorm of the neck",
        ("before", "after"),
    ),
    Key(
        "TEST.RE_RANKING",
        "no",
        "k-reciprocal re-ranking of the distances, then those of L2-normalised features",
        YES_NO,
    ),
)
