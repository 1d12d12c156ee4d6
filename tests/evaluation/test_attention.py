"""Attention rollout, Grad-CAM and the weights of the fusion, against loops with explicit matrices; their command."""

from itertools import count

import pytest
import torch
from backbone_cases import EVA02, REGISTERS
from choices import margins
from numeric import assert_close, shift_seed, tolerance
from tiny import CAMERAS, PATCHES, WIDTH, random_images, tiny_model

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.evaluation.attention import fusion_weights, grad_cam, rollout, similarity_to
from demo_sdtps.evaluation.extraction import extract_patterns
from demo_sdtps.modeling import make_model
from tests.reference import attention as reference

FUSED = "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4"
SLIM = f"MODEL.USE_SDTPS False {FUSED} INPUT.JOINT_AUGMENTATION True MODEL.SLIM_KEEP [0.5,0.5]"
APART = "MODEL.SLIM_SHARED False"
MODELS = {
    "whole": "MODEL.USE_SDTPS False",
    "selector and fusion": FUSED,
    "slimming": f"{SLIM} MODEL.SLIM_BLOCKS [1,3]",
    "slimming the input, each modality apart": f"{SLIM} MODEL.SLIM_BLOCKS [0,2] {APART}",
    "slimming without extra tokens": f"{SLIM} MODEL.SLIM_BLOCKS [2,5] MODEL.SLIM_MERGE False",
    "merging": f"{SLIM} MODEL.SLIM_BLOCKS [1,3] {APART} MODEL.SLIM_SCORE studies.baselines:ToMe",
}
SCORE = (PATCHES, WIDTH, WIDTH)
"""Lengths of the sums in a score, which is computed in float32: mean, norm, cosine."""


def model_and_triplets(name):
    """A model in float64, and images whose patches it chooses clearly: alone as in a batch."""
    model = tiny_model(*MODELS[name].split(), seed=1).eval().double()
    for seed in count(2):
        images, cameras = random_images(seed=seed, batch=2)
        images = {modality: image.double() for modality, image in images.items()}
        with torch.no_grad(), margins() as actual:
            model.forward_head(model.forward_features(images, cameras).context)
        if min(actual, default=1.0) > tolerance(*SCORE, *SCORE):
            return model, (images, cameras)


def record_steps(model, images, cameras):
    """Encode one triplet, watched by hooks of torch: → context, and for each modality the inputs of the blocks with the places
    and sizes of their tokens."""
    inputs = []
    handles = [
        block.register_forward_pre_hook(
            lambda _, args, named: inputs.append((args[0], named.get("attn_mask"))),
            with_kwargs=True,
        )
        for block in model.backbone.vit.blocks
    ]
    encoded = model.forward_features(images, cameras)
    for handle in handles:
        handle.remove()
    blocks, actual = list(model.slimming.blocks) if model.slimming else [], {}
    for number, modality in enumerate(MODALITIES):
        actual[modality] = []
        for index, (values, bias) in enumerate(inputs):
            places, sizes = list(range(PATCHES)), torch.ones_like(values[0, :, 0])
            if stages := sum(block <= index for block in blocks):
                places = encoded.stages[stages - 1].kept[modality][0].tolist()
            if bias is not None:
                sizes = bias[number, 0, 0].exp()
            actual[modality].append((values[number], places, sizes))
    return encoded.context, actual, inputs[-1][0]


@pytest.mark.parametrize("name", MODELS)
def test_rollout_is_the_product_of_the_blocks_attention(name):
    model, (images, cameras) = model_and_triplets(name)
    actual = rollout(model, images, cameras)
    for place, (triplet, camera) in enumerate(reference.one_by_one(images, cameras)):
        with torch.no_grad():
            _, steps, _ = record_steps(model, triplet, camera)
            for modality in MODALITIES:
                expected = reference.rollout(model, steps[modality], PATCHES)
                kept = steps[modality][-1][1]
                # Of each block logits, softmax, the mean of the heads and a product.
                lengths = 6 * (WIDTH, PATCHES, 2, PATCHES)
                assert_close(actual.values[modality][place].flatten(), expected, *lengths)
                assert actual.kept[modality][place].flatten().nonzero()[:, 0].tolist() == kept
                assert expected.count_nonzero() == len(kept)


@pytest.mark.parametrize("name", MODELS)
def test_grad_cam_weighs_the_tokens_by_their_mean_gradient(name):
    model, (images, cameras) = model_and_triplets(name)
    features = torch.randn(2, extract_patterns(model, images, cameras)[0][3].shape[1])
    actual = grad_cam(model, images, cameras, similarity_to(model, features, 3, "before"))
    is_there = False
    for place, (triplet, camera) in enumerate(reference.one_by_one(images, cameras)):
        context, steps, last = record_steps(model, triplet, camera)
        feature = model.return_patterns(context)[3][0]
        feature, other = feature.double(), features[place].double()
        cosine = (feature @ other) / (feature.norm() * other.norm())
        gradient = torch.autograd.grad(cosine, last)[0]
        for number, modality in enumerate(MODALITIES):
            tokens, places, _ = steps[modality][-1]
            expected = reference.grad_cam(tokens.detach(), gradient[number], places, 1, PATCHES)
            largest = float(tokens.detach().abs().max() * gradient[number].abs().max())
            # What a selector and the cosine compute in float32, and its gradient.
            lengths = (*2 * (*SCORE, 3 * WIDTH), WIDTH)
            values = actual.values[modality][place].flatten()
            assert_close(values, expected, *lengths, scale=largest)
            is_there |= bool(expected.max() > 0)
    assert is_there


def test_a_missing_modality_is_an_image_of_zeros():
    model, (images, cameras) = model_and_triplets("slimming")
    without_ni = images | {"NI": torch.zeros_like(images["NI"])}
    one, other = (
        rollout(model, pixels, cameras, frozenset({"NI"})) for pixels in (images, without_ni)
    )
    assert all(torch.equal(one.values[modality], other.values[modality]) for modality in MODALITIES)
    assert not torch.equal(one.values["NI"], rollout(model, images, cameras).values["NI"])


@pytest.mark.parametrize("name", [REGISTERS, pytest.param(EVA02, marks=pytest.mark.slow)])
def test_every_backbone_is_looked_into(name):
    """Two blocks of each; without slimming the class token's row of a rollout is what is left of 1 by class token and
    registers."""
    words = "MODEL.STRIDE_SIZE [14,14] INPUT.SIZE_TRAIN [56,28] INPUT.SIZE_TEST [56,28]"
    cfg = load_cfg(None, ["MODEL.TRANSFORMER_TYPE", name, *words.split()])
    torch.manual_seed(shift_seed())
    model = make_model(cfg, 5, CAMERAS).eval()
    model.backbone.vit.blocks = model.backbone.vit.blocks[:2]
    images, cameras = random_images(seed=3, batch=1, size=(56, 28))
    actual = rollout(model, images, cameras)
    for values in actual.values.values():
        assert values.shape == (1, 4, 2) and 0 < values.sum() < 1 and (values > 0).all()
    features = torch.randn(1, 3 * model.backbone.width)
    heat = grad_cam(model, images, cameras, similarity_to(model, features, 1, "before"))
    assert all(values.isfinite().all() and values.min() >= 0 for values in heat.values.values())


def test_weights_of_the_fusion():
    model, (images, cameras) = model_and_triplets("selector and fusion")
    with torch.no_grad():
        context = model.forward_features(images, cameras).context
    weights = fusion_weights(model, context)
    assert list(weights.hdm) == ["r", "n", "t", "rn", "rt", "nt", "rnt"] and list(
        weights.hdm["rt"]
    ) == ["RGB", "TI"]
    for shares in weights.hdm.values():
        assert_close(sum(shares.values()), torch.ones(2), 3 * PATCHES, 3 * PATCHES)
    assert weights.gates.shape == (2, 4, 7)
    assert_close(weights.gates.sum(dim=-1), torch.ones(2, 4), 7, 7)
    whole, _ = model_and_triplets("whole")
    assert fusion_weights(whole, context) == (None, None)
