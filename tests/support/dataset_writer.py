"""What tests of several files share: dataset writer."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import numpy as np

from twinloop.core.records import Provenance, SimEpisode
from twinloop.core.units import DEGREES, PERCENT, unit_map_from_ranges
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.media.video import encode_block
from twinloop.dataset.spec import CameraSpec, DatasetSpec

JOINTS = ("shoulder_pan", "elbow_flex", "gripper")


UNITS = unit_map_from_ranges(JOINTS, [[-1.5, 1.5], [-1, 2], [0, 1]], [DEGREES, DEGREES, PERCENT], source="planted")


CAMERAS = (CameraSpec(name="front", height=48, width=64), CameraSpec(name="wrist", height=32, width=48))


SPEC = DatasetSpec(
    name="planted", robot_type="so101_follower", fps=30, joints=JOINTS, units=UNITS, block_size=4, config={"seed": 7}
)


SPEC_VIDEO = dataclasses.replace(SPEC, cameras=CAMERAS)


KEPT = {0: [0, 1, 3], 1: [], 2: [8, 10], 3: [12, 13, 14, 15]}  # episode numbers by block; block 1 keeps none


def planted(number: int) -> SimEpisode:
    """An episode that is a function of its number alone."""
    rng = np.random.default_rng(number)
    length = 35 + number
    action = np.cumsum(rng.normal(size=(length, 3)), axis=0)
    record = Provenance(
        source="sim",
        twin="so101_tabletop",
        twin_hash="t" * 64,
        config_hash="c" * 64,
        params={"object/cube/mass": float(rng.random()), "joint/elbow_flex/damping": float(rng.random())},
        seed_path=(7, number, 0),
        versions={"mujoco": "4.0.0", "twinloop": "0.1.0"},
        actor="expert:pick_and_place",
        task="put the cube into the zone" if number % 2 else "put the cube back",
        units=UNITS.to_json(),
        success=True,
        success_version="1",
    )
    return SimEpisode(
        number=number,
        commands=rng.normal(size=(length, 3)),
        states=rng.normal(size=(length + 1, 17)),
        action=action,
        observation=action + rng.normal(scale=0.1, size=action.shape),
        next_success=np.arange(length) > length - 4,
        provenance=record,
    )


def images(number: int, length: int) -> dict[str, np.ndarray]:
    """Smooth moving frames, a function of the episode number."""
    result = {}
    for offset, camera in enumerate(CAMERAS):
        y, x = np.mgrid[: camera.height, : camera.width]
        planes = [
            np.stack([(2 * x + t + number) % 200, (3 * y + 20 * offset) % 220, (x + y + 2 * t) % 180], axis=-1)
            for t in range(length)
        ]
        result[camera.name] = np.stack(planes).astype(np.uint8)
    return result


def commit(writer: DatasetWriter, block: int) -> None:
    episodes = [planted(number) for number in KEPT[block]]
    frames = (images(e.number, len(e)) for e in episodes) if writer.spec.cameras else None
    writer.commit_block(block, episodes, frames=frames, outcome={"attempted": 4, "success": len(episodes)})


def write_all(path: Path, spec: DatasetSpec = SPEC, *, resume: bool = False) -> Path:
    with DatasetWriter.open(path, spec, resume=resume) as writer:
        for block in sorted(KEPT.keys() - writer.committed_blocks):
            commit(writer, block)
        writer.finish({"yield": 0.5625})
    return path


def encode_under_a_limit(folder: Path) -> None:
    """Encode two cameras where no file may grow beyond a few kilobytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
    paths = {camera.name: folder / f"{camera.name}.mp4" for camera in CAMERAS}
    encode_block([images(0, 60)] * 3, CAMERAS, paths, fps=30)
