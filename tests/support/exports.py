"""Small datasets to export: one with images, true times and contacts, and one out of a simulation with a mesh."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

from twinloop.core.records import Episode, LoggedSignal, Provenance, SimEpisode
from twinloop.core.units import DEGREES, PERCENT, unit_map_from_ranges
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.spec import CameraSpec, DatasetSpec, ReadingSpec
from twinloop.generate import generate_states, resolve_config

ROOT = Path(__file__).parents[2]
JOINTS = ("shoulder", "elbow", "gripper")
UNITS = unit_map_from_ranges(JOINTS, [[-1.5, 1.5], [-1, 2], [0, 1]], [DEGREES, DEGREES, PERCENT], source="planted")
CAMERAS = (CameraSpec(name="front", height=48, width=64), CameraSpec(name="wrist", height=32, width=48))
LENGTHS = (13, 8, 11)  # odd ones, so that an episode does not begin where a key frame is due anyway
FPS = 20


def times(number: int) -> np.ndarray:
    """True times of T + 1 states: an unsteady loop that begins at 0.25 s."""
    steps = 1 / FPS * (1 + 0.2 * np.random.default_rng(number).random(LENGTHS[number]))
    return 0.25 + np.concatenate([[0.0], np.cumsum(steps)])


def images(number: int) -> dict[str, np.ndarray]:
    """Smooth moving frames, a function of the episode number."""
    made = {}
    for offset, camera in enumerate(CAMERAS):
        y, x = np.mgrid[: camera.height, : camera.width]
        planes = [
            np.stack([(2 * x + 9 * t + number) % 200, (3 * y + 20 * offset) % 220, (x + y + 12 * t) % 180], axis=-1)
            for t in range(LENGTHS[number])
        ]
        made[camera.name] = np.stack(planes).astype(np.uint8)
    return made


def planted(number: int) -> SimEpisode:
    """An episode that is a function of its number alone."""
    rng, length = np.random.default_rng(number), LENGTHS[number]
    action = np.cumsum(rng.normal(size=(length, 3)), axis=0)
    record = Provenance(
        source="sim",
        twin="planted_twin",
        twin_hash="t" * 64,
        config_hash="c" * 64,
        params={"object/cube/mass": float(rng.random())},
        seed_path=(7, number, 0),
        versions={"mujoco": "4.0.0"},
        actor="expert:test",
        task="put the cube into the zone",
        units=UNITS.to_json(),
        success=True,
    )
    return SimEpisode(
        number=number,
        commands=rng.normal(size=(length, 3)),
        states=np.concatenate([times(number)[:, None], rng.normal(size=(length + 1, 9))], axis=1),
        action=action,
        observation=action + rng.normal(scale=0.1, size=action.shape),
        next_success=np.arange(length) > length - 4,
        provenance=record,
        readings={"observation.imu.tool": rng.normal(size=(length, 2))},
    )


def contacts(number: int) -> pa.Table:
    """One contact in every third frame, with a force that grows."""
    frames = np.arange(0, LENGTHS[number], 3)
    vectors = pa.list_(pa.float64(), 3)
    forces = [[0.0, 0.5 * f, 1.0 + f] for f in frames]
    return pa.table(
        {
            "number": pa.array(np.full(len(frames), number), pa.int64()),
            "frame_index": pa.array(frames, pa.int64()),
            **{key: [key.replace("1", "_a").replace("2", "_b")] * len(frames) for key in BODIES},
            "distance": pa.array(np.full(len(frames), -1e-4)),
            "position": pa.array([[0.1, 0.2, 0.01 * f] for f in frames], vectors),
            "normal": pa.array([[0.0, 0.0, 1.0]] * len(frames), vectors),
            "force": pa.array(forces, vectors),
            "torque": pa.array([[0.0, 0.0, 0.0]] * len(frames), vectors),
        }
    )


BODIES = ("body1", "body2", "geom1", "geom2")


def image_dataset(path: Path) -> Path:
    """Three simulated episodes with two cameras, readings, contacts and an unsteady clock."""
    spec = DatasetSpec(
        name="planted",
        robot_type="so101_follower",
        fps=FPS,
        joints=JOINTS,
        units=UNITS,
        block_size=4,
        cameras=CAMERAS,
        readings=(ReadingSpec(name="imu.tool", columns=("gyro.x", "accel.z"), units=("rad/s", "m/s²")),),
    )
    numbers = range(len(LENGTHS))
    with DatasetWriter.open(path, spec) as writer:
        writer.commit_block(
            0,
            [planted(number) for number in numbers],
            frames=(images(number) for number in numbers),
            outcome={"attempted": 4, "success": 3},
            tables={"annotations/contacts": pa.concat_tables(map(contacts, numbers))},
        )
        writer.finish({})
    return path


def recorded_log(units: object = UNITS) -> Episode:
    """A recorded episode whose numbers float32 cannot hold, with a wrench at other times."""
    rng = np.random.default_rng(3)
    time = np.cumsum(0.05 + 0.01 * rng.random(9))
    wrench = LoggedSignal(time=np.linspace(0.06, 0.4, 30), values=rng.normal(size=(30, 6)), columns=WRENCH, unit="")
    return Episode(
        index=4,
        time=time,
        action=rng.normal(size=(9, 3)),
        state=rng.normal(size=(9, 3)),
        units=units,
        task="wave",
        origin="arm.csv",
        robot_type="arm",
        signals={"wrench/tool": wrench},
    )


WRENCH = ("fx", "fy", "fz", "tx", "ty", "tz")


def recorded_dataset(path: Path) -> Path:
    """One recorded episode."""
    return write_log_dataset([recorded_log()], path)


_TWIN = """
schema: 1
name: mast
model: mast.xml
control_hz: 20
substeps: 4
robot: {type: mast, joints: [turn, nod], units: [rad, deg], control: torque}
sensors: {feel: {device: ideal_imu, site: tip}}
params:
  - {name: "joint/nod/damping", range: [0.5, 2], op: scale, source: test}
  - {name: "joint/turn/damping", range: [0.5, 2], op: scale, source: test}
"""
_MODEL = """
<mujoco>
  <option integrator="implicitfast"/>
  <asset><mesh name="wedge" file="wedge.stl"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 1" pos="0 0 -0.6"/>
    <body name="arm"><joint name="turn" axis="0 0 1" damping="0.01"/>
      <geom name="arm" type="box" size="0.3 0.1 0.05" rgba="0.9 0.3 0.1 1"/>
      <body name="hand" pos="0.3 0 0"><joint name="nod" axis="0 1 0" damping="0.01"/>
        <geom name="hand" type="mesh" mesh="wedge" rgba="0.1 0.3 0.9 1"/><site name="tip" pos="0.1 0 0"/></body></body>
  </worldbody>
  <actuator><motor name="turn" joint="turn"/><motor name="nod" joint="nod"/></actuator>
</mujoco>
"""


def generated_dataset(folder: Path) -> Path:
    """Three episodes of a two-jointed mast with a hand out of a mesh file, without images."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mast.yaml").write_text(_TWIN)
    (folder / "mast.xml").write_text(_MODEL)
    (folder / "wedge.stl").write_bytes(_tetrahedron())
    shutil.copy(ROOT / "benchmarks" / "speed" / "swing.py", folder)
    value = {
        "scene": {"twin": "mast.yaml", "task": "swing.py:Swing"},
        "randomization": "default",
        "rollout": {"parallel_envs": 3, "sensors": "all"},
    }
    generate_states(resolve_config(value, where="test", folder=folder, keep="all"), folder / "states")
    return folder / "states"


def _tetrahedron() -> bytes:
    """A solid of four faces, 0.2 m long, as binary STL."""
    a, b, c, d = (0, 0, 0), (0.2, 0, 0), (0, 0.1, 0), (0, 0, 0.1)
    faces = [(a, c, b), (a, b, d), (a, d, c), (b, c, d)]
    rows = [struct.pack("<12fH", 0, 0, 0, *(x for vertex in face for x in vertex), 0) for face in faces]
    return bytes(80) + struct.pack("<I", len(faces)) + b"".join(rows)
