"""k-reciprocal re-ranking as written in its paper, with V in half precision as DeMo's."""

import numpy as np
import torch


def re_ranking(probFea, galFea, k1, k2, lambda_value, local_distmat=None, only_local=False):  # noqa: N803 (DeMo's names)
    features = torch.cat([probFea, galFea]).double()
    distance = torch.cdist(features, features).square().numpy()
    distance = distance / distance.max(axis=1, keepdims=True)
    rank = distance.argsort(axis=1, kind="stable")

    def reciprocal(sample, k):
        return {other for other in rank[sample, : k + 1] if sample in rank[other, : k + 1]}

    weights = np.zeros(distance.shape, np.float16)
    for sample in range(len(distance)):
        own = reciprocal(sample, k1)
        theirs = [reciprocal(member, round(k1 / 2)) for member in own]
        columns = sorted(
            own.union(*(others for others in theirs if 3 * len(own & others) > 2 * len(others)))
        )
        row = np.exp(-distance[sample, columns])
        weights[sample, columns] = row / row.sum()
    weights = np.stack([weights[rank[sample, :k2]].mean(axis=0) for sample in range(len(distance))])
    shared = np.stack([np.minimum(row, weights).sum(axis=1) for row in weights])
    whole = (1 - lambda_value) * (1 - shared / (2 - shared)) + lambda_value * distance
    return whole[: len(probFea), len(probFea) :]
