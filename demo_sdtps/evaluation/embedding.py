"""Features in two dimensions, for a scatter plot: PCA and t-SNE by scikit-learn, UMAP by umap-learn."""

import warnings

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.runtime.errors import check_extra

METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
PERPLEXITY, NEIGHBOURS = 30, 15  # of t-SNE and UMAP, lowered for fewer points
REDUCED = 50  # principal components that t-SNE sees: the others are noise to it, and cost time
LEAST = 4  # points, for the neighbours of t-SNE and UMAP


def check_method(method: str, count: int) -> None:
    """Raise `UserError` for fewer than 4 features, and where the library of the method is not installed."""
    if count < LEAST:
        raise UserError(
            f"There are {count} samples, but a scatter plot needs at least {LEAST}; show more."
        )
    if method == "umap":
        check_extra(METHODS[method], "umap", {"umap": "umap-learn"})
    else:
        check_extra(METHODS[method], "report", {"sklearn": "scikit-learn"})


def embed(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    """features (n, D) → (n, 2) float32 by one of METHODS; zeros where all features are equal.

    The same seed gives the same result on the same machine.
    """
    if method == "umap":
        with warnings.catch_warnings():
            # on TensorFlow, which is not needed, and versions of its own dependencies
            warnings.simplefilter("ignore")
            from umap import UMAP

            # A seed and several threads exclude each other.
            neighbours = min(NEIGHBOURS, len(features) - 1)
            reducer = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1)
            return np.ascontiguousarray(reducer.fit_transform(features), np.float32)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features.astype(np.float64)
    if not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 2), np.float32)
    components = PCA(min(REDUCED, *values.shape), svd_solver="full").fit_transform(values)
    if method == "tsne":
        perplexity = min(PERPLEXITY, (len(values) - 1) / 3)  # less than the number of samples
        reducer = TSNE(2, random_state=seed, perplexity=perplexity)
        components = reducer.fit_transform(components)
    return components[:, :2].astype(np.float32)
