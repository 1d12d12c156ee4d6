"""Scenes of the synthetic pedestrians, independent of the identity: cameras, a canvas of materials, backgrounds, occluders.

Lengths are relative to the height of the image; y points down from the top edge, x right from the left edge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

Palette = tuple[tuple[float, float, float], ...]
Label = int
Point = tuple[float, float]
Colour = tuple[float, float, float] | np.ndarray


@dataclass(frozen=True)
class Camera:
    """`offset + gain * value ** gamma`, blurred, plus noise, by channel (red, green, blue, NI, TI), with values in [0, 1], of
    surroundings with these colours of wall and ground, range of the horizon, and mean number of each object."""

    walls: Palette
    grounds: Palette
    horizon: tuple[float, float]
    objects: dict[str, float]
    night_rate: float  # share of images
    gain: tuple[float, ...]
    gamma: tuple[float, ...]
    offset: tuple[float, ...]
    noise: tuple[float, ...]  # standard deviation
    blur: float


CAMERAS = (
    # street
    Camera(
        walls=((0.55, 0.52, 0.48), (0.62, 0.42, 0.34), (0.70, 0.68, 0.62)),
        grounds=((0.35, 0.35, 0.36), (0.48, 0.47, 0.45)),
        horizon=(0.5, 0.7),
        objects={"windows": 0.8, "car": 0.9, "stain": 1.5, "pole": 0.8, "panel": 0.8, "lamp": 0.2},
        night_rate=0.0,
        gain=(1.00, 0.98, 0.94, 0.90, 0.85),
        gamma=(1.0, 1.0, 1.0, 1.00, 1.00),
        offset=(0.02, 0.02, 0.02, 0.04, 0.05),
        noise=(0.015, 0.015, 0.015, 0.025, 0.020),
        blur=0.4,
    ),
    # park
    Camera(
        walls=((0.50, 0.60, 0.62), (0.28, 0.38, 0.22), (0.62, 0.70, 0.75)),
        grounds=((0.28, 0.38, 0.18), (0.50, 0.44, 0.32)),
        horizon=(0.4, 0.65),
        objects={
            "tree": 1.2,
            "foliage": 2.5,
            "fence": 0.4,
            "stain": 1.5,
            "panel": 0.3,
            "pole": 0.4,
        },
        night_rate=0.0,
        gain=(0.82, 0.92, 0.98, 1.00, 0.95),
        gamma=(0.8, 0.8, 0.8, 1.20, 0.90),
        offset=(0.04, 0.05, 0.07, 0.00, 0.00),
        noise=(0.025, 0.025, 0.025, 0.020, 0.035),
        blur=0.7,
    ),
    # campus
    Camera(
        walls=((0.55, 0.28, 0.22), (0.66, 0.50, 0.40), (0.45, 0.42, 0.42)),
        grounds=((0.55, 0.52, 0.48), (0.42, 0.40, 0.38)),
        horizon=(0.55, 0.75),
        objects={
            "bricks": 0.9,
            "tiles": 0.8,
            "windows": 0.4,
            "panel": 1.0,
            "foliage": 0.7,
            "pole": 0.5,
        },
        night_rate=0.5,
        gain=(0.98, 0.84, 0.68, 0.80, 0.75),
        gamma=(1.2, 1.2, 1.2, 0.85, 1.15),
        offset=(0.02, 0.01, 0.00, 0.08, 0.15),
        noise=(0.020, 0.020, 0.020, 0.040, 0.025),
        blur=0.5,
    ),
    # hall
    Camera(
        walls=((0.78, 0.78, 0.74), (0.60, 0.66, 0.70), (0.72, 0.66, 0.55)),
        grounds=((0.62, 0.60, 0.56), (0.40, 0.38, 0.40)),
        horizon=(0.6, 0.8),
        objects={"tiles": 1, "panel": 2, "pole": 1, "lamp": 0.7, "windows": 0.3, "stain": 0.5},
        night_rate=1.0,
        gain=(0.85, 0.88, 0.90, 0.95, 1.00),
        gamma=(1.0, 1.0, 1.0, 1.10, 1.05),
        offset=(0.00, 0.00, 0.00, 0.02, -0.05),
        noise=(0.030, 0.030, 0.030, 0.035, 0.020),
        blur=0.6,
    ),
)


def rectangle(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


class Canvas:
    """Label map of one triplet, `height`×`width` pixels; `materials[label]` is (red, green, blue, NI, TI), each in [0, 1]."""

    def __init__(self, height: int, width: int):
        self.height = height
        self.aspect = width / height
        self.image = Image.new("I", (width, height))
        self.materials: list[np.ndarray] = []
        self._draw = ImageDraw.Draw(self.image)

    def add(self, rgb: Colour, ni: float, ti: float) -> Label:
        self.materials.append(np.clip([*rgb, ni, ti], 0, 1))
        return len(self.materials) - 1

    def polygon(self, points: Sequence[Point], label: Label) -> None:
        self._draw.polygon([(x * self.height, y * self.height) for x, y in points], fill=label)

    def box(self, left: float, top: float, right: float, bottom: float, label: Label) -> None:
        self.polygon(rectangle(left, top, right, bottom), label)

    def ellipse(self, x: float, y: float, radius_x: float, radius_y: float, label: Label) -> None:
        bounds = np.array([x - radius_x, y - radius_y, x + radius_x, y + radius_y]) * self.height
        self._draw.ellipse(bounds.tolist(), fill=label)

    def limb(
        self, start: Point, end: Point, start_radius: float, end_radius: float, label: Label
    ) -> None:
        """Tapered bar with round ends."""
        (x0, y0), (x1, y1) = start, end
        across = np.array([y0 - y1, x1 - x0]) / max(np.hypot(x1 - x0, y1 - y0), 1e-6)
        first, second = start_radius * across, end_radius * across
        self.polygon([start + first, end + second, end - second, start - first], label)
        self.ellipse(x0, y0, start_radius, start_radius, label)
        self.ellipse(x1, y1, end_radius, end_radius, label)

    def relabel(self, replacements: dict[Label, Label], where: Callable[..., np.ndarray]) -> None:
        """Replace labels at the pixels where `where(x, y)`, a function of (H, W) coordinates, is true."""
        labels = self.labels()
        rows, columns = np.indices(labels.shape, dtype=np.float32) / self.height
        chosen = where(columns, rows)
        for old, new in replacements.items():
            labels[chosen & (labels == old)] = new
        self.image = Image.fromarray(labels)
        self._draw = ImageDraw.Draw(self.image)

    def labels(self) -> np.ndarray:
        """Copy of the label map: (H, W) int32."""
        return np.array(self.image)


def draw_background(canvas: Canvas, camera: Camera, night: bool, rng: np.random.Generator) -> None:
    """Fill the canvas with a wall, a ground and objects. At night unheated surfaces are colder."""
    horizon = rng.uniform(*camera.horizon)
    ambient = 0.65 if night else 1.0
    wall = camera.walls, (0.2, 0.75), 0, horizon
    ground = camera.grounds, (0.15, 0.65), horizon, 1
    for palette, reflectance, top, bottom in (wall, ground):
        colour, ni = _tint(palette, rng), rng.uniform(*reflectance)
        surface = canvas.add(colour, ni, ambient * rng.uniform(0.15, 0.5))
        canvas.box(0, top, canvas.aspect, bottom, surface)
    objects = _Objects(canvas, rng, horizon)
    for name, mean_count in camera.objects.items():
        for _ in range(rng.poisson(mean_count)):
            getattr(objects, name)()


def draw_occluder(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw one random occluder over the canvas; it hides at most about half of a body."""
    getattr(_Objects(canvas, rng), OCCLUDERS[rng.integers(len(OCCLUDERS))])()


POOL = (
    (0.08, 0.08, 0.09),
    (0.30, 0.30, 0.32),
    (0.60, 0.60, 0.58),
    (0.90, 0.90, 0.88),
    (0.65, 0.12, 0.12),
    (0.12, 0.25, 0.55),
    (0.15, 0.35, 0.18),
    (0.80, 0.68, 0.20),
    (0.45, 0.30, 0.18),
    (0.70, 0.45, 0.25),
)
LEAVES = ((0.12, 0.28, 0.10), (0.20, 0.38, 0.14), (0.33, 0.42, 0.16))


def _tint(palette: Palette, rng: np.random.Generator) -> np.ndarray:
    colour = np.array(palette[rng.integers(len(palette))])
    return colour * rng.uniform(0.8, 1.2) + rng.normal(0, 0.03, 3)


class _Objects:
    """Draws random objects on a canvas, one per call; those of the background are placed relative to the horizon."""

    def __init__(self, canvas: Canvas, rng: np.random.Generator, horizon: float = 1.0):
        self.canvas, self.rng, self.horizon, self.right = canvas, rng, horizon, canvas.aspect
        self.add, self.box, self.ellipse = canvas.add, canvas.box, canvas.ellipse
        self.uniform = rng.uniform

    def material(self, palette: Palette = POOL) -> Label:
        """Random material whose reflectance and radiance are independent of its colour."""
        # engines, lamps and vents are hotter than their surroundings
        radiance = (0.65, 0.95) if self.rng.random() < 0.12 else (0.08, 0.5)
        return self.surface(palette, (0.08, 0.95), radiance)

    def surface(
        self, palette: Palette, reflectance: tuple[float, float], radiance: tuple[float, float]
    ) -> Label:
        colour = _tint(palette, self.rng)
        return self.add(colour, self.uniform(*reflectance), self.uniform(*radiance))

    def windows(self) -> None:
        pane, frame = self.material(POOL[:3]), self.material()
        width, height = self.uniform(0.07, 0.14), self.uniform(0.09, 0.18)
        gap = self.uniform(0.03, 0.08)
        left, top = self.uniform(-0.1, 0.05), self.uniform(-0.05, 0.1)
        for x in np.arange(left, self.right, width + gap):
            for y in np.arange(top, self.horizon - height, height + gap):
                self.box(x - 0.008, y - 0.008, x + width + 0.008, y + height + 0.008, frame)
                self.box(x, y, x + width, y + height, pane)

    def bricks(self) -> None:
        joint, step = self.material(POOL[1:4]), self.uniform(0.035, 0.08)
        for row, y in enumerate(np.arange(0, self.horizon, step)):
            self.box(0, y, self.right, y + 0.006, joint)
            for x in np.arange(step * (row % 2), self.right, 2 * step):
                self.box(x, y, x + 0.006, min(y + step, self.horizon), joint)

    def tiles(self) -> None:
        line, vanishing = self.material(POOL[1:4]), self.uniform(0, self.right)
        for x in np.arange(-1, 1.6, self.uniform(0.1, 0.25)):
            top = vanishing + 0.4 * (x - vanishing)
            edges = [(top, self.horizon), (top + 0.005, self.horizon), (x + 0.012, 1), (x, 1)]
            self.canvas.polygon(edges, line)
        for depth in np.arange(0.1, 1, self.uniform(0.15, 0.3)) ** 1.6:
            y = self.horizon + depth * (1 - self.horizon)
            self.box(0, y, self.right, y + 0.007, line)

    def pole(self) -> None:
        x, width = self.uniform(0, self.right), self.uniform(0.01, 0.035)
        top = self.rng.choice([0.0, self.uniform(0, 0.4)])
        self.box(x, top, x + width, self.horizon + self.uniform(0, 0.3), self.material())

    def fence(self) -> None:
        bar, top = self.material(), self.horizon - self.uniform(0.1, 0.25)
        for x in np.arange(self.uniform(-0.05, 0), self.right, self.uniform(0.03, 0.07)):
            self.box(x, top, x + 0.01, self.horizon, bar)
        self.box(0, top, self.right, top + 0.012, bar)

    def car(self) -> None:
        body, glass = self.material(), self.add((0.15, 0.18, 0.2), 0.15, 0.2)
        tyre = self.add((0.06, 0.06, 0.06), 0.1, self.uniform(0.3, 0.7))
        is_warm = self.rng.random() < 0.5
        length, side = self.uniform(0.4, 0.6), self.rng.choice([-1, 1])
        x, y = self.uniform(-0.3, self.right - 0.1), self.horizon + self.uniform(0, 0.12)
        height = self.uniform(0.1, 0.15)
        bonnet, roof, end = y - height, y - 1.8 * height, x + length
        self.box(x, bonnet, end, y, body)
        cabin = [(x + 0.08, bonnet), (x + 0.16, roof), (end - 0.14, roof), (end - 0.06, bonnet)]
        self.canvas.polygon(cabin, glass)
        if is_warm:  # which is visible in TI only
            *colour, ni, _ = self.canvas.materials[body]
            hot = self.add(np.array(colour), ni, self.uniform(0.7, 0.95))
            nose = x if side < 0 else end - 0.12
            self.box(nose, bonnet, nose + 0.12, y - 0.03, hot)
        for wheel in (x + 0.09, end - 0.09):
            self.ellipse(wheel, y, 0.04, 0.04, tyre)

    def bush(self, x: float, y: float, size: float) -> None:
        # Leaves reflect near infrared strongly, whatever their green.
        leaves = [self.surface(LEAVES, (0.65, 0.95), (0.15, 0.35)) for _ in range(3)]
        for _ in range(14):
            dx, dy = self.rng.normal(0, size * 0.5), self.rng.normal(0, size * 0.35)
            radius = size * self.uniform(0.2, 0.4)
            self.ellipse(x + dx, y + dy, radius, radius * 0.8, leaves[self.rng.integers(3)])

    def foliage(self) -> None:
        x, y = self.uniform(0, self.right), self.uniform(0, self.horizon)
        self.bush(x, y, self.uniform(0.08, 0.22))

    def tree(self) -> None:
        x, width = self.uniform(0, self.right), self.uniform(0.02, 0.05)
        bark = self.surface(((0.25, 0.18, 0.12),), (0.3, 0.6), (0.2, 0.45))
        self.box(x, 0, x + width, self.horizon + self.uniform(0, 0.1), bark)
        self.bush(x, self.uniform(0, 0.15), self.uniform(0.12, 0.25))

    def panel(self) -> None:
        """Door, sign, bin or vent: a box with a smaller one in it."""
        x, y = self.uniform(-0.05, self.right), self.uniform(0.05, self.horizon)
        width, height = self.uniform(0.05, 0.2), self.uniform(0.05, 0.35)
        self.box(x, y, x + width, y + height, self.material())
        left, top, bottom = x + 0.25 * width, y + 0.15 * height, y + 0.4 * height
        self.box(left, top, x + 0.75 * width, bottom, self.material())

    def lamp(self) -> None:
        bulb = self.add((0.97, 0.93, 0.8), 0.95, self.uniform(0.7, 1))
        radius = self.uniform(0.012, 0.03)
        self.ellipse(self.uniform(0, self.right), self.uniform(0, 0.4), radius, radius, bulb)

    def stain(self) -> None:
        """Shadow, puddle or patch of grass on the ground."""
        x, y = self.uniform(0, self.right), self.uniform(self.horizon, 1)
        width, height = self.uniform(0.05, 0.25), self.uniform(0.01, 0.06)
        self.ellipse(x, y, width, height, self.material(POOL[:3] + LEAVES))

    def post(self) -> None:
        x, width = self.uniform(0.1, 0.9) * self.right, self.uniform(0.02, 0.06)
        self.box(x, 0, x + width, 1, self.material())

    def crate(self) -> None:
        x, top = self.uniform(-0.1, 0.7) * self.right, self.uniform(0.6, 0.85)
        width = self.uniform(0.15, 0.4)
        self.box(x, top, x + width, 1, self.material())
        self.box(x, top + 0.05, x + width, top + 0.07, self.material())

    def hedge(self) -> None:
        self.bush(self.uniform(0, 1) * self.right, self.uniform(0.8, 1), self.uniform(0.1, 0.2))

    def rail(self) -> None:
        bar, y = self.material(), self.uniform(0.45, 0.7)
        for height in (y, y + 0.12):
            self.box(0, height, self.right, height + 0.02, bar)


OCCLUDERS = ("post", "crate", "hedge", "rail")
