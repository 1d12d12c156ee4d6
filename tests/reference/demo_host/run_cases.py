"""Build, train one step and evaluate this checkout's model: python run_cases.py CASES.json OUT.pt

The model is patched by demo_sdtps in cases that say so. Every weight follows from its name, so that two models agree in
whatever weights they share.
"""

import json
import sys
import zlib
from functools import lru_cache

import torch
import torch.nn.functional as F

from config import cfg as defaults
from modeling import make_model

BATCH, CAMERAS, CLASSES = 4, 4, 5
PATTERNS = (1, 2, 3)
SMALL = (2, 3)
"""Batches that could be taken for a pair or a triple."""


def main():
    cases, output = sys.argv[1:]
    torch.set_num_threads(1)  # the model is too small to share out
    with open(cases) as file:
        results = {name: run(**case) for name, case in json.load(file).items()}
    torch.save(results, output)


def run(opts, precision=None, patched=False):
    cfg = defaults.clone()
    if patched:
        from demo_sdtps import add_config, patch

        add_config(cfg)
    cfg.merge_from_list(opts)
    torch.manual_seed(0)
    model = make_model(cfg, CLASSES, CAMERAS)
    if patched:
        assert patch(model, cfg) is model
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stir(model)

    images = make_images(*cfg.INPUT.SIZE_TRAIN)
    small = {count: {name: image[:count] for name, image in images.items()} for count in SMALL}
    cameras, labels = torch.arange(BATCH) % CAMERAS, torch.arange(BATCH) // 2
    model.train()
    torch.manual_seed(1)
    with torch.autocast("cpu", getattr(torch, precision or "bfloat16"), enabled=bool(precision)):
        outputs = model(images, label=labels, cam_label=cameras)
        loss = total_loss(outputs, labels)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}

    with torch.no_grad():
        trained = {count: model(part, cam_label=cameras[:count]) for count, part in small.items()}

    model.eval()
    inner = {}
    if hasattr(model, "sdtps"):
        model.sdtps.register_forward_hook(
            lambda _, given, found: inner.update(inputs=given, outputs=found)
        )
    with torch.no_grad():
        small_patterns = {
            count: {
                pattern: model(part, cam_label=cameras[:count], return_pattern=pattern)
                for pattern in PATTERNS
            }
            for count, part in small.items()
        }
        patterns = {
            pattern: model(images, cam_label=cameras, return_pattern=pattern)
            for pattern in PATTERNS
        }
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return {
        "config": dict(cfg.MODEL),
        "images": images,
        "initial": initial,
        "frozen": frozen,
        "outputs": outputs,
        "loss": loss.detach(),
        "gradients": gradients,
        "weights": model.state_dict(),
        "patterns": patterns,
        "trained": trained,
        "small_patterns": small_patterns,
        "inner": inner,
    }


@lru_cache
def make_images(height, width):
    return {modality: seeded(modality, BATCH, 3, height, width) for modality in ("RGB", "NI", "TI")}


def total_loss(output, labels):
    """Summed over the pairs as DeMo's training loop goes through them."""
    index = len(output) % 2
    loss = output[-1] if index else 0
    for i in range(0, len(output) - index, 2):
        loss = (
            loss
            + F.cross_entropy(output[i].float(), labels)
            + output[i + 1].float().square().mean()
        )
    return loss


def stir(model):
    """Adds to each floating-point weight noise that follows from its name."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(0.05 * seeded(name, *tensor.shape))


def seeded(name, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


if __name__ == "__main__":
    main()
