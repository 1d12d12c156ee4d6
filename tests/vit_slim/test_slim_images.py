"""Several images in one forward of a model that demo_sdtps.slim slimmed: which keep one set, and where they come from."""

from types import SimpleNamespace

import pytest
import torch
from numeric import assert_order, tolerance
from slim_host import COLUMNS, ROWS, WAYS, Tower, host_case, make_case
from slim_models import compare, distinctness, record, saliency, slim_both
from torch import nn

import demo_sdtps

STAGES = (1, 2), (0.6, 0.5)
PATCHES = ROWS * COLUMNS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shared", [True, False])
def test_images_of_a_forward_by_saliency(way, shared):
    """With `shared` that of all images together, or else of each."""
    case = host_case(way, shared)

    def score(model, images):
        parts = images.chunk(3)
        return saliency(
            lambda call: parts if shared else [images if way == "stacked" else parts[call]], case
        )

    compare(case, "saliency", *STAGES, score, case.draw(6))


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("shared", ["first", True])
def test_images_of_a_forward_by_their_tokens(way, shared):
    """A score that reads tokens is each image's own, or that of the first for all."""
    case, actual = host_case(way, shared), {}

    def score(call, row, index, layer, images):
        scores = distinctness(call, row, index, layer, images)
        return actual.setdefault((row, index), scores) if shared == "first" else scores

    compare(case, "distinctness", *STAGES, lambda model, images: score, case.draw(6))


class Batches(nn.Module):
    """Several batches of images, normalised on the way to the tower."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, *batches):
        return [self.encode((images - 0.5) / 0.2) for images in batches]

    def encode(self, images):
        images = self.tower.embed(images)
        for block in self.tower.blocks:
            images = block(images)
        return images


@pytest.mark.parametrize(
    ("sizes", "together"),
    [((2, 3, 2), ([0, 2], [1], [0, 2])), ((2, 2, 3, 3), ([0, 1], [0, 1], [2, 3], [2, 3]))],
)
def test_batches_of_several_sizes_and_images_that_nobody_keeps(sizes, together):
    """Those of one size are chosen for together; the tower's images are gone where a score reads them without gradients."""
    case = make_case(Batches, blocks_at="tower.blocks")
    _, model, steps = slim_both(case, (1,), (0.5,))
    images = [case.draw(batch, seed) for seed, batch in enumerate(sizes)]
    with torch.no_grad():
        actual = model(*images)
    assert [len(each) for each in actual] == [*sizes]
    kept = [step.kept["image"] for step in steps[0]]
    for number, voters in enumerate(together):
        score = saliency(lambda call, voters=voters: [images[voter] for voter in voters], case)
        for row, places in enumerate(kept[number]):
            whole = [SimpleNamespace(patches=range(PATCHES))] * len(kept[number])
            values = torch.tensor(score(0, row, 1, None, whole))
            assert_order(
                places[values[places].argsort(descending=True)], -values, tolerance(192, 16, 16, 16)
            )


class Pairs(nn.Module):
    """Two cameras, each with an image of the same name."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, cameras):
        return torch.stack([self.tower(images["image"]) for images in cameras.values()])


def test_images_of_equal_names_are_all_of_the_forward():
    """Their saliency is summed, as of images in a list."""
    model = demo_sdtps.slim(Pairs().double().eval(), *STAGES, blocks_at="tower.blocks")
    first, second = make_case(Tower).draw(4).chunk(2)
    actual = model({"left": {"image": first}, "right": {"image": second}})
    kept = record(model)
    assert torch.equal(model({"left": {"image": first}, "right": {"image": second}}), actual)
    left, right = (step.kept["image"] for step in kept[0])
    assert torch.equal(left, right)
    assert not torch.equal(model({"left": {"image": first}})[0], actual[0])
