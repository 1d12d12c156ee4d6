"""demo_sdtps.patch on miniatures of the code bases that it knows (reference/hosts.py), against slimming by hand."""

import copy
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from choices import margins
from numeric import assert_close, generator, seeded, tolerance
from plug_in_host import equal
from tiny import sums_of_a_backbone
from torch import nn
from yacs.config import CfgNode

import demo_sdtps
from demo_sdtps.plug_in.hosts import HOSTS as KNOWN
from demo_sdtps.runtime.errors import UserError
from tests.reference.host_towers import (
    CLASSES,
    DEPTH,
    GRID,
    NAMES,
    PATCH,
    PATCHES,
    SIZE,
    WIDTH,
    Slow,
    Tower,
)
from tests.reference.hosts import HOSTS
from tests.reference.patch_scores import saliency

EVIT = "studies.baselines:EViT"
BATCH, BLOCKS, KEEP = 3, [1, 2], [0.5, 0.5]
SUMS = (*sums_of_a_backbone(WIDTH, 2, PATCHES, DEPTH, PATCH), PATCHES, PATCHES, 9 * WIDTH, PATCHES)
"""Lengths of the sums (numeric.py) from images to features: the tower, merges by two stages, a convolution, its mean."""
SLIMMED = {name: kind for name, kind in HOSTS.items() if name != "EDITOR"}
WITH_SDTPS = {"UGG": 0, "Signal": 1, "MFRNet": 0}
"""Place of the pair in the output in training."""
EACH = pytest.mark.parametrize("name", SLIMMED)


def configuration(miss="", **keys):
    cfg = demo_sdtps.add_config(
        CfgNode(
            {
                "MODEL": {"INVERSE": True},
                "INPUT": {"SIZE_TRAIN": list(SIZE)},
                "TEST": {"MISS": miss},
            }
        )
    )
    cfg.MODEL.update(keys)
    return cfg


def build(name, miss="", **keys):
    """A miniature, patched with KEY=VALUE; the same weights for the same name."""
    torch.manual_seed(seeded())
    model = HOSTS[name](miss)
    return demo_sdtps.patch(model, configuration(miss, **keys))


def slim(name, miss="", **keys):
    return build(
        name, miss, **{"SLIM_BLOCKS": BLOCKS, "SLIM_KEEP": KEEP, "SLIM_SCORE": "saliency", **keys}
    )


def inputs(name, seed=1):
    draws = generator(seed)
    images = {key: torch.randn(BATCH, 3, *SIZE, generator=draws) for key in (*NAMES, "RGB1")}
    if name != "Uni_modal":
        del images["RGB1"]
    if name == "IDEA":
        return images, {key: torch.randn(BATCH, WIDTH, generator=draws) for key in NAMES}
    return (images,)


def outputs(model, given, training=False):
    """The output, a tuple in training; the same noise whenever it is called."""
    torch.manual_seed(seeded(2))
    mode = {"training": training} if type(model).__name__.startswith("Signal") else {}
    if training:
        return model.train()(*given, **mode)
    with torch.no_grad():
        return model.eval()(*given, **mode)


def clear_inputs(name, model, training=False):
    """Inputs of which a model keeps patches by scores that differ by more than roundings."""
    for seed in count(1):
        given = inputs(name, seed)
        with margins() as actual:
            outputs(model, given, training)
        if min(actual) > tolerance(*SUMS):
            return given


def leaves(output):
    if isinstance(output, tuple | list):
        return [leaf for part in output for leaf in leaves(part)]
    return [torch.as_tensor(output)]


def watch(model):
    """[(modalities, positions that they keep (B, K))] of every stage of the next forwards, in the order of the calls."""
    seen = []
    model.slimming.register_forward_hook(lambda module, given, step: seen.append(step[1].kept))
    return seen


@EACH
def test_all_kept_is_the_host_and_unslim_gives_it_back(name):
    plain, model, given = build(name), slim(name, SLIM_KEEP=[1.0, 1.0]), inputs(name)
    halved = slim(name)
    assert not torch.equal(outputs(halved, given), outputs(plain, given))
    for training in (False, True):
        expected = leaves(outputs(plain, given, training))
        for other in (model, demo_sdtps.unslim(copy.deepcopy(halved))):
            assert equal(leaves(outputs(other, given, training)), expected)
    assert list(demo_sdtps.unslim(halved).state_dict()) == list(plain.state_dict()) and type(
        halved
    ) is type(plain)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in halved.modules()
    )


def scores_by_hand(name, model, images, shared, training):
    """A score (rows, N) for each call of a tower, in the order in which it calls: of Dijkstra's saliency, float64."""
    given = (
        model.train(training).given(images)
        if name != "MDReID"
        else {
            key: image
            for key, image in images.items()
            if training or key[0].lower() not in model.miss
        }
    )
    own = {
        key: torch.tensor(
            [saliency(image.double(), GRID, (PATCH, PATCH), (PATCH, PATCH)) for image in rows]
        )
        for key, rows in given.items()
    }
    voting = [key for key in own if training or key[0].lower() not in model.miss]
    if shared == "first":
        own = dict.fromkeys(own, own[voting[0]])
    elif shared:
        own = dict.fromkeys(own, sum(own[key] for key in voting))
    return [torch.cat(list(own.values()))] if name in ("MFRNet", "MDReID") else list(own.values())


def attention_by_hand(tower, follow, first):
    """The scores of a tower's stages: attention of the class token, mean over the heads."""

    def score(index, tokens):
        block = (tower.transformer.resblocks if tower.tokens_first else tower.blocks)[index]
        seen = block.ln_1(tokens)
        weights = block.attn(seen, seen, seen)[1][:, 0].detach()
        if follow and len(weights) == 3 * BATCH:  # one call for all modalities
            weights = sum(weights.chunk(3)).repeat(3, 1)
        return first.setdefault(index, weights) if follow == "first" else weights

    return score


@pytest.mark.parametrize(
    "name, miss, training, shared, score",
    [
        *((name, "", training, True, "saliency") for name in SLIMMED for training in (False, True)),
        *((name, "nt", False, True, "saliency") for name in SLIMMED if name != "TOPReID"),
        *((name, "r", False, True, "saliency") for name in ("MDReID", "TOPReID")),
        *((name, "r", True, True, "saliency") for name in ("UGG", "MDReID", "IDEA", "TOPReID")),
        *((name, "", False, False, "saliency") for name in ("UGG", "MFRNet", "IDEA", "TOPReID")),
        *((name, "", False, True, EVIT) for name in SLIMMED),
        ("MFRNet", "", False, False, EVIT),
    ],
)
def test_the_output_is_that_of_slimming_by_hand(name, miss, training, shared, score):
    """Which patches each modality keeps: the same, but for towers of their own, the first's; those that miss have no vote.
    In training the host's own loss, and its gradient."""
    model, by_hand = slim(name, miss, SLIM_SHARED=shared, SLIM_SCORE=score), build(name, miss)
    given = clear_inputs(name, model, training)
    seen, actual = watch(model), outputs(model, given, training)
    follow, first = shared and KNOWN[name].shared, {}
    scores = scores_by_hand(name, by_hand, given[0], follow, training)
    towers = [module for module in by_hand.modules() if isinstance(module, Tower)]
    for place, tower in enumerate(towers):
        own = [scores[place]] if len(towers) > 1 else scores
        own = own if score == "saliency" else attention_by_hand(tower, follow, first)
        tower.stage = Slow(
            BLOCKS, KEEP, own, tower.prefix, by_hand.suffix, by_hand.restored, tower.tokens_first
        )
    expected = outputs(by_hand, given, training)
    for leaf, other in zip(leaves(actual), leaves(expected), strict=True):
        assert_close(leaf, other, *SUMS, *SUMS)
    if training:
        for each, output in ((model, actual), (by_hand, expected)):
            each.loss(output).backward()
        gradients = [
            {key: parameter.grad for key, parameter in each.named_parameters()}
            for each in (model, by_hand)
        ]
        for key, gradient in gradients[0].items():
            assert (gradient is None) == (gradients[1][key] is None), key
        for key in (key for key in gradients[0] if key.endswith("conv1.weight")):
            assert gradients[1][key].norm() > 0
            assert_close(gradients[0][key], gradients[1][key], *4 * SUMS)  # there and back, by both
    calls = [tuple(stage) for stage in seen[::2]]
    assert calls == expected_names(name, miss, training)


def expected_names(name, miss, training):
    """The modalities of each call of a tower."""
    if name in ("MFRNet", "MDReID"):
        present = tuple(
            key for key in NAMES if training or name == "MFRNet" or key[0].lower() not in miss
        )
        return [present]
    model = HOSTS[name]
    order = model.order if training else model.orders
    return [({"RGB1": "RGB"}.get(key, key),) for key in order]


@pytest.mark.parametrize("name", ["UGG", "IDEA", "TOPReID"])
@pytest.mark.parametrize("miss", ["", "r", "n", "rt"])
def test_a_missing_image_has_its_modalitys_name(name, miss):
    """By a score of noise that depends on it: what a modality keeps does not depend on which others miss."""
    kept = [{}, {}]
    for actual, missing in zip(kept, ("", miss), strict=True):
        model = slim(name, missing, SLIM_SCORE="noise:Noise", SLIM_SHARED=False)
        seen = watch(model)
        outputs(model, inputs(name))
        for stage in seen:
            for modality, places in stage.items():
                actual.setdefault(modality, []).append(places)
    assert set(kept[1]) == set(NAMES) and len(kept[1]["RGB"]) == 2
    for modality in NAMES:
        assert equal(kept[0][modality], kept[1][modality])
    assert not torch.equal(kept[0]["RGB"][1], kept[0]["NI"][1])


def test_the_first_that_is_there_decides():
    """TOP-ReID's first modality in order misses: the next one's set is that of all behind it."""
    model = slim("TOPReID", "n")
    (images,), seen = clear_inputs("TOPReID", slim("TOPReID", SLIM_SHARED=False)), watch(model)
    outputs(model, (images,))
    places = [next(iter(stage.values())) for stage in seen[::2]]
    score = scores_by_hand("TOPReID", model, images, "first", False)[1]
    best = score.topk(PATCHES // 2, dim=1).indices.sort(dim=1).values
    assert [tuple(stage) for stage in seen[::2]] == [("NI",), ("TI",), ("RGB",)]
    assert torch.equal(places[1], best) and torch.equal(places[2], best)


@pytest.mark.parametrize("name", WITH_SDTPS)
@pytest.mark.parametrize("slimming", [False, True])
def test_the_pair_and_the_feature_of_sdtps(name, slimming):
    model, plain = (
        (slim if slimming else build)(name, **keys) for keys in ({"USE_SDTPS": True}, {})
    )
    place, given, chosen = WITH_SDTPS[name], inputs(name), []
    model.sdtps.register_forward_hook(lambda module, inputs, output: chosen.append(output))
    output, without = (list(outputs(each, given, True)) for each in (model, plain))
    feature = torch.cat([tokens.mean(1) for tokens in chosen[0][:3]], -1)
    logits, actual = output[place : place + 2]
    assert torch.equal(actual, feature) and logits.shape == (BATCH, CLASSES)
    rest = output[:place] + output[place + 2 :]
    assert equal(leaves(rest), leaves(without))
    loss = model.loss(output)
    loss.backward()
    assert (
        loss.isfinite()
        and model.classifier_sdtps.weight.grad.norm() > 0
        and model.sdtps.rgb_aggr is not None
    )
    expected, feature = outputs(plain, given), outputs(model, given)
    own = torch.cat([tokens.mean(1) for tokens in chosen[1][:3]], -1)
    if name == "UGG":  # its patterns
        original, fused = expected[:, : 3 * WIDTH], expected[:, 3 * WIDTH :]
        assert torch.equal(feature, torch.cat([original, own, fused], -1))
    else:
        assert torch.equal(feature, torch.cat([expected, own], -1))
    patches = chosen[0][3].shape[1]
    assert patches == (PATCHES // 4 if slimming and name != "Signal" else PATCHES)


REFUSED = {
    "SDTPS": [
        (
            "TOPReID",
            {"USE_SDTPS": True},
            "the training loop of TOP-ReID reads outputs by fixed places",
        )
    ],
    "EDITOR": [
        (
            "EDITOR",
            {"SLIM_BLOCKS": [1], "SLIM_KEEP": [0.5]},
            "it multiplies the attention of all blocks",
        )
    ],
    "masks": [
        (
            "UGG",
            {"SLIM_BLOCKS": [1], "SLIM_KEEP": [0.5], "SLIM_SCORE": "supervised"},
            "which reads foreground masks, but the loader of UGG-ReID has none",
        )
    ],
    "a loss": [
        (
            "UGG",
            {"SLIM_BLOCKS": [1], "SLIM_KEEP": [0.5], "SLIM_SCORE": "self_supervised"},
            "which learns by a loss, but the training of UGG-ReID adds none",
        )
    ],
    "merges": [
        (
            "UGG",
            {"SLIM_BLOCKS": [1], "SLIM_KEEP": [0.5], "SLIM_SCORE": "studies.baselines:ToMe"},
            "whose merged tokens weigh more",
        )
    ],
    "blocks": [("UGG", {"SLIM_BLOCKS": [4], "SLIM_KEEP": [0.5]}, "has 4 blocks")],
}


@pytest.mark.parametrize(
    "name, keys, sentence", [case for cases in REFUSED.values() for case in cases]
)
def test_what_a_host_cannot_do_is_refused_in_one_sentence(name, keys, sentence):
    torch.manual_seed(seeded())
    model = HOSTS[name]()
    before = list(model.state_dict())
    with pytest.raises(UserError) as error:
        demo_sdtps.patch(model, configuration(**keys))
    assert sentence in str(error.value) and str(error.value).endswith(".")
    assert list(model.state_dict()) == before and not any(
        module._forward_pre_hooks for module in model.modules()
    )


def test_another_model_is_refused_and_named_what_is_known():
    with pytest.raises(
        UserError,
        match=r"Linear is not the model of a code base that patch knows \(DeMo, UGG, Signal, .*slim",
    ):
        demo_sdtps.patch(nn.Linear(2, 2), configuration(USE_SDTPS=True))
    model = HOSTS["MFRNet"]()
    model.BACKBONE.base = nn.Identity()
    with pytest.raises(UserError, match="of MFRNet has no Conv2d"):
        demo_sdtps.patch(model, configuration(SLIM_BLOCKS=[1], SLIM_KEEP=[0.5]))


def test_slimming_on_an_older_python_is_refused(monkeypatch):
    monkeypatch.setattr("demo_sdtps.plug_in.patch.sys", SimpleNamespace(version_info=(3, 8)))
    with pytest.raises(UserError, match=r"slimming needs Python 3\.10 or newer"):
        slim("UGG")
    assert hasattr(build("UGG", USE_SDTPS=True), "sdtps")


def test_a_subclass_is_its_hosts_and_off_nothing_changes():
    class Changed(HOSTS["UGG"]):
        pass

    assert type(demo_sdtps.patch(Changed(), configuration())) is Changed
    assert hasattr(
        demo_sdtps.patch(Changed(), configuration(SLIM_BLOCKS=[1], SLIM_KEEP=[0.5])), "slimming"
    )
