"""DeMo's evaluation in miniature; MSVR310's fails with a current NumPy, as DeMo's does."""

import numpy as np
import torch

from utils.reranking import re_ranking


def eval_func(distmat, q_pids, g_pids, q_camids, g_camids, max_rank=50):
    max_rank = min(max_rank, distmat.shape[1])
    curves, averages = [], []
    for row, identity, camera in zip(distmat, q_pids, q_camids, strict=True):
        order = row.argsort(kind="stable")
        kept = order[(g_pids[order] != identity) | (g_camids[order] != camera)]
        ranks = np.flatnonzero(g_pids[kept] == identity) + 1
        if len(ranks):
            curves.append(np.arange(1, max_rank + 1) >= ranks[0])
            averages.append(np.mean(np.arange(1, len(ranks) + 1) / ranks))
    assert averages, "no query has a match"
    return np.mean(curves, axis=0), np.mean(averages)


def eval_func_msrv(
    distmat, q_pids, g_pids, q_camids, g_camids, q_sceneids, g_sceneids, max_rank=50
):
    g_pids.astype(np.str)
    return eval_func(distmat, q_pids, g_pids, q_sceneids, g_sceneids, max_rank)


class R1_mAP_eval:  # noqa: N801 (DeMo's name)
    def __init__(self, num_query, max_rank=50, feat_norm=True, reranking=False):
        self.num_query, self.reranking = num_query, reranking

    def reset(self):
        self.seen = []

    def update(self, output):
        self.seen.append(output[:-1])

    def compute(self):
        features, *labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        features = torch.nn.functional.normalize(features)
        query, gallery = features[: self.num_query], features[self.num_query :]
        distance = (
            re_ranking(query, gallery, 50, 15, 0.3)
            if self.reranking
            else torch.cdist(query, gallery).numpy()
        )
        sides = [
            part.numpy()
            for label in labels
            for part in (label[: self.num_query], label[self.num_query :])
        ]
        return *(eval_func_msrv if len(labels) == 3 else eval_func)(distance, *sides), distance


class R1_mAP(R1_mAP_eval):  # noqa: N801
    pass
