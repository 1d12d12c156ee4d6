"""Paired differences by the book: every resample of a bootstrap, Student's quantiles from a table."""
from itertools import product
from math import ceil, sqrt

STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}
"""Quantiles at 97.5 % by degrees of freedom."""


def bootstrap(differences):
    """2.5 % and 97.5 % of the means of all resamples with replacement."""
    means = sorted(sum(drawn) / len(drawn) for drawn in product(differences, repeat=len(differences)))
    return means[ceil(0.025 * len(means)) - 1], means[ceil(0.975 * len(means)) - 1]


def student(differences):
    count = len(differences)
    mean = sum(differences) / count
    deviation = sqrt(sum((one - mean) ** 2 for one in differences) / (count - 1))
    half = STUDENT[count - 1] * deviation / sqrt(count)
    return mean - half, mean + half
