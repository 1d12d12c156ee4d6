"""Which scores MODEL.SLIM_SCORE and MODEL.SDTPS_SCORE can name, where the class of each is, and which of them read masks."""
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import UserError, nearest


class ScoreEntry(NamedTuple):
    place: str  # file and class in modeling/selectors
    masks: str = ""  # when it reads foreground masks (docs/data.md): "training", "always", or '' for never
    has_weights: bool = False  # or a map, which a checkpoint that was trained without the score does not hold
    backbone_only: bool = False  # whether it works between the blocks of the backbone alone: MODEL.SLIM_SCORE, not SDTPS_SCORE


SCORES = {
    "distinctness": ScoreEntry("cues.Distinctness"),
    "border": ScoreEntry("cues.Border"),
    "saliency": ScoreEntry("saliency.Saliency", backbone_only=True),
    "attention": ScoreEntry("cues.Attention", backbone_only=True),
    "sdtps": ScoreEntry("sdtps.SDTPSScore", has_weights=True),
    "position": ScoreEntry("position.Position", has_weights=True),
    "distinct_position": ScoreEntry("position.DistinctPosition", has_weights=True),
    "given_map": ScoreEntry("position.GivenMap", backbone_only=True),
    "running_distinctness": ScoreEntry("position.RunningDistinctness", has_weights=True),
    "random": ScoreEntry("controls.Random"),
    "tome": ScoreEntry("tome.ToMe", backbone_only=True),
    "editor": ScoreEntry("editor.Editor", backbone_only=True),
    "learned": ScoreEntry("learned.Learned", has_weights=True),
    "supervised": ScoreEntry("supervised.Supervised", masks="training", has_weights=True),
    "mean_mask": ScoreEntry("controls.MeanMask", masks="training", has_weights=True),
    "mask": ScoreEntry("controls.Mask", masks="always"),
}
"""Scores by name. `random`, `mean_mask` and `mask` are controls of the studies."""

WITHOUT_WEIGHTS = tuple(name for name, entry in SCORES.items() if not (entry.has_weights or entry.masks))
"""Those that any checkpoint can be evaluated with, as they need no training."""

MASK = "MASK"
"""Name of the foreground mask among the images of a triplet, and of its folder."""


def score_entry(name: str, key: str) -> ScoreEntry:
    """The entry of the score that `key` names. Raises `UserError` for an unknown name."""
    if name not in SCORES:
        raise UserError(f"{key} is {name!r}, but it must be {' or '.join(map(repr, SCORES))}{nearest(name, SCORES)}.")
    return SCORES[name]


def reads_masks(cfg: CfgNode, training: bool) -> bool:
    """Whether the images of a triplet include its foreground mask, in training or in evaluation."""
    if not cfg.MODEL.SLIM_BLOCKS:
        return False
    when = score_entry(cfg.MODEL.SLIM_SCORE, "MODEL.SLIM_SCORE").masks
    return when == "always" or (training and when == "training")
