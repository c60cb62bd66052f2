"""Pictures of invented scenes for tests of the vision gap: no renderer, no files."""

import numpy as np

from twinloop.core.params import SeedPath
from twinloop.sensors.camera import CameraModel, CameraSeeds, develop
from twinloop.sensors.camera.blur import blurred

HEIGHT, WIDTH = 96, 128


def scene_light(episode, frames=3, height=HEIGHT, width=WIDTH):
    """Linear light ``(frames, h, w, 3)``: a shaded table, a wall, and blocks that stand elsewhere in every frame."""
    rng = np.random.default_rng([7, episode])
    y, x = np.mgrid[:height, :width] / [[[height]], [[width]]]
    ground = np.where((y < 0.35)[..., None], [0.30, 0.32, 0.36], [0.45, 0.36, 0.27]) * (0.75 + 0.4 * y[..., None])
    light = np.repeat(ground[None], frames, axis=0)
    colours = np.array([[0.7, 0.25, 0.05], [0.05, 0.12, 0.5], [0.08, 0.4, 0.12], [0.02, 0.02, 0.02], [0.6, 0.6, 0.6]])
    for frame in light:
        for colour in colours:
            tall, wide = rng.uniform(0.15, 0.3, 2) * height
            top, left = rng.uniform(0, height - tall), rng.uniform(0, width - wide)
            rows, columns = slice(int(top), int(top + tall)), slice(int(left), int(left + wide))
            frame[rows, columns] = colour * (0.8 + 0.4 * x[rows, columns, None])
    return light.astype(np.float32)


def camera_pictures(episodes, *, blur=0.6, first=0, frames=3, **values):
    """Pictures of several episodes ``(frames, h, w, 3)`` as a camera with such values delivers them."""
    model = CameraModel(**values)
    times, made = np.arange(frames) / 30, []
    for episode in range(first, first + episodes):
        seeds = CameraSeeds(path=SeedPath.of(0, [episode]), sensor="front")
        light = blurred(scene_light(episode, frames), blur)
        made.append(develop(light, model, time=times, numbers=np.arange(frames), seeds=seeds))
    return made
