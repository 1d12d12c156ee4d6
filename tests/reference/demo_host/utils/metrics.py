"""DeMo's evaluation in miniature; MSVR310's fails with a current NumPy, as DeMo's does."""

import numpy as np
import torch

from tests.reference.demo_ranking import evaluate_distances as eval_func
from utils.reranking import re_ranking as re_ranking


def eval_func_msrv(
    distmat, q_pids, g_pids, q_camids, g_camids, q_sceneids, g_sceneids, max_rank=50
):
    g_pids.astype(np.str)
    return eval_func(distmat, q_pids, g_pids, q_sceneids, g_sceneids, max_rank)


class R1_mAP_eval:  # noqa: N801 (DeMo's name)
    def __init__(self, num_query):
        self.num_query = num_query

    def reset(self):
        self.batches = []

    def update(self, output):
        self.batches.append(output[:-1])

    def compute(self):
        features, *labels = (torch.cat(batches) for batches in zip(*self.batches, strict=True))
        features = torch.nn.functional.normalize(features)
        query, gallery = features[: self.num_query], features[self.num_query :]
        distance = torch.cdist(query, gallery).numpy()
        sides = [
            side.numpy()
            for label in labels
            for side in (label[: self.num_query], label[self.num_query :])
        ]
        return (eval_func_msrv if len(labels) == 3 else eval_func)(distance, *sides)
