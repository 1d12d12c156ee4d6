"""Synthetic data sets of triplets, whatever they show: identities by their looks, rendering, and the files."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.runtime.progress import progress
from synthetic.scene import CAMERAS, Camera, Canvas

FOLDER, SPLITS = "RGBNT201", ("train_171", "test")
MINIMUM_SIZE = (32, 16)  # least height and width in pixels
SUPERSAMPLING = 2
# images by modality, (height, width, 3) uint8, and the bool mask (height, width) of the object
Triplet = tuple[dict[str, np.ndarray], np.ndarray]
# of a material's numbers
CHANNELS = dict(zip(MODALITIES, (slice(0, 3), slice(3, 4), slice(4, 5)), strict=True))
# factor of the light at night, by channel; NI has its own lamp and TI needs none
NIGHT_LIGHT = np.array([0.030, 0.030, 0.040, 1.0, 1.0])


def choose_looks(number: int, seed: int, shape: Sequence[int]) -> list[list[int]]:
    """`number` different combinations of looks: indices into tables of the lengths `shape`. Every second one differs from its
    predecessor in a single look, each of them in turn: all are needed."""
    if number > prod(shape):
        raise UserError(
            f"{number} identities were asked for in all, but there are no more than "
            f"{prod(shape)} combinations of looks; ask for fewer (--identities, --test_identities)."
        )
    rng = np.random.default_rng([seed, 0])
    looks = np.indices(shape).reshape(len(shape), -1).T
    free = np.ones(len(looks), bool)
    chosen: list[int] = []
    for index in range(number):
        candidates = free
        if index % 2:
            others = np.arange(len(shape)) != index // 2 % len(shape)
            twins = free & (looks[:, others] == looks[chosen[-1], others]).all(1)
            candidates = twins if twins.any() else free
        # The least used looks first, so that all looks have about equally many identities.
        used = sum(
            count * np.bincount(looks[chosen, column], minlength=count)[looks[:, column]]
            for column, count in enumerate(shape)
        )
        chosen.append(int(np.argmin(np.where(candidates, used + rng.random(len(looks)), np.inf))))
        free[chosen[-1]] = False
    return looks[chosen].tolist()


def is_night(camera: int, rng: Generator) -> bool:
    """Whether the next image of camera 0, 1, … is taken at night."""
    return bool(rng.random() < CAMERAS[camera].night_rate)


def render(canvas: Canvas, subject: range, camera: int, night: bool, rng: Generator) -> Triplet:
    """The canvas in camera 0, 1, …, and the mask of the labels `subject`."""
    labels = canvas.labels()
    light = _pool(np.array(canvas.materials, np.float32)[labels])
    coverage = _pool(np.isin(labels, subject)[..., None].astype(np.float32))[..., 0]
    return _expose(light, CAMERAS[camera], night, rng), coverage > 0.5


def _expose(
    light: np.ndarray, camera: Camera, night: bool, rng: Generator
) -> dict[str, np.ndarray]:
    """Render the channels by the camera: (H, W, 5) float → {modality: (H, W, 3) uint8}."""
    height, width, _ = light.shape
    source = NIGHT_LIGHT if night else np.ones(5)
    numbers = [camera.gain, camera.gamma, camera.offset, camera.noise, source]
    images = {}
    for modality, span in CHANNELS.items():
        count = span.stop - span.start
        gain, gamma, offset, noise, ambient = np.array(numbers, np.float32)[:, span]
        gain = gain * ambient * np.exp(rng.normal(0, 0.07) + rng.normal(0, 0.03, count))
        offset = (offset + rng.normal(0, 0.02)) * np.sqrt(ambient)
        coarse, fine = (_smooth_noise(height, width, cells, rng) for cells in (5, 28))
        uneven = 1 + 0.08 * coarse + 0.06 * fine
        incident = np.clip(light[..., span] * uneven[..., None], 0, 1)
        exposed = np.clip(offset + gain * incident**gamma, 0, 1)
        image = Image.fromarray(np.repeat(np.uint8(exposed * 255), 3 // count, axis=2))
        # Blur is given for 128 rows; a thermal lens has a lower resolution.
        radius = camera.blur + rng.uniform(0, 0.5) + (0.4 if modality == "TI" else 0.0)
        grain = 255 * noise * rng.standard_normal((height, width, count), dtype=np.float32)
        blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(radius * height / 128)))
        images[modality] = np.clip(blurred + grain, 0, 255).astype(np.uint8)
    return images


def _smooth_noise(height: int, width: int, cells: int, rng: Generator) -> np.ndarray:
    """Noise (height, width) of unit deviation at a grid with `cells` rows, interpolated between them."""
    knots = rng.standard_normal((cells, max(2, cells * width // height)), dtype=np.float32)
    return np.asarray(Image.fromarray(knots).resize((width, height), Image.Resampling.BICUBIC))


def _pool(fine: np.ndarray) -> np.ndarray:
    """Mean over the supersampled pixels: (S H, S W, C) → (H, W, C)."""
    factor, (height, width, channels) = SUPERSAMPLING, fine.shape
    blocks = fine.reshape(height // factor, factor, width // factor, factor, channels)
    return blocks.mean((1, 3))


def write_data_set(
    folder: Path,
    kind: ModuleType,
    identities: int,
    test_identities: int,
    images_per_camera: int,
    seed: int,
    skip_identities: int = 0,
    workers: int = 1,
    **drawing: Any,
) -> dict[str, int]:
    """Write triplets in the layout of RGBNT201, drawn by `workers` processes → the number of triplets in each split.
    `kind` is the module of what is drawn, pedestrians or vehicles: `make_identities(number, seed)` and `draw_triplet`.
    `skip_identities` leaves out the first ones of the seed; `drawing` are the other arguments of `write_identity`."""
    number = skip_identities + identities + test_identities
    objects = kind.make_identities(number, seed)[skip_identities:]
    for split in SPLITS:
        for name in MODALITIES:
            (folder / split / name).mkdir(parents=True)
    numbered = enumerate(objects, start=skip_identities + 1)
    tasks = [(folder / SPLITS[n > skip_identities + identities], n, one) for n, one in numbered]
    drawing |= {"images_per_camera": images_per_camera, "seed": seed}
    write_one = partial(write_identity, kind.draw_triplet, **drawing)
    for _ in progress(_map(write_one, tasks, workers), "drawing", len(tasks), unit="identity"):
        pass
    per_identity = len(CAMERAS) * images_per_camera
    counts = (identities * per_identity, test_identities * per_identity)
    return dict(zip(SPLITS, counts, strict=True))


def write_identity(
    draw_triplet: Callable[..., Triplet],
    task: tuple[Path, int, Any],
    images_per_camera: int,
    height: int,
    width: int,
    seed: int,
    quality: int = 92,
    unaligned: bool = False,
) -> None:
    """Write `images_per_camera` images of one identity from each camera, by its folder and number; `quality` is JPEG's."""
    folder, number, identity = task
    for camera, index in product(range(len(CAMERAS)), range(images_per_camera)):
        rng = np.random.default_rng([seed, 2, number, camera, index])
        night = is_night(camera, rng)
        images, _ = draw_triplet(identity, camera, night, height, width, rng, unaligned)
        name = f"{number:06d}_cam{camera + 1}_{int(night)}_{index:02d}"
        for modality, image in images.items():
            Image.fromarray(image).save(folder / modality / f"{name}.jpg", quality=quality)


def _map(
    write_one: partial[None], tasks: list[tuple[Path, int, Any]], workers: int
) -> Iterator[None]:
    """Draw the tasks in order. Worker processes ignore Ctrl-C: the parent ends them and removes their files."""
    if workers == 1:
        yield from map(write_one, tasks)
        return
    ignored = (signal.SIGINT, signal.SIG_IGN)
    count = min(workers, len(tasks))
    # which reports a worker that is killed, for lack of memory, where multiprocessing.Pool waits for ever
    with ProcessPoolExecutor(count, initializer=signal.signal, initargs=ignored) as pool:
        yield from pool.map(write_one, tasks)
