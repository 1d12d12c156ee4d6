"""Configuration keys of an evaluation: TEST.AMP, TEST.FEAT_NORM, TEST.RE_RANKING, TEST.CROSS_MODAL_DISTANCE."""

import pytest
import torch
from commands import BACKBONE_WIDTH, CONFIG, cli_args_for
from numeric import generator

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.protocol import (
    CASES,
    extract_features,
    make_test_data,
    rank_features,
    rank_sets,
    ranked_distances,
)
from demo_sdtps.modeling.demo import make_model


def cfg_and_data(root, *opts):
    cfg = load_cfg(CONFIG, cli_args_for(root, *opts)[2:])
    splits = read_splits(cfg, ("query", "gallery"))
    return cfg, make_test_data(cfg, splits["query"], splits["gallery"])


@pytest.mark.parametrize(
    ("mode", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_backbones_products_have_the_precision_and_features_are_float32(tiny_root, mode, dtype):
    cfg, data = cfg_and_data(tiny_root, "TEST.AMP", mode)
    model, dtypes = make_model(cfg, 5, 8), set()
    model.backbone.vit.blocks[0].attn.qkv.register_forward_hook(
        lambda layer, inputs, product: dtypes.add(product.dtype)
    )
    (features,) = extract_features(cfg, model, data.loader)
    assert features[3].dtype == torch.float32 and dtypes == {dtype}


def test_full_batches_of_complete_triplets_are_calls_of_the_whole_model(tiny_root):
    """Which MODEL.COMPILE compiles, and a GPU records; other batches have one size each, or cameras to list."""
    cfg, data = cfg_and_data(tiny_root, "TEST.IMS_PER_BATCH", "5")
    model, sizes = make_model(cfg, 5, 8), []
    model.register_forward_hook(lambda model, inputs, features: sizes.append(len(features)))
    extract_features(cfg, model, data.loader, [CASES["nothing"], CASES["r"]])
    extract_features(cfg, model, data.loader, [CASES["r"]])
    assert not sizes
    extract_features(cfg, model, data.loader)
    whole, rest = divmod(len(data.samples), 5)
    assert rest and sizes == [5] * whole


def test_images_may_count_as_of_unknown_cameras(tiny_root):
    """In the features of every command: the protocol leaves out matches by the cameras of the samples."""
    cfg, known = cfg_and_data(tiny_root)
    other, data = cfg_and_data(tiny_root, "TEST.UNKNOWN_CAMERAS", "True")
    model = make_model(cfg, 5, 8)
    (features,) = extract_features(other, model, data.loader)
    model.backbone.camera_embedding.data[:] = model.backbone.camera_embedding.data.mean(dim=0)
    (expected,) = extract_features(cfg, model, known.loader)
    assert torch.allclose(features[3], expected[3], rtol=1e-4, atol=1e-5)
    assert data.samples == known.samples and data.matched == known.matched


@pytest.mark.parametrize(("value", "exact"), [("yes", True), ("no", False)])
def test_with_normalisation_only_the_direction_counts(tiny_root, value, exact):
    """A direction for each identity, at lengths of five orders of magnitude."""
    cfg, data = cfg_and_data(tiny_root, "TEST.FEAT_NORM", value)
    identities = torch.tensor([sample.identity for sample in data.samples])
    lengths = 10.0 ** (torch.arange(len(identities)) % 5)
    features = (identities[:, None] == identities.unique()).float() * lengths[:, None]
    assert (rank_features(cfg, features, data).mAP == pytest.approx(1)) is exact


def test_re_ranking_normalises_features_and_columns_whatever_feat_norm_says(tiny_root):
    """Of triplets that lack modalities, by the columns that both have."""
    ways = ("TEST.RE_RANKING", "yes", "TEST.CROSS_MODAL_DISTANCE", "shared", "TEST.FEAT_NORM")
    (cfg, data), (other, _) = (cfg_and_data(tiny_root, *ways, value) for value in ("yes", "no"))
    rng = generator(6)
    data.present[:, 1:] = torch.rand(len(data.samples), 2, generator=rng).numpy() < 0.5
    scales = 10 * torch.rand(len(data.samples), 9, generator=rng) ** 2
    features = (torch.randn(len(data.samples), 9, 4, generator=rng) * scales[..., None]).flatten(1)
    normalised, others = (ranked_distances(each, features, data, 3) for each in (cfg, other))
    assert torch.allclose(normalised.rows(slice(None)), others.rows(slice(None)), atol=1e-6)


@pytest.mark.parametrize(
    ("value", "sets", "is_perfect"),
    [("all", "RN", False), ("shared", "RN", True), ("shared", "T", None)],
)
def test_queries_of_rgb_are_compared_by_its_columns(tiny_root, value, sets, is_perfect):
    """These are the identity's direction, and all others are large and random."""
    cfg, data = cfg_and_data(
        tiny_root, "TEST.CROSS_MODAL_DISTANCE", value, "TEST.RETURN_PATTERN", 1
    )
    width, rng = BACKBONE_WIDTH, generator(5)
    features = {
        case: {1: 1000 * torch.randn(len(data.samples), 3 * width, generator=rng)} for case in CASES
    }
    identities = torch.tensor([sample.identity for sample in data.samples])
    direction = identities[:, None] == torch.arange(width)
    features["nt"][1][:, :width] = features["t"][1][:, :width] = direction
    mean = rank_sets(cfg, make_model(cfg, 5, 8), features, data)["mAP"]["R"][sets]
    assert mean is None if is_perfect is None else (mean == pytest.approx(1)) is is_perfect
