"""TEST: which features are ranked, and how."""
import torch
from numeric import generator
from pytest import approx
from reference import ranking
from reference import reranking as slow

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import make_test_data, rank_features
from effects.base import MARK, effect, images_of, is_near, is_reported, model_of


def test_data_of(cfg):
    splits = read_splits(cfg, ("query", "gallery"))
    return make_test_data(cfg, splits["query"], splits["gallery"])


@effect("TEST.WEIGHT", {"": "told", "{root}/weights.pth": "loaded"})
def weights_to_evaluate(cfg):
    if is_reported(load_model_and_data, cfg):
        return "told"
    model, _ = load_model_and_data(cfg)
    return "loaded" if model.backbone.vit.norm.weight.eq(MARK).all() else "others"


@effect("TEST.MISS", {"None": set(MODALITIES), "nothing": set(MODALITIES), "r": {"NI", "TI"}, "nt": {"RGB"}})
def modalities_that_are_seen(cfg):
    model, seen = model_of(cfg), []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    loader = test_data_of(cfg).loader
    extract_features(cfg, model, loader)
    images = next(batches(loader))[0]
    return {modality for modality in MODALITIES if any(torch.equal(images[modality][0], image) for image in seen)}


@effect("TEST.AMP", {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16})
def type_of_the_backbones_products_in_evaluation(cfg):
    model, seen = model_of(cfg), set()
    model.backbone.vit.blocks[0].attn.qkv.register_forward_hook(lambda layer, inputs, product: seen.add(product.dtype))
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
    before = model.features(model.encode(images, cameras))["original"].double()
    after = (before - neck.running_mean) / (neck.running_var.double() + neck.eps).sqrt() * neck.weight + neck.bias
    (name,) = (name for name, feature in (("before", before), ("after", after)) if is_near(found[:len(feature)], feature, 6))
    return name


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
    labels = [data.labels(name, places).tolist() for name in ("identity", "camera") for places in (data.query, data.gallery)]
    expected = {"Euclidean": ranking.evaluate(query, gallery, *labels)[1],
                "k-reciprocal": ranking.evaluate_distances(slow.k_reciprocal(query, gallery), *labels)[1]}
    found = rank_features(cfg, features.float(), data).mAP
    name = min(expected, key=lambda name: abs(expected[name] - found))
    assert found == approx(expected[name], abs=1 / len(query) / (2 * 4))  # rounding may exchange two neighbours, of 4 matches
    return name
