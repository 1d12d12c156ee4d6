"""Synthetic vehicles that fill the picture, in three modalities, drawn as those of synthetic/pedestrians.py.

A vehicle is an outline over its length, extruded over its width, in metres: x from the nose back, y across from -1 (the near
side) to 1, z up from the ground. Only the five looks together identify it; view, light and crop are independent of them.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from demo_sdtps.synthetic.scene import STYLES, Canvas, Point, draw_background, draw_occluder
from demo_sdtps.synthetic.triplets import CAMERAS, SUPERSAMPLING, Triplet, choose_looks, render

VERSION = 1  # incremented whenever the same seed gives other images
SIZE = (64, 128)  # height and width in pixels unless others are asked for
Material = tuple[Sequence[float], float, float]  # RGB, NI, TI
Place = tuple[float, float, float]  # x, y, z


class Shape(NamedTuple):
    """Outline of a class: places along the length, heights, half of the width, and the number of side windows."""

    screen: float  # foot of the windscreen
    roof: float
    roof_end: float
    tail: float  # foot of the rear window
    length: float
    hood: float
    belt: float  # lower edge of the windows
    top: float
    deck: float  # behind the rear window
    half: float
    windows: int


SHAPES = {
    "saloon": Shape(1.30, 2.05, 3.15, 3.95, 4.60, 0.72, 0.92, 1.42, 0.95, 0.88, 2),
    "hatchback": Shape(0.95, 1.60, 3.20, 3.75, 3.85, 0.75, 0.95, 1.50, 0.92, 0.84, 2),
    "estate": Shape(1.25, 1.95, 4.20, 4.60, 4.70, 0.78, 0.98, 1.60, 0.98, 0.92, 3),
    "van": Shape(0.45, 1.05, 4.75, 4.85, 4.90, 0.90, 1.15, 1.95, 1.15, 0.95, 1),
    "pickup": Shape(1.30, 1.90, 2.95, 3.10, 5.10, 0.88, 1.10, 1.70, 1.08, 0.92, 1),
    "bus": Shape(0.10, 0.25, 6.25, 6.35, 6.40, 0.85, 1.10, 2.45, 1.10, 1.10, 5),
}
ROOFS = ("plain", "rack", "sunroof")
RIMS = ("disc", "spokes", "ring", "dark")
BUMPERS = ("painted", "plastic", "chrome")
PAINTS = {
    "white": (0.88, 0.88, 0.86),
    "silver": (0.58, 0.60, 0.62),
    "black": (0.10, 0.10, 0.11),
    "red": (0.66, 0.10, 0.11),
    "blue": (0.12, 0.24, 0.58),
    "green": (0.13, 0.36, 0.22),
    "yellow": (0.84, 0.68, 0.14),
}
# paint, colour of the decoration, decoration
RGB_LOOKS = tuple(
    look.split()
    for look in (
        "white blue sill",
        "white red sticker",
        "white black plain",
        "silver black hood",
        "silver red belt",
        "black white belt",
        "black yellow sticker",
        "red white hood",
        "red black sill",
        "blue white sticker",
        "green white belt",
        "yellow black sill",
    )
)
# reflectance of the paint and of the glass
NI_LOOKS = tuple(product((0.25, 0.55, 0.90), (0.08, 0.42)))
# what the engine heats, and the radiance of the wheels
TI_LOOKS = tuple(product(("hood", "nose", "rear"), (0.35, 0.90)))
# on the side: shares of the length and of the height below the windows
DECORATIONS = {
    "sill": (0.27, 0.85, 0.0, 0.38),
    "belt": (0.27, 0.85, 0.62, 0.82),
    "sticker": (0.34, 0.56, 0.2, 0.85),
}


class Look(NamedTuple):
    """Class and roof; rims and bumper; and indices into the tables of the modalities."""

    shape: int
    trim: int
    rgb: int
    ni: int
    ti: int


FORMS, TRIMS = tuple(product(SHAPES.values(), ROOFS)), tuple(product(RIMS, BUMPERS))
LOOK_SHAPE = (len(FORMS), len(TRIMS), len(RGB_LOOKS), len(NI_LOOKS), len(TI_LOOKS))
VIEWS = {"side": (-0.14, 0.14), "front": (0.5, 0.85), "rear": (-0.85, -0.5)}  # angles in radians
DISTANCE = 14.0  # of the camera, in metres
BOTTOM, WHEEL = 0.24, 0.34  # of the body, and radius
# of what may be beyond a side of the frame (negative) or between them, in lengths of the vehicle in the picture
CUT, LOOSE_CUT = (-0.10, 0.03), (0.0, 0.5)
OCCLUDED_RATE = 0.15
NARROW = 0.16  # share of the width that the roof lacks


def make_identities(number: int, seed: int) -> list[Look]:
    """`number` different looks; every second vehicle differs from its predecessor in one alone."""
    return [Look(*look) for look in choose_looks(number, seed, LOOK_SHAPE)]


def draw_triplet(
    look: Look,
    camera: int,
    night: bool,
    height: int,
    width: int,
    rng: Generator,
    unaligned: bool = False,
) -> Triplet:
    """One vehicle in camera 0, 1, …, with its mask; an `unaligned` one has half to full width and height of the picture."""
    scene, stance, front, sensor = rng.spawn(4)
    canvas = Canvas(height * SUPERSAMPLING, width * SUPERSAMPLING)
    draw_background(canvas, STYLES[CAMERAS[camera].style], night, scene)
    vehicle = _Vehicle(canvas, look, LOOSE_CUT if unaligned else CUT, night, stance)
    labels = vehicle.draw()
    if front.random() < OCCLUDED_RATE:
        draw_occluder(canvas, front)
    return render(canvas, labels, camera, night, sensor)


class _Vehicle:
    """Draws one vehicle from a random view, in a random crop and light."""

    def __init__(
        self, canvas: Canvas, look: Look, cut: tuple[float, float], night: bool, rng: Generator
    ):
        self.canvas, self.look = canvas, look
        (self.shape, self.roof), (self.rim, self.bumper) = FORMS[look.shape], TRIMS[look.trim]
        self.view = list(VIEWS)[rng.integers(len(VIEWS))]
        self.angle, self.tilt = rng.uniform(*VIEWS[self.view]), rng.uniform(0.12, 0.4)
        self.facing, self.spin = int(rng.choice([-1, 1])), rng.uniform(0, 2 * np.pi)
        # Light on the side, on front and rear, and from above.
        self.light = dict(
            zip(("side", "end", "top"), rng.uniform((0.6, 0.6, 0.85), 1), strict=True)
        )
        self.materials = self._materials(night, rng)
        self.margins = rng.uniform(*cut, 4)
        self.frame = (0.0, 0.0, 1.0, 1.0)
        self.frame = self._fit()

    def _materials(self, night: bool, rng: Generator) -> dict[str, Material]:
        paint, accent, _ = RGB_LOOKS[self.look.rgb]
        (ni, ni_glass), (_, wheel) = NI_LOOKS[self.look.ni], TI_LOOKS[self.look.ti]
        cold, run = rng.uniform(0.15, 0.25) if night else rng.uniform(0.2, 0.4), rng.uniform(0.6, 1)
        sky = rng.uniform(0, 0.25)  # which glass reflects
        wheel = cold + (wheel - cold) * run
        bumper: Material = {
            "painted": (PAINTS[paint], ni, cold),
            "plastic": ((0.16, 0.16, 0.17), 0.3, cold + 0.12),
            "chrome": ((0.8, 0.8, 0.82), 0.85, 0.05),
        }[self.bumper]
        return {
            "paint": (PAINTS[paint], ni, cold),
            "accent": (PAINTS[accent], ni, cold),
            "hot": (PAINTS[paint], ni, cold + 0.55 * run),
            "hot accent": (PAINTS[accent], ni, cold + 0.55 * run),
            "glass": ((0.1 + sky, 0.12 + sky, 0.15 + 1.1 * sky), ni_glass + sky / 2, 0.12),
            "gap": ((0.05, 0.05, 0.05), 0.06, cold),
            "tyre": ((0.07, 0.07, 0.07), 0.12, cold + 0.15),
            "rim": ((0.74, 0.74, 0.76), 0.8, wheel),
            "hub": ((0.12, 0.12, 0.13), 0.15, cold + 0.6 * (wheel - cold)),
            "bumper": bumper,
            "lamp": ((0.92, 0.92, 0.85), 0.95, cold + 0.1),
            "tail lamp": ((0.7, 0.06, 0.06), 0.6, cold + 0.1),
            "plate": ((0.85, 0.82, 0.5), 0.95, cold - 0.05),
            "shadow": ((0.06, 0.06, 0.07), 0.06, 0.2),
        }

    def project(self, place: Place) -> Point:
        """Right and down, in metres, of a camera that looks down on the vehicle."""
        x, y, z = place
        belt, top = self.shape.belt, self.shape.top
        across = y * self.shape.half * (1 - NARROW * np.clip((z - belt) / (top - belt), 0, 1))
        along = x - self.shape.length / 2
        depth = along * np.sin(self.angle) + across * np.cos(self.angle)
        right = along * np.cos(self.angle) - across * np.sin(self.angle)
        down = -z * np.cos(self.tilt) - depth * np.sin(self.tilt)
        scale = DISTANCE / (DISTANCE + depth)
        return self.facing * right * scale, down * scale

    def _fit(self) -> tuple[float, float, float, float]:
        """Left and top edge, width and height of the crop."""
        shape = self.shape
        outline = [*self.outline(), (WHEEL, 0.0), (shape.length - WHEEL, 0.0)]
        corners = np.array([self.project((x, y, z)) for (x, z), y in product(outline, (-1, 1))])
        (left, top), (right, bottom) = corners.min(0), corners.max(0)
        start, above, end, below = self.margins
        width, height = right - left, bottom - top
        left, top = left - start * width, top - above * height
        return left, top, right + end * width - left, bottom + below * height - top

    def outline(self) -> list[Point]:
        """(x, z) from below the nose over the roof to below the rear."""
        shape = self.shape
        over = [(0.0, shape.hood), (shape.screen, shape.belt), (shape.roof, shape.top)]
        behind = [(shape.roof_end, shape.top), (shape.tail, shape.deck), (shape.length, shape.deck)]
        return [(0.06, BOTTOM), *over, *behind, (shape.length - 0.06, BOTTOM)]

    def polygon(self, places: Iterable[Place], material: str, face: str = "side") -> None:
        (rgb, ni, ti), light = self.materials[material], self.light[face]
        left, top, width, height = self.frame
        points = [self.project(place) for place in places]
        label = self.canvas.add(light * np.array(rgb), light * ni, ti)
        self.canvas.polygon(
            [((x - left) / width * self.canvas.aspect, (y - top) / height) for x, y in points],
            label,
        )

    def side(self, points: Iterable[Point], material: str) -> None:
        self.polygon([(x, -1.0, z) for x, z in points], material)

    def box(self, left: float, right: float, low: float, high: float, material: str) -> None:
        self.side([(left, low), (right, low), (right, high), (left, high)], material)

    def across(
        self, start: Point, end: Point, near: float, far: float, material: str, face: str
    ) -> None:
        """Strip from one (x, z) to another, between two places across."""
        (x0, z0), (x1, z1) = start, end
        corners = [(x0, near, z0), (x1, near, z1), (x1, far, z1), (x0, far, z0)]
        self.polygon(corners, material, face)

    def draw(self) -> range:
        """Draw the vehicle; returns the range of its labels."""
        length = self.shape.length
        ground = [(-0.2, -1.1, 0), (length + 0.2, -1.1, 0), (length, 1.2, 0), (0, 1.2, 0)]
        self.polygon([(x, y, float(z)) for x, y, z in ground], "shadow")
        first = len(self.canvas.materials)
        for x in self.axles():
            self.disc(x, WHEEL, "tyre", across=0.95)
        self.faces()
        self.side(self.outline(), "paint")
        self.flank()
        for x in self.axles():
            self.wheel(x)
        return range(first, len(self.canvas.materials))

    def axles(self) -> tuple[float, float]:
        return 0.18 * self.shape.length, 0.80 * self.shape.length

    def faces(self) -> None:
        """What is seen of nose, hood, windscreen, roof, rear window, deck and rear, from far to near."""
        strips = list(pairwise(self.outline()))
        hot = ENGINE_FACES[TI_LOOKS[self.look.ti][0]]
        parts = ("paint", "paint", "glass", "paint", "glass", "paint", "paint")
        order = list(range(len(strips)))
        for index in order if self.angle < 0 else reversed(order):
            start, end = strips[index]
            if not self.is_visible(start, end):
                continue
            part = "hot" if index in hot else parts[index]
            face = "end" if index in (0, 6) else "top"
            self.across(start, end, -1, 1, part, face)
            if part == "glass":
                continue
            if index in (0, 6):
                self.end(start, end, "lamp" if index == 0 else "tail lamp")
            elif RGB_LOOKS[self.look.rgb][2] == "hood":
                stripe = "hot accent" if index in hot else "accent"
                self.across(start, end, -0.45, -0.15, stripe, face)
                self.across(start, end, 0.15, 0.45, stripe, face)
            if index == 3:
                self.top(start, end)

    def is_visible(self, start: Point, end: Point) -> bool:
        places = [(*start, -1.0), (*end, -1.0), (*end, 1.0)]
        (x0, y0), (x1, y1), (x2, y2) = (self.project((x, y, z)) for x, z, y in places)
        return self.facing * ((x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)) < 0

    def end(self, start: Point, end: Point, lamp: str) -> None:
        """Bumper, lamps, plate and grille of nose or rear, from `start` to `end`."""

        def part(low: float, high: float, near: float, far: float, material: str) -> None:
            (x0, z0), (x1, z1) = sorted((start, end), key=lambda point: point[1])
            at = [(x0 + share * (x1 - x0), z0 + share * (z1 - z0)) for share in (low, high)]
            self.across(at[0], at[1], near, far, material, "end")

        part(0.0, 0.42, -1, 1, "bumper")
        part(0.55, 0.85, -0.95, -0.55, lamp)
        part(0.55, 0.85, 0.55, 0.95, lamp)
        if lamp == "lamp":
            part(0.5, 0.85, -0.45, 0.45, "gap")
        part(0.15, 0.4, -0.3, 0.3, "plate")

    def top(self, start: Point, end: Point) -> None:
        (x0, z), (x1, _) = start, end
        if self.roof == "sunroof":
            inner = (0.8 * x0 + 0.2 * x1, z), (0.45 * x0 + 0.55 * x1, z)
            self.across(*inner, -0.7, 0.7, "glass", "top")
        elif self.roof == "rack":
            for y in (-0.85, 0.75):
                self.across(start, end, y, y + 0.12, "gap", "top")
            for share in (0.15, 0.5, 0.85):
                x = x0 + share * (x1 - x0)
                self.across((x, z + 0.08), (x + 0.12, z + 0.08), -1, 1, "gap", "top")

    def flank(self) -> None:
        shape, (_, _, decoration) = self.shape, RGB_LOOKS[self.look.rgb]
        for area in ENGINE_SIDE[TI_LOOKS[self.look.ti][0]]:
            self.box(*self.below_belt(*area), "hot")
        if decoration in DECORATIONS:
            self.box(*self.below_belt(*DECORATIONS[decoration]), "accent")
        low, high = shape.belt + 0.05, shape.top - 0.1

        def slant(z: float, foot: float, head: float) -> float:
            return foot + (z - shape.belt) / (shape.top - shape.belt) * (head - foot)

        ends = [
            (slant(z, shape.screen, shape.roof) + 0.12, slant(z, shape.tail, shape.roof_end) - 0.14)
            for z in (low, high)
        ]
        count, wide = shape.windows, 0.06
        share = 0.4 if shape is SHAPES["van"] else 1.0
        for index in range(count):
            spans = [
                (
                    a + (b - a) * share * index / count,
                    a + (b - a) * share * (index + 1) / count - wide,
                )
                for a, b in ends
            ]
            (l0, r0), (l1, r1) = spans
            self.side([(l0, low), (r0, low), (r1, high), (l1, high)], "glass")
            if index < 2:
                self.box(r0, r0 + 0.03, BOTTOM + 0.1, shape.belt, "gap")
        self.box(0.0, 0.14 * shape.length - WHEEL * 0.6, BOTTOM, 0.5, "bumper")
        self.box(0.84 * shape.length + WHEEL * 0.6, shape.length, BOTTOM, 0.5, "bumper")

    def below_belt(
        self, start: float, end: float, low: float, high: float
    ) -> tuple[float, float, float, float]:
        length, tall = self.shape.length, self.shape.hood - BOTTOM
        return start * length, end * length, BOTTOM + low * tall, BOTTOM + high * tall

    def disc(self, x: float, radius: float, material: str, across: float = -1.0) -> None:
        turns = np.linspace(0, 2 * np.pi, 20, endpoint=False)
        ring = [(x + radius * np.cos(t), across, WHEEL + radius * np.sin(t)) for t in turns]
        self.polygon(ring, material)

    def wheel(self, x: float) -> None:
        self.disc(x, 1.2 * WHEEL, "gap")
        self.disc(x, WHEEL, "tyre")
        self.disc(x, 0.72 * WHEEL, "hub" if self.rim in ("spokes", "dark") else "rim")
        if self.rim == "ring":
            self.disc(x, 0.45 * WHEEL, "hub")
        elif self.rim == "dark":
            self.disc(x, 0.22 * WHEEL, "rim")
        elif self.rim == "spokes":
            for turn in self.spin + np.arange(4) * np.pi / 2:
                tip = [(turn - 0.35, 0.7), (turn + 0.35, 0.7), (turn + 1.6, 0.1), (turn - 1.6, 0.1)]
                self.side(
                    [(x + r * WHEEL * np.cos(t), WHEEL + r * WHEEL * np.sin(t)) for t, r in tip],
                    "rim",
                )


# strips of the outline, and areas of the side as of DECORATIONS, that the engine heats
ENGINE_FACES = {"hood": (1,), "nose": (0,), "rear": (5, 6)}
ENGINE_SIDE = {
    "hood": [(0.02, 0.26, 0.55, 1.0)],
    "nose": [(0.0, 0.1, 0.0, 1.0)],
    "rear": [(0.86, 1.0, 0.3, 1.0)],
}
