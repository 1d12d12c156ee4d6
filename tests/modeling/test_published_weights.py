"""Published weights of ViT-B/16, at their real names and shapes, from every container into the backbone; timm's hub."""

import math
from functools import lru_cache

import huggingface_hub
import pytest
import timm
import torch
from tiny import CAMERAS
from weight_files import (
    hub_cache,
    random_tensors,
    save_archive,
    save_safetensors,
    save_torch,
    timm_weights,
)

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.pretrained import HUB_TAGS, load_pretrained, resize_position

pytestmark = pytest.mark.usefixtures("shallow")
BLOCKS = 2
"""Of the twelve, whose names and shapes are alike."""


def openai_weights(seed):
    """CLIP ViT-B/16 as OpenAI publishes it: float16, the image tower under visual., the text tower beside it."""
    shapes = {
        "positional_embedding": (77, 512),
        "text_projection": (512, 512),
        "logit_scale": (),
        "visual.class_embedding": (768,),
        "visual.positional_embedding": (197, 768),
        "visual.proj": (768, 512),
        "visual.conv1.weight": (768, 3, 16, 16),
        "token_embedding.weight": (49, 512),
    }
    for tower, width, norms in (("visual.", 768, ("ln_pre", "ln_post")), ("", 512, ("ln_final",))):
        for norm in norms:
            shapes |= {f"{tower}{norm}.weight": (width,), f"{tower}{norm}.bias": (width,)}
        for block in range(BLOCKS if tower else 1):
            prefix = f"{tower}transformer.resblocks.{block}"
            for name, *weight in (
                ("ln_1", width),
                ("ln_2", width),
                ("attn.out_proj", width, width),
                ("mlp.c_fc", 4 * width, width),
                ("mlp.c_proj", width, 4 * width),
            ):
                shapes |= {
                    f"{prefix}.{name}.weight": tuple(weight),
                    f"{prefix}.{name}.bias": (weight[0],),
                }
            shapes |= {
                f"{prefix}.attn.in_proj_weight": (3 * width, width),
                f"{prefix}.attn.in_proj_bias": (3 * width,),
            }
    return random_tensors(shapes, seed, torch.half)


def openai_name(name):
    """OpenAI's name of one of timm's tensors."""
    top = {
        "cls_token": "class_embedding",
        "pos_embed": "positional_embedding",
        "patch_embed.proj.weight": "conv1.weight",
        "head.weight": "proj",
        "norm_pre.weight": "ln_pre.weight",
        "norm_pre.bias": "ln_pre.bias",
        "norm.weight": "ln_post.weight",
        "norm.bias": "ln_post.bias",
    }
    inner = {
        "norm1": "ln_1",
        "norm2": "ln_2",
        "attn.proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
    }
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
    "timm's CLIP in safetensors": (
        CLIP,
        lambda seed: timm_weights(TIMMS_CLIP, seed, torch.half),
        None,
        "w.safetensors",
        save_safetensors,
    ),
    "timm's state dict": (
        IMAGENET,
        lambda seed: timm_weights(IMAGENET, seed),
        None,
        "w.pth",
        save_torch,
    ),
    "DeiT's model": (
        IMAGENET,
        lambda seed: timm_weights("deit_base_patch16_224", seed),
        "model",
        "w.pth",
        save_torch,
    ),
    "a run's state_dict": (
        IMAGENET,
        lambda seed: timm_weights(IMAGENET, seed),
        "state_dict",
        "w.pth.tar",
        save_torch,
    ),
    "timm's safetensors": (
        IMAGENET,
        lambda seed: timm_weights(IMAGENET, seed, torch.half),
        None,
        "w.safetensors",
        save_safetensors,
    ),
}
GRIDS = {16: (16, 8), 12: (21, 10)}
"""Of 256×128 images, by stride; the weights have 14×14."""


@lru_cache(maxsize=1)
def real_backbone(name, stride):
    """A backbone with whatever is in memory: what is not loaded into it shows."""
    cfg = load_cfg(
        None, ["MODEL.TRANSFORMER_TYPE", name, "MODEL.STRIDE_SIZE", f"[{stride}, {stride}]"]
    )
    with torch.device("meta"):
        backbone = make_backbone(cfg, CAMERAS)
    return backbone.to_empty(device="cpu")


def expected_of(weights, name, grid):
    """The tensor of the file for one of the backbone's, as the backbone must hold it."""
    actual = weights[name] if name in weights else weights[openai_name(name)]
    actual = actual.float()
    if name == "pos_embed":
        actual = resize_position(actual.reshape(1, 197, 768), grid)
    elif name == "head.weight" and name not in weights:  # OpenAI multiplies from the right
        actual = actual.T
    return actual.reshape(1, 1, -1) if name == "cls_token" else actual


PLAIN = ("OpenAI's state dict", "timm's state dict")


# In this order each backbone is made once; the seeds differ, so that nothing of the last file passes for the next one's. The
# stride does not know of containers: one of each kind of backbone meets both.
@pytest.mark.parametrize(
    "seed, stride, case",
    [
        (seed, stride, case)
        for seed, (kind, stride, case) in enumerate(
            (kind, stride, case)
            for kind in (CLIP, IMAGENET)
            for stride in GRIDS
            for case in REAL
            if REAL[case][0] == kind and (stride == 16 or case in PLAIN)
        )
    ],
)
def test_published_weights(seed, stride, case, tmp_path):
    kind, make, container, file, save = REAL[case]
    backbone, weights, path = real_backbone(kind, stride), make(seed), tmp_path / file
    save({container: weights, "epoch": 300} if container else weights, path)
    report = load_pretrained(backbone, kind, str(path))
    path.unlink()  # pytest keeps folders, and safetensors are large
    state = backbone.vit.state_dict()
    assert backbone.grid_size == GRIDS[stride] and state["pos_embed"].shape == (
        1,
        1 + math.prod(GRIDS[stride]),
        768,
    )
    for name, tensor in state.items():
        expected = expected_of(weights, name, GRIDS[stride])
        assert tensor.dtype is torch.float32 and torch.equal(tensor, expected), name
    # All blocks and what is before and after them; no classifier, text tower or bias of a head.
    assert len(state) == 12 * BLOCKS + (8 if kind == CLIP else 6)
    assert report == (
        f"pretrained weights {path}: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), "
        "0 missing"
    )


def vit_b_32(seed):
    weights = openai_weights(seed)
    return {**weights, "visual.conv1.weight": torch.zeros(768, 3, 32, 32, dtype=torch.float16)}


@pytest.mark.parametrize(
    "kind, make, reason",
    [
        (IMAGENET, openai_weights, "there is a norm before the blocks, as CLIP has it"),
        (
            CLIP,
            lambda seed: timm_weights(IMAGENET, seed),
            "there is no norm before the blocks, as CLIP has it",
        ),
        (
            CLIP,
            vit_b_32,
            "its patch embedding has the shape (768, 3, 32, 32), not (768, 3, 16, 16)",
        ),
    ],
    ids=["CLIP's for ImageNet's", "ImageNet's for CLIP's", "larger patches"],
)
def test_another_model_of_which_most_fits_is_refused(kind, make, reason, tmp_path):
    torch.save(make(99), tmp_path / "w.pth")
    backbone = real_backbone(kind, 12)
    before = backbone.vit.blocks[0].mlp.fc1.weight.clone()
    with pytest.raises(UserError) as raised:
        load_pretrained(backbone, kind, str(tmp_path / "w.pth"))
    assert f"w.pth holds weights of another model than {kind}: {reason}; " in str(raised.value)
    # Bit for bit: the backbone's weights are whatever was in memory, also what is not a number.
    assert torch.equal(
        backbone.vit.blocks[0].mlp.fc1.weight.view(torch.int32), before.view(torch.int32)
    )


# timm's hub, of which nothing may be reached here


@pytest.mark.parametrize("name", HUB_TAGS)
def test_tags_on_the_hub_are_named_and_free(name):
    """timm's default for CLIP's name is another model under a licence without commerce."""
    tag = timm.models.get_pretrained_cfg(HUB_TAGS[name])
    assert tag.tag and tag.hf_hub_id.startswith("timm/") and tag.license in ("apache-2.0", "mit")
    assert tag.architecture == (TIMMS_CLIP if name == CLIP else name) and tag.input_size == (
        3,
        224,
        224,
    )
    assert (tag.tag == "openai") == (name == CLIP)


def test_hub_with_weights_that_were_downloaded_before(tmp_path, monkeypatch):
    weights = hub_cache(tmp_path, "test_vit")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    cfg = load_cfg(None, ["MODEL.TRANSFORMER_TYPE", "test_vit"])  # 256×128 images, patches of 16
    backbone = make_backbone(cfg, CAMERAS)
    report = load_pretrained(backbone, "test_vit", "hub")
    state = backbone.vit.state_dict()
    for name, tensor in state.items():
        expected = resize_position(weights[name], (16, 8)) if name == "pos_embed" else weights[name]
        assert torch.equal(tensor, expected), name
    assert (
        report
        == f"pretrained weights hub: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), 0 missing"
    )
