"""Features in two dimensions, for a scatter plot."""
import warnings

import numpy as np

from demo_sdtps.config import UserError

METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
PERPLEXITY, NEIGHBOURS = 30, 15  # the libraries' defaults, lowered for fewer points
LEAST = 4  # points, for the neighbours of t-SNE and UMAP


def project(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    """Features (n, D) → (n, 2) float32, by one of METHODS; the same seed gives the same points.

    PCA and t-SNE are those of scikit-learn, t-SNE from PCA's plane with a perplexity of at most 30; UMAP is umap-learn's with
    at most 15 neighbours. All compare by Euclidean distance. Raises `UserError` for fewer than 4 features and where the library
    is not installed.
    """
    if len(features) < LEAST:
        raise UserError(f"There are {len(features)} samples, but a scatter plot by {METHODS[method]} needs at least {LEAST}; "
                        "show more.")
    found = (_umap if method == "umap" else _sklearn)(features, method, seed)
    return np.ascontiguousarray(found, np.float32)


def _sklearn(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(f"{METHODS[method]} is computed by scikit-learn, which is not installed; pip install '.[report]'."
                        ) from None
    if method == "pca":
        return PCA(2, svd_solver="full").fit_transform(features)
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


def _umap(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on TensorFlow, which is not needed, and on versions of its own dependencies
        try:
            from umap import UMAP
        except ImportError:
            raise UserError("UMAP is computed by umap-learn, which is not installed; pip install '.[umap]'.") from None
        # A seed and several threads exclude each other.
        return UMAP(n_neighbors=min(NEIGHBOURS, len(features) - 1), random_state=seed, n_jobs=1).fit_transform(features)
