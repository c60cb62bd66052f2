"""Small datasets to train on, and frames in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from twinloop.core.contract import ACTION, STATE, Contract
from twinloop.core.records import Provenance, SimEpisode
from twinloop.core.units import DEGREES, RADIANS, UnitMap, unit_map_from_ranges
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.train.config import SourceConfig, TrainConfig
from twinloop.train.data import TrainingFrames
from twinloop.train.sources import ListedEpisode, TrainingSource

JOINTS = ("pan", "lift")
RANGES = [[-2.0, 2.0], [-1.0, 1.0]]
DEG = unit_map_from_ranges(JOINTS, RANGES, [DEGREES] * 2, source="planted")
RAD = unit_map_from_ranges(JOINTS, RANGES, [RADIANS] * 2, source="planted")


def movement(number: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Readings and commands in rad ``(T, 2)``: a command is a function of the reading, so it can be learned."""
    rng = np.random.default_rng(number)
    state = np.cumsum(rng.normal(scale=0.05, size=(length, 2)), axis=0)
    return state, np.stack([0.8 * state[:, 0] - 0.1, np.tanh(state[:, 1])], axis=1)


def episode(number: int, units: UnitMap, *, length: int, success: bool = True, real: bool = False) -> SimEpisode:
    """One episode, a function of its number."""
    state, action = movement(number, length)
    record = Provenance(
        source="real" if real else "sim",
        twin="planted",
        twin_hash="t" * 64,
        config_hash="c" * 64,
        params={} if real else {"joint/pan/damping": 1.0 + number, "joint/lift/damping": 2.0},
        seed_path=(0, number, 0),
        versions={"mujoco": "4.0.0", "twinloop": "0.1.0"},
        actor="planted",
        task="follow",
        units=units.to_json(),
        success=success,
        success_version="1",
    )
    return SimEpisode(
        number=number,
        commands=action,
        states=np.zeros((length + 1, 3)),
        action=units.from_si(action),
        observation=units.from_si(state),
        next_success=np.arange(length) > length - 3,
        provenance=record,
    )


def dataset(
    path: Path, numbers: range, *, units: UnitMap = DEG, real: bool = False, failed: tuple[int, ...] = (), length=12
) -> Path:
    """A LeRobot v3.0 folder of ours; episode n has ``length`` + n % 3 frames."""
    spec = DatasetSpec(
        name=path.name, robot_type="planted", fps=30, joints=JOINTS, units=units, block_size=len(numbers)
    )
    episodes = [
        dataclasses.replace(episode(n, units, length=length + n % 3, success=n not in failed, real=real), number=i)
        for i, n in enumerate(numbers)
    ]
    with DatasetWriter.open(path, spec) as writer:
        writer.commit_block(0, episodes, outcome={"attempted": len(numbers), "success": len(numbers)})
        writer.finish({})
    return path


def frames(
    lengths: list[list[int]], *, real: list[bool] | None = None, weights: list[float | None] | None = None
) -> TrainingFrames:
    """Frames in memory: the lengths of each source's episodes; the first column of ``action`` numbers the frames."""
    flat = np.array([length for source in lengths for length in source])
    last = np.cumsum(flat) - 1
    count = int(flat.sum())
    columns = np.stack([np.arange(count), -np.arange(count)], axis=1).astype(np.float32)
    sources, episodes = [], []
    for number, mine in enumerate(lengths):
        listed = tuple(
            ListedEpisode(
                folder=Path(f"s{number}"),
                index=i,
                episode_id=f"{number:032x}{i:032x}",
                real=bool(real and real[number]),
            )
            for i in range(len(mine))
        )
        episodes += listed
        config = SourceConfig(data=f"s{number}", weight=weights[number] if weights else None)
        sources.append(TrainingSource(name=f"s{number}", config=config, episodes=listed))
    return TrainingFrames(
        columns={ACTION: columns, STATE: columns + 0.5},
        first=last + 1 - flat,
        last=last,
        source_of=np.repeat(np.arange(len(lengths)), [len(mine) for mine in lengths]),
        episodes=tuple(episodes),
        sources=tuple(sources),
        contract=Contract(robot_type="planted", control_hz=30, action=DEG, state=DEG),
    )


def config(*folders: Path, **said) -> TrainConfig:
    """A run of a few steps of a small network."""
    small = {"width": 16, "depth": 1, "chunk_size": 4, "n_action_steps": 2, "dropout": 0.1, "loss": "mse"}
    defaults = {"steps": 12, "batch": 16, "evaluations": 3, "settings": small, "lr": 3e-3}
    return TrainConfig.of({"sources": [{"data": str(folder)} for folder in folders], **defaults, **said})
