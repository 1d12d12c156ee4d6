"""Slimming in the whole model: missing modalities, chunks, the modules after it, precision, position maps."""

import pytest
import torch
from numeric import assert_close
from tiny import PATCHES, WIDTH, pairs, random_images, tiny_cfg, tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode

from demo_sdtps.config.common import MISSING_CASES, MODALITIES
from demo_sdtps.evaluation.protocol import encode_cases
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.modeling.precision import inference

SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.5,0.7]")
COUNTS = (16, 12)
PLAIN = ("MODEL.USE_SDTPS", "False", "MODEL.DROP_PATH", "0", "INPUT.JOINT_AUGMENTATION", "True")
FUSION = ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4")
CASES = [frozenset(), *map(missing_modalities, MISSING_CASES)]
SCORE = (PATCHES, WIDTH, WIDTH, len(MODALITIES))
"""Lengths of the sums in scores and their sum over the modalities, at most; scores are float32."""
LEARNED = "learned:Learned"
EVIT, TOME = (f"studies.baselines:{name}" for name in ("EViT", "ToMe"))


def every(*slow, quick=("saliency", LEARNED)):
    slow = [pytest.param(score, marks=pytest.mark.slow) for score in slow]
    return pytest.mark.parametrize("score", [*quick, *slow])


def slim_model(score="saliency", *opts):
    shared = ("MODEL.SLIM_SHARED", score != TOME)
    keep = ("MODEL.SLIM_KEEP", "[0.6,0.6]") if score == EVIT else ()  # it has one keep ratio
    return tiny_model(*SLIM, *PLAIN, "MODEL.SLIM_SCORE", score, *shared, *keep, *opts)


def exact(images):
    """In float64, where the tokens have no roundings that change what is kept."""
    return {name: image.double() for name, image in images.items()}


def warm_up(model, seed=7):
    """A few batches for maps and BatchNorms."""
    model.train()
    with torch.no_grad():
        for step in range(3):
            images, cameras = random_images(seed + step)
            model(images, cameras)
    return model.eval()


@every(EVIT)
@torch.no_grad()
def test_every_case_of_missing_modalities(score):
    """All cases equal each alone with zero images; pixels of an absent modality change nothing."""
    model = warm_up(slim_model(score, "MODEL.SLIM_SHARED", score != LEARNED, *FUSION)).double()
    images, _ = random_images(1, batch=5)
    images, cameras = exact(images), torch.tensor([3, 1, 1, 3, 1])
    together = encode_cases(model, images, cameras, CASES)
    for missing, actual in zip(CASES, together, strict=True):
        zeroed = images | {name: torch.zeros_like(images[name]) for name in missing}
        noise = images | {name: torch.randn_like(images[name]) for name in missing}
        (of_noise,) = encode_cases(model, noise, cameras, [missing])
        for other in (model.forward_features(zeroed, cameras), of_noise):
            for name in MODALITIES:
                assert_close(other.tokens[name], actual.tokens[name], *SCORE, *SCORE)
                assert_close(other.global_feats[name], actual.global_feats[name], *SCORE, *SCORE)
        assert all(actual.missing[name].eq(name in missing).all() for name in MODALITIES)


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "own"])
def test_triplets_of_a_batch_miss_different_modalities(is_shared):
    """Values, loss and gradients in training are those of each triplet alone, whose missing images count for nothing."""
    opts = ("MODEL.SLIM_SHARED", is_shared, "MODEL.USE_SDTPS", True)
    model = warm_up(slim_model(LEARNED, *opts, "MODEL.SDTPS_GUIDE_MISSING", False)).double()
    model.slimming.train()
    images, cameras = random_images(8, batch=len(CASES))
    images = exact(images)
    for row, case in enumerate(CASES):
        for name in case:
            images[name][row] = 0
    images["NI"].requires_grad_()
    together = model.forward_features(images, cameras)
    alone = []
    for row in range(len(CASES)):
        one = {name: image[row : row + 1] for name, image in images.items()}
        alone.append(model.forward_features(one, cameras[row : row + 1]))
    for name in MODALITIES:
        for stage, *stages in zip(
            together.stages, *(single.stages for single in alone), strict=True
        ):
            assert torch.equal(stage.kept[name], torch.cat([other.kept[name] for other in stages]))
        tokens = torch.cat([single.tokens[name] for single in alone])
        assert_close(together.tokens[name], tokens, *SCORE, *SCORE)
        scores = torch.cat([model.select_patches(single)[name].score for single in alone])
        assert_close(model.select_patches(together)[name].score, scores, *SCORE, *SCORE)
    loss = torch.stack([single.loss for single in alone]).mean(dim=0)
    assert_close(together.loss, loss, *SCORE)
    weight = model.slimming.scores[0].heads["NI"][-1].weight
    (expected,) = torch.autograd.grad(loss, weight)
    actual, of_images = torch.autograd.grad(together.loss, [weight, images["NI"]])
    assert_close(actual, expected, *SCORE, *SCORE)
    reached = of_images.flatten(1).any(dim=1)
    assert reached.tolist() == ["NI" not in case for case in CASES]


@pytest.mark.parametrize(
    "opts",
    [
        ("MODEL.USE_SDTPS", "True"),
        FUSION,
        ("MODEL.STRIDE_SIZE", "[6, 5]", "MODEL.USE_SDTPS", "True", *FUSION),
    ],
    ids=" ".join,
)
def test_the_modules_after_it_see_the_remaining_patches(opts):
    model = slim_model("saliency", *opts)
    count = model.slimming.counts(model.backbone.num_patches)[-1]
    images, cameras = random_images(4)
    outputs = pairs(model.train()(images, cameras))
    assert all(output.isfinite().all() for output in outputs)
    sum(output.sum() for output in outputs[::2]).backward()
    encoded = model.eval().forward_features(images, cameras)
    assert all(tokens.shape[1] == count for tokens in encoded.tokens.values())
    if model.sdtps:
        expected = int(count * 0.4 * 0.5) + 1
        assert model.select_patches(encoded)["TI"].tokens.shape[1] == expected


@every("saliency", LEARNED, EVIT, TOME, quick=())
def test_a_training_step_waits_for_no_value_of_a_tensor(score):
    """Tensors without values: whatever would copy one from the device raises, and shapes come from the configuration."""
    model = slim_model(score, *FUSION).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        images = {name: torch.randn(4, 3, 64, 32, requires_grad=True) for name in MODALITIES}
        outputs = model(images, torch.zeros(4, dtype=torch.long))
        loss, _ = total_loss(tiny_cfg(), outputs, torch.tensor([0, 0, 1, 1]), model.head_weights)
        (gradient,) = torch.autograd.grad(loss, images["NI"])
    assert gradient.shape == (4, 3, 64, 32)


@every(EVIT, TOME)
def test_bfloat16_is_near_float32(score):
    """In training under autocast, finite everywhere; in evaluation as TEST.AMP casts the model."""
    model = warm_up(slim_model(score))
    images, cameras = random_images(10)
    with inference(model, None):
        exact = model(images, cameras)
    with inference(model, torch.bfloat16):
        half = model(images, cameras)
    assert exact.dtype == half.dtype and half.isfinite().all()
    assert torch.cosine_similarity(exact, half).min() > 0.9  # single patches may change
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(images, cameras)
        labels = torch.tensor([0, 0, 1, 1])
        loss, parts = total_loss(tiny_cfg(), outputs, labels, model.head_weights)
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)
    assert ("auxiliary" in parts) == (score == LEARNED)
