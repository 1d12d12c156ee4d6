"""Pretrained weights from every container into the trunk."""
import math
import re
import struct
from functools import lru_cache

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from golden_cases import load_case, relative_error
from tiny import CAMERAS, tiny_cfg
from torch import nn

from config import UserError, load_cfg
from modeling.pretrained import HUB_TAGS, load_pretrained, read_weights, resize_position
from modeling.trunk import Trunk

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")


def test_golden_position_resize():
    case = load_case("position_resize")
    resized = resize_position(case.arrays["position_embedding"][None], tuple(case.settings["grid"]))
    assert resized.shape == (1, 129, 24)
    assert relative_error(resized[0], case.arrays["resized"]) < 1e-6


@pytest.mark.parametrize("count", [1 + 14 * 14 + 1, 1 + 16 * 8, 196])
def test_position_embedding_of_no_square_grid(count):
    assert "square" in message(lambda: resize_position(torch.zeros(1, count, 8), (16, 8)))


def message(action):
    """The text of the UserError that `action` raises: one sentence on one line."""
    with pytest.raises(UserError) as caught:
        action()
    text = str(caught.value)
    assert re.fullmatch(r"[^\n]+\.", text)
    return text


def tiny_trunk(*opts):
    torch.manual_seed(2)
    return Trunk(tiny_cfg(*opts), CAMERAS)


@lru_cache
def classifier_weights(seed, side):
    torch.manual_seed(seed)
    vit = timm.create_model("test_vit", pretrained=False, num_classes=10, img_size=8 * side, patch_size=8)
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


def pretrained_timm(seed=3, side=6):
    """Weights of a classifier like the tiny trunk, for square pictures: side² patches and a head for ten classes."""
    return dict(classifier_weights(seed, side))


def assert_loaded(trunk, weights, but=()):
    """Every tensor of the tiny trunk is the one of its name, the position embedding resized from its square."""
    for name, tensor in trunk.vit.state_dict().items():
        if name not in but:
            expected = resize_position(weights[name], (8, 4)) if name == "pos_embed" else weights[name].float()
            assert torch.equal(tensor, expected), name


def save_torch(content, path):
    torch.save(content, path)


def save_torch_before_zip(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


FORMATS = {
    "state dict": ("w.pth", save_torch, None),
    "state dict of old": ("w.pth", save_torch_before_zip, None),
    "model": ("w.pth", save_torch, "model"),
    "state_dict": ("w.pth.tar", save_torch, "state_dict"),
    "safetensors": ("w.safetensors", safetensors.torch.save_file, None),
}


@pytest.mark.parametrize("file, save, container", FORMATS.values(), ids=FORMATS)
def test_load_timms_names(file, save, container, tmp_path):
    trunk, weights, path = tiny_trunk(), pretrained_timm(), tmp_path / file
    camera_embedding = trunk.camera_embedding.clone()
    save({container: weights, "epoch": 3} if container else weights, path)
    report = load_pretrained(trunk, "test_vit", str(path))
    assert_loaded(trunk, weights)
    assert torch.equal(trunk.camera_embedding, camera_embedding)
    total = len(trunk.vit.state_dict())
    assert f"{total} of {total} tensors loaded, 1 resized (pos_embed), 0 missing" in report
    assert str(path) in report


def test_load_float16(tmp_path):
    trunk = tiny_trunk()
    weights = {name: tensor.half() for name, tensor in pretrained_timm().items()}
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert all(tensor.dtype is torch.float32 for tensor in trunk.vit.state_dict().values())
    assert_loaded(trunk, {name: tensor.float() for name, tensor in weights.items()})


def test_positions_of_the_same_grid_stay_as_they_are(tmp_path):
    trunk = tiny_trunk("INPUT.SIZE_TRAIN", [48, 48], "INPUT.SIZE_TEST", [48, 48])
    weights = pretrained_timm()
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(trunk.vit.pos_embed, weights["pos_embed"])
    assert "0 resized," in report


def test_positions_of_a_square_are_resized_to_a_grid_of_as_many(tmp_path):
    trunk = tiny_trunk("INPUT.SIZE_TRAIN", [128, 32], "INPUT.SIZE_TEST", [128, 32])
    weights = pretrained_timm(side=8)
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(trunk.vit.pos_embed, resize_position(weights["pos_embed"], (16, 4)))


def test_what_does_not_fit_is_reported_and_left_alone(tmp_path):
    trunk, weights = tiny_trunk(), pretrained_timm()
    before = {name: tensor.clone() for name, tensor in trunk.vit.state_dict().items()}
    missing = ["blocks.0.norm1.bias", "norm.weight"]
    del weights["norm.weight"]
    weights["blocks.0.norm1.bias"] = torch.ones(7)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert_loaded(trunk, weights, but=missing)
    for name in missing:
        assert torch.equal(trunk.vit.state_dict()[name], before[name])
    assert f"{len(before) - 2} of {len(before)} tensors loaded" in report
    assert "2 missing (blocks.0.norm1.bias, norm.weight)" in report


def test_incomplete_weights_are_said_loudly(tmp_path):
    whole = pretrained_timm()
    part = {name: tensor for name, tensor in whole.items() if name.startswith("norm.")}
    for weights in (whole, part):
        torch.save(weights, tmp_path / "w.pth")
        report = load_pretrained(tiny_trunk(), "test_vit", str(tmp_path / "w.pth"))
        assert report.startswith("WARNING: incomplete") == (weights is part)
    total = len(tiny_trunk().vit.state_dict())
    assert f"2 of {total} tensors loaded, 0 resized, {total - 2} missing (blocks.0.attn.proj.bias, " in report
    assert report.endswith(", …)") and report.count(", ") < 10


# ViT-B/16 at its real names and shapes


def tree(weights):
    """A module that holds tensors under their names."""
    root = nn.Module()
    for name, tensor in weights.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            if part not in node._modules:
                node.add_module(part, nn.Module())
            node = node._modules[part]
        node.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    return root


def save_archive(weights, path):
    """As OpenAI publishes CLIP: a TorchScript archive."""
    torch.jit.script(tree(weights)).save(str(path))


def save_safetensors(weights, path):
    safetensors.torch.save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, path)


def random_tensors(shapes, seed, dtype=torch.float32):
    """Overlapping stretches of the same numbers: each tensor is another, and the file is small."""
    numbers = (torch.rand(2_400_000, generator=torch.Generator().manual_seed(seed)) - 0.5).to(dtype)
    return {name: numbers[offset:offset + math.prod(shape)].view(shape) for offset, (name, shape) in enumerate(shapes.items())}


def timm_weights(name, seed, dtype=torch.float32):
    """A model of timm's as it is published, with its own head, for pictures of 224×224."""
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in timm.create_model(name).state_dict().items()}
    return random_tensors(shapes, seed, dtype)


def openai_weights(seed):
    """CLIP ViT-B/16 as OpenAI publishes it: float16, the image tower under visual., the text tower beside it."""
    shapes = {"positional_embedding": (77, 512), "text_projection": (512, 512), "logit_scale": (),
              "visual.class_embedding": (768,), "visual.positional_embedding": (197, 768), "visual.proj": (768, 512),
              "visual.conv1.weight": (768, 3, 16, 16), "token_embedding.weight": (49, 512)}
    for tower, width, norms in (("visual.", 768, ("ln_pre", "ln_post")), ("", 512, ("ln_final",))):
        for norm in norms:
            shapes |= {f"{tower}{norm}.weight": (width,), f"{tower}{norm}.bias": (width,)}
        for block in range(12 if tower else 1):
            prefix = f"{tower}transformer.resblocks.{block}"
            for name, *weight in (("ln_1", width), ("ln_2", width), ("attn.out_proj", width, width),
                                  ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
                shapes |= {f"{prefix}.{name}.weight": tuple(weight), f"{prefix}.{name}.bias": (weight[0],)}
            shapes |= {f"{prefix}.attn.in_proj_weight": (3 * width, width), f"{prefix}.attn.in_proj_bias": (3 * width,)}
    return random_tensors(shapes, seed, torch.half)


def openai_name(name):
    """OpenAI's name of one of timm's tensors."""
    top = {"cls_token": "class_embedding", "pos_embed": "positional_embedding", "patch_embed.proj.weight": "conv1.weight",
           "head.weight": "proj", "norm_pre.weight": "ln_pre.weight", "norm_pre.bias": "ln_pre.bias",
           "norm.weight": "ln_post.weight", "norm.bias": "ln_post.bias"}
    inner = {"norm1": "ln_1", "norm2": "ln_2", "attn.proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    if name in top:
        return f"visual.{top[name]}"
    _, block, rest = name.split(".", 2)
    layer, _, leaf = rest.rpartition(".")
    theirs = f"attn.in_proj_{leaf}" if layer == "attn.qkv" else f"{inner[layer]}.{leaf}"
    return f"visual.transformer.resblocks.{block}.{theirs}"


CLIP, IMAGENET = "ViT-B-16", "vit_base_patch16_224"
TIMMS_CLIP = "vit_base_patch16_clip_quickgelu_224"
REAL = {
    "OpenAI's archive": (CLIP, openai_weights, None, "ViT-B-16.pt", save_archive),
    "OpenAI's state dict": (CLIP, openai_weights, None, "ViT-B-16.pt", save_torch),
    "timm's CLIP in safetensors": (CLIP, lambda seed: timm_weights(TIMMS_CLIP, seed, torch.half), None, "w.safetensors",
                                   save_safetensors),
    "timm's state dict": (IMAGENET, lambda seed: timm_weights(IMAGENET, seed), None, "w.pth", save_torch),
    "DeiT's model": (IMAGENET, lambda seed: timm_weights("deit_base_patch16_224", seed), "model", "w.pth", save_torch),
    "a run's state_dict": (IMAGENET, lambda seed: timm_weights(IMAGENET, seed), "state_dict", "w.pth.tar", save_torch),
    "timm's safetensors": (IMAGENET, lambda seed: timm_weights(IMAGENET, seed, torch.half), None, "w.safetensors",
                           save_safetensors),
}
GRIDS = {16: (16, 8), 12: (21, 10)}
"""Of 256×128 pictures, by stride; the weights have 14×14."""


@lru_cache(maxsize=1)
def real_trunk(name, stride):
    """A trunk with whatever is in memory: what is not loaded into it shows."""
    cfg = load_cfg(None, ["MODEL.TRANSFORMER_TYPE", name, "MODEL.STRIDE_SIZE", f"[{stride}, {stride}]"])
    with torch.device("meta"):
        trunk = Trunk(cfg, CAMERAS)
    return trunk.to_empty(device="cpu")


def expected_of(weights, name, grid):
    """The tensor of the file for one of the trunk's, as the trunk must hold it."""
    found = weights[name] if name in weights else weights[openai_name(name)]
    found = found.float()
    if name == "pos_embed":
        found = resize_position(found.reshape(1, 197, 768), grid)
    elif name == "head.weight" and name not in weights:  # OpenAI multiplies from the right
        found = found.T
    return found.reshape(1, 1, -1) if name == "cls_token" else found


# In this order each trunk is made once; the seeds differ, so that nothing of the last file passes for the next one's.
@pytest.mark.parametrize("seed, stride, case", [
    (seed, stride, case) for seed, (kind, stride, case) in enumerate(
        (kind, stride, case) for kind in (CLIP, IMAGENET) for stride in GRIDS for case in REAL if REAL[case][0] == kind)])
def test_published_weights(seed, stride, case, tmp_path):
    kind, make, container, file, save = REAL[case]
    trunk, weights, path = real_trunk(kind, stride), make(seed), tmp_path / file
    save({container: weights, "epoch": 300} if container else weights, path)
    report = load_pretrained(trunk, kind, str(path))
    path.unlink()  # pytest keeps folders, and safetensors are large
    state = trunk.vit.state_dict()
    assert trunk.grid_size == GRIDS[stride] and state["pos_embed"].shape == (1, 1 + math.prod(GRIDS[stride]), 768)
    for name, tensor in state.items():
        expected = expected_of(weights, name, GRIDS[stride])
        assert tensor.dtype is torch.float32 and torch.equal(tensor, expected), name
    # 12 of 12 blocks and what is before and after them; no classifier, text tower or bias of a head.
    assert len(state) == 12 * 12 + (8 if kind == CLIP else 6)
    assert report == (f"pretrained weights {path}: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), "
                      "0 missing")


@pytest.mark.parametrize("kind, make, missing", [
    (IMAGENET, openai_weights, "1 missing (patch_embed.proj.bias)"),
    (CLIP, lambda seed: timm_weights(IMAGENET, seed), "3 missing (head.weight, norm_pre.bias, norm_pre.weight)"),
], ids=["CLIP's for ImageNet's", "ImageNet's for CLIP's"])
def test_weights_of_the_other_trunk_are_incomplete(kind, make, missing, tmp_path):
    torch.save(make(99), tmp_path / "w.pth")
    report = load_pretrained(real_trunk(kind, 12), kind, str(tmp_path / "w.pth"))
    assert report.startswith("WARNING: incomplete") and report.endswith(missing)


# timm's hub, of which nothing may be reached here


@pytest.mark.parametrize("name", HUB_TAGS)
def test_tags_on_the_hub_are_named_and_free(name):
    """timm's default for CLIP's name is another model under a licence without commerce."""
    tag = timm.models.get_pretrained_cfg(HUB_TAGS[name])
    assert tag.tag and tag.hf_hub_id.startswith("timm/") and tag.license in ("apache-2.0", "mit")
    assert tag.architecture == (TIMMS_CLIP if name == CLIP else name) and tag.input_size == (3, 224, 224)
    assert (tag.tag == "openai") == (name == CLIP)


@pytest.mark.parametrize("name", [*HUB_TAGS, "test_vit"])
def test_hub_without_a_network(name):
    trunk = tiny_trunk()
    before = {key: tensor.clone() for key, tensor in trunk.state_dict().items()}
    with torch.device("meta"):  # timm makes the model before it looks for weights
        text = message(lambda: load_pretrained(trunk, name, "hub"))
    assert "MODEL.PRETRAIN_PATH_T is 'hub'" in text and HUB_TAGS.get(name, name) in text and "check the network" in text
    assert all(torch.equal(tensor, before[key]) for key, tensor in trunk.state_dict().items())


def test_hub_with_weights_that_were_downloaded_before(tmp_path, monkeypatch):
    """Its cache, as a download leaves it, for a small model of timm's."""
    tag = timm.models.get_pretrained_cfg("test_vit")
    folder = tmp_path / f"models--{tag.hf_hub_id.replace('/', '--')}"
    commit = "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    weights = timm_weights("test_vit", seed=1)
    save_safetensors(weights, folder / "snapshots" / commit / "model.safetensors")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    cfg = load_cfg(None, ["MODEL.TRANSFORMER_TYPE", "test_vit"])  # 256×128 pictures, patches of 16
    trunk = Trunk(cfg, CAMERAS)
    report = load_pretrained(trunk, "test_vit", "hub")
    state = trunk.vit.state_dict()
    for name, tensor in state.items():
        expected = resize_position(weights[name], (16, 8)) if name == "pos_embed" else weights[name]
        assert torch.equal(tensor, expected), name
    assert report == f"pretrained weights hub: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), 0 missing"


# Mistakes


def test_no_source_is_said_loudly():
    trunk = tiny_trunk()
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    assert "RANDOM" in load_pretrained(trunk, "test_vit", "")
    assert all(torch.equal(tensor, before[name]) for name, tensor in trunk.state_dict().items())


def load_error(path):
    """What load_pretrained says of the file, which it must name; the trunk is left as it was."""
    trunk = tiny_trunk()
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    text = message(lambda: load_pretrained(trunk, "test_vit", str(path)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trunk.state_dict().items())
    assert "MODEL.PRETRAIN_PATH_T" in text and str(path) in text
    return text


def test_missing_file(tmp_path):
    assert "does not exist" in load_error(tmp_path / "w.pth")
    assert "does not exist" in load_error(tmp_path)


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>404 Not Found</html>", b"PK\x03\x04 no archive",
                                     struct.pack("<Q", 2**40) + b"{}"], ids=["empty", "web page", "zip", "header"])
@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
def test_no_weights_file(file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    assert "damaged" in load_error(tmp_path / file)


@pytest.mark.parametrize("kept", [0.001, 0.3, 0.99])
@pytest.mark.parametrize("kind", ["state dict", "state dict of old", "safetensors"])
def test_truncated_file(kind, kept, tmp_path):
    file, save, _ = FORMATS[kind]
    path = tmp_path / file
    save(pretrained_timm(), path)
    path.write_bytes(path.read_bytes()[:int(kept * path.stat().st_size)])
    text = message(lambda: read_weights(path))
    assert "damaged" in text and str(path) in text


def test_state_dict_of_old_truncated_anywhere(tmp_path):
    path = tmp_path / "w.pth"
    save_torch_before_zip({"norm.weight": torch.ones(3)}, path)
    content = path.read_bytes()
    found = {}
    for kept in range(len(content)):
        path.write_bytes(content[:kept])
        try:
            read_weights(path)
            found[kept] = "read"
        except Exception as error:
            found[kept] = type(error).__name__
    assert {kept: what for kept, what in found.items() if what != "UserError"} == {}


@pytest.mark.parametrize("kept", [0.001, 0.5, 0.99])
def test_truncated_torchscript(kept, tmp_path):
    path = tmp_path / "w.pt"
    save_archive(pretrained_timm(), path)
    path.write_bytes(path.read_bytes()[:int(kept * path.stat().st_size)])
    assert "damaged" in load_error(path)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(tokens)


def test_torchscript_of_another_model(tmp_path):
    torch.jit.script(Scaled()).save(str(tmp_path / "w.pt"))
    text = load_error(tmp_path / "w.pt")
    assert "no weights of test_vit" in text and "inner.weight" in text


@pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(3)]], ids=["tensor", "list"])
def test_file_that_holds_no_mapping(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    load_error(tmp_path / "w.pth")


def test_whole_pickled_module(tmp_path):
    """It cannot be read without running its code."""
    torch.save(nn.Linear(3, 3), tmp_path / "w.pth")
    assert "damaged" in load_error(tmp_path / "w.pth")


@pytest.mark.parametrize("weights", [{"conv1.weight": torch.ones(3)}, {"norm.weight": torch.ones(3)}, {}],
                         ids=["names", "shapes", "none"])
def test_weights_that_do_not_fit_at_all(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    text = load_error(tmp_path / "w.pth")
    assert "test_vit" in text
    assert next(iter(weights), "nothing") in text


def test_position_embedding_of_no_square_grid_in_a_file(tmp_path):
    trunk, weights = tiny_trunk(), pretrained_timm()
    weights["pos_embed"] = torch.randn(1, 1 + 30, 64)
    torch.save(weights, tmp_path / "w.pth")
    assert "31 entries" in message(lambda: load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth")))
