"""The loss of distillation: a model in training follows the logits of a trained one, its teacher.

It needs torch alone, so that a training of any model can have it beside `slim` (docs/slim.md).
"""

import torch
import torch.nn.functional as F

from demo_sdtps.runtime.errors import UserError


def distill_loss(
    logits: torch.Tensor, teacher: torch.Tensor, temperature: float = 4.0
) -> torch.Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(logits / T)), the mean over the batch: follow a trained model's logits.

    `logits` and `teacher` (…, K) are of the same images and classes, `temperature` is T; → a scalar, computed in float32, with
    gradients to `logits` alone, which T² keeps as large as those of the cross-entropy (Hinton et al., Distilling the knowledge
    in a neural network, 2015, section 2). Raises `UserError` where the shapes differ.
    """
    if logits.shape != teacher.shape:
        raise UserError(
            f"The logits are {tuple(logits.shape)} and the teacher's {tuple(teacher.shape)}; give those of the same images and "
            "classes."
        )
    student, target = (
        (each.float() / temperature).log_softmax(dim=-1) for each in (logits, teacher.detach())
    )
    divergences = F.kl_div(student, target, reduction="none", log_target=True).sum(dim=-1)
    return temperature**2 * divergences.mean()
