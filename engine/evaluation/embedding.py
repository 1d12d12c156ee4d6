"""Features in two dimensions, for a scatter plot: PCA and t-SNE by scikit-learn (the extra `report`)."""
import numpy as np
import torch

METHODS = ("PCA", "t-SNE")
PERPLEXITY = 30
REDUCED = 50  # principal components that t-SNE sees: the others are noise to it, and cost time


def embed(features: torch.Tensor, method: str, seed: int) -> np.ndarray:
    """features (n, D) → (n, 2) float32 by a method of `METHODS`; zeros where all features are equal.

    The same seed gives the same result on the same machine.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features.double().numpy()
    if not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 2), np.float32)
    components = PCA(min(REDUCED, *values.shape), svd_solver="full").fit_transform(values)
    if method == "t-SNE":
        # The perplexity must be less than the number of samples.
        components = TSNE(2, init="random" if components.shape[1] < 2 else "pca", random_state=seed,
                          perplexity=min(PERPLEXITY, (len(values) - 1) / 3)).fit_transform(components)
    elif components.shape[1] < 2:
        components = np.pad(components, ((0, 0), (0, 1)))
    return components[:, :2].astype(np.float32)
