"""Image-text retrieval: recall at 1, 5 and 10 in both directions and their sum, without sorting (docs/seps.md)."""

import torch

RECALL_RANKS = (1, 5, 10)
WAYS = ("i2t", "t2i")  # captions retrieved by an image, images retrieved by a caption


@torch.no_grad()
def retrieval(similarity: torch.Tensor, image_of: torch.Tensor) -> dict[str, float]:
    """Recalls of similarities (images, captions) in percent: {"i2t R@1": …, …, "t2i R@10": …, "rSum": …}.

    image_of (captions,): the row of each caption's image; an image has one caption or more. i2t R@k counts an image
    where any of its captions is among the k most similar. A match ranks after others of exactly its similarity, whatever the
    order.
    """
    images, captions = similarity.shape
    matched = similarity[image_of, torch.arange(captions)]
    best = matched.new_zeros(images)
    best.scatter_reduce_(0, image_of, matched, "amax", include_self=False)
    # Not counted as ahead: the match itself and equally similar captions of the same image.
    equal = torch.bincount(image_of[matched == best[image_of]], minlength=images)
    ahead_of_captions = (similarity >= best[:, None]).count_nonzero(dim=1) - equal
    ahead_of_images = (similarity >= matched).count_nonzero(dim=0) - 1
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
    results = []
    for images in torch.arange(len(similarity)).chunk(folds):
        captions = torch.isin(image_of, images).nonzero().squeeze(1)
        first, last = int(images[0]), int(images[-1])
        fold = similarity[first : last + 1, captions]
        results.append(retrieval(fold, image_of[captions] - first))
    return {name: sum(fold[name] for fold in results) / folds for name in results[0]}
