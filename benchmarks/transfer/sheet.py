"""Write a contact sheet of looks: ``python -m benchmarks.transfer.sheet docs/images/looks.jpg``.

Each column is one random room, seen by the front camera of the example twin through its camera model: with the
rasterizer above, with the path tracer below. The rooms of the right half have surfaces, clutter and lamps that no room
of the left half has.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.pixel_settings import CAMERAS
from benchmarks.transfer.settings import PLACES
from twinloop.core.files import write_bytes
from twinloop.randomize.section import section_plan
from twinloop.render import contact_sheet
from twinloop.rollout import EpisodeStart, ExpertActor, run_batch
from twinloop.rollout.world_camera import WorldCamera
from twinloop.tasks import open_task
from twinloop.twin import load_twin

_ROOMS = ((1, 1000), (100_001, 200_000))
_EACH, _STEP = 3, 45  # rooms of each kind; control step at which the images are taken
_HEIGHT, _WIDTH = 240, 320
_QUALITY = {"mitsuba": {"samples": 16}}


def take_looks(renderer: str, rooms: tuple[int, int], seed: int) -> list[NDArray[np.uint8]]:
    """Return images of the front camera in random rooms.

    Args:
        renderer: name of the renderer.
        rooms: first and last number of the rooms.
        seed: run seed of the worlds.
    """
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    section = {"default": True, "visual": {"rooms": list(rooms)}}
    plan = section_plan(section, twin, run_seed=seed, episodes=_EACH, where="the contact sheet")
    params, numbers = plan.draw(range(_EACH)), range(_EACH)
    batch = run_batch(twin, task, params, run_seed=seed, episodes=numbers, actor=ExpertActor(task=task))
    quality = _QUALITY.get(renderer)
    camera = WorldCamera(
        twin, CAMERAS[:1], height=_HEIGHT, width=_WIDTH, renderer=renderer, scenery=plan.scenery, sensors=True,
        quality=quality,
    )  # fmt: skip
    start = EpisodeStart(numbers=np.arange(_EACH), params=params, initial=batch.initial, run_seed=seed)
    camera.begin_worlds(start, task.nstep)
    for step in range(_STEP + 1):
        camera.watch(batch.trajectories.states[:, step])
    images = camera.take(np.arange(_EACH), _STEP)[CAMERAS[0]]
    camera.close()
    return list(images)


def main() -> None:
    """Write the sheet to the file that is named on the command line."""
    from PIL import Image

    images, labels = list[NDArray[np.uint8]](), list[str]()
    for renderer, what in (("gl", "rasterizer"), ("mitsuba", "path tracer")):
        for rooms, kind in zip(_ROOMS, ("training rooms", "other rooms"), strict=True):
            images += take_looks(renderer, rooms, PLACES)
            labels += [f"{what}, {kind}"] * _EACH
    buffer = io.BytesIO()
    Image.fromarray(contact_sheet(images, labels, columns=2 * _EACH)).save(buffer, "JPEG", quality=85)
    write_bytes(Path(sys.argv[1]), buffer.getvalue())


if __name__ == "__main__":
    main()
