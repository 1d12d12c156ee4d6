"""Files of pretrained weights as they are published, with random numbers."""

import math

import safetensors.torch
import timm
import torch


def save_torch(content, path):
    torch.save(content, path)


def save_safetensors(weights, path):
    safetensors.torch.save_file(
        {name: tensor.contiguous().clone() for name, tensor in weights.items()}, path
    )


def random_tensors(shapes, seed, dtype=torch.float32):
    """Overlapping stretches of the same numbers: each tensor is another, and the file is small."""
    numbers = (torch.rand(2_400_000, generator=torch.Generator().manual_seed(seed)) - 0.5).to(dtype)
    return {
        name: numbers[offset : offset + math.prod(shape)].view(shape)
        for offset, (name, shape) in enumerate(shapes.items())
    }


def timm_weights(name, seed, dtype=torch.float32):
    """A model of timm's as it is published, with its own head, for images of 224×224."""
    with torch.device("meta"):
        shapes = {
            key: tuple(tensor.shape) for key, tensor in timm.create_model(name).state_dict().items()
        }
    return random_tensors(shapes, seed, dtype)


def classifier_weights(side):
    """Of a small one like the tiny backbone, for square images: side² patches and a head for ten classes."""
    vit = timm.create_model("test_vit", num_classes=10, img_size=8 * side, patch_size=8)
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


def hub_cache(folder, name):
    """Write random weights of timm's `name` into a cache of the hub, as a download leaves them → these weights."""
    tag = timm.models.get_pretrained_cfg(name)
    repository, commit = folder / f"models--{tag.hf_hub_id.replace('/', '--')}", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    weights = timm_weights(name, seed=1)
    save_safetensors(weights, repository / "snapshots" / commit / "model.safetensors")
    return weights
