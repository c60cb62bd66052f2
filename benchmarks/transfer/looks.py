"""Take images of the front camera of an SO-101 that does pick-and-place, in several looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.pixel_settings import CAMERAS
from twinloop.randomize.section import section_plan
from twinloop.rollout import EpisodeStart, ExpertActor, run_batch
from twinloop.rollout.world_camera import WorldCamera
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors

HEIGHT, WIDTH = 240, 320
_NOISE = [0.4, 0.6]  # an image of 240 rows averages the noise of 2×2 pixels of a camera with 480 rows
CAD = str(Path(__file__).parents[2] / "examples" / "so101_cad.yaml")
_QUALITY = {"mitsuba": {"samples": 16}}


@dataclass(frozen=True, kw_only=True)
class ImageLook:
    """How images are made.

    Attributes:
        label: description in a table.
        renderer: name of the renderer.
        rooms: first and last number of the rooms; None for the twin as it is.
        twin: name or file of the twin.
        device: another model of the camera; "" for the twin's own.
    """

    label: str
    renderer: str = "gl"
    rooms: tuple[int, int] | None = (1, 1000)
    twin: str = "so101_tabletop"
    device: str = ""


def take_images(look: ImageLook, *, seed: int, episodes: int, steps: Sequence[int]) -> NDArray[np.uint8]:
    """Return images through the model of the camera, ``(episodes, len(steps), HEIGHT, WIDTH, 3)``.

    Args:
        look: how they are made.
        seed: run seed of the worlds.
        episodes: number of worlds, each in another room.
        steps: control steps at which images are taken.
    """
    twin = load_twin(look.twin)
    if look.device:
        twin = add_twin_sensors(twin, {CAMERAS[0]: SensorSpec(device=look.device)})
    task, numbers = open_task("pick_and_place", twin), range(episodes)
    section: dict[str, Any] = {"default": True, "params": {f"sensor/{CAMERAS[0]}/noise_scale": _NOISE}}
    if look.rooms is not None:
        section["visual"] = {"rooms": list(look.rooms)}
    plan = section_plan(section, twin, run_seed=seed, episodes=episodes, where="the looks")
    params = plan.draw(numbers)
    batch = run_batch(twin, task, params, run_seed=seed, episodes=numbers, actor=ExpertActor(task=task))
    camera = WorldCamera(
        twin, CAMERAS[:1], height=HEIGHT, width=WIDTH, renderer=look.renderer, scenery=plan.scenery, sensors=True,
        quality=_QUALITY.get(look.renderer),
    )  # fmt: skip
    start = EpisodeStart(numbers=np.array(numbers), params=params, initial=batch.initial, run_seed=seed)
    camera.begin_worlds(start, task.nstep)
    taken = list[NDArray[np.uint8]]()
    for step in range(max(steps) + 1):
        camera.watch(batch.trajectories.states[:, step])
        if step in steps:
            taken.append(camera.take(np.array(numbers), step)[CAMERAS[0]])
    camera.close()
    return np.stack(taken, axis=1)
