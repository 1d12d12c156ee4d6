"""Synthetic pedestrians in three modalities: a small re-identification problem without a download.

A triplet is drawn once, as a map of materials, and rendered in three modalities. Only an identity's looks in RGB (colours and
pattern), NI (reflectance of the clothes) and TI (their insulation) together are unique; all else is independent of it.
Lengths of a body are relative to its height; y points down from the crown, x right from the axis of the body.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from synthetic import read_tables
from synthetic.scene import Canvas, Label, Point, draw_occluder, rectangle
from synthetic.triplets import choose_looks

VERSION = 1  # incremented whenever the same seed gives other images
SIZE = (128, 64)  # height and width in pixels unless others are asked for
TABLES = read_tables("pedestrians")
COLOURS = {name: np.array(rgb) for name, rgb in TABLES["colours"].items()}
RGB_LOOKS = [look.split() for look in TABLES["rgb"]]
NI_LOOKS, TI_LOOKS = ([*product(*TABLES[modality])] for modality in ("ni", "ti"))
LOOK_SHAPE = [len(RGB_LOOKS), len(NI_LOOKS), len(TI_LOOKS)]
VIEWS = ("front", "back", "side")
HAIRS = ("short", "long", "cap")
BAGS = (None, None, "backpack", "bag")
OCCLUDED_RATE, BYSTANDER_RATE = 0.35, 0.3
LOOSE_HEIGHT = (0.5, 1.0)  # of the person, in heights of the image
# of a body, and how much of it may be beyond an edge of the image, in heights of the body
HALF_WIDTH, CUT = (0.17, 0.04)
# share of an unaligned person behind what is in front of it, and draws of its place
MOST_COVERED, LOOSE_ATTEMPTS = (0.35, 50)


class Look(NamedTuple):
    """Indices into `RGB_LOOKS`, `NI_LOOKS` and `TI_LOOKS`; only the three together identify a person."""

    rgb: int
    ni: int
    ti: int


@dataclass(frozen=True)
class Build:
    """Relative height and width of the body (about 1), hair (of HAIRS), bag (of BAGS)."""

    height: float
    width: float
    hair: str
    bag: str | None


@dataclass(frozen=True)
class Pose:
    """Pose of a body, and its position relative to the height of the image."""

    view: str
    facing: int  # -1 (left) or 1 (right)
    x: float
    y: float  # of the crown
    height: float
    lean: float  # in radians
    # angles of hip, knee, shoulder and elbow in radians, of the two sides, 1 and -1
    limbs: dict[int, tuple[float, ...]]


def make_identities(number: int, seed: int) -> list[tuple[Look, Build]]:
    """`number` identities with different combinations of looks, of which all three are needed."""
    looks = choose_looks(number, seed, LOOK_SHAPE)
    builds = (random_build(np.random.default_rng([seed, 1, index])) for index in range(number))
    return [(Look(*look), build) for look, build in zip(looks, builds, strict=True)]


def random_build(rng: Generator) -> Build:
    """Random build; builds vary too little to identify a person."""
    height, width = rng.uniform(0.95, 1.05), rng.uniform(0.92, 1.12)
    return Build(height, width, HAIRS[rng.integers(len(HAIRS))], BAGS[rng.integers(len(BAGS))])


def random_pose(rng: Generator, aspect: float) -> Pose:
    """Random walking phase, view, size and position; `aspect` is the width of the image over its height."""
    view = VIEWS[rng.integers(len(VIEWS))]
    is_side, phase = view == "side", rng.uniform(0, 2 * np.pi)
    swing = rng.uniform(0.2, 0.45) if is_side else rng.uniform(0.04, 0.12)

    def limb(side: int) -> tuple[float, ...]:
        stride = side * np.sin(phase)
        knee = (0.15 + 0.5 * max(0.0, side * np.cos(phase))) * (1.0 if is_side else 0.2)
        shoulder = -1.1 * swing * stride + rng.normal(0, 0.1)
        elbow = rng.uniform(0.05, 0.6) * (1.0 if is_side else rng.uniform(0, 1))
        return swing * stride, knee, shoulder, elbow

    limbs = {side: limb(side) for side in (1, -1)}
    height = rng.uniform(0.82, 0.96) * min(1.0, 2 * aspect)
    facing = int(rng.choice([-1, 1]))
    x, y = aspect / 2 + rng.normal(0, 0.03), (1 - height) / 2 + rng.normal(0, 0.025)
    return Pose(view, facing, x, y, height, lean=rng.normal(0, 0.03), limbs=limbs)


def draw_object(
    canvas: Canvas,
    identity: tuple[Look, Build],
    night: bool,
    loose: bool,
    streams: Sequence[Generator],
) -> None:
    """A person before the background, by the streams of the surroundings, of the person, and of what is in front of it."""
    scene, stance, front = streams
    pose = random_pose(stance, canvas.aspect)
    if loose:
        pose = _unalign(pose, canvas, front, stance)
    if scene.random() < BYSTANDER_RATE:
        # A bystander behind the person is the smaller of the two.
        scale = pose.height if loose else 1.0
        _draw_bystander(canvas, scene, size=(0.5, 0.8), aside=0.2, scale=scale)
    draw_body(canvas, *identity, pose)
    _draw_front(canvas, front)


def _unalign(pose: Pose, canvas: Canvas, front: Generator, rng: Generator) -> Pose:
    """The pose with a random height and place, where what `front` draws leaves most of the person visible."""
    before = Canvas(canvas.height, canvas.image.width)
    before.add((0, 0, 0), 0, 0)  # the label of an empty canvas
    _draw_front(before, deepcopy(front))
    covered = before.labels() > 0
    for _ in range(LOOSE_ATTEMPTS):
        height = rng.uniform(*LOOSE_HEIGHT) * min(1.0, 2 * canvas.aspect)
        half, cut = HALF_WIDTH * height, CUT * height
        x = rng.uniform(half - cut, canvas.aspect - half + cut)
        y = rng.uniform(-cut, 1 - height + cut)
        edges = (y, y + height, x - half, x + half)
        top, bottom, left, right = (max(0, round(edge * canvas.height)) for edge in edges)
        if covered[top:bottom, left:right].mean() <= MOST_COVERED:
            break
    return replace(pose, x=x, y=y, height=height)


def _draw_front(canvas: Canvas, rng: Generator) -> None:
    """What may be in front of the person."""
    if rng.random() < OCCLUDED_RATE:
        draw_occluder(canvas, rng)
    if rng.random() < BYSTANDER_RATE / 2:
        _draw_bystander(canvas, rng, size=(0.9, 1.1), aside=0.45)


def _draw_bystander(
    canvas: Canvas, rng: Generator, size: tuple[float, float], aside: float, scale: float = 1.0
) -> None:
    """Person without an identity, of `scale` times a random height, at least `aside` image widths from the centre."""
    pose, build = random_pose(rng, canvas.aspect), random_build(rng)
    look = Look(*(int(rng.integers(count)) for count in LOOK_SHAPE))
    height = scale * rng.uniform(*size) * min(1.0, 2 * canvas.aspect)
    x = canvas.aspect * (0.5 + rng.choice([-1, 1]) * rng.uniform(aside, 0.6))
    y = 0.95 - height + rng.uniform(-0.05, 0.1)
    draw_body(canvas, look, build, replace(pose, x=x, y=y, height=height))


def draw_body(canvas: Canvas, look: Look, build: Build, pose: Pose) -> None:
    """Draw a person on the canvas."""
    labels, is_side = add_materials(canvas, look), pose.view == "side"
    scale, broad = pose.height * build.height, build.width * (0.62 if is_side else 1.0)

    def at(x: float, y: float) -> Point:
        """Body coordinates → image coordinates; x is positive in the direction that the body faces."""
        across = pose.facing * x - pose.lean * (y - 0.5)
        return pose.x + scale * across, pose.y + scale * y

    def polygon(points: Sequence[Point], name: str) -> None:
        canvas.polygon([at(*point) for point in points], labels[name])

    def ellipse(x: float, y: float, radius_x: float, radius_y: float, name: str) -> None:
        canvas.ellipse(*at(x, y), radius_x * scale, radius_y * scale, labels[name])

    def bars(joints: Sequence[Point], radii: Sequence[float], name: str) -> None:
        """Tapered bars from joint to joint."""
        places = [at(*joint) for joint in joints]
        widths = [radius * scale * build.width for radius in radii]
        for (start, end), (first, last) in zip(pairwise(places), pairwise(widths), strict=True):
            canvas.limb(start, end, first, last, labels[name])

    def leg(side: int, name: str) -> None:
        swing, bend, *_ = pose.limbs[side]
        hip = (0.0 if is_side else side * 0.05 * broad, 0.50)
        knee = _reach(hip, swing, 0.235)
        ankle = _reach(knee, swing - bend, 0.215)
        forward = 0.03 if is_side else 0
        ellipse(ankle[0] + forward, ankle[1] + 0.022, 0.05, 0.022, "shoes")
        bars((hip, knee, ankle), (0.056, 0.044, 0.032), name)

    def arm(side: int, name: str) -> Point:
        """Draws an arm; returns the place of the wrist."""
        *_, swing, bend = pose.limbs[side]
        shoulder = (0.0 if is_side else side * 0.115 * broad, 0.195)
        outwards = swing if is_side else side * (0.12 + abs(swing))
        elbow = _reach(shoulder, outwards, 0.155)
        forearm = outwards + bend if is_side else outwards - side * bend * 0.5
        wrist = _reach(elbow, forearm, 0.14)
        ellipse(wrist[0], wrist[1] + 0.012, 0.021, 0.025, "skin")
        bars((shoulder, elbow, wrist), (0.036, 0.030, 0.024), name)
        return wrist

    def far_side() -> None:
        arm(-pose.facing, "far sleeve" if is_side else "sleeve")
        for box in TABLES["backpacks"][pose.view] if build.bag == "backpack" else ():
            polygon(rectangle(*box), "bag")

    if is_side:
        far_side()
    leg(-pose.facing, "far lower")
    leg(pose.facing, "lower")
    shoulder, waist, hip = 0.115 * broad, 0.090 * broad, 0.098 * broad
    polygon(rectangle(-hip, 0.46, hip, 0.53), "lower")
    edge = [(0.035, 0.145), (shoulder, 0.175), (waist, 0.36), (hip, 0.49)]
    polygon([*edge, *((-x, y) for x, y in reversed(edge))], "upper")
    bars([(0, 0.11), (0, 0.15)], (0.026, 0.03), "skin")
    if build.hair == "long":
        ellipse(-0.012 if is_side else 0, 0.10, 0.062, 0.085, "hair")
    ellipse(0, 0.068, 0.052, 0.066, "hair")
    if face := TABLES["faces"].get(pose.view):
        x, y, *radii = face
        ellipse(x, y, radii[0], radii[1], "skin")
    if build.hair == "cap":
        ellipse(0, 0.032, 0.054, 0.034, "cap")
        if pose.view != "back":
            peak = 0.05 if is_side else 0.0
            polygon(rectangle(peak - 0.035, 0.040, peak + 0.035, 0.054), "cap")
    if not is_side:
        far_side()
    x, y = arm(pose.facing, "sleeve")
    if build.bag == "bag":
        polygon(rectangle(x - 0.05, y + 0.02, x + 0.05, y + 0.13), "bag")

    def has_accent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Where the pattern's colour lies, by coordinates of the torso: the inverse of `at`, and y from the shoulders."""
        below = (y - pose.y) / scale
        across = (x - pose.x) / scale + pose.lean * (below - 0.5)
        down, is_front = below - 0.16, pose.view == "front"
        patterns = {
            "plain": np.zeros(across.shape, bool),
            "stripes": down % 0.064 < 0.028,
            "checks": ((across // 0.045) + (down // 0.045)) % 2 == 0,
            "band": (down > 0.09) & (down < 0.17),
            "logo": is_front & (np.hypot(across, down - 0.11) < 0.05),
            "open": is_front & (np.abs(across) < 0.035),
        }
        return patterns[RGB_LOOKS[look.rgb][2]]

    accents = {labels[name]: labels[f"{name} accent"] for name in ("upper", "sleeve")}
    canvas.relabel(accents, has_accent)


def _reach(start: Point, angle: float, length: float) -> Point:
    return start[0] + length * np.sin(angle), start[1] + length * np.cos(angle)


def add_materials(canvas: Canvas, look: Look) -> dict[str, Label]:
    """The labels of the parts of a body with this look."""
    upper, accent, _, lower, hair = RGB_LOOKS[look.rgb]
    colours = {"upper": upper, "accent": accent, "lower": lower, "hair": hair}
    reflectances = dict(zip(("upper", "lower"), NI_LOOKS[look.ni], strict=True))
    radiances = dict(zip(("torso", "sleeves", "legs"), TI_LOOKS[look.ti], strict=True))
    labels = {}
    for part, (colour, ni, ti, shade) in TABLES["parts"].items():
        rgb = COLOURS[colours[colour]] if isinstance(colour, str) else np.array(colour)
        ni, ti = reflectances.get(ni, ni), radiances.get(ti, ti)
        labels[part] = canvas.add(shade * rgb, shade * ni, ti)
    return labels
