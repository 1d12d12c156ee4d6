"""Scenes of the synthetic pedestrians, independent of the identity: cameras, a canvas of materials, backgrounds, occluders.

Lengths are relative to the height of the image; y points down from the top edge, x right from the left edge.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw

from synthetic import read_tables

Label = int
Point = tuple[float, float]
Range = tuple[float, float]
Palette = Sequence[Sequence[float]]
Colour = Sequence[float] | np.ndarray


TABLES = read_tables("scene")
CAMERAS = [SimpleNamespace(**settings) for settings in TABLES["cameras"].values()]
POOL, LEAVES = TABLES["pool"], TABLES["leaves"]
OCCLUDERS = ("post", "crate", "hedge", "rail")


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


def draw_background(canvas: Canvas, camera: SimpleNamespace, night: bool, rng: Generator) -> None:
    """Fill the canvas with a wall, a ground and objects. At night unheated surfaces are colder."""
    horizon = rng.uniform(*camera.horizon)
    wall = camera.walls, (0.2, 0.75), 0, horizon
    ground = camera.grounds, (0.15, 0.65), horizon, 1
    for palette, reflectance, top, bottom in (wall, ground):
        ambient = 0.65 if night else 1.0
        label = add_surface(canvas, rng, palette, reflectance, (0.15, 0.5), ambient)
        canvas.box(0, top, canvas.aspect, bottom, label)
    objects = make_objects(canvas, rng, horizon)
    for name, mean_count in camera.objects.items():
        for _ in range(rng.poisson(mean_count)):
            objects[name]()


def draw_occluder(canvas: Canvas, rng: Generator) -> None:
    """Draw one random occluder over the canvas; it hides at most about half of a body."""
    make_objects(canvas, rng)[OCCLUDERS[rng.integers(len(OCCLUDERS))]]()


def add_surface(
    canvas: Canvas,
    rng: Generator,
    palette: Palette,
    reflectance: Range,
    radiance: Range,
    ambient: float = 1.0,
) -> Label:
    """A random material of these ranges; the radiance is times `ambient`."""
    colour = np.array(palette)[rng.integers(len(palette))]
    tint = colour * rng.uniform(0.8, 1.2) + rng.normal(0, 0.03, 3)
    return canvas.add(tint, rng.uniform(*reflectance), ambient * rng.uniform(*radiance))


def make_objects(
    canvas: Canvas, rng: Generator, horizon: float = 1.0
) -> dict[str, Callable[[], None]]:
    """Objects by name, each of which a call draws at random; those of the background are placed relative to the horizon."""
    right, add, box, ellipse = canvas.aspect, canvas.add, canvas.box, canvas.ellipse
    uniform = rng.uniform

    def uniforms(*ranges: Range) -> list[float]:
        """A number of each range."""
        return [uniform(*limits) for limits in ranges]

    def material(palette: Palette = POOL) -> Label:
        """Random material whose reflectance and radiance are independent of its colour."""
        # engines, lamps and vents are hotter than their surroundings
        radiance = (0.65, 0.95) if rng.random() < 0.12 else (0.08, 0.5)
        return add_surface(canvas, rng, palette, (0.08, 0.95), radiance)

    def windows() -> None:
        pane, frame = material(POOL[:3]), material()
        width, height, gap = uniforms((0.07, 0.14), (0.09, 0.18), (0.03, 0.08))
        left, top = uniforms((-0.1, 0.05), (-0.05, 0.1))
        for x in np.arange(left, right, width + gap):
            for y in np.arange(top, horizon - height, height + gap):
                for edge, label in ((0.008, frame), (0, pane)):
                    box(x - edge, y - edge, x + width + edge, y + height + edge, label)

    def bricks() -> None:
        joint, step = material(POOL[1:4]), uniform(0.035, 0.08)
        for row, y in enumerate(np.arange(0, horizon, step)):
            box(0, y, right, y + 0.006, joint)
            for x in np.arange(step * (row % 2), right, 2 * step):
                box(x, y, x + 0.006, min(y + step, horizon), joint)

    def tiles() -> None:
        line, vanishing = material(POOL[1:4]), uniform(0, right)
        for x in np.arange(-1, 1.6, uniform(0.1, 0.25)):
            top = vanishing + 0.4 * (x - vanishing)
            edges = [(top, horizon), (top + 0.005, horizon), (x + 0.012, 1), (x, 1)]
            canvas.polygon(edges, line)
        for depth in np.arange(0.1, 1, uniform(0.15, 0.3)) ** 1.6:
            y = horizon + depth * (1 - horizon)
            box(0, y, right, y + 0.007, line)

    def pole() -> None:
        x, width = uniforms((0, right), (0.01, 0.035))
        top = rng.choice([0.0, uniform(0, 0.4)])
        box(x, top, x + width, horizon + uniform(0, 0.3), material())

    def fence() -> None:
        bar, top = material(), horizon - uniform(0.1, 0.25)
        left, step = uniforms((-0.05, 0), (0.03, 0.07))
        for x in np.arange(left, right, step):
            box(x, top, x + 0.01, horizon, bar)
        box(0, top, right, top + 0.012, bar)

    def car() -> None:
        body, glass = material(), add((0.15, 0.18, 0.2), 0.15, 0.2)
        tyre = add((0.06, 0.06, 0.06), 0.1, uniform(0.3, 0.7))
        is_warm = rng.random() < 0.5
        length, side = uniform(0.4, 0.6), rng.choice([-1, 1])
        x, below, height = uniforms((-0.3, right - 0.1), (0, 0.12), (0.1, 0.15))
        y = horizon + below
        bonnet, roof, end = y - height, y - 1.8 * height, x + length
        box(x, bonnet, end, y, body)
        cabin = [(x + 0.08, bonnet), (x + 0.16, roof), (end - 0.14, roof), (end - 0.06, bonnet)]
        canvas.polygon(cabin, glass)
        if is_warm:  # which is visible in TI only
            *colour, ni, _ = canvas.materials[body]
            hot = add(colour, ni, uniform(0.7, 0.95))
            nose = x if side < 0 else end - 0.12
            box(nose, bonnet, nose + 0.12, y - 0.03, hot)
        for wheel in (x + 0.09, end - 0.09):
            ellipse(wheel, y, 0.04, 0.04, tyre)

    def bush(x: float, y: float, size: float) -> None:
        # Leaves reflect near infrared strongly, whatever their green.
        leaves = [add_surface(canvas, rng, LEAVES, (0.65, 0.95), (0.15, 0.35)) for _ in range(3)]
        for _ in range(14):
            dx, dy = rng.normal(0, size * 0.5), rng.normal(0, size * 0.35)
            radius = size * uniform(0.2, 0.4)
            ellipse(x + dx, y + dy, radius, radius * 0.8, leaves[rng.integers(3)])

    def foliage() -> None:
        bush(*uniforms((0, right), (0, horizon), (0.08, 0.22)))

    def tree() -> None:
        x, width = uniforms((0, right), (0.02, 0.05))
        bark = add_surface(canvas, rng, [(0.25, 0.18, 0.12)], (0.3, 0.6), (0.2, 0.45))
        box(x, 0, x + width, horizon + uniform(0, 0.1), bark)
        y, size = uniforms((0, 0.15), (0.12, 0.25))
        bush(x, y, size)

    def panel() -> None:
        """Door, sign, bin or vent: a box with a smaller one in it."""
        x, y = uniforms((-0.05, right), (0.05, horizon))
        width, height = uniforms((0.05, 0.2), (0.05, 0.35))
        for start, end, high, low in ((0, 1, 0, 1), (0.25, 0.75, 0.15, 0.4)):
            top, bottom = y + high * height, y + low * height
            box(x + start * width, top, x + end * width, bottom, material())

    def lamp() -> None:
        bulb = add((0.97, 0.93, 0.8), 0.95, uniform(0.7, 1))
        radius, x, y = uniforms((0.012, 0.03), (0, right), (0, 0.4))
        ellipse(x, y, radius, radius, bulb)

    def stain() -> None:
        """Shadow, puddle or patch of grass on the ground."""
        x, y = uniforms((0, right), (horizon, 1))
        width, height = uniforms((0.05, 0.25), (0.01, 0.06))
        ellipse(x, y, width, height, material(POOL[:3] + LEAVES))

    def post() -> None:
        x, width = uniform(0.1, 0.9) * right, uniform(0.02, 0.06)
        box(x, 0, x + width, 1, material())

    def crate() -> None:
        x = uniform(-0.1, 0.7) * right
        top, width = uniforms((0.6, 0.85), (0.15, 0.4))
        box(x, top, x + width, 1, material())
        box(x, top + 0.05, x + width, top + 0.07, material())

    def hedge() -> None:
        bush(uniform(0, 1) * right, uniform(0.8, 1), uniform(0.1, 0.2))

    def rail() -> None:
        bar, y = material(), uniform(0.45, 0.7)
        for height in (y, y + 0.12):
            box(0, height, right, height + 0.02, bar)

    background = windows, bricks, tiles, pole, fence, car, foliage, tree, panel, lamp, stain
    occluders = post, crate, hedge, rail
    return {each.__name__: each for each in (*background, *occluders)}
