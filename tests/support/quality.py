"""A small dataset of good episodes: three joints that follow their commands, seen by two cameras."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twinloop.core.records import Provenance, SimEpisode
from twinloop.core.units import DEGREES, PERCENT, unit_map_from_ranges
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import CameraSpec, DatasetSpec

JOINTS = ("left_pan", "right_lift", "gripper")
UNITS = unit_map_from_ranges(JOINTS, [[-1.5, 1.5], [-1, 2], [0, 1]], [DEGREES, DEGREES, PERCENT], source="made up")
CAMERAS = (CameraSpec(name="front", height=48, width=64), CameraSpec(name="wrist", height=48, width=64))
FPS, FRAMES, EPISODES = 30, 110, 9
_LAG = 3  # frames by which measurements follow commands


def motion(number: int, frames: int = FRAMES) -> np.ndarray:
    """Commands ``(frames, 3)``: the same reach, a little differently in each episode."""
    rng = np.random.default_rng(number)
    t = np.arange(frames) / FPS
    rates = np.array([0.5, 0.8, 0.35]) * (1 + 0.05 * rng.normal(size=3))
    phases = np.array([0.2, 1.1, 2.0]) + 0.1 * rng.normal(size=3)
    wave = np.sin(2 * np.pi * rates * t[:, None] + phases)
    return wave * [40.0, 25.0, 30.0] + [0.0, 30.0, 50.0]


def episode(number: int, *, success: bool = True) -> SimEpisode:
    """An episode that is a function of its number, neither recorded nor simulated."""
    rng = np.random.default_rng(1000 + number)
    whole = motion(number, FRAMES + _LAG)
    state = whole[:FRAMES] + 0.02 * rng.normal(size=(FRAMES, 3))
    record = Provenance(
        source="real", twin="", twin_hash="", config_hash="", params={}, seed_path=(0, number, 0), versions={},
        actor="expert", task="wave", units=UNITS.to_json(), success=success, success_version="1",
    )  # fmt: skip
    return SimEpisode(
        number=number, commands=np.empty((0, 0)), states=np.empty((0, 0)), action=whole[_LAG:], observation=state,
        next_success=np.arange(FRAMES) > FRAMES - 5 if success else np.zeros(FRAMES, dtype=bool), provenance=record,
    )  # fmt: skip


def images(number: int) -> dict[str, np.ndarray]:
    """A bright square that goes with the first two joints, before a texture of each camera's own."""
    moves = motion(number)
    made = {}
    for place, camera in enumerate(CAMERAS):
        rng = np.random.default_rng(place)
        base = np.kron(rng.integers(40, 200, size=(12, 16, 3)), np.ones((4, 4, 1)))
        base = base + np.linspace(0, 60, camera.width)[None, :: -1 if place else 1, None]
        frames = np.tile(base[None], (FRAMES, 1, 1, 1))
        for t in range(FRAMES):
            x, y = round(24 + 0.4 * moves[t, 0]), round(8 + 0.3 * moves[t, 1])
            frames[t, y : y + 10, x : x + 10] = (250, 30 + 100 * place, 20)
        made[camera.name] = np.clip(frames, 0, 255).astype(np.uint8)
    return made


def write_dataset(path: Path, *, episodes: int = EPISODES, cameras: bool = True, failed: tuple[int, ...] = ()) -> Path:
    """The dataset on disk."""
    spec = DatasetSpec(
        name="good", robot_type="made_up", fps=FPS, joints=JOINTS, units=UNITS, block_size=episodes,
        cameras=CAMERAS if cameras else (),
    )  # fmt: skip
    made = [episode(number, success=number not in failed) for number in range(episodes)]
    with DatasetWriter.open(path, spec) as writer:
        frames = (images(e.number) for e in made) if cameras else None
        writer.commit_block(0, made, frames=frames, outcome={"attempted": episodes})
        writer.finish()
    return path
