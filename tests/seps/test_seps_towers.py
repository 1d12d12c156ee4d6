"""SEPS's towers: real models of timm and transformers, small; what they return, where weights are from, and mistakes."""

import copy
import shlex
from itertools import chain

import pytest
import torch
import transformers
from numeric import assert_close, shift_seed
from seps_tiny import cfg_for, save_bert
from tiny import ENCODER, WIDTH, equal
from triplets import catch_message
from weight_files import classifier_weights, save_torch

from seps.model import ImageTower, TextTower, load_tokenizer, make_seps

SWIN = shlex.split(
    "MODEL.TRANSFORMER_TYPE swin_tiny_patch4_window7_224 MODEL.PATCH_SIZE 2 MODEL.SDTPS_AGGR_RATIO 0.5"
)
VIT_PATH = (*ENCODER, WIDTH)
"""Lengths of the sums to the tokens of test_vit: its encoder, of no more tokens than that of tiny.py, and the projection."""
STAGES = zip((2, 2, 6, 2), (96, 192, 384, 768), strict=True)
BLOCKS = [depth * (width, width, 32, 49, 49, *3 * (width,), 4 * width) for depth, width in STAGES]
SWIN_PATH = (3 * 2 * 2, *chain(*BLOCKS), *2 * (4 * 96, 4 * 192, 4 * 384), 768, 768)
"""… and of the Swin Transformer: blocks with windows of up to 49 tokens, merging with its norm, norm and projection."""
BERT_PATH = (16, 16, 16, 8, 9, 9, 16, 16, 16, 32, 16, 16)
"""… and of BERT below: norm; queries, products, softmax, means of up to 9 words, projection; norm, MLP, norm; projection."""


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    save_bert(folder)
    return folder


def cfg_with(folder, *more):
    return cfg_for(folder.parent, "MODEL.TEXT_TOWER", folder, "INPUT.MAX_LONG_WORDS", "64", *more)


def image_tower(bert, *more):
    torch.manual_seed(shift_seed(3))
    return ImageTower(cfg_with(bert, *more)).eval()


# Images


@pytest.mark.parametrize(("name", "prefix"), [("test_vit", 1), ("test_vit_relpos", 0)])
def test_a_vision_transformers_tokens(bert, name, prefix):
    tower = image_tower(bert, "MODEL.TRANSFORMER_TYPE", name)
    images = torch.randn(2, 3, 32, 32)
    tokens = tower(images)
    assert tower.num_patches == 16 and tokens.shape == (2, prefix + 16, 16)
    exact = copy.deepcopy(tower).double()
    weight, bias = exact.projection.weight, exact.projection.bias
    assert_close(tokens, exact.tower.forward_features(images.double()) @ weight.T + bias, *VIT_PATH)
    assert tokens.norm(dim=-1).std() > 0.01  # nothing is normalised


def test_a_swin_transformers_tokens_are_its_grid_row_by_row(bert):
    tower = image_tower(bert, *SWIN)
    images = torch.randn(1, 3, 32, 32)
    exact = copy.deepcopy(tower).double()
    grid = exact.tower.forward_features(images.double())
    assert grid.shape == (1, 2, 2, 768) and tower.num_patches == 4
    expected = exact.projection(
        torch.stack([grid[:, row, column] for row in (0, 1) for column in (0, 1)], dim=1)
    )
    assert_close(tower(images), expected, *SWIN_PATH)


# Pretrained weights of the image tower


def test_weights_from_a_file(bert, tmp_path):
    weights = classifier_weights(4)
    save_torch(weights, tmp_path / "w.pth")
    tower = image_tower(bert)
    report = tower.load(str(tmp_path / "w.pth"))
    actual = tower.tower.state_dict()
    assert equal(actual, weights)
    assert report.endswith(f"{len(actual)} of {len(actual)} tensors loaded")


# Captions


def test_the_bert_is_the_one_on_disk(bert):
    saved = transformers.BertModel.from_pretrained(bert).eval().double()
    tower = TextTower(cfg_with(bert), pretrained=True).eval()
    assert tower.tower.pooler is None
    words, lengths = torch.tensor([[2, 5, 6, 8, 3]]), torch.tensor([5])
    expected = copy.deepcopy(tower.projection).double()(saved(input_ids=words).last_hidden_state)
    assert_close(tower(words, lengths), expected, *BERT_PATH)


@pytest.mark.parametrize("garbage", [0, 7])
def test_padded_words_change_nothing(bert, garbage):
    tower = TextTower(cfg_with(bert), pretrained=True).eval()
    short = torch.tensor([[2, 6, 3]])
    wide = torch.full((2, 9), garbage)
    wide[0, :3], wide[1] = short[0], torch.randint(4, 9, (9,))
    together = tower(wide, torch.tensor([3, 9]))
    assert_close(together[0, :3], tower.double()(short, torch.tensor([3]))[0], *BERT_PATH)


@pytest.mark.parametrize(
    ("opts", "reason"),
    [
        (
            ["MODEL.TRANSFORMER_TYPE", "vit_small_patch14_reg4_dinov2", "INPUT.SIZE", "[28,28]"],
            "one class token or none",
        ),
        (["MODEL.SDTPS_AGGR_RATIO", "0.1"], "16 patches"),
        (["MODEL.TEXT_TOWER", "data/no such/bert"], "data/no such/bert"),
    ],
)
def test_what_does_not_fit_is_one_sentence(bert, opts, reason):
    cfg = cfg_with(bert, *opts)
    assert reason in catch_message(lambda: (make_seps(cfg), load_tokenizer(cfg)))


# The whole model


@pytest.mark.parametrize(
    "opts",
    [(), tuple(SWIN), ("MODEL.PAPER_VERSION", "False"), ("MODEL.DUAL_AGGR", "False")],
    ids=str,
)
def test_the_model_learns_in_all_its_parts(bert, opts):
    model, report = make_seps(cfg_with(bert, *opts))
    assert "random weights" in report
    captions, long = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]]), torch.tensor([[2, 5, 6, 8, 3]] * 2)
    inputs = torch.randn(2, 3, 32, 32), captions, torch.tensor([4, 3]), long, torch.tensor([5, 5])
    similarities, _ = model(*inputs)
    assert similarities.shape == (2, 2)
    similarities.square().sum().backward()
    for tower in (model.image_tower, model.text_tower):
        for module in (tower.tower, tower.projection):
            gradients = [parameter.grad for parameter in module.parameters()]
            assert any(gradient is not None and gradient.any() for gradient in gradients)
    model.eval()
    with torch.no_grad():
        assert model(*inputs).shape == model(*inputs[:3]).shape == (2, 2)
