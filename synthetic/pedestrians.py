"""Synthetic pedestrians in three modalities: a small re-identification problem without a download.

A triplet is drawn once, as a map of materials, and rendered in three modalities. Only an identity's looks in RGB (colours and
pattern), NI (reflectance of the clothes) and TI (their insulation) together are unique; all else is independent of it.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from synthetic import body
from synthetic.body import LOOK_SHAPE, Build, Look, Pose, draw_body
from synthetic.scene import CAMERAS, Canvas, draw_background, draw_occluder
from synthetic.triplets import SUPERSAMPLING, Triplet, choose_looks, render

VERSION = 1  # incremented whenever the same seed gives other images
SIZE = (128, 64)  # height and width in pixels unless others are asked for
OCCLUDED_RATE, BYSTANDER_RATE = 0.35, 0.3
LOOSE_HEIGHT = (0.5, 1.0)  # of the person, in heights of the image
# of a body, and how much of it may be beyond an edge of the image, in heights of the body
HALF_WIDTH, CUT = (0.17, 0.04)
# share of an unaligned person behind what is in front of it, and draws of its place
MOST_COVERED, LOOSE_ATTEMPTS = (0.35, 50)


@dataclass(frozen=True)
class Identity:
    look: Look
    build: Build


def make_identities(number: int, seed: int) -> list[Identity]:
    """`number` identities with different combinations of looks, of which all three are needed."""
    looks = choose_looks(number, seed, LOOK_SHAPE)
    builds = [body.random_build(np.random.default_rng([seed, 1, index])) for index in range(number)]
    return list(map(Identity, (Look(*look) for look in looks), builds))


def draw_triplet(
    identity: Identity,
    camera: int,
    night: bool,
    height: int,
    width: int,
    rng: Generator,
    unaligned: bool = False,
) -> Triplet:
    """One person in camera 0, 1, …, with the person's mask. With the same state of `rng` two identities have the same
    surroundings, pose and noise. An `unaligned` person stands anywhere in the same surroundings, at half to full height."""
    # Separate streams, so that the draws of one part do not change those of another.
    scene, stance, front, sensor = rng.spawn(4)
    canvas = Canvas(height * SUPERSAMPLING, width * SUPERSAMPLING)
    pose = body.random_pose(stance, canvas.aspect)
    if unaligned:
        pose = _unalign(pose, canvas, front, stance)
    draw_background(canvas, CAMERAS[camera], night, scene)
    if scene.random() < BYSTANDER_RATE:
        # A bystander behind the person is the smaller of the two.
        scale = pose.height if unaligned else 1.0
        _draw_bystander(canvas, scene, size=(0.5, 0.8), aside=0.2, scale=scale)
    person = draw_body(canvas, identity.look, identity.build, pose)
    _draw_front(canvas, front)
    return render(canvas, person, camera, night, sensor)


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
    pose, build = body.random_pose(rng, canvas.aspect), body.random_build(rng)
    look = Look(*(int(rng.integers(count)) for count in LOOK_SHAPE))
    height = scale * rng.uniform(*size) * min(1.0, 2 * canvas.aspect)
    x = canvas.aspect * (0.5 + rng.choice([-1, 1]) * rng.uniform(aside, 0.6))
    y = 0.95 - height + rng.uniform(-0.05, 0.1)
    draw_body(canvas, look, build, replace(pose, x=x, y=y, height=height))
