"""What the images share: places, colours, heat maps, labels and formats."""

import re
from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from commands import ROOT
from numeric import numpy_generator
from PIL import Image

from demo_sdtps.commands import call
from demo_sdtps.config.cli import PICTURE
from demo_sdtps.reports.figures import (
    COLOURED,
    GREY,
    HEAT,
    apart,
    dark,
    heat_map,
    ink,
    name_points,
    plt,
    save,
    spread,
)


@pytest.mark.parametrize("total, count", [(1, 1), (8, 8), (9, 8), (72, 4), (480, 8), (3, 8)])
def test_places_are_spread(total, count):
    places = spread(total, count)
    assert len(set(places)) == min(count, total) and places == sorted(places)
    assert places[0] >= 0 and places[-1] < total
    steps = [after - before for before, after in pairwise(places)]
    assert not steps or max(steps) - min(steps) <= 1
    assert abs(places[0] - (total - 1 - places[-1])) <= 1  # as far from both ends


def test_colours_are_in_one_file():
    reports = ROOT / "demo_sdtps" / "reports"
    files = [*reports.glob("*.py"), *(ROOT / "tools").glob("*.py"), *reports.glob("templates/*.js")]
    colour = re.compile(r"#[0-9a-fA-F]{6}\b")
    with_colours = [file.name for file in files if colour.search(file.read_text(encoding="utf-8"))]
    assert with_colours == ["figures.py"]


def test_a_heat_map_leaves_out_what_has_no_value():
    image = numpy_generator(1).integers(0, 256, (8, 4, 3), np.uint8)
    actual = heat_map(image, torch.tensor([[3.0, torch.nan], [5.0, 4.0]]))
    low, middle, high = np.array(plt.get_cmap(HEAT)([0.0, 0.5, 1.0]))[:, :3]
    colours = {(0, 0): low, (1, 0): high, (1, 1): middle}
    for (row, column), pixel in np.ndenumerate(image.mean(axis=2)):
        expected = np.full(3, GREY * pixel / 255)
        if (patch := (row // 4, column // 2)) in colours:
            expected = (1 - COLOURED) * expected + COLOURED * colours[patch]
        assert actual[row, column] == pytest.approx(expected)


def test_labels_do_not_cover_each_other(tmp_path):
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
    # On a figure, in every format.
    for suffix, magic in zip(PICTURE, (b"\x89PNG", b"%PDF", b"<?xml"), strict=True):
        figure, axis = plt.subplots(layout="constrained")
        points = axis.scatter([0, 0.01, 1], [0, 0.01, 1]).get_offsets()
        name_points(axis, np.asarray(points), ["one", "other", "far"])
        figure.draw_without_rendering()
        boxes = [plt.Text.get_window_extent(text) for text in axis.texts]
        assert not boxes[0].overlaps(boxes[1])
        assert save(figure, tmp_path / f"x{suffix}").read_bytes().startswith(magic)


def test_a_dark_figure_is_light_on_nothing_and_keeps_its_colours(tmp_path):
    def draw(path):
        figure, axis = plt.subplots()
        axis.bar([0], [1], width=9)
        axis.set(xlim=(-1, 1), ylim=(0, 2))
        figure.suptitle("title")
        with Image.open(save(figure, path)) as image:
            return np.asarray(image.convert("RGBA"))

    light, colours = draw(tmp_path / "light.png"), ink()
    with dark():
        assert colours == "#000000" and ink() == "white"
        pixels = draw(tmp_path / "dark.png")
    assert light[0, 0].tolist() == [255, 255, 255, 255] and pixels[0, 0, 3] == 0
    assert (pixels == light).all(axis=2).sum() > 10_000  # of the bar
    assert ink() == colours


@pytest.mark.parametrize(
    "name", ["draw embedding", "draw ranks", "draw tokens", "slim-curve", "test"]
)
def test_every_drawing_command_takes_each_suffix(name, command, tmp_path):
    """Outputs are checked first: what it refuses is the checkpoint."""
    expected = dict.fromkeys(PICTURE, "lost.pth")
    expected[".jpg"] = "must be a file ending in .png or .pdf or .svg"
    for suffix, refused in expected.items():
        words = ("--weight", tmp_path / "lost.pth", "--output", tmp_path / f"x{suffix}")
        code, _, stderr = command(partial(call, name), *words)
        assert code == 2 and refused in stderr
