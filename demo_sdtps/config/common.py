"""Names that every package shares."""

from __future__ import annotations

# red-green-blue, near infrared, thermal infrared; always in this order (docs/method.md)
MODALITIES = ("RGB", "NI", "TI")


# features at evaluation: 1 original, 2 enhanced, 3 both (docs/method.md)
RETURN_PATTERNS = (1, 2, 3)

# of triplets that lack modalities (TEST.CROSS_MODAL_DISTANCE)
CROSS_MODAL_DISTANCES = ("all", "shared")

# missing modalities of a triplet, by first letters (TEST.MISS)
MISSING_CASES = ("r", "n", "t", "rn", "rt", "nt")

COMMAND = "demo-sdtps"
"""The command of an installed package (demo_sdtps/commands)."""

ATTENTION_METHODS = {
    "rollout": "attention rollout of the class token",
    "gradcam": "Grad-CAM towards the similarity with the identity's gallery samples",
}
"""Of demo-sdtps draw attention."""

FOREGROUND = {"person": ("person",), "vehicle": ("car", "bus", "truck")}
"""Foregrounds of demo-sdtps masks: names of the classes in COCO."""

TOP = 10
"""Hits of a query by default."""

SQUARED = "squared Euclidean distance of L2-normalised features (0 to 4), by TEST.CROSS_MODAL_DISTANCE as in the evaluation"
RERANKED = "k-reciprocal distance of re-ranking (0 to 1)"
"""Distances of demo-sdtps search."""

FALSE_ACCEPT_RATES = (0.0001, 0.001, 0.01, 0.05)
"""Shares of the pairs of different identities that a threshold of demo-sdtps calibrate accepts."""
FALSE_ACCEPT = 0.01
"""The one of them that a search marks hits by, by default."""

FLAT, APPROXIMATE = "flat", "hnsw"
"""Indices of demo-sdtps search: exact, and approximate."""

CLIP_BACKBONE = "ViT-B-16"
"""MODEL.TRANSFORMER_TYPE of CLIP's image encoder; other values are timm's names (modeling/backbones)."""

HUB, RANDOM_WEIGHTS = "hub", ("", "none")
SCRATCH = "RGBNT201/DeMo_SDTPS_tiny trains without any download"
"""Values of MODEL.PRETRAIN_PATH_T that are no file: timm downloads the weights; the weights are random, '' with a warning."""

SDTPS_ARGUMENTS = (
    "sparse_ratio",
    "aggr_ratio",
    "use_gumbel",
    "gumbel_tau",
    "beta",
    "gumbel_select",
)
"""Arguments of MultiModalSDTPS that have a key: MODEL.SDTPS_ and the name in capitals."""

IMAGE_KEYS = (
    "MODEL.MODALITIES",
    "INPUT.SIZE_TRAIN",
    "INPUT.SIZE_TEST",
    "INPUT.PIXEL_MEAN",
    "INPUT.PIXEL_STD",
    "INPUT.RANGES",
)
"""Keys that two models have equal where they read the same tensors."""

UNSHARED = (
    "OUTPUT_DIR",
    "DATASETS.ROOT_DIR",
    "TEST.WEIGHT",
    "MODEL.PRETRAIN_PATH_T",
    "MODEL.TEACHER",
)
"""Keys that name paths of the machine of the training, which `Extractor.save_pretrained` leaves out."""
WITHOUT_EFFECT = ("MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.COMPILE", *UNSHARED)
"""Keys of MODEL on which features do not depend."""
