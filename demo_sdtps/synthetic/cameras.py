"""The cameras of the synthetic triplets: their surroundings, light and sensors."""

from dataclasses import dataclass

Palette = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Camera:
    """`offset + gain * value ** gamma`, blurred, plus noise, by channel (red, green, blue, NI, TI), with values in [0, 1], of
    surroundings with these colours of wall and ground, range of the horizon, and mean number of each object of scene.py."""

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
