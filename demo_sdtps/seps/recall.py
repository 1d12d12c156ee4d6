"""Image-text retrieval: recall at 1, 5 and 10 in both directions and their sum, without sorting (docs/seps.md).

The rank of a match is the number of candidates that are at least as similar, which counting gives without their order.
"""

import torch

RECALL_RANKS = (1, 5, 10)
WAYS = ("i2t", "t2i")  # captions retrieved by an image, images retrieved by a caption
COMPARED_ELEMENTS = 1 << 22  # similarities that are compared at a time, with up to 8 bytes for each


@torch.no_grad()
def retrieval(similarity: torch.Tensor, image_of: torch.Tensor) -> dict[str, float]:
    """Recalls of similarities (images, captions) in percent: {"i2t R@1": …, …, "t2i R@10": …, "rSum": …}.

    image_of (captions,): the row of each caption's image; an image has one caption or more. i2t R@k counts an image
    where any of its captions is among the k most similar. A match ranks after others of exactly its similarity, whatever the
    order. Memory beside the similarities is bounded but for some bytes per image and caption.
    """
    images, captions = similarity.shape
    image_of = image_of.to(similarity.device, torch.long)
    matched = similarity[image_of, torch.arange(captions, device=similarity.device)]
    best = matched.new_zeros(images)
    best.scatter_reduce_(0, image_of, matched, "amax", include_self=False)
    # Not counted as ahead: the match itself and equally similar captions of the same image.
    ahead_of_captions = -torch.bincount(image_of[matched == best[image_of]], minlength=images)
    ahead_of_images = torch.full((captions,), -1, device=similarity.device)
    size = max(1, COMPARED_ELEMENTS // captions)
    for start in range(0, images, size):
        rows = slice(start, start + size)
        block = similarity[rows]
        ahead_of_captions[rows] += (block >= best[rows, None]).count_nonzero(dim=1)
        ahead_of_images += (block >= matched).count_nonzero(dim=0)
    measures = {
        f"{way} R@{k}": 100 * (ahead < k).double().mean().item()
        for way, ahead in zip(WAYS, (ahead_of_captions, ahead_of_images), strict=True)
        for k in RECALL_RANKS
    }
    return measures | {"rSum": sum(measures.values())}


def five_fold(similarity: torch.Tensor, image_of: torch.Tensor, folds: int = 5) -> dict[str, float]:
    """COCO's 1K protocol: means of `retrieval` over `folds` consecutive equal parts of the images with their captions.

    similarity (images, captions), image_of (captions,); `folds` divides the number of images.
    """
    image_of = image_of.to(similarity.device, torch.long)
    size = len(similarity) // folds
    folds_results = []
    for start in range(0, len(similarity), size):
        inside = ((image_of >= start) & (image_of < start + size)).nonzero().squeeze(1)
        fold = similarity[start : start + size, inside]
        folds_results.append(retrieval(fold, image_of[inside] - start))
    return {name: sum(fold[name] for fold in folds_results) / folds for name in folds_results[0]}
