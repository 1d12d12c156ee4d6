"""Forms (`has_form`) of what a run, a calibration and an export record of a model, as JSON."""

import re

ANY, PATTERN = re.compile(".*"), re.compile("[123]")
SETS = re.compile(r"(RGB|NI|TI|\+)+, (RGB|NI|TI|\+)+")
CLASSES = "class_digest"
"""Entry of a checkpoint: the digest of the training images and whose they are, the same where its classes are."""
NUMBER = (int, float)
MEASURED = {PATTERN: {ANY: NUMBER}}
FIT = {"slope": NUMBER, "offset": NUMBER, "limits": {re.compile(r"0\.\d+"): NUMBER}}
CALIBRATION = {"checkpoint_sha256": str, "settings": dict, "patterns": {PATTERN: {SETS: FIT}}}
ORIGIN = {
    "dataset": (None, str),
    "data": (None, str),
    CLASSES: (None, str),
    "cameras": (None, [str]),
    "epoch": (None, int),
    "commit": (None, str),
    "metrics": (None, MEASURED),
    "calibration": (None, CALIBRATION),
}
"""Of a checkpoint, by name."""
