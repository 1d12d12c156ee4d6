"""Image-text retrieval by sorting, one query at a time (docs/seps.md, Training)."""


def retrieval(similarity, image_of):
    """similarity: a list per image of those to the captions; image_of: a list of the captions' images → measures in percent."""
    captions_found = [
        _first_match([(value, image_of[caption] == image) for caption, value in enumerate(row)])
        for image, row in enumerate(similarity)
    ]
    images_found = [
        _first_match(
            [(row[caption], image == image_of_caption) for image, row in enumerate(similarity)]
        )
        for caption, image_of_caption in enumerate(image_of)
    ]
    measures = {}
    for way, places in (("i2t", captions_found), ("t2i", images_found)):
        for k in (1, 5, 10):
            measures[f"{way} R@{k}"] = 100 * sum(1 for place in places if place < k) / len(places)
    measures["rSum"] = sum(measures.values())
    return measures


def five_fold(similarity, image_of, folds):
    """The mean of the measures of equal parts of the images."""
    size = len(similarity) // folds
    parts = []
    for fold in range(folds):
        images = range(fold * size, (fold + 1) * size)
        captions = [caption for caption, image in enumerate(image_of) if image in images]
        parts.append(
            retrieval(
                [[similarity[image][caption] for caption in captions] for image in images],
                [image_of[caption] - fold * size for caption in captions],
            )
        )
    return {name: sum(measures[name] for measures in parts) / folds for name in parts[0]}


def _first_match(candidates):
    """The place of the first match in a ranking of (similarity, whether it is a match); matches come last among equals."""
    ranking = sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1]))
    return [is_match for _, is_match in ranking].index(True)
