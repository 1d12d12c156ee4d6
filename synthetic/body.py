"""Bodies of the synthetic pedestrians: appearance of an identity in each modality, pose, and drawing.

Lengths are relative to the height of the body; y points down from the crown, x right from the axis of the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from synthetic.scene import Canvas, Label, Point, rectangle

GARMENT_COLOURS = {
    "black": (0.08, 0.08, 0.09),
    "white": (0.90, 0.90, 0.88),
    "grey": (0.48, 0.48, 0.50),
    "red": (0.72, 0.12, 0.14),
    "blue": (0.14, 0.26, 0.62),
    "navy": (0.10, 0.13, 0.28),
    "green": (0.14, 0.42, 0.22),
    "yellow": (0.86, 0.72, 0.18),
    "brown": (0.40, 0.27, 0.16),
    "beige": (0.74, 0.66, 0.50),
}


class ColourLook(NamedTuple):
    """Clothes in RGB: colours of garments and hair, and the pattern on the upper garment in the colour `accent`."""

    upper: str
    accent: str
    pattern: str
    lower: str
    hair: str


# Each colour occurs in several looks, so that the colour of one garment does not determine the look.
RGB_LOOKS = tuple(
    ColourLook(*look.split())
    for look in (
        "black white plain navy black",
        "black white stripes beige brown",
        "black red logo grey black",
        "white navy plain navy brown",
        "white blue stripes black black",
        "white red checks beige black",
        "grey black plain black brown",
        "grey yellow band navy black",
        "red white plain black black",
        "red white band navy brown",
        "blue white plain beige black",
        "blue white logo black brown",
        "blue yellow stripes grey black",
        "green white open navy black",
        "yellow black plain navy brown",
        "brown beige checks grey black",
    )
)
# reflectances
NI_LOOKS = tuple(product((0.10, 0.36, 0.64, 0.95), (0.12, 0.48, 0.88)))  # upper, lower
# torso, sleeves, legs: thermal radiance, the body heat that passes the insulation of the garment
TI_LOOKS = tuple(product((0.28, 0.52, 0.80), (0.32, 0.85), (0.32, 0.72)))


@dataclass(frozen=True)
class Look:
    """Indices into `RGB_LOOKS`, `NI_LOOKS` and `TI_LOOKS`; only the three together identify a person."""

    rgb: int
    ni: int
    ti: int


@dataclass(frozen=True)
class Build:
    """Relative height and width of the body (about 1), hair ("short", "long", "cap"), bag (None, "backpack", "bag")."""

    height: float
    width: float
    hair: str
    bag: str | None


class LimbAngles(NamedTuple):
    """Angles of one leg and one arm in radians."""

    hip: float
    knee: float
    shoulder: float
    elbow: float


@dataclass(frozen=True)
class Pose:
    """Pose of a body, and its position relative to the height of the image."""

    view: str
    facing: int  # -1 (left) or 1 (right)
    x: float
    y: float  # of the crown
    height: float
    lean: float  # in radians
    limbs: dict[int, LimbAngles]  # of the two sides, 1 and -1


LOOK_SHAPE = (len(RGB_LOOKS), len(NI_LOOKS), len(TI_LOOKS))
VIEWS = ("front", "back", "side")
HAIRS = ("short", "long", "cap")
BAGS = (None, None, "backpack", "bag")
SKIN = (0.76, 0.56, 0.44)
FAR_SHADE = 0.75  # the limbs on the far side are in the shadow of the body


def random_build(rng: np.random.Generator) -> Build:
    """Random build; builds vary too little to identify a person."""
    height, width = rng.uniform(0.95, 1.05), rng.uniform(0.92, 1.12)
    return Build(height, width, HAIRS[rng.integers(len(HAIRS))], BAGS[rng.integers(len(BAGS))])


def random_pose(rng: np.random.Generator, aspect: float) -> Pose:
    """Random walking phase, view, size and position; `aspect` is the width of the image over its height."""
    view = VIEWS[rng.integers(len(VIEWS))]
    phase = rng.uniform(0, 2 * np.pi)
    swing = rng.uniform(0.2, 0.45) if view == "side" else rng.uniform(0.04, 0.12)

    def limb(side: int) -> LimbAngles:
        stride = side * np.sin(phase)
        knee = (0.15 + 0.5 * max(0.0, side * np.cos(phase))) * (1.0 if view == "side" else 0.2)
        shoulder = -1.1 * swing * stride + rng.normal(0, 0.1)
        elbow = rng.uniform(0.05, 0.6) * (1.0 if view == "side" else rng.uniform(0, 1))
        return LimbAngles(swing * stride, knee, shoulder, elbow)

    limbs = {side: limb(side) for side in (1, -1)}
    height = rng.uniform(0.82, 0.96) * min(1.0, 2 * aspect)
    facing = int(rng.choice([-1, 1]))
    x, y = aspect / 2 + rng.normal(0, 0.03), (1 - height) / 2 + rng.normal(0, 0.025)
    return Pose(view, facing, x, y, height, lean=rng.normal(0, 0.03), limbs=limbs)


def draw_body(canvas: Canvas, look: Look, build: Build, pose: Pose) -> range:
    """Draw a person on the canvas; returns the range of the person's labels."""
    first = len(canvas.materials)
    body = _Body(canvas, look, build, pose)
    near, far = pose.facing, -pose.facing
    if body.is_side:
        body.arm(far, "far sleeve")
        body.backpack()
    body.leg(far, "far lower")
    body.leg(near, "lower")
    body.torso()
    body.head()
    if not body.is_side:
        body.arm(far, "sleeve")
        body.backpack()
    body.arm(near, "sleeve")
    if build.bag == "bag":
        x, y = body.joints(near)[2]
        body.polygon(rectangle(x - 0.05, y + 0.02, x + 0.05, y + 0.13), "bag")
    pattern, labels = GARMENT_PATTERNS[RGB_LOOKS[look.rgb].pattern], body.labels
    accents = {labels[name]: labels[f"{name} accent"] for name in ("upper", "sleeve")}
    canvas.relabel(accents, lambda x, y: pattern(*body.torso_coordinates(x, y), pose.view))
    return range(first, len(canvas.materials))


def _label_map(canvas: Canvas, look: Look) -> dict[str, Label]:
    colour = RGB_LOOKS[look.rgb]
    ni_upper, ni_lower = NI_LOOKS[look.ni]
    ti_torso, ti_sleeves, ti_legs = TI_LOOKS[look.ti]
    garments = (colour.upper, colour.lower, colour.accent)
    upper, lower, accent = (np.array(GARMENT_COLOURS[name]) for name in garments)
    return {
        "upper": canvas.add(upper, ni_upper, ti_torso),
        "upper accent": canvas.add(accent, ni_upper, ti_torso),
        "sleeve": canvas.add(upper * 0.94, ni_upper * 0.94, ti_sleeves),
        "sleeve accent": canvas.add(accent * 0.94, ni_upper * 0.94, ti_sleeves),
        "far sleeve": canvas.add(upper * FAR_SHADE, ni_upper * FAR_SHADE, ti_sleeves),
        "lower": canvas.add(lower, ni_lower, ti_legs),
        "far lower": canvas.add(lower * FAR_SHADE, ni_lower * FAR_SHADE, ti_legs),
        "skin": canvas.add(SKIN, 0.7, 0.95),
        "shoes": canvas.add((0.14, 0.12, 0.12), 0.3, 0.35),
        "hair": canvas.add(GARMENT_COLOURS[colour.hair], 0.3, 0.6),
        "cap": canvas.add((0.25, 0.25, 0.28), 0.5, 0.45),
        "bag": canvas.add((0.22, 0.20, 0.20), 0.45, 0.18),
    }


class _Body:
    """Draws the parts of one body; converts lengths of the body to lengths of the image. `side` is -1 or 1."""

    def __init__(self, canvas: Canvas, look: Look, build: Build, pose: Pose):
        self.canvas, self.build, self.pose = canvas, build, pose
        self.labels = _label_map(canvas, look)
        self.is_side = pose.view == "side"
        self.scale = pose.height * build.height
        self.broad = build.width * (0.62 if self.is_side else 1.0)

    def at(self, x: float, y: float) -> Point:
        """Body coordinates → image coordinates; x is positive in the direction that the body faces."""
        pose, scale = self.pose, self.scale
        across = pose.facing * x - pose.lean * (y - 0.5)
        return pose.x + scale * across, pose.y + scale * y

    def torso_coordinates(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inverse of `at`, with y measured from the shoulders."""
        pose = self.pose
        below = (y - pose.y) / self.scale
        return (x - pose.x) / self.scale + pose.lean * (below - 0.5), below - 0.16

    def polygon(self, points: Sequence[Point], name: str) -> None:
        self.canvas.polygon([self.at(*point) for point in points], self.labels[name])

    def ellipse(self, x: float, y: float, radius_x: float, radius_y: float, name: str) -> None:
        radii = radius_x * self.scale, radius_y * self.scale
        self.canvas.ellipse(*self.at(x, y), *radii, self.labels[name])

    def limb(
        self, start: Point, end: Point, start_radius: float, end_radius: float, name: str
    ) -> None:
        radii = (start_radius, end_radius)
        first, second = (radius * self.scale * self.build.width for radius in radii)
        self.canvas.limb(self.at(*start), self.at(*end), first, second, self.labels[name])

    def leg(self, side: int, name: str) -> None:
        angles = self.pose.limbs[side]
        hip = (0.0 if self.is_side else side * 0.05 * self.broad, 0.50)
        knee = _reach(hip, angles.hip, 0.235)
        ankle = _reach(knee, angles.hip - angles.knee, 0.215)
        forward = 0.03 if self.is_side else 0
        self.ellipse(ankle[0] + forward, ankle[1] + 0.022, 0.05, 0.022, "shoes")
        self.limb(hip, knee, 0.056, 0.044, name)
        self.limb(knee, ankle, 0.044, 0.032, name)

    def joints(self, side: int) -> tuple[Point, Point, Point]:
        angles = self.pose.limbs[side]
        shoulder = (0.0 if self.is_side else side * 0.115 * self.broad, 0.195)
        outwards = angles.shoulder if self.is_side else side * (0.12 + abs(angles.shoulder))
        elbow = _reach(shoulder, outwards, 0.155)
        bend = outwards + angles.elbow if self.is_side else outwards - side * angles.elbow * 0.5
        return shoulder, elbow, _reach(elbow, bend, 0.14)

    def arm(self, side: int, name: str) -> None:
        shoulder, elbow, wrist = self.joints(side)
        self.ellipse(wrist[0], wrist[1] + 0.012, 0.021, 0.025, "skin")
        self.limb(shoulder, elbow, 0.036, 0.030, name)
        self.limb(elbow, wrist, 0.030, 0.024, name)

    def backpack(self) -> None:
        if self.build.bag != "backpack":
            return
        boxes = {
            "side": [(-0.155, 0.19, -0.03, 0.42)],
            "back": [(-0.075, 0.19, 0.075, 0.42)],
            # Only the straps are visible from the front.
            "front": [(x - 0.011, 0.165, x + 0.011, 0.36) for x in (-0.075, 0.075)],
        }
        for box in boxes[self.pose.view]:
            self.polygon(rectangle(*box), "bag")

    def torso(self) -> None:
        shoulder, waist, hip = 0.115 * self.broad, 0.090 * self.broad, 0.098 * self.broad
        self.polygon(rectangle(-hip, 0.46, hip, 0.53), "lower")
        edge = [(0.035, 0.145), (shoulder, 0.175), (waist, 0.36), (hip, 0.49)]
        self.polygon([*edge, *((-x, y) for x, y in reversed(edge))], "upper")

    def head(self) -> None:
        self.limb((0, 0.11), (0, 0.15), 0.026, 0.03, "skin")
        if self.build.hair == "long":
            self.ellipse(-0.012 if self.is_side else 0, 0.10, 0.062, 0.085, "hair")
        self.ellipse(0, 0.068, 0.052, 0.066, "hair")
        if self.pose.view == "front":
            self.ellipse(0, 0.080, 0.043, 0.052, "skin")
        elif self.is_side:
            self.ellipse(0.016, 0.080, 0.038, 0.050, "skin")
        if self.build.hair == "cap":
            self.ellipse(0, 0.032, 0.054, 0.034, "cap")
            if self.pose.view != "back":
                peak = 0.05 if self.is_side else 0.0
                self.polygon(rectangle(peak - 0.035, 0.040, peak + 0.035, 0.054), "cap")


def _reach(start: Point, angle: float, length: float) -> Point:
    return start[0] + length * np.sin(angle), start[1] + length * np.cos(angle)


# (across, down: torso coordinates; view) → where the accent colour lies.
GARMENT_PATTERNS = {
    "plain": lambda across, down, view: np.zeros(across.shape, bool),
    "stripes": lambda across, down, view: (down % 0.064) < 0.028,
    "checks": lambda across, down, view: ((across // 0.045) + (down // 0.045)) % 2 == 0,
    "band": lambda across, down, view: (down > 0.09) & (down < 0.17),
    "logo": lambda across, down, view: (view == "front") & (np.hypot(across, down - 0.11) < 0.05),
    "open": lambda across, down, view: (view == "front") & (np.abs(across) < 0.035),
}
