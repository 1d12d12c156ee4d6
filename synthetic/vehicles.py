"""Synthetic vehicles that fill the picture, in the cameras of scene.py.

A vehicle is an outline over its length, extruded over its width. Places are (x, y, z): metres from the nose back, from the near
side (-1) to the far side (1), metres above the ground. Only the five looks together are unique; all else is independent.
"""

from collections.abc import Iterable
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from synthetic.body import GARMENT_COLOURS
from synthetic.scene import (
    CAMERAS,
    Canvas,
    Colour,
    Point,
    draw_background,
    draw_occluder,
)
from synthetic.triplets import SUPERSAMPLING, Triplet, choose_looks, render

VERSION = 1  # incremented whenever the same seed gives other images
SIZE = (64, 128)  # height and width in pixels unless others are asked for
Material = tuple[Colour, float, float]  # RGB, NI, TI
Place = tuple[float, float, float]
Span = tuple[float, float]

# From nose to rear over the roof: (x, z) of bonnet, windscreen, roof, its end, rear window and rear; half of the width; number
# of side windows, and the share of their room that they take.
SHAPES = (  # saloon, hatchback, estate, van, pickup, bus
    (((0, 0.72), (1.3, 0.92), (2, 1.42), (3.2, 1.42), (4, 0.95), (4.6, 0.95)), 0.88, 2, 1.0),
    (((0, 0.75), (1, 0.95), (1.6, 1.5), (3.2, 1.5), (3.8, 0.92), (3.9, 0.92)), 0.84, 2, 1.0),
    (((0, 0.78), (1.2, 0.98), (2, 1.6), (4.2, 1.6), (4.6, 0.98), (4.7, 0.98)), 0.92, 3, 1.0),
    (((0, 0.9), (0.4, 1.15), (1, 1.95), (4.7, 1.95), (4.8, 1.15), (4.9, 1.15)), 0.95, 1, 0.4),
    (((0, 0.88), (1.3, 1.1), (1.9, 1.7), (2.9, 1.7), (3.1, 1.08), (5.1, 1.08)), 0.92, 1, 1.0),
    (((0, 0.85), (0.1, 1.1), (0.2, 2.4), (6.2, 2.4), (6.3, 1.1), (6.4, 1.1)), 1.10, 5, 1.0),
)
ROOFS = ("plain", "rack", "sunroof")
# discs and stars on the hub, by their radii in turn over that of the wheel
RIMS = (
    [([0.72], "rim")],
    [([0.72], "rim"), ([0.45], "hub")],
    [([0.72, 0.72, 0.15, 0.15], "rim")],
    [([0.25], "rim")],
)
BUMPERS = ("paint", "plastic")
PAINTS = ("white red", "grey blue", "black white", "red black", "blue yellow")  # and decoration
# sill, stripe or sticker on the side: shares of the length, and of the height below the windows
DECORATIONS = (None, (0.27, 0.85, 0.0, 0.38), (0.27, 0.85, 0.62, 0.82), (0.34, 0.56, 0.2, 0.85))
# What the engine heats: parts of the outline, and an area of the side as of DECORATIONS.
ENGINES = (((1,), (0.02, 0.26, 0.55, 1)), ((0,), (0, 0.1, 0, 1)), ((5, 6), (0.86, 1, 0.3, 1)))
FORMS, TRIMS = tuple(product(SHAPES, ROOFS)), tuple(product(RIMS, BUMPERS))
RGB_LOOKS = tuple(product(PAINTS, DECORATIONS))
NI_LOOKS = tuple(product((0.25, 0.55, 0.90), (0.08, 0.42)))  # reflectance of paint and glass
TI_LOOKS = tuple(product(ENGINES, (0.35, 0.90)))  # and the radiance of the wheels


class Look(NamedTuple):
    """Indices into FORMS, TRIMS (which all modalities show), RGB_LOOKS, NI_LOOKS and TI_LOOKS."""

    form: int
    trim: int
    rgb: int
    ni: int
    ti: int


LOOK_SHAPE = (len(FORMS), len(TRIMS), len(RGB_LOOKS), len(NI_LOOKS), len(TI_LOOKS))
VIEWS = ((-0.14, 0.14), (0.5, 0.85), (-0.85, -0.5))  # side, front and rear: angles in radians
DISTANCE = 14.0  # of the camera, in metres
BOTTOM, WHEEL = 0.24, 0.34  # height of the body above the ground, and radius, in metres
NARROW = 0.16  # share of the width that the roof lacks
# space between the vehicle and a side of the picture, in widths or heights of the vehicle; negative: cut off
SPACE, LOOSE_SPACE = (-0.10, 0.03), (0.0, 0.5)
OCCLUDED_RATE = 0.15
PARTS = ("paint", "paint", "glass", "paint", "glass", "paint", "paint")  # of the outline
# parts of nose and rear: shares of the height, places across, and the two materials
END = (
    ((0.0, 0.42), (-1, 1), "bumper", "bumper"),
    ((0.5, 0.85), (-0.45, 0.45), "gap", "paint"),
    ((0.55, 0.85), (-0.95, -0.55), "lamp", "tail lamp"),
    ((0.55, 0.85), (0.55, 0.95), "lamp", "tail lamp"),
    ((0.15, 0.4), (-0.3, 0.3), "plate", "plate"),
)


def make_identities(number: int, seed: int) -> list[Look]:
    """`number` vehicles with different combinations of looks, of which all five are needed."""
    return [Look(*look) for look in choose_looks(number, seed, LOOK_SHAPE)]


def draw_triplet(
    look: Look, camera: int, night: bool, height: int, width: int, rng: Generator, unaligned: bool
) -> Triplet:
    """One vehicle in camera 0, 1, …, with its mask; it fills the picture, an `unaligned` one at least half of its sides."""
    scene, stance, front, sensor = rng.spawn(4)
    canvas = Canvas(height * SUPERSAMPLING, width * SUPERSAMPLING)
    draw_background(canvas, CAMERAS[camera], night, scene)
    vehicle = _Vehicle(canvas, look, night, LOOSE_SPACE if unaligned else SPACE, stance).draw()
    if front.random() < OCCLUDED_RATE:
        draw_occluder(canvas, front)
    return render(canvas, vehicle, camera, night, sensor)


class _Vehicle:
    """Draws one vehicle from a random side, in random light and `space` around it."""

    def __init__(self, canvas: Canvas, look: Look, night: bool, space: Span, rng: Generator):
        (points, self.half, *self.windows), self.roof = FORMS[look.form]
        self.length, self.belt, self.top = points[5][0], points[1][1], points[2][1]
        self.outline = [(0.0, BOTTOM), *points, (self.length, BOTTOM)]
        self.rim, bumper = TRIMS[look.trim]
        (_, self.decoration), (self.engine, _) = RGB_LOOKS[look.rgb], TI_LOOKS[look.ti]
        self.materials = _materials(look, bumper, night, rng)
        self.light = {"side": rng.uniform(0.6, 1), "end": rng.uniform(0.6, 1), "top": 1.0}
        self.angle, self.tilt = rng.uniform(*VIEWS[rng.integers(3)]), rng.uniform(0.12, 0.4)
        self.canvas, self.facing, self.spin = canvas, rng.choice([-1, 1]), rng.uniform(0, 6.3)
        around = [(WHEEL, 0.0), *self.outline, (self.length - WHEEL, 0.0)]
        corners = np.array([self.project((x, y, z)) for (x, z), y in product(around, (-1, 1))])
        first, last = corners.min(0), corners.max(0)
        before, behind = rng.uniform(*space, (2, 2)) * (last - first)
        self.corner, self.extent = first - before, last + behind - first + before

    def project(self, place: Place) -> Point:
        """Metres to the right and down, in a camera that looks down on the vehicle."""
        x, y, z = place
        cabin = np.clip((z - self.belt) / (self.top - self.belt), 0, 1)
        across, along = y * self.half * (1 - NARROW * cabin), x - self.length / 2
        depth = along * np.sin(self.angle) + across * np.cos(self.angle)
        right = along * np.cos(self.angle) - across * np.sin(self.angle)
        scale = DISTANCE / (DISTANCE + depth)
        down = -z * np.cos(self.tilt) - depth * np.sin(self.tilt)
        return self.facing * right * scale, down * scale

    def polygon(self, places: Iterable[Place], material: str, face: str = "side") -> None:
        (rgb, ni, ti), light = self.materials[material], self.light[face]
        points = (np.array([self.project(place) for place in places]) - self.corner) / self.extent
        label = self.canvas.add(light * np.array(rgb), light * ni, ti)
        self.canvas.polygon((points * (self.canvas.aspect, 1)).tolist(), label)

    def side(self, points: Iterable[Point], material: str) -> None:
        self.polygon([(x, -1, z) for x, z in points], material)

    def area(self, start: float, end: float, low: float, high: float, material: str) -> None:
        """Box in shares of the length, and of the height below the windows."""
        left, right = start * self.length, end * self.length
        z0, z1 = (BOTTOM + share * (self.outline[1][1] - BOTTOM) for share in (low, high))
        self.side([(left, z0), (right, z0), (right, z1), (left, z1)], material)

    def strip(self, start: Point, end: Point, span: Span, material: str, face: str) -> None:
        """From one (x, z) to another, between two places across."""
        (x0, z0), (x1, z1), (near, far) = start, end, span
        places = [(x0, near, z0), (x1, near, z1), (x1, far, z1), (x0, far, z0)]
        self.polygon(places, material, face)

    def disc(self, x: float, radii: list[float], material: str, y: float = -1) -> None:
        turns = self.spin + np.linspace(0, 2 * np.pi, 20, endpoint=False)
        spots = zip(turns, WHEEL * np.resize(radii, len(turns)), strict=True)
        places = [(x + r * np.cos(turn), y, WHEEL + r * np.sin(turn)) for turn, r in spots]
        self.polygon(places, material)

    def draw(self) -> range:
        """Draw the vehicle on its shadow; returns the range of its labels."""
        self.strip((-0.2, 0), (self.length + 0.2, 0), (-1.1, 1.2), "shadow", "top")
        first, axles = len(self.canvas.materials), (0.18 * self.length, 0.8 * self.length)
        for x in axles:
            self.disc(x, [1.0], "tyre", y=0.95)
        # From far to near, so that what is not seen is drawn over.
        strips = list(enumerate(pairwise(self.outline)))
        for index, (start, end) in strips if self.angle < 0 else reversed(strips):
            self.strip_with_parts(index, start, end)
        self.side(self.outline, "paint")
        self.flank()
        for x in axles:
            for radii, material in (([1.2], "gap"), ([1.0], "tyre"), ([0.72], "hub"), *self.rim):
                self.disc(x, radii, material)
        return range(first, len(self.canvas.materials))

    def strip_with_parts(self, index: int, start: Point, end: Point) -> None:
        material, face = PARTS[index], "end" if index in (0, 6) else "top"
        self.strip(start, end, (-1, 1), "hot" if index in self.engine[0] else material, face)
        (x, z), step = start, (end[0] - start[0]) / 20
        if face == "end":
            low, high = sorted(np.array([start, end]), key=lambda point: point[1])
            for (bottom, top), span, *materials in END:
                edges = low + bottom * (high - low), low + top * (high - low)
                self.strip(*edges, span, materials[index // 6], face)
        elif index == 3 and self.roof == "sunroof":
            self.strip((x + 4 * step, z), (x + 11 * step, z), (-0.7, 0.7), "glass", face)
        elif index == 3 and self.roof == "rack":
            for bar in (x, x + 9 * step, x + 18 * step):
                self.strip((bar, z + 0.08), (bar + step, z + 0.08), (-1, 1), "gap", face)

    def flank(self) -> None:
        self.area(*self.engine[1], "hot")
        if self.decoration:
            self.area(*self.decoration, "accent")
        for start, end in ((0, 0.09), (0.89, 1)):
            self.area(start, end, 0, 0.5, "bumper")
        count, share = self.windows
        (screen, _), (roof, _), (roof_end, _), (tail, _) = self.outline[2:6]
        # Left and right end of the windows at their lower and upper edge.
        edges = (screen + 0.2, tail - 0.2), (roof + 0.05, roof_end - 0.1)
        low, high = self.belt + 0.05, self.top - 0.1
        for left, right in pairwise(np.linspace(0, share, int(count) + 1)):
            (l0, r0), (l1, r1) = ((a + left * (b - a), a + right * (b - a)) for a, b in edges)
            self.side([(l0, low), (r0 - 0.06, low), (r1 - 0.06, high), (l1, high)], "glass")
            self.area(r0 / self.length, (r0 + 0.03) / self.length, 0.1, 1, "gap")


def _materials(look: Look, bumper: str, night: bool, rng: Generator) -> dict[str, Material]:
    """Colours in the light of the day. Surfaces are colder at night, and how warm the engine has run is random."""
    paint, accent = (GARMENT_COLOURS[name] for name in RGB_LOOKS[look.rgb][0].split())
    (ni, ni_glass), (_, wheel) = NI_LOOKS[look.ni], TI_LOOKS[look.ti]
    cold, run = rng.uniform(0.15, 0.25) if night else rng.uniform(0.2, 0.4), rng.uniform(0.6, 1)
    sky = rng.uniform(0, 0.25)  # which the glass mirrors
    wheel = cold + run * (wheel - cold)
    materials: dict[str, Material] = {
        "paint": (paint, ni, cold),
        "plastic": ((0.16, 0.16, 0.17), 0.3, cold + 0.12),
        "accent": (accent, ni, cold),
        "hot": (paint, ni, cold + 0.55 * run),
        "glass": ((0.1 + sky, 0.12 + sky, 0.15 + sky), ni_glass + sky / 2, 0.12),
        "gap": ((0.05, 0.05, 0.05), 0.06, cold),
        "tyre": ((0.07, 0.07, 0.07), 0.12, cold + 0.15),
        "rim": ((0.74, 0.74, 0.76), 0.8, wheel),
        "hub": ((0.12, 0.12, 0.13), 0.15, cold + 0.6 * (wheel - cold)),
        "lamp": ((0.92, 0.92, 0.85), 0.95, cold + 0.1),
        "tail lamp": ((0.7, 0.06, 0.06), 0.6, cold + 0.1),
        "plate": ((0.85, 0.82, 0.5), 0.95, cold - 0.05),
        "shadow": ((0.06, 0.06, 0.07), 0.06, 0.2),
    }
    return materials | {"bumper": materials[bumper]}
