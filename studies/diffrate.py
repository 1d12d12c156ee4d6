"""The rates of DiffRate (Chen et al., ICCV 2023): how many patches each block keeps, and how many of the others it prunes.

They are learned for a share of the operations of a trained dense model, whose weights stay as they are:

    python -m studies.diffrate --weight runs/pretrain/last.pth
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.reid import make_task
from studies.attention import CLASS_TOKEN, attention_weights
from studies.baselines import RATES, merge_into_nearest

STEP, EPOCHS, RATE, WEIGHT = 4, 3, 0.1, 1000.0
"""Patches between two candidates; epochs and learning rate of the search; weight of the operations in the loss."""


class Candidates(nn.Module):
    """A number of patches, as probabilities of the candidates `patches`, `patches` - STEP, … (section 3.2)."""

    numbers: torch.Tensor
    keeps: torch.Tensor

    def __init__(self, patches: int):
        super().__init__()
        numbers = torch.arange(patches, 0, -STEP)
        self.register_buffer("numbers", numbers.float())
        self.register_buffer("keeps", (numbers.unsqueeze(1) > torch.arange(patches)).float())
        self.logits = nn.Parameter(torch.zeros(len(numbers)))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The expected number, rounded up, a scalar, and the probability that each patch is kept, the best first, (N,)."""
        probabilities = self.logits.softmax(dim=0)
        expected = self.numbers @ probabilities
        return expected + (expected.ceil() - expected).detach(), probabilities @ self.keeps


class Pass:
    """State of a pass through the backbone: which of n patches are live, how many each stands for, the share left by block."""

    def __init__(self, batch: int, patches: int):
        self.live = torch.ones(batch, patches)  # 1 or 0, with the gradient of the rates
        self.sizes, self.left = torch.ones(batch, patches), patches
        self.shares = [torch.tensor(1.0)]


class SearchBlock(nn.Module):
    """A block of timm's Vision Transformer that prunes and merges its input by masks, so that the rates have a gradient."""

    def __init__(self, block: Any, patches: int, search: "Search", is_first: bool):
        super().__init__()
        self.block, self.search, self.is_first = block, search, is_first
        self.unpruned, self.kept = Candidates(patches), Candidates(patches)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        search = self.search
        if self.is_first:
            search.state = Pass(values.shape[0], values.shape[1] - 1)
        else:
            values = self.drop(values, search.state)
        return self.masked(values, search.state)

    def drop(self, values: torch.Tensor, state: Pass) -> torch.Tensor:
        visible = F.pad(state.sizes * state.live.detach(), (1, 0), value=1.0)
        bias = visible.log()[:, None, None, :]
        weights = attention_weights(self.block, values, CLASS_TOKEN, bias=bias)
        order = weights.mean(dim=1)[:, 0, 1:].argsort(dim=1, descending=True, stable=True)
        patches = values[:, 1:].gather(1, order.unsqueeze(-1).expand_as(values[:, 1:]))
        state.sizes, state.live = state.sizes.gather(1, order), state.live.gather(1, order)
        costs = torch.zeros(())
        for rate in (self.unpruned, self.kept):
            number, probability = rate()
            costs = costs + number - number.detach()
            after, place = min(state.left, int(number)), torch.arange(patches.shape[1])
            if after == state.left:
                continue
            if rate is self.kept:
                patches = self.merge(patches, state, after)
            is_left = ((place < after) | (place >= state.left)).float()
            state.live = state.live * (is_left - probability.detach() + probability)
            state.left = after
        # Straight through the minimum: both numbers pay for what is left, also one that drops nothing.
        state.shares.append((state.left + costs) / patches.shape[1])
        return torch.cat([values[:, :1], patches], dim=1)

    def merge(self, patches: torch.Tensor, state: Pass, after: int) -> torch.Tensor:
        """The first `after` of the patches with those up to `state.left` merged into them, then the others as they are."""
        parts = patches[:, :after], patches[:, after : state.left]
        sizes = state.sizes[:, :after], state.sizes[:, after : state.left]
        values, merged = merge_into_nearest(*parts, *sizes)
        state.sizes = torch.cat([merged, state.sizes[:, after:]], dim=1)
        return torch.cat([values, patches[:, after:]], dim=1)

    def masked(self, values: torch.Tensor, state: Pass) -> torch.Tensor:
        """The block, in whose attention a dropped token is seen by itself alone."""
        block, attention = self.block, self.block.attn
        heads = attention.qkv(block.norm1(values)).unflatten(-1, (3, attention.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        logits = query @ key.transpose(-2, -1) * attention.scale
        logits = logits + F.pad(state.sizes, (1, 0), value=1.0).log()[:, None, None]
        visible = F.pad(state.live, (1, 0), value=1.0)[:, None, None]
        itself = torch.eye(values.shape[1])
        weights = (logits - logits.amax(dim=-1, keepdim=True)).exp() * (
            visible + (1 - visible) * itself
        )
        mixed = (weights / weights.sum(dim=-1, keepdim=True)) @ value
        values = values + block.ls1(attention.proj(mixed.transpose(1, 2).flatten(2)))
        return values + block.ls2(block.mlp(block.norm2(values)))


class MeanOfLive(nn.Module):
    """The final norm, with patches scaled so that their mean is that of those that were not dropped."""

    def __init__(self, norm: nn.Module, search: "Search"):
        super().__init__()
        self.norm, self.search = norm, search

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        live = self.search.state.live
        scale = live * live.shape[1] / live.sum(dim=1, keepdim=True)
        return self.norm(values) * F.pad(scale, (1, 0), value=1.0).unsqueeze(-1)


class Search:
    """The rates of every block but the first of a backbone, in place of its blocks."""

    state: Pass

    def __init__(self, backbone: Any):
        self.backbone, vit = backbone, backbone.vit.requires_grad_(False)
        patches = backbone.num_patches
        blocks = enumerate(vit.blocks)
        vit.blocks = nn.ModuleList(SearchBlock(block, patches, self, i == 0) for i, block in blocks)
        vit.norm = MeanOfLive(vit.norm, self)
        self.blocks: list[Any] = list(vit.blocks)[1:]
        self.patches = patches

    def parameters(self) -> list[nn.Parameter]:
        return [rate.logits for block in self.blocks for rate in (block.unpruned, block.kept)]

    def operations(self) -> torch.Tensor:
        """Multiplications of the last pass in the blocks, as a share of the dense model's, a scalar."""
        tokens = 1 + self.patches * torch.stack(self.state.shares)
        layers = [part for part in self.blocks[0].modules() if isinstance(part, nn.Linear)]
        width, weights = layers[0].in_features, sum(layer.weight.numel() for layer in layers)
        each = tokens * weights + 2 * tokens**2 * width
        return each.sum() / (len(each) * each[0].detach())

    @torch.no_grad()
    def rates(self) -> dict[str, list]:
        """The block before each stage, the patches that it keeps, all, their share, and without the merged ones."""
        rows, left = [], self.patches
        for number, block in enumerate(self.blocks, 1):
            unpruned = min(left, int(block.unpruned()[0]))
            kept = min(unpruned, int(block.kept()[0]))
            if kept < left:
                share = math.floor(1e4 * kept / left) / 1e4  # a stage rounds up
                rows.append((number, share, unpruned, kept))
                left = kept
        names = "blocks", "keep", "unpruned", "kept"
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def main() -> None:
    parser = flags.config_parser(__doc__.split("\n\n")[1])
    parser.add_argument("--operations", type=float, default=0.45, help="share of the dense model's")
    cli.add_output(parser, "--json", ".json", default=RATES, help="write the rates to this file")
    arguments, cfg = flags.parse(parser)
    task = make_task(cfg, torch.device("cpu"), None)
    model = task.model.requires_grad_(False).train()
    # A training would start with a new classifier.
    load_weights(model, read_checkpoint(cfg.TEST.WEIGHT))
    search = Search(model.backbone)
    optimizer = torch.optim.AdamW(search.parameters(), RATE, weight_decay=0.0)
    steps = EPOCHS * len(task.loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=RATE / 10)
    for epoch in range(1, 1 + EPOCHS):
        epoch_sampler(task.loader).begin(epoch, 0)
        title = f"epoch {epoch}/{EPOCHS}"
        bar = progress(task.batches(), title, len(task.loader), unit="batch")
        for batch in bar:
            loss, *_ = task.loss(batch)
            operations = search.operations()
            optimizer.zero_grad()
            (loss + WEIGHT * (operations - arguments.operations) ** 2).backward()
            optimizer.step()
            schedule.step()
            state = f"loss {loss.item():.3f}, operations {operations.item():.3f}"
            bar.set_postfix_str(state)
        cli.print_lines(f"epoch {epoch}: {state}")
    rates = {"patches": search.patches, **search.rates(), "operations": operations.item()}
    write_json(arguments.json, rates)
    cli.print_lines(*(f"{name}: {value}" for name, value in rates.items()))


if __name__ == "__main__":
    cli.run(main)
