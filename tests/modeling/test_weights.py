"""DeMo's checkpoint names to ours and back."""

import re

import pytest
import torch
from tiny import tiny_model

from demo_sdtps.config import UserError
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.modeling.checkpoints.names import from_demo, load_file, to_demo
from tests.reference.fusion import Fusion

FUSION = ("MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)


def assert_same(actual, expected):
    """The same names, the same tensors bit by bit."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(actual[name], tensor), name


def random_fusion(width=64, heads=4, dtype=torch.float32, seed=2):
    """DeMo's HDM and ATMoE (without heads: HDM alone) between what stands around them in its checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    weights = {"BACKBONE.base.norm.weight": torch.ones(3)}
    for name, tensor in Fusion(width, heads).state_dict().items():
        weights[f"generalFusion.{name}"] = (
            torch.tensor(1234567)
            if name.endswith("tracked")
            else torch.randn(tensor.shape, generator=generator).to(dtype)
        )
    return weights | {"classifier_moe.weight": torch.zeros(2, 7)}


@pytest.mark.parametrize(
    ("width", "heads", "dtype"),
    [(64, 4, torch.float32), (192, 12, torch.float16), (128, None, torch.float32)],
)
def test_demos_fusion_and_back(width, heads, dtype):
    """The places of the stacks are those of tests/modeling/test_fusion.py, which computes with them."""
    theirs = random_fusion(width, heads, dtype)
    ours = from_demo(theirs)
    back = to_demo(ours)
    assert_same(back, theirs)
    for name, tensor in back.items():  # a view would be saved with the whole stack
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name


def test_a_fusion_that_is_not_whole_is_reported(tmp_path):
    theirs = to_demo(tiny_model(*FUSION).state_dict())
    missing = "generalFusion.moe.experts.2.expertHead.5.mlp.0.weight"
    del theirs[missing]
    torch.save(theirs, tmp_path / "broken.pth")
    with pytest.raises(
        UserError, match=rf"broken.pth cannot be used: {re.escape(missing)} is missing"
    ):
        read_checkpoint(tmp_path / "broken.pth")


@pytest.mark.parametrize("without_weights", [False, True])
def test_a_file_that_is_cut_short_anywhere_is_told_so(tmp_path, without_weights):
    path = tmp_path / "cut.pth"
    torch.save({"model": tiny_model().state_dict()}, path)
    content = path.read_bytes()
    for size in range(0, len(content) - 1, len(content) // 40):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="another format, or damaged"):
            load_file(path, without_weights)


def test_a_checkpoint_of_the_first_release_is_read(tmp_path):
    """Whose backbone was called trunk."""
    weights = tiny_model("MODEL.USE_SDTPS", True).state_dict()
    former = {re.sub("^backbone", "trunk", name): tensor for name, tensor in weights.items()}
    torch.save({"model": former}, tmp_path / "last.pth")
    assert (
        former != weights and read_checkpoint(tmp_path / "last.pth").model.keys() == weights.keys()
    )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_flipped_bit_of_a_checkpoint_is_refused(share, tmp_path):
    """torch itself reads other weights."""
    path = tmp_path / "flipped.pth"
    torch.save({"model": {"weight": torch.ones(4000)}}, path)
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        load_file(path)
