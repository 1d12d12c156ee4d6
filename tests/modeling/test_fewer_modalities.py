"""Models of fewer modalities: their features, operations and gradients (MODEL.MODALITIES)."""

import shlex

import pytest
import torch
from numeric import assert_close
from tiny import ENCODER, MODEL, PIFE, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.extraction import extract_patterns
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling.modalities import SUBSETS, modality_subsets


@pytest.mark.parametrize("modalities", [("RGB", "TI"), ("NI",)], ids="+".join)
@torch.no_grad()
def test_a_model_of_fewer_modalities_has_the_features_of_these(modalities):
    """With the weights of the whole model: each modality's own columns, and HDM's of the subsets that have no other."""
    options = ("MODEL.HDM", "True", "MODEL.USE_SDTPS", "False")
    whole, subset_model = (
        tiny_model(*options, "MODEL.MODALITIES", list(names)).eval().double()
        for names in (MODALITIES, modalities)
    )
    names = [*modality_subsets(modalities)]
    rows = [list(SUBSETS).index(name) for name in names]
    weights = whole.state_dict()
    subset_model.load_state_dict(
        {
            name: weights[name][rows] if name.startswith("hdm.") else weights[name]
            for name in subset_model.state_dict()
            if not name.startswith("heads.")
        },
        strict=False,
    )
    images, cameras = random_images(2)
    images = {name: image.double() for name, image in images.items()}
    expected, actual = (
        extract_patterns(whole, images, cameras)[0],
        extract_patterns(subset_model, {name: images[name] for name in modalities}, cameras)[0],
    )
    columns = torch.cat(
        [expected[1].chunk(3, dim=1)[MODALITIES.index(name)] for name in modalities], dim=1
    )
    enhanced = torch.cat([expected[2].chunk(7, dim=1)[row] for row in rows], dim=1)
    assert_close(actual[1], columns, *ENCODER, *PIFE)
    assert_close(actual[2], enhanced, *MODEL)


@pytest.mark.parametrize(
    "options",
    [
        ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4"),
        ("MODEL.USE_SDTPS", "True"),
        pytest.param(("MODEL.DIRECT", "0"), marks=pytest.mark.slow),
        shlex.split("MODEL.SLIM_BLOCKS [0,2] MODEL.SLIM_KEEP [0.5,0.5] MODEL.SLIM_SCORE saliency"),
        *(
            pytest.param(
                ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", "MODEL.SLIM_SCORE", score),
                marks=pytest.mark.slow,
            )
            for score in ("self_supervised",)
        ),
    ],
    ids=lambda opts: opts[-1],
)
def test_rgb_alone_costs_one_modality_and_every_weight_of_it_learns(options):
    one, three = (
        tiny_model("MODEL.MODALITIES", names, "INPUT.JOINT_AUGMENTATION", "True", *options)
        for names in ("[RGB]", "[RGB, NI, TI]")
    )
    macs = [count_macs(tiny_cfg(), model)[""] for model in (one, three)]
    assert 2.8 * macs[0] < macs[1]
    images, cameras = random_images(3)
    output = one.train()({"RGB": images["RGB"]}, cameras)
    losses = [logits.square().sum() for logits in output.logits.values()]
    (sum(losses) + (0 if output.auxiliary is None else output.auxiliary.sum())).backward()
    idle = [name for name, parameter in one.named_parameters() if parameter.grad is None]
    assert [name for name in idle if not name.endswith("bottleneck.bias")] == []
