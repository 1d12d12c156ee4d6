"""demo_sdtps.patch on miniatures of the code bases that it knows (reference/hosts.py): what their descriptions say."""

import copy
from itertools import count

import pytest
import torch
from numeric import generator, shift_seed, tolerance
from tiny import equal, margins
from torch import nn
from yacs.config import CfgNode

import demo_sdtps
from demo_sdtps.plug_in.hosts import HOSTS as KNOWN
from demo_sdtps.runtime.errors import UserError
from tests.reference.hosts import CLASSES, GRID, HOSTS, NAMES, PATCH, PATCHES, SIZE, WIDTH
from tests.reference.patch_scores import saliency

BATCH, BLOCKS, KEEP = 3, [1, 2], [0.5, 0.5]
PIXELS = 3 * PATCH**2
"""Length of the longest sum (numeric.py) in a score of saliency."""
SLIMMED = {name: kind for name, kind in HOSTS.items() if not KNOWN[name].unslimmed}
WITH_SDTPS = {"UGG": 0, "Signal": 1, "MFRNet": 0}
"""Place of the pair in the output in training."""


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
    torch.manual_seed(shift_seed())
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


def outputs(model, batch, training=False):
    """The output, a tuple in training; the same noise whenever it is called."""
    torch.manual_seed(shift_seed(2))
    mode = {"training": training} if type(model).__name__.startswith("Signal") else {}
    if training:
        return model.train()(*batch, **mode)
    with torch.no_grad():
        return model.eval()(*batch, **mode)


def clear_inputs(name, model, training=False):
    """Inputs of which a model keeps patches by scores that differ by more than roundings."""
    for seed in count(1):
        batch = inputs(name, seed)
        with margins() as actual:
            outputs(model, batch, training)
        if min(actual) > tolerance(PIXELS, PATCHES):
            return batch


def leaves(output):
    if isinstance(output, tuple | list):
        return [leaf for element in output for leaf in leaves(element)]
    return [torch.as_tensor(output)]


def watch(model):
    """The positions (B, K) that every stage of the next forwards keeps, in the order of the calls."""
    kept = []
    hook = lambda module, batch, step: kept.append(step.state.places(step.values))  # noqa: E731
    model.slimming.register_forward_hook(hook)
    return kept


@pytest.mark.parametrize("name", SLIMMED)
def test_all_kept_is_the_host_and_unslim_gives_it_back(name):
    plain, model, batch = build(name), slim(name, SLIM_KEEP=[1.0, 1.0]), inputs(name)
    halved = slim(name)
    assert not torch.equal(outputs(halved, batch), outputs(plain, batch))
    for training in (False, True):
        expected = leaves(outputs(plain, batch, training))
        for other in (model, demo_sdtps.unslim(copy.deepcopy(halved))):
            assert equal(leaves(outputs(other, batch, training)), expected)
    assert list(demo_sdtps.unslim(halved).state_dict()) == list(plain.state_dict()) and type(
        halved
    ) is type(plain)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in halved.modules()
    )


def scores_by_hand(name, model, images, is_shared, training):
    """The scores (B, N) of the modalities in each call of a tower: Dijkstra's saliency, float64."""
    scores = {
        key: torch.tensor(
            [saliency(image.double(), GRID, (PATCH, PATCH), (PATCH, PATCH)) for image in rows]
        )
        for key, rows in model.train(training).encoded_images(images).items()
    }
    voting = [key for key in scores if training or key[0].lower() not in model.miss]
    shared = is_shared and KNOWN[name].shared
    if shared:
        scores = dict.fromkeys(scores, sum(scores[key] for key in voting))
    return [scores] if KNOWN[name].is_stacked else [{key: score} for key, score in scores.items()]


@pytest.mark.parametrize(
    "name, miss, training, is_shared",
    [
        *((name, "", training, True) for name in SLIMMED for training in (False, True)),
        *((name, "nt", False, True) for name in SLIMMED if name != "TOPReID"),
        *((name, "r", False, True) for name in ("MDReID", "TOPReID")),
        *((name, "r", True, True) for name in ("UGG", "MDReID", "TOPReID")),
        *((name, "", False, False) for name in ("UGG", "MFRNet", "TOPReID")),
    ],
)
def test_each_modality_keeps_the_places_of_the_best_scores(name, miss, training, is_shared):
    """The same places for all; those that miss have no vote. In training the host's loss reaches every tower."""
    model = slim(name, miss, SLIM_SHARED=is_shared)
    batch = clear_inputs(name, model, training)
    kept, output = watch(model), outputs(model, batch, training)
    calls = scores_by_hand(name, model, batch[0], is_shared, training)
    assert len(kept) == len(BLOCKS) * len(calls)
    for index, places in enumerate(kept):
        scores = torch.cat([*calls[index // len(BLOCKS)].values()])
        count = PATCHES // (2, 4)[index % len(BLOCKS)]
        # of equal scores, as those of an image of zeros, the first
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
        assert torch.equal(places, best.sort(dim=1).values)
    if training:
        model.loss(output).backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), key
            assert not key.endswith("conv1.weight") or parameter.grad.norm() > 0, key


@pytest.mark.parametrize(
    ("name", "slimming"),
    [
        *((name, False) for name in WITH_SDTPS),
        *((name, True) for name in WITH_SDTPS if name in SLIMMED),
    ],
)
def test_the_pair_and_the_feature_of_sdtps(name, slimming):
    model, plain = (
        (slim if slimming else build)(name, **keys) for keys in ({"USE_SDTPS": True}, {})
    )
    place, batch, chosen = WITH_SDTPS[name], inputs(name), []
    model.sdtps.register_forward_hook(lambda module, inputs, output: chosen.append(output))
    output, without = (list(outputs(each, batch, True)) for each in (model, plain))
    feature = torch.cat([tokens.mean(1) for tokens in chosen[0][:3]], -1)
    logits, actual = output[place : place + 2]
    assert torch.equal(actual, feature) and logits.shape == (BATCH, CLASSES)
    rest = output[:place] + output[place + 2 :]
    assert equal(leaves(rest), leaves(without))
    if name == "Signal":  # an argument says what the mode of the module says elsewhere
        assert len(model.eval()(*batch, training=True)) == len(output)
    loss = model.loss(output)
    loss.backward()
    assert (
        loss.isfinite()
        and model.classifier_sdtps.weight.grad.norm() > 0
        and model.sdtps.rgb_aggr is not None
    )
    expected, feature = outputs(plain, batch), outputs(model, batch)
    selected = torch.cat([tokens.mean(1) for tokens in chosen[1][:3]], -1)
    if name == "UGG":  # its patterns
        original, fused = expected[:, : 3 * WIDTH], expected[:, 3 * WIDTH :]
        assert torch.equal(feature, torch.cat([original, selected, fused], -1))
    else:
        assert torch.equal(feature, torch.cat([expected, selected], -1))
    patches = chosen[0][3].shape[1]
    assert patches == (PATCHES // 4 if slimming else PATCHES)


STAGE = {"SLIM_BLOCKS": [1], "SLIM_KEEP": [0.5]}


@pytest.mark.parametrize(
    "name, keys, sentence",
    [
        ("TOPReID", {"USE_SDTPS": True}, "loop of TOP-ReID reads outputs by fixed places"),
        ("EDITOR", STAGE, "it multiplies the attention of all blocks"),
        ("UGG", STAGE | {"SLIM_SCORE": "learned:Learned"}, "the training of UGG-ReID adds none"),
        ("IDEA", STAGE, "it lays its patches out as a grid"),
        ("UGG", STAGE | {"SLIM_BLOCKS": [4]}, "has 4 blocks"),
    ],
)
def test_what_a_host_cannot_do_is_refused_in_one_sentence(name, keys, sentence):
    torch.manual_seed(shift_seed())
    model = HOSTS[name]()
    before = list(model.state_dict())
    with pytest.raises(UserError) as error:
        demo_sdtps.patch(model, configuration(**keys))
    assert sentence in str(error.value) and str(error.value).endswith(".")
    assert list(model.state_dict()) == before and not any(
        module._forward_pre_hooks for module in model.modules()
    )


def test_another_model_is_refused():
    with pytest.raises(UserError, match="Linear is not the model of a code base"):
        demo_sdtps.patch(nn.Linear(2, 2), configuration(USE_SDTPS=True))
