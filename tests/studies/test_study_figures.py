"""Figures of studies: colours on dark pages."""

import numpy as np
from PIL import Image

from demo_sdtps.reports.figures import plt, save
from studies.figures import dark


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
