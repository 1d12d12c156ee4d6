"""Keys that files of DeMo and of older versions may set, and that this version does not have.

A file or a checkpoint that has such a key at its old default is read without it, since that is what this version does anyway.
Any other value is refused by one sentence, which names the key and says what stands in its place. A key that a schema has
(SEPS has SOLVER.STEPS) is not a key that left for that schema.
"""

from demo_sdtps.config.keys import Key

NOT_DEMO = "it belongs to MambaPro and is not part of DeMo"
SCHEDULE = "the learning rate follows a cosine with SOLVER.WARMUP_ITERS epochs of warm-up"
LOSS = "there is no cluster, cosine or range loss, as in DeMo, which reads none of these keys"

ROWS: tuple[tuple, ...] = (
    # DeMo's own, without effect in it or with a single value
    ("MODEL.NAME", "DeMo", "there is no other model"),
    ("MODEL.SIE_VIEW", False, "the data sets have no view labels"),
    ("MODEL.PROMPT", False, NOT_DEMO),
    ("MODEL.ADAPTER", False, NOT_DEMO),
    ("MODEL.NECK", "bnneck", "DeMo has no other neck"),
    ("MODEL.ID_LOSS_TYPE", "softmax", "DeMo's heads are linear"),
    ("SOLVER.STEPS", (40, 70), SCHEDULE),
    ("SOLVER.GAMMA", 0.1, SCHEDULE),
    ("SOLVER.WARMUP_FACTOR", 0.01, SCHEDULE),
    ("SOLVER.WARMUP_METHOD", "linear", SCHEDULE),
    ("SOLVER.CLUSTER_MARGIN", 0.3, LOSS),
    ("SOLVER.COSINE_MARGIN", 0.5, LOSS),
    ("SOLVER.COSINE_SCALE", 30, LOSS),
    ("SOLVER.RANGE_K", 2, LOSS),
    ("SOLVER.RANGE_MARGIN", 0.3, LOSS),
    ("SOLVER.RANGE_ALPHA", 0, LOSS),
    ("SOLVER.RANGE_BETA", 1, LOSS),
    ("SOLVER.RANGE_LOSS_WEIGHT", 1, LOSS),
    # those that left with 0.3.0
    ("MODEL.SLIM_LOSS_WEIGHT", 5.0, "a score of your own sets the weight of its loss"),
    ("SOLVER.WANDB", "", "'wandb sync' and the run's folder sends TensorBoard's files"),
    ("DATASETS.VERIFY", False, "demo-sdtps check --decode lists the images that cannot be read"),
    ("DATASETS.SKIP_UNREADABLE", False, "demo-sdtps search has the flag --skip_unreadable"),
    ("SOLVER.FLOAT32_MATMUL", "default", "SOLVER.AMP and TEST.AMP bf16 are faster"),
    ("SOLVER.TOWER_LR_FACTOR", 1.0, "SOLVER.BASE_LR is the rate of SEPS's towers too"),
    ("SOLVER.CHECKPOINT_MINUTES", 10.0, "a run resumes at the end of the last epoch that it saved"),
)

LEFT = {
    name: Key(name, default, f"this version has no such key: {instead}", (default,))
    for name, default, instead in ROWS
}
"""By name: keys that allow their old defaults alone."""
