"""Features in two dimensions, for a scatter plot."""
import warnings
from importlib import import_module

import numpy as np

from demo_sdtps.config import UserError

METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
LIBRARIES = {"pca": ("sklearn.decomposition", "scikit-learn", "report"), "tsne": ("sklearn.manifold", "scikit-learn", "report"),
             "umap": ("umap", "umap-learn", "umap")}
"""By method: the module, its library, and the extra that has it."""
PERPLEXITY, NEIGHBOURS = 30, 15  # the libraries' defaults, lowered for fewer points
LEAST = 4  # points, for the neighbours of t-SNE and UMAP


def check_projection(method: str, count: int) -> None:
    """Raise `UserError` for fewer than 4 features, and where the library of the method is not installed."""
    if count < LEAST:
        raise UserError(f"There are {count} samples, but a scatter plot needs at least {LEAST}; show more.")
    module, library, extra = LIBRARIES[method]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of umap-learn, on TensorFlow, which is not needed
            import_module(module)
    except ImportError:
        raise UserError(f"{METHODS[method]} is computed by {library}, which is not installed; pip install '.[{extra}]'."
                        ) from None


def project(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    """Features (n, D) → (n, 2) float32, by one of METHODS; the same seed gives the same points.

    PCA and t-SNE are those of scikit-learn, t-SNE from PCA's plane with a perplexity of at most 30; UMAP is umap-learn's with
    at most 15 neighbours. All compare by Euclidean distance. Raises `UserError` as `check_projection`.
    """
    check_projection(method, len(features))
    return np.ascontiguousarray(_PROJECTIONS[method](features, seed), np.float32)


def _pca(features: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    return PCA(2, svd_solver="full").fit_transform(features)


def _tsne(features: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


def _umap(features: np.ndarray, seed: int) -> np.ndarray:
    from umap import UMAP

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on versions of its own dependencies
        # A seed and several threads exclude each other.
        return UMAP(n_neighbors=min(NEIGHBOURS, len(features) - 1), random_state=seed, n_jobs=1).fit_transform(features)


_PROJECTIONS = {"pca": _pca, "tsne": _tsne, "umap": _umap}
