"""Sizes of the network of SEPS in its tests, and how long its sums are."""

WIDTH, PATCHES, IMAGES = 20, 9, 3
SCORES = (WIDTH, WIDTH, PATCHES, WIDTH, WIDTH // 4, PATCHES)
WEIGHTS = (WIDTH, WIDTH, WIDTH // 5, PATCHES, PATCHES)
PATH = (*SCORES, *WEIGHTS, WIDTH, WIDTH, 10, 5, 10)
"""Lengths of the sums from tokens to a similarity: norm, cosines and scores of the patches, the softmax of those dropped;
weights and means of those kept; norm, cosines, their mean and the MLP of the best."""
