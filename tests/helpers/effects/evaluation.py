"""TEST: which features are ranked, and how."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from interrupted import call
from numeric import generator
from pytest import approx

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.cross_modal import rank_sets
from demo_sdtps.evaluation.extraction import CASES, extract_features
from demo_sdtps.evaluation.protocol import make_test_data, rank_features
from effects.base import MARK, WIDTH, effect, images_of, is_near, is_reported, model_of
from tests.reference import ranking
from tests.reference import reranking as slow


def test_data_of(cfg):
    splits = read_splits(cfg, ("query", "gallery"))
    return make_test_data(cfg, splits["query"], splits["gallery"])


@effect("TEST.WEIGHT", {"": "told", "{root}/weights.pth": "loaded"})
def weights_to_evaluate(cfg):
    if is_reported(load_model_and_data, cfg):
        return "told"
    model, _ = load_model_and_data(cfg)
    return "loaded" if model.backbone.vit.norm.weight.eq(MARK).all() else "others"


@effect(
    "TEST.MISS",
    {"None": set(MODALITIES), "nothing": set(MODALITIES), "r": {"NI", "TI"}, "nt": {"RGB"}},
)
def modalities_that_are_seen(cfg):
    model, seen = model_of(cfg), []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    loader = test_data_of(cfg).loader
    extract_features(cfg, model, loader)
    images = next(batches(loader))[0]
    return {
        modality
        for modality in MODALITIES
        if any(torch.equal(images[modality][0], image) for image in seen)
    }


@effect("TEST.AMP", {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16})
def type_of_the_backbones_products_in_evaluation(cfg):
    model, seen = model_of(cfg), set()
    model.backbone.vit.blocks[0].attn.qkv.register_forward_hook(
        lambda layer, inputs, product: seen.add(product.dtype)
    )
    (features,) = extract_features(cfg, model, test_data_of(cfg).loader)
    assert features[3].dtype == torch.float32
    (found,) = seen
    return found


@effect("TEST.NECK_FEAT", {"before": "before", "after": "after"})
@torch.no_grad()
def place_of_the_features_in_the_neck(cfg):
    model = model_of(cfg)
    neck = model.heads["original"].bottleneck
    for seed in range(3):
        model.train()(*images_of(cfg, seed))  # the running statistics leave their start
    data = test_data_of(cfg)
    found = extract_features(cfg, model.eval(), data.loader)[0][1]
    images, _, cameras = next(batches(data.loader))
    before = model.forward_head(model.forward_features(images, cameras).context)[
        "original"
    ].double()
    after = (before - neck.running_mean) / (
        neck.running_var.double() + neck.eps
    ).sqrt() * neck.weight + neck.bias
    (name,) = (
        name
        for name, feature in (("before", before), ("after", after))
        if is_near(found[: len(feature)], feature, 6)
    )
    return name


@effect(
    "TEST.CROSS_MODAL",
    {"False": "cases", "True": "cross_modal"},
    "TEST.WEIGHT",
    "{root}/weights.pth",
)
def what_an_evaluation_writes(cfg):
    with TemporaryDirectory() as folder:
        config, output = Path(folder) / "config.yml", Path(folder) / "x.json"
        config.write_text(cfg.dump())
        assert call(["--config_file", config, "--json", output], test_net.main) == 0
        return list(json.loads(output.read_text()))[-1]


@effect(
    "TEST.CROSS_MODAL_DISTANCE",
    {"all": False, "shared": None, "pairs": True},
    "TEST.RETURN_PATTERN",
    "1",
)
def queries_of_rgb_find_their_thermal_images(cfg):
    """Both are the identity's direction, and all other features are large and random."""
    data, model, draws = test_data_of(cfg), model_of(cfg), generator(5)
    features = {
        case: {1: 1000 * torch.randn(len(data.samples), 3 * WIDTH, generator=draws)}
        for case in CASES
    }
    identities = torch.tensor([sample.identity for sample in data.samples])
    features["nt"][1][:, :WIDTH] = features["rn"][1][:, 2 * WIDTH :] = identities[
        :, None
    ] == torch.arange(WIDTH)
    found = rank_sets(cfg, model, features, data)["mAP"]["R"]["T"]
    return None if found is None else found == approx(1)


@effect("TEST.FEAT_NORM", {"yes": True, "no": False})
def only_the_direction_counts(cfg):
    """A direction for each identity, at lengths that are all over the place."""
    data = test_data_of(cfg)
    identities = torch.tensor([sample.identity for sample in data.samples])
    lengths = 10.0 ** (torch.arange(len(identities)) % 5)
    features = (identities[:, None] == identities.unique()).float() * lengths[:, None]
    return rank_features(cfg, features, data).mAP == approx(1)


@effect("TEST.RE_RANKING", {"no": "Euclidean", "yes": "k-reciprocal"})
def distance_that_is_ranked(cfg):
    data = test_data_of(cfg)
    features = torch.randn(len(data.samples), 6, generator=generator(4)).double()
    features = features / features.norm(dim=1, keepdim=True)
    query, gallery = (features[places].tolist() for places in (data.query, data.gallery))
    labels = [
        data.labels(name, places).tolist()
        for name in ("identity", "camera")
        for places in (data.query, data.gallery)
    ]
    expected = {
        "Euclidean": ranking.evaluate(query, gallery, *labels)[1],
        "k-reciprocal": ranking.evaluate_distances(slow.k_reciprocal(query, gallery), *labels)[1],
    }
    found = rank_features(cfg, features.float(), data).mAP
    name = min(expected, key=lambda name: abs(expected[name] - found))
    # rounding may exchange two neighbours, of 4 matches
    assert found == approx(expected[name], abs=1 / len(query) / (2 * 4))
    return name
