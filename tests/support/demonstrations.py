"""Demonstrations made by formula: reach, close on something, carry, open, go home, all along minimum-jerk ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from twinloop.core.records import Episode, Source
from twinloop.core.units import RADIANS, JointUnit, UnitMap
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.dataset.logs.conversion import write_log_dataset

HZ = 30.0
JOINTS = ("pan", "lift", "elbow", "gripper")
UNITS = UnitMap(
    joints=tuple(JointUnit(joint=name, unit=RADIANS, scale=1.0, offset=0.0) for name in JOINTS), source="test"
)
OPEN, CLOSED, HELD = 1.0, 0.0, 0.2


def demonstration(index: int, *, seed: int = 0, source: Source = "real", gain: float = 1.0, noise: float = 0.0005):
    """One demonstration of eight seconds: places by chance, commands a tenth of a second ahead."""
    rng = np.random.default_rng([seed, index])
    home = np.array([0.0, -1.0, 1.2])
    pick = np.array([rng.uniform(-0.6, 0.0), rng.uniform(0.0, 0.5), rng.uniform(0.2, 0.6)])
    place = np.array([rng.uniform(0.2, 0.8), rng.uniform(0.0, 0.5), rng.uniform(0.2, 0.6)])
    points = [home, pick, pick, place, place, home]
    lasts = np.array([1.8, 0.6, 1.8, 0.6, 1.8]) * rng.uniform(0.85, 1.15, 5)
    way, closes = [home[None]], 0
    for a, b, seconds in zip(points[:-1], points[1:], lasts, strict=True):
        s = np.linspace(0.0, 1.0, round(seconds * HZ) + 1)[1:, None]
        way.append(a + gain * (b - a) * (10 * s**3 - 15 * s**4 + 6 * s**5) + (1 - gain) * (b - a) * s)
    arm = np.concatenate(way)
    closes, opens = round(lasts[0] * HZ) + 4, round(lasts[:3].sum() * HZ) + 4
    grip = np.full(len(arm), OPEN)
    grip[closes:opens] = CLOSED
    command = np.column_stack([np.concatenate([arm[3:], np.repeat(arm[-1:], 3, axis=0)]), grip])
    held = np.where(np.arange(len(arm)) < opens, np.maximum(grip, HELD), grip)
    smooth = np.convolve(np.pad(held, (4, 0), mode="edge"), np.ones(5) / 5, mode="valid")
    state = np.column_stack([arm, smooth])
    state += noise * rng.normal(size=state.shape)
    return Episode(
        index=index, time=np.arange(len(arm)) / HZ, action=command, state=state, units=UNITS, task="pick and place",
        source=source, robot_type="test_arm",
    )  # fmt: skip


def many(count: int, **keys: object) -> list[Episode]:
    """Demonstrations 0 to ``count`` − 1."""
    return [demonstration(index, **keys) for index in range(count)]  # pyright: ignore[reportArgumentType]


def changed(episode: Episode, *, state: np.ndarray | None = None, action: np.ndarray | None = None) -> Episode:
    """The same episode with other numbers, at the same rate."""
    new = episode.state if state is None else state
    act = episode.action if action is None else action
    return replace(episode, state=new, action=act, time=np.arange(len(new)) / HZ)


def recordings(
    folder: Path, episodes: Sequence[Episode], *, successes: Sequence[bool] | None = None
) -> list[RecordedEpisode]:
    """The episodes as a dataset that is read back."""
    numbered = [replace(episode, index=index) for index, episode in enumerate(episodes)]
    path = write_log_dataset(numbered, folder)
    found = open_recordings(path)
    if successes is None:
        return found
    labels = {recording.episode_id: bool(flag) for recording, flag in zip(found, successes, strict=True)}
    return open_recordings(path, successes=labels)


def flagged(check: object, found: Sequence[RecordedEpisode], channel: str | None = None) -> set[int]:
    """Places of the episodes that a check finds suspect or bad."""
    scores = list(check.score(found))  # pyright: ignore[reportAttributeAccessIssue]
    assert {score.episode_id for score in scores} == {recording.episode_id for recording in found}
    wrong = {
        s.episode_id for s in scores if s.verdict in ("suspect", "bad") and (channel is None or s.channel == channel)
    }
    return {place for place, recording in enumerate(found) if recording.episode_id in wrong}
