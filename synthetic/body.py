"""The bodies of the synthetic pedestrians: what an identity looks like in each modality, and how it is drawn.

Lengths are in units of the body's own height, y down from the crown, x right from the axis of the body.
"""

from dataclasses import dataclass

import numpy as np

from demo_sdtps.synthetic.scene import Canvas

COLOURS = {"black": (0.08, 0.08, 0.09), "white": (0.90, 0.90, 0.88), "grey": (0.48, 0.48, 0.50),
           "red": (0.72, 0.12, 0.14), "blue": (0.14, 0.26, 0.62), "navy": (0.10, 0.13, 0.28),
           "green": (0.14, 0.42, 0.22), "yellow": (0.86, 0.72, 0.18), "brown": (0.40, 0.27, 0.16),
           "beige": (0.74, 0.66, 0.50)}


@dataclass(frozen=True)
class ColourLook:
    """What RGB sees of the clothes; `pattern` in the colour `accent` lies on the upper cloth."""

    upper: str
    accent: str
    pattern: str
    lower: str
    hair: str


# Colours recur, so that the colour of one garment alone never settles which look it is.
RGB_LOOKS = tuple(ColourLook(*words.split()) for words in (
    "black white plain navy black", "black white stripes beige brown", "black red logo grey black",
    "white navy plain navy brown", "white blue stripes black black", "white red checks beige black",
    "grey black plain black brown", "grey yellow band navy black", "red white plain black black",
    "red white band navy brown", "blue white plain beige black", "blue white logo black brown",
    "blue yellow stripes grey black", "green white open navy black", "yellow black plain navy brown",
    "brown beige checks grey black"))
NI_LOOKS = tuple((upper, lower) for upper in (0.10, 0.36, 0.64, 0.95) for lower in (0.12, 0.48, 0.88))
"""Near-infrared reflectance of the upper and the lower cloth: a matter of fibre and dye, not of the colour."""
TI_LOOKS = tuple((torso, sleeves, legs) for torso in (0.28, 0.52, 0.80) for sleeves in (0.32, 0.85)
                 for legs in (0.32, 0.72))
"""Thermal radiance of torso, arms and legs: what the insulation of the cloth lets through of the body's heat."""


@dataclass(frozen=True)
class Look:
    """Rows of `RGB_LOOKS`, `NI_LOOKS` and `TI_LOOKS`; the three together are what tells identities apart."""

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


@dataclass(frozen=True)
class Pose:
    """How a body stands in one image: view, side faced (-1 left, 1 right), place of the crown (x, y) and the body's
    height in units of the image's height, lean in radians, and the angles in radians of the two
    (hip, knee, shoulder, elbow) chains."""

    view: str
    facing: int
    x: float
    y: float
    height: float
    lean: float
    limbs: tuple[tuple[float, float, float, float], tuple[float, float, float, float]]


LOOK_SHAPE = (len(RGB_LOOKS), len(NI_LOOKS), len(TI_LOOKS))
VIEWS = ("front", "back", "side")
HAIRS = ("short", "long", "cap")
BAGS = (None, None, "backpack", "bag")
SKIN = (0.76, 0.56, 0.44)


def random_look(rng: np.random.Generator) -> Look:
    """Any look, for people who are nobody's identity."""
    return Look(*(int(rng.integers(count)) for count in LOOK_SHAPE))


def random_build(rng: np.random.Generator) -> Build:
    """A build; it varies too little to be recognised by."""
    return Build(height=rng.uniform(0.95, 1.05), width=rng.uniform(0.92, 1.12),
                 hair=HAIRS[rng.integers(len(HAIRS))], bag=BAGS[rng.integers(len(BAGS))])


def random_pose(rng: np.random.Generator, aspect: float) -> Pose:
    """A pose in a detector's box: walking phase, view, size, and a box that is sometimes shifted or cut.

    `aspect` is the image's width by its height.
    """
    view = VIEWS[rng.integers(len(VIEWS))]
    phase = rng.uniform(0, 2 * np.pi)
    swing = rng.uniform(0.2, 0.45) if view == "side" else rng.uniform(0.04, 0.12)
    limbs = []
    for side in (1, -1):
        stride = side * np.sin(phase)
        knee = (0.15 + 0.5 * max(0.0, side * np.cos(phase))) * (1.0 if view == "side" else 0.2)
        shoulder = -1.1 * swing * stride + rng.normal(0, 0.1)
        elbow = rng.uniform(0.05, 0.6) * (1.0 if view == "side" else rng.uniform(0, 1))
        limbs.append((swing * stride, knee, shoulder, elbow))
    height = rng.uniform(0.82, 0.96) * min(1.0, 2 * aspect)
    return Pose(view=view, facing=int(rng.choice([-1, 1])), x=aspect / 2 + rng.normal(0, 0.03),
                y=(1 - height) / 2 + rng.normal(0, 0.025), height=height, lean=rng.normal(0, 0.03), limbs=tuple(limbs))


def draw_body(canvas: Canvas, look: Look, build: Build, pose: Pose) -> range:
    """Draw a person on the canvas; the range of labels that are this person's."""
    first = len(canvas.materials)
    labels = _labels(canvas, look)
    body = _Body(canvas, build, pose)
    near, far = _sides(pose)
    if pose.view == "side":
        body.arm(*far, labels["far sleeve"], labels["skin"])
        if build.bag == "backpack":
            body.box(-0.155, 0.19, -0.03, 0.42, labels["bag"])
    body.leg(*far, labels["far lower"], labels["shoes"])
    body.leg(*near, labels["lower"], labels["shoes"])
    body.torso(labels["upper"], labels["lower"])
    body.head(labels)
    if pose.view != "side":
        body.arm(*far, labels["sleeve"], labels["skin"])
        if build.bag == "backpack":
            body.backpack(labels["bag"])
    body.arm(*near, labels["sleeve"], labels["skin"])
    if build.bag == "bag":
        body.handbag(*near, labels["bag"])
    pattern = PATTERNS[RGB_LOOKS[look.rgb].pattern]
    worn = {labels[part]: labels[f"{part} accent"] for part in ("upper", "sleeve")}
    canvas.relabel(worn, lambda x, y: pattern(*body.torso_coordinates(x, y), pose.view))
    return range(first, len(canvas.materials))


def _labels(canvas: Canvas, look: Look) -> dict[str, int]:
    colour = RGB_LOOKS[look.rgb]
    ni_upper, ni_lower = NI_LOOKS[look.ni]
    ti_torso, ti_sleeves, ti_legs = TI_LOOKS[look.ti]
    upper, lower, accent = (np.array(COLOURS[name]) for name in (colour.upper, colour.lower, colour.accent))
    shade = 0.75  # the far limbs stand in the body's own shadow
    return {"upper": canvas.add(upper, ni_upper, ti_torso), "upper accent": canvas.add(accent, ni_upper, ti_torso),
            "sleeve": canvas.add(upper * 0.94, ni_upper * 0.94, ti_sleeves),
            "sleeve accent": canvas.add(accent * 0.94, ni_upper * 0.94, ti_sleeves),
            "far sleeve": canvas.add(upper * shade, ni_upper * shade, ti_sleeves),
            "lower": canvas.add(lower, ni_lower, ti_legs),
            "far lower": canvas.add(lower * shade, ni_lower * shade, ti_legs),
            "skin": canvas.add(SKIN, 0.7, 0.95), "shoes": canvas.add((0.14, 0.12, 0.12), 0.3, 0.35),
            "hair": canvas.add(COLOURS[colour.hair], 0.3, 0.6), "cap": canvas.add((0.25, 0.25, 0.28), 0.5, 0.45),
            "bag": canvas.add((0.22, 0.20, 0.20), 0.45, 0.18)}


def _sides(pose: Pose):
    """The (side, limb angles) nearer to the camera, then the farther."""
    sides = [(1, pose.limbs[0]), (-1, pose.limbs[1])]
    return sides if pose.facing > 0 else sides[::-1]


class _Body:
    """Places the parts of one body on the canvas; only here are body lengths turned into image lengths."""

    def __init__(self, canvas: Canvas, build: Build, pose: Pose):
        self.canvas, self.build, self.pose = canvas, build, pose
        self.scale = pose.height * build.height
        self.broad = build.width * (0.62 if pose.view == "side" else 1.0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place in the image of a point of the body; x counts towards where the body faces."""
        pose = self.pose
        return pose.x + self.scale * (pose.facing * x - pose.lean * (y - 0.5)), pose.y + self.scale * y

    def torso_coordinates(self, x, y):
        """The inverse of `at`, with y from the shoulders down."""
        pose = self.pose
        below = (y - pose.y) / self.scale
        return (x - pose.x) / self.scale + pose.lean * (below - 0.5), below - 0.16

    def polygon(self, points, label: int) -> None:
        self.canvas.polygon([self.at(*point) for point in points], label)

    def box(self, left: float, top: float, right: float, bottom: float, label: int) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], label)

    def ellipse(self, x: float, y: float, radius_x: float, radius_y: float, label: int) -> None:
        self.canvas.ellipse(*self.at(x, y), radius_x * self.scale, radius_y * self.scale, label)

    def limb(self, start, end, start_radius: float, end_radius: float, label: int) -> None:
        self.canvas.limb(self.at(*start), self.at(*end), start_radius * self.scale * self.build.width,
                         end_radius * self.scale * self.build.width, label)

    def leg(self, side: int, angles, cloth: int, shoe: int) -> None:
        hip_angle, knee_angle, _, _ = angles
        hip = (0.0 if self.pose.view == "side" else side * 0.05 * self.broad, 0.50)
        knee = _reach(hip, hip_angle, 0.235)
        ankle = _reach(knee, hip_angle - knee_angle, 0.215)
        self.ellipse(ankle[0] + (0.03 if self.pose.view == "side" else 0), ankle[1] + 0.022, 0.05, 0.022, shoe)
        self.limb(hip, knee, 0.056, 0.044, cloth)
        self.limb(knee, ankle, 0.044, 0.032, cloth)

    def hand(self, side: int, angles):
        """Shoulder, elbow and wrist of one arm."""
        _, _, shoulder_angle, elbow_angle = angles
        frontal = self.pose.view != "side"
        shoulder = (side * 0.115 * self.broad if frontal else 0.0, 0.195)
        outwards = side * (0.12 + abs(shoulder_angle)) if frontal else shoulder_angle
        elbow = _reach(shoulder, outwards, 0.155)
        bend = outwards - side * elbow_angle * 0.5 if frontal else outwards + elbow_angle
        return shoulder, elbow, _reach(elbow, bend, 0.14)

    def arm(self, side: int, angles, sleeve: int, skin: int) -> None:
        shoulder, elbow, wrist = self.hand(side, angles)
        self.ellipse(wrist[0], wrist[1] + 0.012, 0.021, 0.025, skin)
        self.limb(shoulder, elbow, 0.036, 0.030, sleeve)
        self.limb(elbow, wrist, 0.030, 0.024, sleeve)

    def handbag(self, side: int, angles, label: int) -> None:
        _, _, (x, y) = self.hand(side, angles)
        self.box(x - 0.05, y + 0.02, x + 0.05, y + 0.13, label)

    def backpack(self, label: int) -> None:
        if self.pose.view == "back":
            self.box(-0.075, 0.19, 0.075, 0.42, label)
        else:  # from the front only the straps show
            for side in (-1, 1):
                self.box(side * 0.075 - 0.011, 0.165, side * 0.075 + 0.011, 0.36, label)

    def torso(self, upper: int, lower: int) -> None:
        shoulder, waist, hip = 0.115 * self.broad, 0.090 * self.broad, 0.098 * self.broad
        self.polygon([(-hip, 0.46), (hip, 0.46), (hip, 0.53), (-hip, 0.53)], lower)
        self.polygon([(-0.035, 0.145), (0.035, 0.145), (shoulder, 0.175), (waist, 0.36), (hip, 0.49),
                      (-hip, 0.49), (-waist, 0.36), (-shoulder, 0.175)], upper)

    def head(self, labels: dict[str, int]) -> None:
        view, hair = self.pose.view, labels["hair"]
        self.limb((0, 0.11), (0, 0.15), 0.026, 0.03, labels["skin"])
        if self.build.hair == "long":
            self.ellipse(-0.012 if view == "side" else 0, 0.10, 0.062, 0.085, hair)
        self.ellipse(0, 0.068, 0.052, 0.066, hair)
        if view == "front":
            self.ellipse(0, 0.080, 0.043, 0.052, labels["skin"])
        elif view == "side":
            self.ellipse(0.016, 0.080, 0.038, 0.050, labels["skin"])
        if self.build.hair == "cap":
            self.ellipse(0, 0.032, 0.054, 0.034, labels["cap"])
            if view != "back":
                peak = 0.05 if view == "side" else 0.0
                self.box(peak - 0.035, 0.040, peak + 0.035, 0.054, labels["cap"])


def _reach(start, angle: float, length: float):
    return start[0] + length * np.sin(angle), start[1] + length * np.cos(angle)


# Where the accent lies: functions of the torso's coordinates (across, down) and of the view.
PATTERNS = {
    "plain": lambda across, down, view: np.zeros(across.shape, bool),
    "stripes": lambda across, down, view: (down % 0.064) < 0.028,
    "checks": lambda across, down, view: ((across // 0.045) + (down // 0.045)) % 2 == 0,
    "band": lambda across, down, view: (down > 0.09) & (down < 0.17),
    "logo": lambda across, down, view: (view == "front") & (np.hypot(across, down - 0.11) < 0.05),
    "open": lambda across, down, view: (view == "front") & (np.abs(across) < 0.035),
}
