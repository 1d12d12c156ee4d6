"""Synthetic data sets of triplets, whatever they show: identities by their looks, rendering, and the files."""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.runtime.progress import progress
from synthetic.scene import CAMERAS, Canvas, draw_background

FOLDER, SPLITS = "RGBNT201", ("train_171", "test")
SUPERSAMPLING = 2
# of a material's numbers
CHANNELS = dict(zip(MODALITIES, (slice(0, 3), slice(3, 4), slice(4, 5)), strict=True))
# factor of the light at night, by channel; NI has its own lamp and TI needs none
NIGHT_LIGHT = np.array([0.030, 0.030, 0.040, 1.0, 1.0])


def choose_looks(number: int, seed: int, shape: Sequence[int]) -> list[list[int]]:
    """`number` different combinations of looks: indices into tables of the lengths `shape`. Every second one differs from its
    predecessor in a single look, each of them in turn: all are needed."""
    if number > (most := prod(shape)):
        raise UserError(f"There are only {most} combinations of looks; ask for fewer identities.")
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


def draw(
    draw_object: Callable[..., None],
    identity: Any,
    camera: SimpleNamespace,
    night: bool,
    size: tuple[int, int],
    rng: Generator,
    loose: bool = False,
) -> dict[str, np.ndarray]:
    """Images (height, width, 3) uint8 by modality of one identity, which `draw_object` draws. With the same state of `rng` two
    identities have the same surroundings, pose and noise. A `loose` one stands anywhere in the same surroundings, at half to
    full height."""
    # Separate streams, so that the draws of one part do not change those of another.
    scene, stance, front, sensor = rng.spawn(4)
    canvas = Canvas(*(SUPERSAMPLING * side for side in size))
    draw_background(canvas, camera, night, scene)
    draw_object(canvas, identity, night, loose, [scene, stance, front])
    materials = np.array(canvas.materials, np.float32)[canvas.labels()]
    # The mean over the supersampled pixels: (S H, S W, C) → (H, W, C).
    blocks = materials.reshape(size[0], SUPERSAMPLING, size[1], SUPERSAMPLING, -1)
    return expose(blocks.mean((1, 3)), camera, night, sensor)


def expose(
    light: np.ndarray, camera: SimpleNamespace, night: bool, rng: Generator
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


def write_data_set(
    folder: Path,
    kind: ModuleType,
    identities: int,
    test_identities: int,
    seed: int,
    skip_identities: int = 0,
    workers: int = 1,
    **drawing: Any,
) -> dict[str, int]:
    """Write triplets in the layout of RGBNT201, drawn by `workers` processes → the number of triplets in each split.
    `kind` is the module of what is drawn, pedestrians or vehicles: `make_identities(number, seed)` and `draw_object`.
    `skip_identities` leaves out the first ones of the seed; `drawing` are the other arguments of `write_identity`."""
    last = skip_identities + identities
    objects = kind.make_identities(last + test_identities, seed)
    for split, modality in product(SPLITS, MODALITIES):
        (folder / split / modality).mkdir(parents=True)
    numbered = [*enumerate(objects, start=1)][skip_identities:]
    tasks = [(folder / SPLITS[number > last], number, one) for number, one in numbered]
    write_one = partial(write_identity, kind.draw_object, seed=seed, **drawing)
    # Worker processes ignore Ctrl-C: this one ends them and removes their files. The executor reports a worker that is killed,
    # for lack of memory, where multiprocessing.Pool waits for ever.
    count, ignored = min(workers, len(tasks)), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(count, initializer=signal.signal, initargs=ignored) as pool:
        drawn = map(write_one, tasks) if workers == 1 else pool.map(write_one, tasks)
        for _ in progress(drawn, "drawing", len(tasks), unit="identity"):
            pass
    per_identity = len(CAMERAS) * drawing["images_per_camera"]
    counts = identities * per_identity, test_identities * per_identity
    return dict(zip(SPLITS, counts, strict=True))


def write_identity(
    draw_object: Callable[..., None],
    task: tuple[Path, int, Any],
    images_per_camera: int,
    height: int,
    width: int,
    seed: int,
    loose: bool = False,
) -> None:
    """Write `images_per_camera` triplets of one identity from each camera, by its folder and number."""
    folder, number, identity = task
    for place, index in product(range(len(CAMERAS)), range(images_per_camera)):
        rng, camera = np.random.default_rng([seed, 2, number, place, index]), CAMERAS[place]
        night = bool(rng.random() < camera.night_rate)
        name = f"{number:06d}_cam{place + 1}_{int(night)}_{index:02d}.jpg"
        images = draw(draw_object, identity, camera, night, (height, width), rng, loose)
        for modality, image in images.items():
            Image.fromarray(image).save(folder / modality / name, quality=92)
