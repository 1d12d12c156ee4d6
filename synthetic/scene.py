"""The stage of the synthetic pedestrians: a canvas of materials, the backgrounds and the occluders.

Nothing here knows of an identity: every object comes from pools that all images share.
Lengths are in units of the image's height, y down from the top edge, x right from the left edge.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

WARM_OBJECT_RATE = 0.12  # share of the objects that are hotter than their surroundings (engines, lamps, vents)


class Canvas:
    """A label map, drawn once per triplet; `materials[label]` says how each modality sees that label.

    A material is five numbers in [0, 1]: red, green, blue, near-infrared reflectance, thermal radiance.
    """

    def __init__(self, height: int, width: int):
        """Height and width in pixels; the canvas starts with label 0 everywhere."""
        self.height = height
        self.aspect = width / height
        self.image = Image.new("I", (width, height))
        self.materials: list[np.ndarray] = []
        self._draw = ImageDraw.Draw(self.image)

    def add(self, rgb, ni: float, ti: float) -> int:
        """The label of a new material."""
        self.materials.append(np.clip([*rgb, ni, ti], 0, 1))
        return len(self.materials) - 1

    def polygon(self, points, label: int) -> None:
        self._draw.polygon([(x * self.height, y * self.height) for x, y in points], fill=label)

    def box(self, left: float, top: float, right: float, bottom: float, label: int) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], label)

    def ellipse(self, x: float, y: float, radius_x: float, radius_y: float, label: int) -> None:
        bounds = np.array([x - radius_x, y - radius_y, x + radius_x, y + radius_y]) * self.height
        self._draw.ellipse(bounds.tolist(), fill=label)

    def limb(self, start, end, start_radius: float, end_radius: float, label: int) -> None:
        """A tapering bar with round ends."""
        (x0, y0), (x1, y1) = start, end
        length = max(np.hypot(x1 - x0, y1 - y0), 1e-6)
        across_x, across_y = (y0 - y1) / length, (x1 - x0) / length
        corners = [(x + side * radius * across_x, y + side * radius * across_y)
                   for x, y, radius, side in ((x0, y0, start_radius, 1), (x1, y1, end_radius, 1),
                                              (x1, y1, end_radius, -1), (x0, y0, start_radius, -1))]
        self.polygon(corners, label)
        self.ellipse(x0, y0, start_radius, start_radius, label)
        self.ellipse(x1, y1, end_radius, end_radius, label)

    def relabel(self, replacements: dict[int, int], where: Callable) -> None:
        """Give the pixels of some labels another one where `where(x, y)`, a function of (H, W) grids, is true."""
        labels = self.labels()
        rows, columns = np.indices(labels.shape, dtype=np.float32) / self.height
        chosen = where(columns, rows)
        for old, new in replacements.items():
            labels[chosen & (labels == old)] = new
        self.image = Image.fromarray(labels)
        self._draw = ImageDraw.Draw(self.image)

    def labels(self) -> np.ndarray:
        """A copy of the label map: (H, W) int32."""
        return np.array(self.image)


@dataclass(frozen=True)
class Style:
    """The kind of place a camera looks at: colours of wall and ground, and how many of which objects on average."""

    walls: tuple
    grounds: tuple
    horizon: tuple[float, float]
    objects: dict[str, float]


def draw_background(canvas: Canvas, style: Style, night: bool, rng: np.random.Generator) -> None:
    """Fill the canvas with a wall, a ground and clutter. At night what is not heated is colder."""
    horizon = rng.uniform(*style.horizon)
    ambient = 0.65 if night else 1.0
    wall = canvas.add(_tint(style.walls, rng), rng.uniform(0.2, 0.75), ambient * rng.uniform(0.15, 0.5))
    ground = canvas.add(_tint(style.grounds, rng), rng.uniform(0.15, 0.65), ambient * rng.uniform(0.15, 0.5))
    canvas.box(0, 0, canvas.aspect, horizon, wall)
    canvas.box(0, horizon, canvas.aspect, 1, ground)
    for name, mean_count in style.objects.items():
        for _ in range(rng.poisson(mean_count)):
            OBJECTS[name](canvas, horizon, rng)


def draw_occluder(canvas: Canvas, rng: np.random.Generator) -> None:
    """Put one thing from the shared pool in front of all that is drawn; it never hides more than about half."""
    OCCLUDERS[rng.integers(len(OCCLUDERS))](canvas, rng)


POOL = ((0.08, 0.08, 0.09), (0.30, 0.30, 0.32), (0.60, 0.60, 0.58), (0.90, 0.90, 0.88), (0.65, 0.12, 0.12),
        (0.12, 0.25, 0.55), (0.15, 0.35, 0.18), (0.80, 0.68, 0.20), (0.45, 0.30, 0.18), (0.70, 0.45, 0.25))
LEAVES = ((0.12, 0.28, 0.10), (0.20, 0.38, 0.14), (0.33, 0.42, 0.16))


def _tint(palette, rng: np.random.Generator) -> np.ndarray:
    return np.clip(np.array(palette[rng.integers(len(palette))]) * rng.uniform(0.8, 1.2) + rng.normal(0, 0.03, 3), 0, 1)


def _thing(canvas: Canvas, rng: np.random.Generator, palette=POOL) -> int:
    """A random material: its reflectance and temperature are not told by its colour."""
    warm = rng.random() < WARM_OBJECT_RATE
    return canvas.add(_tint(palette, rng), rng.uniform(0.08, 0.95),
                      rng.uniform(0.65, 0.95) if warm else rng.uniform(0.08, 0.5))


def _leaf(canvas: Canvas, rng: np.random.Generator) -> int:
    """Leaves reflect near infrared strongly, whatever their green."""
    return canvas.add(_tint(LEAVES, rng), rng.uniform(0.65, 0.95), rng.uniform(0.15, 0.35))


def _windows(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    pane, frame = _thing(canvas, rng, POOL[:3]), _thing(canvas, rng)
    width, height, gap = rng.uniform(0.07, 0.14), rng.uniform(0.09, 0.18), rng.uniform(0.03, 0.08)
    left, top = rng.uniform(-0.1, 0.05), rng.uniform(-0.05, 0.1)
    for x in np.arange(left, canvas.aspect, width + gap):
        for y in np.arange(top, horizon - height, height + gap):
            canvas.box(x - 0.008, y - 0.008, x + width + 0.008, y + height + 0.008, frame)
            canvas.box(x, y, x + width, y + height, pane)


def _bricks(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    joint, step = _thing(canvas, rng, POOL[1:4]), rng.uniform(0.035, 0.08)
    for row, y in enumerate(np.arange(0, horizon, step)):
        canvas.box(0, y, canvas.aspect, y + 0.006, joint)
        for x in np.arange(step * (row % 2), canvas.aspect, 2 * step):
            canvas.box(x, y, x + 0.006, min(y + step, horizon), joint)


def _tiles(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    line, vanishing = _thing(canvas, rng, POOL[1:4]), rng.uniform(0, canvas.aspect)
    for x in np.arange(-1, 1.6, rng.uniform(0.1, 0.25)):
        top = vanishing + 0.4 * (x - vanishing)
        canvas.polygon([(top, horizon), (top + 0.005, horizon), (x + 0.012, 1), (x, 1)], line)
    for depth in np.arange(0.1, 1, rng.uniform(0.15, 0.3)) ** 1.6:
        y = horizon + depth * (1 - horizon)
        canvas.box(0, y, canvas.aspect, y + 0.007, line)


def _pole(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    x, width = rng.uniform(0, canvas.aspect), rng.uniform(0.01, 0.035)
    canvas.box(x, rng.choice([0.0, rng.uniform(0, 0.4)]), x + width, horizon + rng.uniform(0, 0.3), _thing(canvas, rng))


def _fence(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    bar, top = _thing(canvas, rng), horizon - rng.uniform(0.1, 0.25)
    for x in np.arange(rng.uniform(-0.05, 0), canvas.aspect, rng.uniform(0.03, 0.07)):
        canvas.box(x, top, x + 0.01, horizon, bar)
    canvas.box(0, top, canvas.aspect, top + 0.012, bar)


def _car(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    body, glass = _thing(canvas, rng), canvas.add((0.15, 0.18, 0.2), 0.15, 0.2)
    tyre, engine = canvas.add((0.06, 0.06, 0.06), 0.1, rng.uniform(0.3, 0.7)), rng.random() < 0.5
    length, side = rng.uniform(0.4, 0.6), rng.choice([-1, 1])
    x, y, height = rng.uniform(-0.3, canvas.aspect - 0.1), horizon + rng.uniform(0, 0.12), rng.uniform(0.1, 0.15)
    canvas.box(x, y - height, x + length, y, body)
    canvas.polygon([(x + 0.08, y - height), (x + 0.16, y - 1.8 * height), (x + length - 0.14, y - 1.8 * height),
                    (x + length - 0.06, y - height)], glass)
    if engine:  # a bonnet that was driven a moment ago glows in TI alone
        hot = canvas.add(canvas.materials[body][:3], canvas.materials[body][3], rng.uniform(0.7, 0.95))
        nose = x if side < 0 else x + length - 0.12
        canvas.box(nose, y - height, nose + 0.12, y - 0.03, hot)
    for wheel in (x + 0.09, x + length - 0.09):
        canvas.ellipse(wheel, y, 0.04, 0.04, tyre)


def _bush(canvas: Canvas, x: float, y: float, size: float, rng: np.random.Generator) -> None:
    leaves = [_leaf(canvas, rng) for _ in range(3)]
    for _ in range(14):
        dx, dy = rng.normal(0, size * 0.5), rng.normal(0, size * 0.35)
        radius = size * rng.uniform(0.2, 0.4)
        canvas.ellipse(x + dx, y + dy, radius, radius * 0.8, leaves[rng.integers(3)])


def _foliage(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    _bush(canvas, rng.uniform(0, canvas.aspect), rng.uniform(0, horizon), rng.uniform(0.08, 0.22), rng)


def _tree(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    x, width = rng.uniform(0, canvas.aspect), rng.uniform(0.02, 0.05)
    bark = canvas.add(_tint(((0.25, 0.18, 0.12),), rng), rng.uniform(0.3, 0.6), rng.uniform(0.2, 0.45))
    canvas.box(x, 0, x + width, horizon + rng.uniform(0, 0.1), bark)
    _bush(canvas, x, rng.uniform(0, 0.15), rng.uniform(0.12, 0.25), rng)


def _panel(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    """A door, a sign, a bin or a vent: a box with a smaller one in it."""
    x, y = rng.uniform(-0.05, canvas.aspect), rng.uniform(0.05, horizon)
    width, height = rng.uniform(0.05, 0.2), rng.uniform(0.05, 0.35)
    canvas.box(x, y, x + width, y + height, _thing(canvas, rng))
    canvas.box(x + 0.25 * width, y + 0.15 * height, x + 0.75 * width, y + 0.4 * height, _thing(canvas, rng))


def _lamp(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    bulb = canvas.add((0.97, 0.93, 0.8), 0.95, rng.uniform(0.7, 1))
    radius = rng.uniform(0.012, 0.03)
    canvas.ellipse(rng.uniform(0, canvas.aspect), rng.uniform(0, 0.4), radius, radius, bulb)


def _stain(canvas: Canvas, horizon: float, rng: np.random.Generator) -> None:
    """A shadow, a puddle or a patch of grass on the ground."""
    canvas.ellipse(rng.uniform(0, canvas.aspect), rng.uniform(horizon, 1), rng.uniform(0.05, 0.25),
                   rng.uniform(0.01, 0.06), _thing(canvas, rng, POOL[:3] + LEAVES))


OBJECTS = {"windows": _windows, "bricks": _bricks, "tiles": _tiles, "pole": _pole, "fence": _fence, "car": _car,
           "foliage": _foliage, "tree": _tree, "panel": _panel, "lamp": _lamp, "stain": _stain}

STYLES = {
    "street": Style(walls=((0.55, 0.52, 0.48), (0.62, 0.42, 0.34), (0.70, 0.68, 0.62)),
                    grounds=((0.35, 0.35, 0.36), (0.48, 0.47, 0.45)), horizon=(0.5, 0.7),
                    objects={"windows": 0.8, "car": 0.9, "stain": 1.5, "pole": 0.8, "panel": 0.8, "lamp": 0.2}),
    "park": Style(walls=((0.50, 0.60, 0.62), (0.28, 0.38, 0.22), (0.62, 0.70, 0.75)),
                  grounds=((0.28, 0.38, 0.18), (0.50, 0.44, 0.32)), horizon=(0.4, 0.65),
                  objects={"tree": 1.2, "foliage": 2.5, "fence": 0.4, "stain": 1.5, "panel": 0.3, "pole": 0.4}),
    "campus": Style(walls=((0.55, 0.28, 0.22), (0.66, 0.50, 0.40), (0.45, 0.42, 0.42)),
                    grounds=((0.55, 0.52, 0.48), (0.42, 0.40, 0.38)), horizon=(0.55, 0.75),
                    objects={"bricks": 0.9, "tiles": 0.8, "windows": 0.4, "panel": 1.0, "foliage": 0.7, "pole": 0.5}),
    "hall": Style(walls=((0.78, 0.78, 0.74), (0.60, 0.66, 0.70), (0.72, 0.66, 0.55)),
                  grounds=((0.62, 0.60, 0.56), (0.40, 0.38, 0.40)), horizon=(0.6, 0.8),
                  objects={"tiles": 1.0, "panel": 2.0, "pole": 1.0, "lamp": 0.7, "windows": 0.3, "stain": 0.5}),
}


def _post(canvas: Canvas, rng: np.random.Generator) -> None:
    x, width = rng.uniform(0.1, 0.9) * canvas.aspect, rng.uniform(0.02, 0.06)
    canvas.box(x, 0, x + width, 1, _thing(canvas, rng))


def _crate(canvas: Canvas, rng: np.random.Generator) -> None:
    x, top, width = rng.uniform(-0.1, 0.7) * canvas.aspect, rng.uniform(0.6, 0.85), rng.uniform(0.15, 0.4)
    canvas.box(x, top, x + width, 1, _thing(canvas, rng))
    canvas.box(x, top + 0.05, x + width, top + 0.07, _thing(canvas, rng))


def _hedge(canvas: Canvas, rng: np.random.Generator) -> None:
    _bush(canvas, rng.uniform(0, 1) * canvas.aspect, rng.uniform(0.8, 1), rng.uniform(0.1, 0.2), rng)


def _rail(canvas: Canvas, rng: np.random.Generator) -> None:
    bar, y = _thing(canvas, rng), rng.uniform(0.45, 0.7)
    for height in (y, y + 0.12):
        canvas.box(0, height, canvas.aspect, height + 0.02, bar)


OCCLUDERS = (_post, _crate, _hedge, _rail)
