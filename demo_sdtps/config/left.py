"""Keys that files of DeMo and of older versions may set, and that this version does not have.

A file or a checkpoint that has such a key at its old default is read without it, since that is what this version does anyway.
Any other value is refused by one sentence, which names the key and what to do in its place. A key that a schema has (SEPS has
SOLVER.STEPS) is not a key that left for that schema.
"""

from typing import NamedTuple


class LeftKey(NamedTuple):
    """The old default, and what to do in place of the key: a clause that follows "leave it out:"."""

    default: object
    instead: str


NOT_DEMO = "it belongs to MambaPro and is not part of DeMo"
SCHEDULE = "the learning rate follows a cosine with SOLVER.WARMUP_ITERS epochs of warm-up"
LOSS = "there is no cluster, cosine or range loss, as in DeMo, which reads none of these keys"

LEFT = {
    # DeMo's own, without effect in it or with a single value
    "MODEL.NAME": LeftKey("DeMo", "there is no other model"),
    "MODEL.SIE_VIEW": LeftKey(False, "the data sets have no view labels"),
    "MODEL.PROMPT": LeftKey(False, NOT_DEMO),
    "MODEL.ADAPTER": LeftKey(False, NOT_DEMO),
    "MODEL.NECK": LeftKey("bnneck", "DeMo has no other neck"),
    "MODEL.ID_LOSS_TYPE": LeftKey("softmax", "DeMo's heads are linear"),
    "SOLVER.STEPS": LeftKey((40, 70), SCHEDULE),
    "SOLVER.GAMMA": LeftKey(0.1, SCHEDULE),
    "SOLVER.WARMUP_FACTOR": LeftKey(0.01, SCHEDULE),
    "SOLVER.WARMUP_METHOD": LeftKey("linear", SCHEDULE),
    "SOLVER.CLUSTER_MARGIN": LeftKey(0.3, LOSS),
    "SOLVER.COSINE_MARGIN": LeftKey(0.5, LOSS),
    "SOLVER.COSINE_SCALE": LeftKey(30, LOSS),
    "SOLVER.RANGE_K": LeftKey(2, LOSS),
    "SOLVER.RANGE_MARGIN": LeftKey(0.3, LOSS),
    "SOLVER.RANGE_ALPHA": LeftKey(0, LOSS),
    "SOLVER.RANGE_BETA": LeftKey(1, LOSS),
    "SOLVER.RANGE_LOSS_WEIGHT": LeftKey(1, LOSS),
    # those that left with 0.3.0
    "SOLVER.WANDB": LeftKey(
        "", "Weights & Biases reads TensorBoard's files ('wandb sync' and the run's folder)"
    ),
    "DATASETS.VERIFY": LeftKey(
        False, "demo-sdtps check --decode lists the images that cannot be read"
    ),
    "SOLVER.FLOAT32_MATMUL": LeftKey(
        "default", "float32 products are torch's, and SOLVER.AMP and TEST.AMP bf16 are faster"
    ),
    "SOLVER.CHECKPOINT_MINUTES": LeftKey(
        10.0, "a run resumes at the end of an epoch, by SOLVER.CHECKPOINT_PERIOD"
    ),
}
"""By key; `demo_sdtps.config.load` reads it."""
