"""SEPS's towers: real models of timm and transformers, small; what they return, where weights are from, and mistakes."""
import copy
import json
import sys

import pytest
import timm
import torch
import transformers
from numeric import assert_close, seeded
from seps_tiny import cfg_for
from tiny import ENCODER, WIDTH
from torch import nn
from weight_files import message, save_safetensors, save_torch

from demo_sdtps.seps.captions import encode_texts, padded
from demo_sdtps.seps.model import make_seps
from demo_sdtps.seps.towers import ImageTower, TextTower, load_tokenizer

SWIN = ("MODEL.TRANSFORMER_TYPE", "swin_tiny_patch4_window7_224", "MODEL.PATCH_SIZE", "2", "MODEL.SDTPS_AGGR_RATIO", "0.5")
VIT_PATH = (*ENCODER, WIDTH)
"""Lengths of the sums to the tokens of test_vit: its encoder, of no more tokens than that of tiny.py, and the projection."""
SWIN_PATH = (3 * 2 * 2, *(length for depth, width in zip((2, 2, 6, 2), (96, 192, 384, 768), strict=True)
                          for length in depth * (width, width, 32, 49, 49, width, width, width, 4 * width)),
             *2 * (4 * 96, 4 * 192, 4 * 384), 768, 768)
"""… and of the Swin Transformer: blocks with windows of up to 49 tokens, merging with its norm, norm and projection."""
BERT_PATH = (16, 16, 16, 8, 9, 9, 16, 16, 16, 32, 16, 16)
"""… and of the BERT below: embedding's norm; queries, products, softmax and means of up to 9 words, projection; norm, MLP,
norm; projection of the tower."""


def save_bert(folder, config=None, tokenizer=True, **changed):
    """A tiny BERT with random weights, as save_pretrained leaves it."""
    torch.manual_seed(seeded(5))
    sizes = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
             "max_position_embeddings": 64, **changed}
    config = config or transformers.BertConfig(**sizes)
    model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    if tokenizer:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "star"]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return model


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    save_bert(folder)
    return folder


def cfg_with(folder, *more):
    return cfg_for(folder.parent, "MODEL.TEXT_TOWER", folder, "INPUT.MAX_LONG_WORDS", "64", *more)


def image_tower(bert, *more):
    torch.manual_seed(seeded(3))
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
    expected = exact.projection(torch.stack([grid[:, row, column] for row in (0, 1) for column in (0, 1)], dim=1))
    assert_close(tower(images), expected, *SWIN_PATH)


def test_building_a_tower_draws_nothing_beside_its_weights(bert):
    image_tower(bert, "MODEL.DROP_PATH", "0.5")
    drawn = torch.rand(3)
    image_tower(bert, "MODEL.DROP_PATH", "0")
    assert torch.equal(torch.rand(3), drawn)


def test_a_tower_starts_in_training(bert):
    tower = ImageTower(cfg_with(bert))
    assert all(module.training for module in tower.modules())


@pytest.mark.parametrize(("opts", "part"), [
    (["MODEL.TRANSFORMER_TYPE", "resnet18", "MODEL.PATCH_SIZE", "0"], "'resnet18'"),
    (["MODEL.TRANSFORMER_TYPE", "vit_small_patch14_reg4_dinov2", "INPUT.SIZE", "[28,28]"], "one class token or none"),
    (["INPUT.SIZE", "[32,64]"], "a square grid"),
    (["INPUT.SIZE", "[8,8]"], "at least 2×2"),
    (["INPUT.SIZE", "[4,4]"], "INPUT.SIZE"),
    ([*SWIN[:2], "MODEL.PATCH_SIZE", "0"], "INPUT.SIZE [32, 32]"),
])
def test_towers_that_do_not_fit_are_reported(bert, opts, part):
    assert part in message(lambda: ImageTower(cfg_with(bert, *opts)))


# Pretrained weights of the image tower

def classifier(side):
    torch.manual_seed(seeded(11))
    vit = timm.create_model("test_vit", num_classes=10, img_size=8 * side, patch_size=8)
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


@pytest.mark.parametrize(("name", "save"), [("w.pth", save_torch), ("w.safetensors", save_safetensors)])
def test_weights_from_a_file(bert, tmp_path, name, save):
    weights = classifier(side=4)
    save(weights, tmp_path / name)
    tower = image_tower(bert)
    report = tower.load(str(tmp_path / name))
    found = tower.tower.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())
    assert f"{len(found)} of {len(found)} tensors loaded, 0 resized, 0 missing" in report and "WARNING" not in report


def test_positions_of_another_grid_are_resized(bert, tmp_path):
    weights = classifier(side=6)
    weights["pos_embed"][:, 2:] = weights["pos_embed"][:, 1:2]  # the same everywhere, as it is then in any grid
    save_torch(weights, tmp_path / "w.pth")
    tower = image_tower(bert)
    assert "1 resized (pos_embed), 0 missing" in tower.load(str(tmp_path / "w.pth"))
    position = tower.tower.pos_embed.detach()
    assert torch.equal(position[:, 0], weights["pos_embed"][:, 0])
    assert_close(position[:, 1:], weights["pos_embed"][:, 1:17], 6, 6)  # the rows and columns of the file's grid


def test_missing_weights_are_warned_of(bert, tmp_path):
    weights = classifier(side=4)
    del weights["norm.weight"]
    save_torch(weights, tmp_path / "w.pth")
    assert image_tower(bert).load(str(tmp_path / "w.pth")).startswith("WARNING: incomplete")
    assert "RANDOM" in image_tower(bert).load("")
    assert "WARNING" not in image_tower(bert).load("none")


@pytest.mark.parametrize(("content", "part"), [
    ({"a": torch.zeros(2)}, "holds no weights of test_vit"), ({}, "holds no weights of test_vit"),
    ({"pos_embed": torch.zeros(3)}, "holds no weights of test_vit")], ids=["other", "empty", "damaged"])
def test_weights_of_something_else_are_reported(bert, tmp_path, content, part):
    save_torch(content, tmp_path / "w.pth")
    assert part in message(lambda: image_tower(bert).load(str(tmp_path / "w.pth")))


def test_a_missing_file_is_reported(bert, tmp_path):
    assert "MODEL.PRETRAIN_PATH_T" in message(lambda: image_tower(bert).load(str(tmp_path / "none.pth")))


def test_ratios_that_leave_no_patch_are_reported(bert):
    said = message(lambda: make_seps(cfg_with(bert, "MODEL.SDTPS_AGGR_RATIO", "0.1")))
    assert "MODEL.SDTPS_AGGR_RATIO 0.1" in said and "the 16 patches of test_vit" in said


# Captions

def test_the_bert_is_the_one_on_disk(bert):
    saved = transformers.BertModel.from_pretrained(bert).eval().double()
    tower = TextTower(cfg_with(bert), pretrained=True).eval()
    assert tower.tower.pooler is None and "tensors loaded" in tower.report
    words, lengths = torch.tensor([[2, 5, 6, 8, 3]]), torch.tensor([5])
    expected = copy.deepcopy(tower.projection).double()(saved(input_ids=words).last_hidden_state)
    assert_close(tower(words, lengths), expected, *BERT_PATH)


def test_without_pretrained_the_bert_is_random(bert):
    torch.manual_seed(1)
    random = TextTower(cfg_with(bert), pretrained=False)
    loaded = TextTower(cfg_with(bert), pretrained=True)
    names = loaded.state_dict().keys()
    assert names == random.state_dict().keys()
    name = "tower.embeddings.word_embeddings.weight"
    assert not torch.equal(random.state_dict()[name], loaded.state_dict()[name])


@pytest.mark.parametrize("garbage", [0, 7])
def test_padded_words_change_nothing(bert, garbage):
    tower = TextTower(cfg_with(bert), pretrained=True).eval()
    short = torch.tensor([[2, 6, 3]])
    wide = torch.full((2, 9), garbage)
    wide[0, :3], wide[1] = short[0], torch.randint(4, 9, (9,))
    together = tower(wide, torch.tensor([3, 9]))
    assert_close(together[0, :3], tower.double()(short, torch.tensor([3]))[0], *BERT_PATH)


def test_words_in_context_differ(bert):
    """Unlike padding, a word that counts changes the others."""
    tower = TextTower(cfg_with(bert), pretrained=True).eval()
    words = torch.tensor([[2, 6, 8, 3]])
    apart = (tower(words, torch.tensor([3])) - tower(words, torch.tensor([4])))[0, 0]
    assert apart.norm() > 1e-4  # of some 1e-3, where roundings are below 1e-6


def test_the_tokenizer_is_the_towers(bert):
    tokenizer = load_tokenizer(cfg_with(bert))
    words, lengths = padded(encode_texts(tokenizer, ["a red star", "blue"], 10))
    assert words.tolist() == [[2, 5, 6, 8, 3], [2, 7, 3, 0, 0]] and lengths.tolist() == [5, 3]


def fails(cfg):
    """The sentence that a text tower's or, where it has none to say, a tokenizer's loading raises."""
    return message(lambda: (TextTower(cfg, pretrained=True), load_tokenizer(cfg)))


def test_a_folder_that_is_not_there(tmp_path):
    for name in (tmp_path / "none", "data/no such/bert"):
        said = fails(cfg_for(tmp_path, "MODEL.TEXT_TOWER", name))
        assert f"MODEL.TEXT_TOWER {name} is no folder" in said


def test_a_name_of_the_hub_without_network(tmp_path):
    said = fails(cfg_for(tmp_path, "MODEL.TEXT_TOWER", "no-such-user/no-such-bert"))
    assert "MODEL.TEXT_TOWER no-such-user/no-such-bert" in said and "hub" in said


def test_an_empty_folder(tmp_path):
    (tmp_path / "bert").mkdir()
    assert "no config.json" in fails(cfg_with(tmp_path / "bert"))


def test_another_language_model(tmp_path):
    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=64)
    save_bert(tmp_path / "bert", config)
    assert "is a gpt2, but" in fails(cfg_with(tmp_path / "bert"))


def test_a_folder_without_tokenizer(tmp_path):
    save_bert(tmp_path / "bert", tokenizer=False)
    assert "no tokenizer" in fails(cfg_with(tmp_path / "bert"))


def test_a_tokenizer_of_another_bert(tmp_path):
    save_bert(tmp_path / "bert", vocab_size=8)
    assert "a tokenizer of 9 tokens, but its BERT has 8" in fails(cfg_with(tmp_path / "bert"))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_damaged_bert(bert, file):
    (bert / file).write_bytes(b"{ nothing of the kind")
    assert f"MODEL.TEXT_TOWER {bert} cannot be read" in fails(cfg_with(bert))


def test_a_bert_without_weights(bert):
    (bert / "model.safetensors").unlink()
    assert f"MODEL.TEXT_TOWER {bert} cannot be read" in fails(cfg_with(bert))


def test_a_bert_with_too_few_weights(bert):
    weights = transformers.BertModel.from_pretrained(bert).state_dict()
    save_safetensors({name: tensor for name, tensor in weights.items() if "attention" not in name}, bert / "model.safetensors")
    assert "is incomplete" in fails(cfg_with(bert))


@pytest.mark.parametrize("key", ["INPUT.MAX_WORDS", "INPUT.MAX_LONG_WORDS"])
def test_captions_longer_than_the_tower_takes(bert, key):
    said = fails(cfg_with(bert, key, "65"))
    assert f"{key} is 65" in said and "at most 64 words" in said


def test_transformers_that_is_not_installed(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install -e '.[seps]'" in message(lambda: load_tokenizer(cfg_with(bert)))


# The whole model

@pytest.mark.parametrize("opts", [(), SWIN, ("MODEL.PAPER_VERSION", "False"), ("MODEL.DUAL_AGGR", "False")], ids=str)
def test_the_model_learns_in_all_its_parts(bert, opts):
    model, report = make_seps(cfg_with(bert, *opts))
    assert "random weights" in report and str(bert) in report
    captions, long = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]]), torch.tensor([[2, 5, 6, 8, 3]] * 2)
    inputs = torch.randn(2, 3, 32, 32), captions, torch.tensor([4, 3]), long, torch.tensor([5, 5])
    similarities, _ = model(*inputs)
    assert similarities.shape == (2, 2)
    similarities.square().sum().backward()
    for part in (model.image_tower.tower, model.image_tower.projection, model.text_tower.tower, model.text_tower.projection):
        assert sum(float(parameter.grad.abs().sum()) for parameter in part.parameters() if parameter.grad is not None) > 0
    model.eval()
    with torch.no_grad():
        assert model(*inputs).shape == model(*inputs[:3]).shape == (2, 2)
    assert isinstance(model.network, nn.Module)


def test_long_captions_choose_patches(bert):
    model = make_seps(cfg_with(bert))[0].eval()
    captions, lengths = torch.tensor([[2, 5, 6, 3]]), torch.tensor([4])
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        with_long = model(images, captions, lengths, torch.tensor([[2, 7, 8, 8, 3]]), torch.tensor([5]))
        assert not torch.allclose(with_long, model(images, captions, lengths))
