"""Make images of synthetic scenes for studies and tests of the vision gap, without a renderer or files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import SeedPath
from twinloop.core.seeds import generator
from twinloop.sensors.camera import CameraModel, CameraSeeds, develop
from twinloop.sensors.camera.blur import blur_images

HEIGHT, WIDTH = 96, 128
_WALL, _TABLE = (0.30, 0.32, 0.36), (0.45, 0.36, 0.27)
_BLOCKS = ((0.7, 0.25, 0.05), (0.05, 0.12, 0.5), (0.08, 0.4, 0.12), (0.02, 0.02, 0.02), (0.6, 0.6, 0.6))


def scene_light(episode: int, frames: int = 3) -> NDArray[np.float32]:
    """Return linear light ``(frames, 96, 128, 3)``: shaded table, wall, and blocks at random places in every frame."""
    rng = generator(7, "study/vision/scene", episode)
    y, x = np.mgrid[:HEIGHT, :WIDTH] / np.array([HEIGHT, WIDTH])[:, None, None]
    ground = np.where((y < 0.35)[..., None], _WALL, _TABLE) * (0.75 + 0.4 * y[..., None])
    light = np.repeat(ground[None], frames, axis=0)
    for frame in light:
        for colour in _BLOCKS:
            tall, wide = rng.uniform(0.15, 0.3, 2) * HEIGHT
            top, left = rng.uniform(0, HEIGHT - tall), rng.uniform(0, WIDTH - wide)
            rows, columns = slice(int(top), int(top + tall)), slice(int(left), int(left + wide))
            frame[rows, columns] = np.array(colour) * (0.8 + 0.4 * x[rows, columns, None])
    return light.astype(np.float32)


def camera_images(
    episodes: int, *, blur: float = 0.6, first: int = 0, frames: int = 3, **values: Any
) -> list[NDArray[np.uint8]]:
    """Return one array ``(frames, 96, 128, 3)`` of camera images per episode; ``first`` is the first episode's number.

    ``blur`` is the standard deviation of the optical blur in px, ``values`` are parameters of `CameraModel`.
    """
    model = CameraModel(**values)
    times, made = np.arange(frames) / 30, []
    for episode in range(first, first + episodes):
        seeds = CameraSeeds(path=SeedPath.of(0, [episode]), sensor="front")
        light = blur_images(scene_light(episode, frames), blur)
        made.append(develop(light, model, time=times, numbers=np.arange(frames), seeds=seeds))
    return made
