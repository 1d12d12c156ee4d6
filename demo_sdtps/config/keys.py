"""Every configuration key: default, effect, possible values.

Names and, where they do not depend on a machine, defaults are DeMo's, so that DeMo's YAML files load.
"""

from __future__ import annotations

import math
import re

from demo_sdtps.config.common import (
    CROSS_MODAL_DISTANCES,
    MISSING_CASES,
    MODALITIES,
    RETURN_PATTERNS,
)
from demo_sdtps.config.ranges import EXAMPLE, parse_range
from demo_sdtps.config.schema import (
    AMP,
    BELOW_ONE,
    LONGEST_SIDE,
    MOST_WORKERS,
    NOT_NEGATIVE,
    NUMBERS,
    ON_OFF,
    POSITIVE,
    POSITIVE_NUMBERS,
    PROBABILITY,
    RATIO,
    SIZE,
    YES_NO,
    Key,
    between,
    constant_key,
)

NOT_DEMO = "it belongs to MambaPro and is not part of DeMo"
UNUSED = "no effect, as in DeMo; only its default is accepted, so that DeMo's files load"
WHY_UNUSED = (
    "the learning rate follows a cosine with WARMUP_ITERS epochs of warm-up, "
    "and there is no cluster, cosine or range loss"
)
UNUSED_KEYS = {
    "SOLVER.STEPS": (40, 70),
    "SOLVER.GAMMA": 0.1,
    "SOLVER.WARMUP_FACTOR": 0.01,
    "SOLVER.WARMUP_METHOD": "linear",
    "SOLVER.CLUSTER_MARGIN": 0.3,
    "SOLVER.COSINE_MARGIN": 0.5,
    "SOLVER.COSINE_SCALE": 30,
    "SOLVER.RANGE_K": 2,
    "SOLVER.RANGE_MARGIN": 0.3,
    "SOLVER.RANGE_ALPHA": 0,
    "SOLVER.RANGE_BETA": 1,
    "SOLVER.RANGE_LOSS_WEIGHT": 1,
}
"""Defaults of the keys without effect."""

METRIC_LOSSES = ("triplet", "center", "triplet_center")

KEYS = (
    Key("OUTPUT_DIR", "", "folder of the run; '' is runs/<folder of the configuration>/<its name>"),
    Key("RESUME", "no", "continue the run; auto: where there is one", ("no", "yes", "auto")),
    constant_key("MODEL.NAME", "DeMo", "the model", "there is no other"),
    Key(
        "MODEL.MODALITIES",
        list(MODALITIES),
        "modalities that the model reads, in this order",
        lambda value: value and value == [name for name in MODALITIES if name in value],
        "some of RGB, NI, TI, in this order",
    ),
    Key(
        "MODEL.DEVICE",
        "auto",
        "auto (CUDA where there is one), cpu, cuda or cuda:N",
        lambda value: re.fullmatch("auto|cpu|cuda(:[0-9]{1,3})?", value) is not None,
        "'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …",
    ),
    Key(
        "MODEL.DEVICE_ID",
        "0",
        "number of the GPU that MODEL.DEVICE auto or cuda means",
        lambda value: value.isdecimal() and len(value) < 4,
        "the number of one GPU",
    ),
    Key("MODEL.DIST_TRAIN", False, "refuse to train in one process; torchrun starts several"),
    Key(
        "MODEL.TRANSFORMER_TYPE",
        "vit_base_patch16_224",
        "the backbone: ViT-B-16 (CLIP's), vit_base_patch16_224 (ImageNet's), or any VisionTransformer or Eva of timm with a "
        "class token and a position embedding (docs/method.md)",
    ),
    Key(
        "MODEL.PRETRAIN_PATH_T", "", "weights: a file, 'hub' (download), or 'none' (random, as '')"
    ),
    Key("MODEL.TEACHER", "", "checkpoint whose logits training follows (distillation); '': none"),
    Key("MODEL.PATCH_SIZE", 0, "side of a patch of random weights; 0: its own", *NOT_NEGATIVE),
    Key("MODEL.DEPTH", 0, "number of blocks of random weights; 0: its own", *NOT_NEGATIVE),
    Key("MODEL.STRIDE_SIZE", [16, 16], "step between patches; below the patch they overlap", *SIZE),
    Key("MODEL.DROP_PATH", 0.1, "stochastic depth of the last block; not in CLIP's", *BELOW_ONE),
    Key("MODEL.DROP_OUT", 0.0, "dropout in the backbone; not in CLIP's", *BELOW_ONE),
    Key("MODEL.ATT_DROP_RATE", 0.0, "dropout on attention weights; not in CLIP's", *BELOW_ONE),
    Key("MODEL.SIE_CAMERA", True, "add a learned embedding of the camera (side information)"),
    constant_key(
        "MODEL.SIE_VIEW", False, "add an embedding of the view", "data sets have no view labels"
    ),
    Key("MODEL.SIE_COE", 3.0, "weight of the camera embedding", math.isfinite, "a finite number"),
    Key("MODEL.FROZEN", False, "train all but the backbone's weights; its camera embedding too"),
    constant_key("MODEL.PROMPT", False, "prompts of MambaPro, DeMo's sister", NOT_DEMO),
    constant_key("MODEL.ADAPTER", False, "adapters of MambaPro, DeMo's sister", NOT_DEMO),
    Key(
        "MODEL.COMPILE",
        False,
        "compile the backbone's blocks, on one GPU the whole model and the loss (torch.compile; needs g++, on a GPU gcc)",
    ),
    Key("MODEL.GLOBAL_LOCAL", False, "PIFE: mix the mean of the patches into the global feature"),
    Key(
        "MODEL.SLIM_BLOCKS",
        [],
        "blocks of the backbone after which patches are dropped (token pruning, 'slimming'), rising, 0 for the input",
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
        "score by which patches are kept: saliency, distinctness, sdtps, supervised, self_supervised (docs/method.md), or "
        "package.module:Class of your own",
    ),
    Key("MODEL.SLIM_SHARED", True, "keep equal positions in all modalities; False: each its own"),
    Key("MODEL.SLIM_MERGE", True, "merge the dropped patches, into one token or as the score says"),
    Key("MODEL.SLIM_LOSS_WEIGHT", 5.0, "weight of the loss of a score that learns", *NOT_NEGATIVE),
    Key("MODEL.USE_SDTPS", False, "select and aggregate patch tokens after the backbone (SDTPS)"),
    Key("MODEL.SDTPS_SPARSE_RATIO", 0.5, "share of the patches that SDTPS keeps", *RATIO),
    Key("MODEL.SDTPS_AGGR_RATIO", 0.4, "share of the kept patches after aggregation", *RATIO),
    Key("MODEL.SDTPS_BETA", 0.25, "weight of the guidance by global features", *between(0, 0.5)),
    Key("MODEL.SDTPS_USE_GUMBEL", False, "straight-through gradients with Gumbel noise"),
    Key("MODEL.SDTPS_GUMBEL_TAU", 1.0, "temperature of the straight-through softmax", *POSITIVE),
    Key("MODEL.SDTPS_GUMBEL_SELECT", False, "let that noise choose patches too, in training alone"),
    Key("MODEL.SDTPS_GUIDE_MISSING", True, "let a missing modality (TEST.MISS) guide the others"),
    Key("MODEL.SDTPS_LOSS_WEIGHT", 1.0, "weight of the SDTPS feature's losses", *NOT_NEGATIVE),
    Key("MODEL.SDTPS_FEEDS_HDM", True, "HDM attends to the tokens of SDTPS, not to all patches"),
    Key("MODEL.HDM", False, "hierarchical decoupling: a feature per subset of the modalities"),
    Key("MODEL.ATM", False, "attention-triggered mixture of experts (ATMoE) over HDM's features"),
    Key("MODEL.HEAD", 12, "heads of the mixture of experts", *POSITIVE),
    Key("MODEL.DIRECT", 1, "1: one head on the globals concatenated; 0: one each", (0, 1)),
    constant_key("MODEL.NECK", "bnneck", "before the classifier", "DeMo has no other neck"),
    constant_key("MODEL.ID_LOSS_TYPE", "softmax", "loss of logits", "DeMo's heads are linear"),
    Key("MODEL.ID_LOSS_WEIGHT", 1.0, "weight of the identity loss", *NOT_NEGATIVE),
    Key("MODEL.IF_LABELSMOOTH", "on", "label smoothing 0.1 in the identity loss", ON_OFF),
    Key("MODEL.METRIC_LOSS_TYPE", "triplet", "losses of features", METRIC_LOSSES),
    Key("MODEL.TRIPLET_LOSS_WEIGHT", 1.0, "weight of the triplet loss", *NOT_NEGATIVE),
    Key("MODEL.NO_MARGIN", True, "soft-margin triplet loss; False: the margin SOLVER.MARGIN"),
    Key("MODEL.IF_WITH_CENTER", "no", "'yes' requires a METRIC_LOSS_TYPE with center", YES_NO),
    Key("INPUT.SIZE_TRAIN", [256, 128], "[height, width] of the images in training", *SIZE),
    Key("INPUT.SIZE_TEST", [256, 128], "[height, width] in evaluation; as in training", *SIZE),
    Key("INPUT.PROB", 0.5, "probability of a horizontal flip", *PROBABILITY),
    Key("INPUT.RE_PROB", 0.5, "probability of random erasing", *PROBABILITY),
    Key("INPUT.PADDING", 10, "pixels of padding before the crop", *between(0, LONGEST_SIDE)),
    Key("INPUT.JOINT_AUGMENTATION", False, "draw flip and crop once for all images of a triplet"),
    Key("INPUT.MODALITY_DROPOUT", 0.0, "probability of an image to be zeros, not all", *BELOW_ONE),
    Key("INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], "mean to normalise images with", *NUMBERS),
    Key("INPUT.PIXEL_STD", [0.5, 0.5, 0.5], "deviation to normalise with", *POSITIVE_NUMBERS),
    Key(
        "INPUT.RANGES",
        [],
        "values that become black and white, of own images of 16 bits or floats: MODALITY=LOW:HIGH, one scale for all images, "
        f"such as {EXAMPLE} (centikelvin from 0 to 40 °C), or percentiles of each image, by default 1%:99%",
        lambda value: len(dict(filter(None, map(parse_range, value)))) == len(value),
        f"a list of MODALITY=LOW:HIGH such as {EXAMPLE}, or TI=1%:99%, with LOW below HIGH, each modality once",
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
        "folder that holds the data set's own; of Folder the one with train, query and gallery, of CSV the table",
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
        "regular expression of identity and, where there are cameras, camera in the names of Folder's images",
    ),
    Key(
        "DATASETS.VALIDATION",
        0.0,
        "share of the training identities that are left out: the split validation, which chooses best.pth",
        *BELOW_ONE,
    ),
    Key("DATASETS.VERIFY", False, "decode every image first and list those that cannot be read"),
    Key("DATASETS.SKIP_UNREADABLE", False, "go on without these, and list them at the end"),
    Key("DATASETS.CACHE", "auto", "keep images in memory; auto: up to 1 GB", ("auto", *YES_NO)),
    Key(
        "DATALOADER.NUM_WORKERS",
        -1,
        "processes that load images; 0: a thread; -1: one per core, at most 8, or on two cores a thread for images in memory",
        *between(-1, MOST_WORKERS),
    ),
    Key("DATALOADER.TIMEOUT", 1800.0, "seconds to wait for a batch; 0: no limit", *NOT_NEGATIVE),
    Key(
        "DATALOADER.SAMPLER",
        "softmax_triplet",
        "batches of NUM_INSTANCE triplets of each identity; softmax: shuffled triplets, without the triplet loss",
        ("softmax_triplet", "softmax"),
    ),
    Key("DATALOADER.NUM_INSTANCE", 16, "triplets per identity in a batch", *POSITIVE),
    Key("SOLVER.SEED", 1111, "seed of everything random", *between(0, 2**32 - 1)),
    Key("SOLVER.OPTIMIZER_NAME", "SGD", "the optimiser", ("SGD", "Adam", "AdamW")),
    Key("SOLVER.MAX_EPOCHS", 120, "epochs of training", *POSITIVE),
    Key("SOLVER.IMS_PER_BATCH", 128, "triplets per batch, a multiple of NUM_INSTANCE", *POSITIVE),
    Key("SOLVER.BASE_LR", 0.009, "learning rate of everything but the backbone", *POSITIVE),
    Key("SOLVER.BIAS_LR_FACTOR", 2.0, "learning rate of biases over BASE_LR", *POSITIVE),
    Key("SOLVER.LARGE_FC_LR", False, "double the learning rate of the classifiers"),
    Key("SOLVER.MOMENTUM", 0.9, "momentum of SGD", *BELOW_ONE),
    Key("SOLVER.WEIGHT_DECAY", 0.0001, "weight decay", *NOT_NEGATIVE),
    Key("SOLVER.WEIGHT_DECAY_BIAS", 0.0001, "weight decay of biases", *NOT_NEGATIVE),
    Key("SOLVER.WARMUP_ITERS", 10, "epochs of warm-up", *NOT_NEGATIVE),
    Key("SOLVER.MARGIN", 0.3, "margin of the triplet loss where NO_MARGIN is False", *NOT_NEGATIVE),
    Key("SOLVER.AMP", "auto", "mixed precision in training; auto: where the hardware has it", AMP),
    Key(
        "SOLVER.FLOAT32_MATMUL",
        "default",
        "float32 products on a CPU: torch's, or onednn, faster on some (with AMX it rounds to bfloat16); auto is default",
        ("default", "onednn", "auto"),
    ),
    Key("SOLVER.EVAL_PERIOD", 1, "epochs between evaluations, and at the last", *POSITIVE),
    Key("SOLVER.EVAL_UNTRAINED", False, "evaluate before the first epoch too, as epoch 0"),
    Key("SOLVER.LOG_PERIOD", 10, "iterations between updates of the progress bar", *POSITIVE),
    Key(
        "SOLVER.WANDB",
        "",
        "project of Weights & Biases that receives what TensorBoard does; '': none",
        lambda value: len(value) <= 128 and not set(value) & set("/\\#?%:"),
        r"a name of at most 128 characters without / \ # ? % :",
    ),
    Key("SOLVER.CHECKPOINT_PERIOD", 10, "epochs between writes of last.pth", *POSITIVE),
    Key("SOLVER.CHECKPOINT_MINUTES", 10.0, "minutes between them too; 0: no limit", *NOT_NEGATIVE),
    Key("SOLVER.GRAD_CLIP", 0.0, "maximum norm of the gradient; 0: no clipping", *NOT_NEGATIVE),
    Key("SOLVER.CENTER_LR", 0.5, "learning rate of the centers, by SGD", *POSITIVE),
    Key("SOLVER.CENTER_LOSS_WEIGHT", 0.0005, "weight of the center loss", *POSITIVE),
    Key("SOLVER.DISTILL_WEIGHT", 1.0, "weight of the loss that follows the teacher", *NOT_NEGATIVE),
    Key("SOLVER.DISTILL_TEMPERATURE", 4.0, "temperature of both softmaxes in it", *POSITIVE),
    *(constant_key(name, default, UNUSED, WHY_UNUSED) for name, default in UNUSED_KEYS.items()),
    Key("TEST.IMS_PER_BATCH", 256, "triplets per evaluation batch", *POSITIVE),
    Key("TEST.AMP", "off", "half precision of the backbone in evaluation, as SOLVER.AMP", AMP),
    Key(
        "TEST.WEIGHT",
        "",
        "checkpoint: file, folder, or owner/name on Hugging Face's hub; training's start",
    ),
    Key(
        "TEST.RETURN_PATTERN",
        3,
        "features to rank: 1 original, 2 enhanced, 3 both",
        RETURN_PATTERNS,
    ),
    Key(
        "TEST.MISS",
        "None",
        "modalities zeroed in evaluation: r, n, t, rn, rt or nt; 'None' or 'nothing': none; all (demo-sdtps test): every case",
        ("None", "nothing", *MISSING_CASES, "all"),
    ),
    Key("TEST.CROSS_MODAL", False, "every set of modalities of the query against every other"),
    Key(
        "TEST.CROSS_MODAL_DISTANCE",
        "shared",
        "columns in the distance of triplets that lack modalities: all, or those of shared modalities (docs/method.md)",
        CROSS_MODAL_DISTANCES,
    ),
    Key("TEST.FEAT_NORM", "yes", "L2-normalise features before distances", YES_NO),
    Key("TEST.NECK_FEAT", "before", "features before or after the BatchNorm", ("before", "after")),
    Key("TEST.RE_RANKING", "no", "k-reciprocal re-ranking, of L2-normalised features", YES_NO),
)
