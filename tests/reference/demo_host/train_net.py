"""Train the miniature: two batches an epoch."""

import torch
import torch.nn.functional as F
from engine.processor import do_train
from miniature import batches, parse

from config import cfg
from modeling import make_model

if __name__ == "__main__":
    words = parse("--local_rank")
    print("local rank", words.local_rank)
    torch.manual_seed(0)
    model = make_model(cfg, num_class=4, camera_num=3, view_num=1)
    do_train(
        cfg,
        model,
        list(batches(2, 1, False)),
        list(batches(3, 2, True)),
        torch.optim.SGD(model.parameters(), lr=0.01),
        lambda score, feature, label: (
            F.cross_entropy(score, label) + 0.01 * feature.square().mean()
        ),
        8,
    )
