"""Paired differences by the book: Student's quantiles from a table."""

from math import sqrt

STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}
"""Quantiles at 97.5 % by degrees of freedom."""


def student(differences):
    count = len(differences)
    mean = sum(differences) / count
    deviation = sqrt(sum((difference - mean) ** 2 for difference in differences) / (count - 1))
    half = STUDENT[count - 1] * deviation / sqrt(count)
    return mean - half, mean + half
