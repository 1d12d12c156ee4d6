"""Segmentation of the foreground for tools/make_masks.py: torchvision's networks, or a callable of the user's."""

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_V2_Weights, maskrcnn_resnet50_fpn_v2
from torchvision.models.segmentation import DeepLabV3_ResNet50_Weights, deeplabv3_resnet50
from torchvision.transforms.v2.functional import normalize, resize

from demo_sdtps.config import UserError
from demo_sdtps.config.common import FOREGROUND
from demo_sdtps.modeling.checkpoints.loading import read_weights

Segmenter = Callable[[torch.Tensor], torch.Tensor]
"""uint8 (3, H, W) → mask (H, W) in [0, 1], 1 for the foreground."""

MIN_SCORE = 0.5  # of an instance
MASKRCNN_SIDE, DEEPLAB_SIDE = 800, 520  # the shorter side to which torchvision scales an image
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of DeepLab's training images


def make_segmenter(name: str, weight: str | None, classes: str, device: torch.device) -> Segmenter:
    """The segmenter `name`: a key of `NETWORKS`, with the weights of a file or "hub", or module:function; `classes` is a
    key of `FOREGROUND`."""
    if ":" in name:
        if weight:
            raise UserError(f"--model {name} is a function, which takes no --weight; leave it out.")
        function = _function(name)
        return lambda image: torch.as_tensor(function(image)).float().cpu().clamp(0, 1)
    if name not in NETWORKS:
        raise UserError(
            f"--model is {name!r}, but it must be {' or '.join(map(repr, NETWORKS))} or module:function."
        )
    published, make, apply = NETWORKS[name]
    names = published.meta["categories"]
    indices = [index for index, name in enumerate(names) if name in FOREGROUND[classes]]
    return partial(apply, _with_weights(make, published, weight).to(device).eval(), indices)


def largest_instance(
    instances: dict[str, torch.Tensor], classes: Sequence[int]
) -> torch.Tensor | None:
    """Of a Mask R-CNN's output the largest mask (H, W) of these classes: the crop's own person, not a bystander.

    None where no instance has a score of `MIN_SCORE`.
    """
    labels = instances["labels"]
    is_of_class = torch.isin(labels, torch.tensor(classes, device=labels.device))
    masks = instances["masks"][is_of_class & (instances["scores"] >= MIN_SCORE), 0]
    return masks[masks.sum(dim=(1, 2)).argmax()] if len(masks) else None


@torch.inference_mode()
def _apply_maskrcnn(
    network: nn.Module, classes: Sequence[int], image: torch.Tensor
) -> torch.Tensor:
    """The network scales the image itself."""
    device = next(network.parameters()).device
    (prediction,) = network([image.to(device) / 255])
    mask = largest_instance(prediction, classes)
    return torch.zeros(image.shape[1:]) if mask is None else mask.cpu()


@torch.inference_mode()
def _apply_deeplab(network: nn.Module, classes: Sequence[int], image: torch.Tensor) -> torch.Tensor:
    device = next(network.parameters()).device
    scaled = normalize(resize(image.to(device), [DEEPLAB_SIDE]).float() / 255, MEAN, STD)
    probabilities = network(scaled[None])["out"].softmax(dim=1)[0, classes].sum(dim=0, keepdim=True)
    return resize(probabilities, list(image.shape[1:]))[0].clamp(0, 1).cpu()


NETWORKS: dict[str, tuple[Any, Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "maskrcnn": (
        MaskRCNN_ResNet50_FPN_V2_Weights.COCO_V1,
        lambda: maskrcnn_resnet50_fpn_v2(
            weights=None, weights_backbone=None, min_size=MASKRCNN_SIDE, max_size=4 * MASKRCNN_SIDE
        ),
        _apply_maskrcnn,
    ),
    "deeplab": (
        DeepLabV3_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1,
        lambda: deeplabv3_resnet50(weights=None, weights_backbone=None, aux_loss=True),
        _apply_deeplab,
    ),
}
"""Published weights, the network without them, and its use, by name."""


def _with_weights(make: Callable[[], nn.Module], published, weight: str | None) -> nn.Module:
    """The network with the weights of a file or, for "hub", torchvision's `published` ones."""
    if not weight:
        raise UserError(
            f"The network needs weights: give --weight the file of torchvision's {published}, or hub to download it."
        )
    if weight == "hub":
        try:
            weights = published.get_state_dict(progress=True, check_hash=True)
        except Exception as error:  # the client raises many types
            raise UserError(
                f"--weight is hub, but {published.url} could not be downloaded ({type(error).__name__}); give a file."
            ) from error
    else:
        weights = read_weights(weight, f"the file of torchvision's {published}")
    network = make()
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise UserError(
            f"The weights {weight} do not fit torchvision's {published}; give their file, or another --model."
        ) from None
    return network


def _function(name: str) -> Segmenter:
    """The function that module:function names."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"--model {name} cannot be imported ({error}); give module:function, with the module on PYTHONPATH."
        ) from None
