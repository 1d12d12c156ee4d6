"""Whether the loss is still a number: from one that is not, no training comes back."""
import copy
import logging
import math
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader

from demo_sdtps.config import UserError
from demo_sdtps.engine.distributed import is_main, world_size

RECENT = 5
"""Finite losses that are told."""
LAG = 2
"""Steps after which several processes wait for a loss on its way from a GPU."""
NAMED = 3
"""Files of a batch that the sentence names; log.txt lists all."""
ADVICE = "lower SOLVER.BASE_LR, set SOLVER.GRAD_CLIP, or set SOLVER.AMP to off."

logger = logging.getLogger(__name__)


class LossWatch:
    """Raises `UserError` for the first loss that is not finite, with its step and the files of its batch.

    A GPU is asked for a copy and not waited for, as reading a number there makes the CPU wait for all that came before: the
    copy is looked at in a later step, when it has come. It still knows its own step, and `flush`, to be called before
    anything is saved, waits for all.
    """

    def __init__(self, loader: DataLoader):
        self.loader = loader
        self.pending: deque[tuple[int, int, torch.Tensor, torch.cuda.Event | None]] = deque()
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, epoch: int, step: int, loss: torch.Tensor) -> None:
        """Look at the losses that are there; `loss` is that of the epoch's step number `step`, from 1."""
        copied = loss.detach().to("cpu", non_blocking=True)
        arrival = None
        if loss.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record(torch.cuda.current_stream(loss.device))
        self.pending.append((epoch, step, copied, arrival))
        while self.pending and self._has_come():
            self._look()

    def _has_come(self) -> bool:
        """Whether the oldest loss can be looked at; several processes must all look in the same step."""
        arrival = self.pending[0][3]
        if arrival is not None and world_size() > 1:
            if is_late := len(self.pending) > LAG:
                arrival.synchronize()
            return is_late
        return arrival is None or arrival.query()

    def flush(self) -> None:
        """Look at all losses, those still on their way too."""
        while self.pending:
            if arrival := self.pending[0][3]:
                arrival.synchronize()
            self._look()

    def _look(self) -> None:
        epoch, step, copied, _ = self.pending.popleft()
        loss = float(copied)
        if math.isfinite(loss):
            self.recent.append(loss)
            return
        files = files_of_batch(self.loader, epoch, step)
        if is_main():
            logger.error("the batch of epoch %d, step %d:\n%s", epoch, step, "\n".join(files))
        before = f"the last finite losses were {', '.join(f'{loss:.4g}' for loss in self.recent)}" if self.recent else (
            "no finite loss came before")
        more = f" … ({len(files)} in all, listed in log.txt)" if len(files) > NAMED else ""
        raise UserError(f"The loss became {loss} in epoch {epoch}, step {step}, with the files "
                        f"{', '.join(files[:NAMED])}{more}; {before}; {ADVICE}")


def files_of_batch(loader: DataLoader, epoch: int, step: int) -> list[str]:
    """The files of the batch number `step`, from 1, of an epoch."""
    sampler = copy.copy(loader.batch_sampler)
    sampler.share = list  # of several processes' batch all of it
    sampler.begin(epoch, step - 1)
    return [file for index, _ in next(iter(sampler)) for file in loader.dataset.files(index)]


@torch.no_grad()
def check_weights(model: nn.Module, epoch: int) -> None:
    """Raise `UserError` for weights that are not finite: a step can spoil them of which the loss was still a number."""
    spoiled = [name for name, tensor in model.state_dict().items()
               if tensor.is_floating_point() and not tensor.isfinite().all()]
    if spoiled:
        raise UserError(f"The weights are no longer finite in epoch {epoch} ({len(spoiled)} tensors, the first {spoiled[0]}), "
                        f"though the losses were, so nothing is saved; {ADVICE}")
