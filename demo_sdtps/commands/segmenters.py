"""Segmentation of the foreground for demo-sdtps masks: torchvision's Mask R-CNN, or a callable of the user's."""

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name

import torch
from torch import nn
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_V2_Weights, maskrcnn_resnet50_fpn_v2

from demo_sdtps.config import UserError
from demo_sdtps.config.common import FOREGROUND
from demo_sdtps.modeling.checkpoints.loading import read_weights

Segmenter = Callable[[torch.Tensor], torch.Tensor]
"""uint8 (3, H, W) → mask (H, W) in [0, 1], 1 for the foreground."""

MASKRCNN, PUBLISHED = "maskrcnn", MaskRCNN_ResNet50_FPN_V2_Weights.COCO_V1
MIN_SCORE = 0.5  # of an instance
SIDE = 800  # the shorter side to which the network scales an image


def make_segmenter(name: str, weight: str | None, classes: str, device: torch.device) -> Segmenter:
    """The segmenter maskrcnn, with the weights of a file or "hub", or module:function; `classes` is a key of `FOREGROUND`."""
    if ":" in name:
        if weight:
            raise UserError(f"--model {name} is a function, which takes no --weight; leave it out.")
        try:
            function = resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(
                f"--model {name} cannot be imported ({error}); give module:function, with the module on PYTHONPATH."
            ) from None
        return lambda image: torch.as_tensor(function(image)).float().cpu().clamp(0, 1)
    if name != MASKRCNN:
        raise UserError(f"--model is {name!r}, but it must be {MASKRCNN!r} or module:function.")
    names = PUBLISHED.meta["categories"]
    indices = [index for index, name in enumerate(names) if name in FOREGROUND[classes]]
    return partial(_segment, _network(weight).to(device).eval(), indices)


def largest_instance(
    instances: dict[str, torch.Tensor], classes: Sequence[int]
) -> torch.Tensor | None:
    """Of a Mask R-CNN's output the largest mask (H, W) of these classes: the crop's own person, not a bystander. None where no
    instance has a score of `MIN_SCORE`."""
    labels = instances["labels"]
    is_of_class = torch.isin(labels, torch.tensor(classes, device=labels.device))
    masks = instances["masks"][is_of_class & (instances["scores"] >= MIN_SCORE), 0]
    return masks[masks.sum(dim=(1, 2)).argmax()] if len(masks) else None


@torch.inference_mode()
def _segment(network: nn.Module, classes: Sequence[int], image: torch.Tensor) -> torch.Tensor:
    device = next(network.parameters()).device
    (prediction,) = network([image.to(device) / 255])
    mask = largest_instance(prediction, classes)
    return torch.zeros(image.shape[1:]) if mask is None else mask.cpu()


def _network(weight: str | None) -> nn.Module:
    """Mask R-CNN with the weights of a file or, for "hub", torchvision's."""
    if not weight:
        raise UserError(
            f"The network needs weights: give --weight the file of torchvision's {PUBLISHED}, or hub to download it."
        )
    if weight == "hub":
        try:
            weights = PUBLISHED.get_state_dict(progress=True, check_hash=True)
        except Exception as error:  # the client raises many types
            raise UserError(
                f"--weight is hub, but {PUBLISHED.url} could not be downloaded ({type(error).__name__}); give a file."
            ) from error
    else:
        weights = read_weights(weight)
    network = maskrcnn_resnet50_fpn_v2(
        weights=None, weights_backbone=None, min_size=SIDE, max_size=4 * SIDE
    )
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise UserError(
            f"The weights {weight} do not fit torchvision's {PUBLISHED}; give their file, or another --model."
        ) from None
    return network
