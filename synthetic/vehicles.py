"""Synthetic vehicles that fill the picture, in the cameras of scene.py.

A vehicle is an outline over its length, extruded over its width. Places are (x, y, z): metres from the nose back, from the near
side (-1) to the far side (1), metres above the ground. Only the five looks together are unique; all else is independent.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from synthetic import read_tables
from synthetic.pedestrians import COLOURS
from synthetic.scene import Canvas, Colour, Point, draw_occluder, rectangle
from synthetic.triplets import choose_looks

VERSION = 1  # incremented whenever the same seed gives other images
SIZE = (64, 128)  # height and width in pixels unless others are asked for
Material = tuple[Colour, float, float]  # RGB, NI, TI
Place = tuple[float, float, float]
Span = tuple[float, float]

TABLES = read_tables("vehicles")
LOOKS: dict[str, list[Any]] = {
    "form": [*product(TABLES["shapes"], TABLES["roofs"])],
    "trim": [*product(TABLES["rims"], TABLES["bumpers"])],
    "rgb": [*product(TABLES["paints"], TABLES["decorations"])],
    "ni": [*product(*TABLES["ni"])],
    "ti": [*product(TABLES["engines"], TABLES["wheels"])],
}
"""What an index of a look stands for; all modalities show form and trim."""
LOOK_SHAPE = [*map(len, LOOKS.values())]
DISTANCE = 14.0  # of the camera, in metres
BOTTOM, WHEEL = 0.24, 0.34  # height of the body above the ground, and radius, in metres
NARROW = 0.16  # share of the width that the roof lacks
# space between the vehicle and a side of the picture, in widths or heights of the vehicle; negative: cut off
SPACE, LOOSE_SPACE = (-0.10, 0.03), (0.0, 0.5)
OCCLUDED_RATE = 0.15


class Look(NamedTuple):
    """Indices into the lists of LOOKS; only the five together identify a vehicle."""

    form: int
    trim: int
    rgb: int
    ni: int
    ti: int


def make_identities(number: int, seed: int) -> list[Look]:
    """`number` vehicles with different combinations of looks, of which all five are needed."""
    return [Look(*look) for look in choose_looks(number, seed, LOOK_SHAPE)]


def draw_object(
    canvas: Canvas, look: Look, night: bool, loose: bool, streams: Sequence[Generator]
) -> None:
    """A vehicle on its shadow, from a random side and in random light, by the streams of the vehicle and of what is in front of
    it. It fills the picture, a `loose` one at least half of its sides."""
    _, rng, front = streams
    (points, half, window_count, window_share), roof = LOOKS["form"][look.form]
    length, belt, top = points[5][0], points[1][1], points[2][1]
    outline = [(0.0, BOTTOM), *points, (length, BOTTOM)]
    rims, bumper = LOOKS["trim"][look.trim]
    (_, decoration), ((hot_strips, hot_area), _) = LOOKS["rgb"][look.rgb], LOOKS["ti"][look.ti]
    materials = _materials(look, bumper, night, rng)
    lights = {"side": rng.uniform(0.6, 1), "end": rng.uniform(0.6, 1), "top": 1.0}
    angle = rng.uniform(*TABLES["views"][rng.integers(3)])
    tilt, facing = rng.uniform(0.12, 0.4), rng.choice([-1, 1])
    spin = rng.uniform(0, 6.3)

    def project(places: Iterable[Place]) -> np.ndarray:
        """Places (n, 3) → metres to the right and down (n, 2), in a camera that looks down on the vehicle."""
        x, y, z = np.array([*places], float).T
        cabin = np.clip((z - belt) / (top - belt), 0, 1)
        across, along = y * half * (1 - NARROW * cabin), x - length / 2
        depth = along * np.sin(angle) + across * np.cos(angle)
        right = along * np.cos(angle) - across * np.sin(angle)
        scale = DISTANCE / (DISTANCE + depth)
        down = -z * np.cos(tilt) - depth * np.sin(tilt)
        return np.stack([facing * right * scale, down * scale], axis=1)

    around = [(WHEEL, 0.0), *outline, (length - WHEEL, 0.0)]
    corners = project((x, y, z) for (x, z), y in product(around, (-1, 1)))
    first, last = corners.min(0), corners.max(0)
    before, behind = rng.uniform(*(LOOSE_SPACE if loose else SPACE), (2, 2)) * (last - first)
    corner, extent = first - before, last + behind - first + before

    def polygon(places: Iterable[Place], material: str, face: str = "side") -> None:
        (rgb, ni, ti), light = materials[material], lights[face]
        label = canvas.add(light * np.array(rgb), light * ni, ti)
        spots = (project(places) - corner) / extent * (canvas.aspect, 1)
        canvas.polygon(spots.tolist(), label)

    def side(points: Iterable[Point], material: str) -> None:
        polygon([(x, -1, z) for x, z in points], material)

    def area(start: float, end: float, low: float, high: float, material: str) -> None:
        """Box in shares of the length, and of the height below the windows."""
        bottom, height = BOTTOM, outline[1][1] - BOTTOM
        box = start * length, bottom + low * height, end * length, bottom + high * height
        side(rectangle(*box), material)

    def strip(start: Point, end: Point, span: Span, material: str, face: str) -> None:
        """From one (x, z) to another, between two places across."""
        (x0, z0), (x1, z1), (near, far) = start, end, span
        places = [(x0, near, z0), (x1, near, z1), (x1, far, z1), (x0, far, z0)]
        polygon(places, material, face)

    def disc(x: float, radii: list[float], material: str, y: float = -1) -> None:
        turns = spin + np.linspace(0, 2 * np.pi, 20, endpoint=False)
        spots = zip(turns, WHEEL * np.resize(radii, len(turns)), strict=True)
        places = [(x + r * np.cos(turn), y, WHEEL + r * np.sin(turn)) for turn, r in spots]
        polygon(places, material)

    strip((-0.2, 0), (length + 0.2, 0), (-1.1, 1.2), "shadow", "top")
    axles = 0.18 * length, 0.8 * length
    for x in axles:
        disc(x, [1.0], "tyre", y=0.95)
    # From far to near, so that what is not seen is drawn over.
    strips = list(enumerate(pairwise(outline)))
    for index, (start, end) in strips if angle < 0 else reversed(strips):
        face = "end" if index in (0, 6) else "top"
        material = "hot" if index in hot_strips else TABLES["outline"][index]
        strip(start, end, (-1, 1), material, face)
        (x, z), step = start, (end[0] - start[0]) / 20
        if face == "end":
            low, high = sorted(np.array([start, end]), key=lambda point: point[1])
            for (bottom, up), span, *parts in TABLES["ends"]:
                edges = low + bottom * (high - low), low + up * (high - low)
                strip(*edges, span, parts[index // 6], face)
        elif index == 3 and roof == "sunroof":
            strip((x + 4 * step, z), (x + 11 * step, z), (-0.7, 0.7), "glass", face)
        elif index == 3 and roof == "rack":
            for bar in (x, x + 9 * step, x + 18 * step):
                strip((bar, z + 0.08), (bar + step, z + 0.08), (-1, 1), "gap", face)
    side(outline, "paint")
    accents = [(decoration, "accent")] if decoration else []
    bumpers = [((0, 0.09, 0, 0.5), "bumper"), ((0.89, 1, 0, 0.5), "bumper")]
    for (start, end, low, high), material in ((hot_area, "hot"), *accents, *bumpers):
        area(start, end, low, high, material)
    (screen, _), (roof_start, _), (roof_end, _), (tail, _) = outline[2:6]
    # Left and right end of the windows at their lower and upper edge.
    edges = (screen + 0.2, tail - 0.2), (roof_start + 0.05, roof_end - 0.1)
    low, high = belt + 0.05, top - 0.1
    for left, right in pairwise(np.linspace(0, window_share, window_count + 1)):
        (l0, r0), (l1, r1) = ((a + left * (b - a), a + right * (b - a)) for a, b in edges)
        side([(l0, low), (r0 - 0.06, low), (r1 - 0.06, high), (l1, high)], "glass")
        area(r0 / length, (r0 + 0.03) / length, 0.1, 1, "gap")
    for x in axles:
        for radii, material in (([1.2], "gap"), ([1.0], "tyre"), ([0.72], "hub"), *rims):
            disc(x, radii, material)
    if front.random() < OCCLUDED_RATE:
        draw_occluder(canvas, front)


def _materials(look: Look, bumper: str, night: bool, rng: Generator) -> dict[str, Material]:
    """Colours in the light of the day. Surfaces are colder at night, and how warm the engine has run is random."""
    paint, accent = (COLOURS[name] for name in LOOKS["rgb"][look.rgb][0].split())
    (ni, ni_glass), (_, wheel) = LOOKS["ni"][look.ni], LOOKS["ti"][look.ti]
    cold, run = rng.uniform(0.15, 0.25) if night else rng.uniform(0.2, 0.4), rng.uniform(0.6, 1)
    sky = rng.uniform(0, 0.25)  # which the glass mirrors
    wheel = cold + run * (wheel - cold)
    materials = {
        name: (rgb, ni, cold + above) for name, (rgb, ni, above) in TABLES["materials"].items()
    } | {
        "paint": (paint, ni, cold),
        "accent": (accent, ni, cold),
        "hot": (paint, ni, cold + 0.55 * run),
        "glass": ((0.1 + sky, 0.12 + sky, 0.15 + sky), ni_glass + sky / 2, 0.12),
        "rim": ((0.74, 0.74, 0.76), 0.8, wheel),
        "hub": ((0.12, 0.12, 0.13), 0.15, cold + 0.6 * (wheel - cold)),
        "shadow": ((0.06, 0.06, 0.07), 0.06, 0.2),
    }
    return materials | {"bumper": materials[bumper]}
