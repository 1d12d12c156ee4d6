"""Configuration keys of the model: default, effect, possible values."""

import math
import re

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.schema import (
    BELOW_ONE,
    NOT_NEGATIVE,
    ON_OFF,
    POSITIVE,
    RATIO,
    SIZE,
    YES_NO,
    Key,
    between,
    constant_key,
)

NOT_DEMO = "it belongs to MambaPro and is not part of DeMo"

MODEL_KEYS = (
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
        "MODEL.PRETRAIN_PATH_T",
        "",
        "weights: a file, 'hub' (downloaded), or 'none' (random, as '')",
    ),
    Key("MODEL.PATCH_SIZE", 0, "side of a patch of random weights; 0: its own", *NOT_NEGATIVE),
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
        "compile the backbone's blocks (torch.compile; needs g++, on a GPU gcc); on one GPU training is a CUDA graph",
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
    Key(
        "MODEL.SLIM_SHARED", True, "keep the same positions in all modalities; False: each its own"
    ),
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
    constant_key(
        "MODEL.NECK", "bnneck", "between feature and classifier", "DeMo has no other neck"
    ),
    constant_key(
        "MODEL.ID_LOSS_TYPE", "softmax", "loss of the logits", "DeMo's classifiers are linear"
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
    Key("MODEL.IF_WITH_CENTER", "no", "'yes' requires a METRIC_LOSS_TYPE with center", YES_NO),
)
