"""What tests/seps/test_seps_distributed.py runs under torchrun: steps and evaluation of SEPS in shares, one file for each
process.

    torchrun --nproc_per_node=2 tests/helpers/two_seps_processes.py OUTPUT ROOT
"""

import sys
from pathlib import Path

import torch
from numeric import shift_seed
from seps_tiny import cfg_for

from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.device import autocast, choose_precision
from seps.captions import caption_batches, caption_loader, encode_captions
from seps.evaluation import (
    evaluate_retrieval,
    make_retrieval_data,
    read_caption_splits,
    similarities,
)
from seps.model import load_tokenizer, make_seps
from seps.training import BatchLoss

VERSIONS = {
    "paper": (),
    "open": ("MODEL.PAPER_VERSION", "False", "DATASETS.LONG_CAPTIONS", "no"),
    "bf16": ("SOLVER.AMP", "bf16"),
}
KEEP_ALL = ("MODEL.SDTPS_SPARSE_RATIO", "1.0")
"""The choice of patches would hang on roundings here and there, and the losses and all that follows on the choice."""
EPOCHS = (1, 2)
"""With all negatives, and with the hardest."""


def main() -> None:
    output, root = map(Path, sys.argv[1:])
    with distributed.init_distributed():
        for version in VERSIONS:
            torch.save(steps(root, version), output / f"{version}_{distributed.rank()}.pth")


def steps(root, version) -> dict:
    """Losses of some steps, what the model has become, and its evaluation."""
    cfg = cfg_for(root, *KEEP_ALL, *VERSIONS[version])
    splits, tokenizer = read_caption_splits(cfg), load_tokenizer(cfg)
    torch.manual_seed(shift_seed())
    model, _ = make_seps(cfg)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = {name: encode_captions(cfg, split, tokenizer) for name, split in splits.items()}
    loader = caption_loader(cfg, splits["train"])
    dev, test = (
        make_retrieval_data(cfg, splits[name], tokens[name], folds)
        for name, folds in (("dev", 1), ("test", 2))
    )
    batch_loss = BatchLoss(cfg, model.train())
    device = torch.device("cpu")
    precision = choose_precision(cfg.SOLVER.AMP, device)
    # AdamW's first steps are the signs of gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    losses, parts = [], []
    for epoch in EPOCHS:
        batch_loss.begin_epoch(epoch)
        epoch_sampler(loader).begin(epoch)
        for batch in caption_batches(loader, tokens["train"]):
            with autocast(device, precision):
                loss, count, sums = batch_loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            parts.append(
                {
                    "local": len(batch.images),
                    "count": count,
                    "hardest": batch_loss.losses.align.max_violation,
                }
                | {name: float(total) for name, total in sums.items()}
            )
    return {
        "losses": losses,
        "parts": parts,
        "start": start,
        "state": model.state_dict(),
        "similarities": [similarities(model, data) for data in (dev, test)],
        "recalls": [evaluate_retrieval(model, data) for data in (dev, test)],
    }


if __name__ == "__main__":
    main()
