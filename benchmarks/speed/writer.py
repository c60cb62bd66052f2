"""Measure how fast episodes with two 240×320 cameras are written: ``python -m benchmarks.speed.writer``.

The frames resemble rendered ones: a shaded background, a textured table, moving shaded shapes with hard edges and mild
sensor noise. They are made before the measurement. Everything else is included: conversion, encoding, statistics,
Parquet, hashing, disk synchronization and commits. The target is at least 300 steps per second on two cores; LeRobot's
own writer reaches 86 to 130 there.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Provenance, SimEpisode
from twinloop.core.units import DEGREES, PERCENT, unit_map_from_ranges
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import CameraSpec, DatasetSpec

TARGET_STEPS_PER_S = 300.0
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
UNITS = unit_map_from_ranges(JOINTS, [[-1.7, 1.7]] * 6, [DEGREES] * 5 + [PERCENT], source="benchmark")
HEIGHT, WIDTH, STEPS, EPISODES, PER_BLOCK = 240, 320, 150, 8, 4


def run() -> dict[str, Any]:
    """Write one dataset with and one without cameras; return steps per second of each and the video size."""
    cameras = tuple(CameraSpec(name=name, height=HEIGHT, width=WIDTH) for name in ("front", "wrist"))
    frames = {camera.name: rendered_like(seed) for seed, camera in enumerate(cameras)}
    with tempfile.TemporaryDirectory() as folder:
        with_video, size = _write(Path(folder) / "video", cameras, frames, episodes=EPISODES)
        states_only, _ = _write(Path(folder) / "states", (), frames, episodes=256)
    return {
        "writer_steps_per_s": with_video,
        "writer_target_steps_per_s": TARGET_STEPS_PER_S,
        "writer_ratio": with_video / TARGET_STEPS_PER_S,
        "writer_video_mb_per_1000_steps": size / 1e6 / (EPISODES * STEPS) * 1000,
        "writer_states_only_steps_per_s": states_only,
        "cpus": os.cpu_count(),
    }


def rendered_like(seed: int, steps: int = STEPS) -> NDArray[np.uint8]:
    """Return frames ``(steps, 240, 320, 3)`` of a table scene with two moving bodies."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    sky = np.stack([180 - y / 4, 190 - y / 5, 205 - y / 6], axis=-1)
    wood = 110 + 12 * np.sin(x / 7 + 2 * np.sin(y / 23)) + rng.normal(0, 3, (HEIGHT, WIDTH))
    table = np.stack([wood * 1.1, wood * 0.9, wood * 0.6], axis=-1)
    base = np.where((y > 90)[..., None], table, sky).astype(np.float32)
    frames = np.empty((steps, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for step in range(steps):
        image = base.copy()
        angle = 0.9 * np.sin(2 * np.pi * step / 60 + seed)
        _limb(image, x, y, origin=(160, 40), angle=angle, length=95, colour=(225, 130, 40))
        elbow = (160 + 95 * np.sin(angle), 40 + 95 * np.cos(angle))
        _limb(image, x, y, origin=elbow, angle=angle * 1.7, length=70, colour=(60, 60, 70))
        image[180:204, 100 + step // 4 : 124 + step // 4] = (40, 90, 200)
        image += rng.normal(0, 1.5, image.shape).astype(np.float32)
        frames[step] = np.clip(image, 0, 255)
    return frames


def _limb(image: NDArray, x: NDArray, y: NDArray, *, origin: Any, angle: float, length: float, colour: Any) -> None:
    """Draw a shaded capsule-like limb in place."""
    along = (x - origin[0]) * np.sin(angle) + (y - origin[1]) * np.cos(angle)
    across = (x - origin[0]) * np.cos(angle) - (y - origin[1]) * np.sin(angle)
    inside = (along > 0) & (along < length) & (np.abs(across) < 11)
    shade = 1 - 0.5 * (across[inside] / 11) ** 2
    image[inside] = shade[:, None] * np.array(colour, dtype=np.float32)


def write_video(path: Path, *, run: int = 0) -> None:
    """Write the dataset with two cameras; the number ``run`` selects different episodes."""
    cameras = tuple(CameraSpec(name=name, height=HEIGHT, width=WIDTH) for name in ("front", "wrist"))
    frames = {camera.name: rendered_like(seed) for seed, camera in enumerate(cameras)}
    _write(path, cameras, frames, episodes=EPISODES, run=run)


def _episode(number: int, run: int = 0) -> SimEpisode:
    rng = np.random.default_rng(number + 1000 * run)
    action = np.cumsum(rng.normal(0, 1, (STEPS, 6)), axis=0)
    record = Provenance(
        source="sim",
        twin="benchmark",
        twin_hash="",
        config_hash="",
        params={f"joint/{joint}/damping": float(value) for joint, value in zip(JOINTS, rng.random(6), strict=True)},
        seed_path=(run, number, 0),
        versions={},
        actor="benchmark",
        task="write quickly",
        units=UNITS.to_json(),
        success=True,
    )
    return SimEpisode(
        number=number,
        commands=action / 57.3,
        states=rng.normal(size=(STEPS + 1, 40)),
        action=action,
        observation=action + rng.normal(0, 0.1, action.shape),
        next_success=np.arange(STEPS) > STEPS - 5,
        provenance=record,
    )


def _write(
    path: Path, cameras: tuple[CameraSpec, ...], frames: dict[str, NDArray[np.uint8]], *, episodes: int, run: int = 0
) -> tuple[float, int]:
    """Write ``episodes`` episodes; return steps per second, and the size of the videos in bytes."""
    block = PER_BLOCK if cameras else 64
    spec = DatasetSpec(
        name=path.name, robot_type="so101", fps=30, joints=JOINTS, units=UNITS, cameras=cameras, block_size=block
    )
    blocks = [[_episode(number, run) for number in range(k * block, (k + 1) * block)] for k in range(episodes // block)]
    start = time.perf_counter()
    with DatasetWriter.open(path, spec) as writer:
        for k, members in enumerate(blocks):
            writer.commit_block(k, members, frames=(frames for _ in members) if cameras else None)
        writer.finish()
    seconds = time.perf_counter() - start
    return episodes * STEPS / seconds, sum(file.stat().st_size for file in path.rglob("*.mp4"))


if __name__ == "__main__":
    for key, value in run().items():
        print(f"{key:34} {value:.4g}" if isinstance(value, float) else f"{key:34} {value}")
