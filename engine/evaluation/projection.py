"""Features in two dimensions, for a scatter plot."""
import warnings
from importlib import import_module

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.engine.evaluation.embedding import embed

METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
LIBRARIES = {"pca": ("sklearn.decomposition", "scikit-learn", "report"), "tsne": ("sklearn.manifold", "scikit-learn", "report"),
             "umap": ("umap", "umap-learn", "umap")}
"""By method: the module, its library, and the extra that has it."""
NEIGHBOURS = 15  # the library's default, lowered for fewer points
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

    PCA and t-SNE are those of `embed`, UMAP is umap-learn's with at most 15 neighbours, by Euclidean distance. Raises
    `UserError` as `check_projection`.
    """
    check_projection(method, len(features))
    found = _umap(features, seed) if method == "umap" else embed(torch.from_numpy(features), METHODS[method], seed)
    return np.ascontiguousarray(found, np.float32)


def _umap(features: np.ndarray, seed: int) -> np.ndarray:
    from umap import UMAP

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on versions of its own dependencies
        # A seed and several threads exclude each other.
        return UMAP(n_neighbors=min(NEIGHBOURS, len(features) - 1), random_state=seed, n_jobs=1).fit_transform(features)
