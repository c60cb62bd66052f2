"""Take photos of a virtual SO-101 and label them by clicks, as a person with a real one would.

``python examples/photos_of_a_virtual_robot.py FOLDER`` writes 20 photos of both cameras and ``photos.yaml``. The robot
has parameters and camera poses that its twin does not know, and stands in a room that no training image shows. The
clicks are 2 pixels off (standard deviation).
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import tyro
import yaml
from numpy.typing import NDArray
from PIL import Image

from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.hardware import make_hidden_cell
from twinloop.render.cameras import opencv_pose
from twinloop.rollout import EpisodeStart, ExpertActor, run_batch
from twinloop.rollout.camera import TwinCamera
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate.protocol import state_poses
from twinloop.tasks import open_task
from twinloop.twin import Twin, load_twin
from twinloop.twin.model_text import world_model_inplace
from twinloop.twin.places import Scenery

HEIGHT, WIDTH, CAMERAS, CLICK_PX = 480, 640, ("front", "wrist"), 2.0
REST = 9  # control steps for which the arm rests, longer than the camera's latency
FREE_M = 0.06  # the tool is at least this far from the cube, so that it does not hide it


@dataclass(frozen=True)
class Photos:
    """What to photograph.

    Attributes:
        folder: folder for the photos.
        robot: seed of the robot's hidden parameters.
        room: number of the room.
        count: number of photos.
        renderer: gl, filament or mitsuba (path tracer).
    """

    folder: tyro.conf.Positional[Path]
    robot: int = 3
    room: int = 100_007
    count: int = 20
    renderer: str = "gl"


def take_photos(asked: Photos) -> None:
    """Write the photos and their labels."""
    cell, numbers = make_hidden_cell(load_twin("so101_tabletop"), asked.robot), range(asked.count)
    task = open_task("pick_and_place", cell.twin)
    table = cell.table(cell.plan(asked.robot).draw(numbers))
    values = table.values.copy()
    values[:, table.names.index("place/room")] = asked.room
    params = replace(table, values=values)
    batch = run_batch(cell.twin, task, params, run_seed=0, episodes=numbers, actor=ExpertActor(task=task))
    states, tracked = batch.trajectories.states[:, :-1], task.environment(batch.trajectories.states[:, :-1])
    places = {
        body: tracked[..., [task.environment_names.index(f"{body}.{axis}") for axis in "xyz"]]
        for body in ("cube", "target", "tool")
    }
    lying = np.linalg.norm(places["cube"] - places["cube"][:, :1], axis=-1) < 0.005
    free = lying & (np.linalg.norm(places["tool"] - places["cube"], axis=-1) > FREE_M)
    chance = generator(asked.robot, "photos")
    steps = np.array([chance.choice(np.flatnonzero(row)) for row in free])
    held = states[numbers, steps]  # the arm rests while a photo is taken
    camera = WorldCamera(
        cell.twin, CAMERAS, height=HEIGHT, width=WIDTH, renderer=asked.renderer,
        scenery=Scenery(rooms=True, seed=asked.robot), sensors=True,
    )  # fmt: skip
    camera.begin_worlds(
        EpisodeStart(numbers=np.array(numbers), params=params, initial=batch.initial, run_seed=0), REST + 1
    )
    for _ in range(REST + 1):
        camera.watch(held)
    images = camera.take(np.array(numbers), REST)
    camera.close()
    asked.folder.mkdir(parents=True, exist_ok=True)
    entries = list[dict[str, Any]]()
    for number in numbers:
        files = {name: f"{number + 1:02d}_{name}.jpg" for name in CAMERAS}
        for name, file in files.items():
            Image.fromarray(images[name][number]).save(asked.folder / file, quality=90)
        points = {body: place[number, steps[number]] for body, place in places.items()}
        clicks = click(cell.twin, params.take([number]), held[number], points, chance)
        joints = batch.observation[number, steps[number]].round(3).tolist()
        entries.append({"images": files, "joints": joints, "clicks": clicks})
    text = yaml.safe_dump({"photos": entries}, sort_keys=False, default_flow_style=None)
    (asked.folder / "photos.yaml").write_text(text)


def click(
    twin: Twin, params: ParamTable, state: NDArray, points: Mapping[str, NDArray], chance: np.random.Generator
) -> dict[str, dict[str, list[float]]]:
    """Return the clicks in a photo of the front camera on bodies at points of the world, where it sees them."""
    model = copy.copy(twin.model)
    world_model_inplace(twin, params, model)
    data = mujoco.MjData(model)
    data.qpos[:] = state_poses(model, state[None])["qpos"][0]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    row = model.camera("front").id
    pose = opencv_pose(data.cam_xpos[row], data.cam_xmat[row])
    lens = TwinCamera.of(twin, params, "front", height=HEIGHT, width=WIDTH, model=model)
    clicks = {}
    for body, point in points.items():
        bent = lens.lens.project((pose[:3, :3].T @ (point - pose[:3, 3]))[None])[0]
        pixel = bent * [lens.target.fx, lens.target.fy] + [lens.target.cx, lens.target.cy]
        pixel += chance.normal(0.0, CLICK_PX, 2)
        if np.all((pixel >= 0) & (pixel < [WIDTH, HEIGHT])):
            clicks[body] = {"front": pixel.round(1).tolist()}
    return clicks


if __name__ == "__main__":
    take_photos(tyro.cli(Photos, description=__doc__))
