"""What scores ask for: keys of a block, the weight of merged tokens in attention, the count of their operations."""

import pytest
import torch
from golden_cases import relative_error
from numeric import assert_close, generator, tolerance
from tiny import BLOCK, random_images, tiny_cfg, tiny_model

from demo_sdtps.evaluation.operations import count_macs
from studies.attention import keys
from studies.baselines import SizedState

SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.5]", "MODEL.SLIM_SHARED", "False")


@pytest.mark.parametrize(
    "name", ["test_vit", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3_qkvb"]
)
def test_keys_are_those_of_the_next_block(name):
    """Before a rotary embedding."""
    backbone = tiny_model("MODEL.TRANSFORMER_TYPE", name, "MODEL.PATCH_SIZE", 8).eval().backbone
    images, cameras = random_images(15)
    outputs, tokens = [], backbone.stem(images["RGB"], cameras, 2)
    backbone.vit.blocks[2].attn.k_norm.register_forward_hook(
        lambda module, arguments, output: outputs.append(output)
    )
    actual = keys(backbone.vit.blocks[2], tokens)
    with torch.no_grad(), backbone.ready(actual.device):
        backbone.run_blocks(tokens, None, 2, 3)
    _, expected = outputs
    # norm and projection, of keys alone and with the others
    assert_close(actual, expected, *4 * [backbone.vit.embed_dim])


@pytest.mark.parametrize(
    ("precision", "limit"),
    [(None, tolerance(*6 * BLOCK)), (torch.bfloat16, 60**0.5 / 2**8)],
    ids=str,
)
def test_a_merged_token_weighs_as_much_as_its_patches(precision, limit):
    """A token of size 8 in attention and eight equal tokens of size 1 give the same other tokens.

    In bfloat16 three blocks round about ten times each, on both ways; the norm of many such errors is √60 units.
    """
    backbone = tiny_model(seed=12).eval().backbone
    backbone.precision = precision
    values = torch.randn(2, 6, 64, generator=generator(13))
    repeated = torch.cat([values, *7 * [values[:, -1:]]], dim=1)
    sizes = torch.ones(2, 6)
    sizes[:, -1] = 8
    sized = SizedState(backbone.grid_size, sizes=sizes)
    for fused in (True, False):
        backbone.fused_attention = fused
        with torch.no_grad(), backbone.ready(values.device):
            plain, merged, apart = (
                backbone.run_blocks(tokens, state, 0, 3)[:, :6] - values
                for tokens, state in ((values, None), (values, sized), (repeated, None))
            )
        assert relative_error(merged, apart) < limit and relative_error(plain, apart) > 0.1


@pytest.mark.parametrize("score", ["saliency", "studies.baselines:ToMe"])
def test_operations_are_counted(score, caplog):
    cfg = tiny_cfg(*SLIM, "MODEL.SLIM_SCORE", score)
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", score).eval()
    assert count_macs(cfg, model)["slimming"] > 0
    assert "Not counted" not in caplog.text
