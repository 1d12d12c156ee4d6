"""Which functions a GPU records as CUDA graphs (runtime/gpu.py); tests/project/test_gpu.py records them."""

import pytest
import torch
from tiny import tiny_cfg

from demo_sdtps.runtime.gpu import can_record

SLIM = ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]")
THEIRS = ("MODEL.SLIM_SCORE", "studies.baselines:EViT")
COMPILED = ("MODEL.COMPILE", "True")


@pytest.mark.parametrize(
    ("device", "opts", "expected"),
    [
        ("cuda", SLIM, True),
        ("cuda", THEIRS, True),  # of no stage
        ("cuda", (*SLIM, *THEIRS), False),
        ("cuda", (*SLIM, *THEIRS, *COMPILED), True),
        ("cpu", (*SLIM, *COMPILED), False),
    ],
)
def test_what_is_recorded(device, opts, expected):
    assert can_record(tiny_cfg(*opts), torch.device(device)) is expected
