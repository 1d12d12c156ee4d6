"""Figures of studies: names of points, and colours on dark pages."""

from itertools import combinations

import numpy as np
from numeric import numpy_generator
from PIL import Image

from demo_sdtps.reports.figures import plt, save
from studies.figures import apart, dark, name_points


def test_labels_do_not_cover_each_other():
    draws = numpy_generator(2)
    centres, sizes = draws.uniform(0, 200, (60, 2)), draws.uniform(8, 30, (60, 2))
    centres[10] = centres[11]
    fixed = draws.uniform(0, 200, (20, 2))
    moved = apart(centres, sizes, fixed)
    assert np.array_equal(moved[:, 0], centres[:, 0]) and (moved[:, 1] >= centres[:, 1]).all()
    for one, other in combinations(range(60), 2):
        assert (abs(moved[one] - moved[other]) >= (sizes[one] + sizes[other]) / 2).any()
    assert all(
        (abs(place - mark) >= (size + 10) / 2).any()
        for place, size in zip(moved, sizes, strict=True)
        for mark in fixed
    )
    figure, axis = plt.subplots(layout="constrained")
    points = axis.scatter([0, 0.01, 1], [0, 0.01, 1]).get_offsets()
    name_points(axis, np.asarray(points), ["one", "other", "far"])
    figure.draw_without_rendering()
    boxes = [plt.Text.get_window_extent(text) for text in axis.texts]
    assert not boxes[0].overlaps(boxes[1])


def test_a_dark_figure_is_light_on_nothing_and_keeps_its_colours(tmp_path):
    def draw(path):
        figure, axis = plt.subplots()
        axis.bar([0], [1], width=9)
        axis.set(xlim=(-1, 1), ylim=(0, 2))
        figure.suptitle("title")
        with Image.open(save(figure, path)) as image:
            return np.asarray(image.convert("RGBA"))

    light = draw(tmp_path / "light.png")
    with dark():
        assert plt.rcParams["text.color"] == "white"
        pixels = draw(tmp_path / "dark.png")
    assert light[0, 0].tolist() == [255, 255, 255, 255] and pixels[0, 0, 3] == 0
    assert (pixels == light).all(axis=2).sum() > 10_000  # of the bar
    assert plt.rcParams["text.color"] == "black"
