"""Faults of demonstrations, planted into episodes that are good: what each does to one, at several severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode

Array = NDArray[np.float64]
Plant = Callable[[Episode, float, np.random.Generator], Episode]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what it is called, its severities with their words, and which checks are to find it.

    ``copies`` says that the faulty episode is added beside its original instead of taking its place.
    """

    name: str
    severities: tuple[tuple[float, str], ...]
    checks: tuple[str, ...]
    plant: Plant
    copies: bool = False


def _arm(episode: Episode) -> list[int]:
    return [i for i, joint in enumerate(episode.joints) if "grip" not in joint]


def _grip(episode: Episode) -> int:
    return next(i for i, joint in enumerate(episode.joints) if "grip" in joint)


def _rate(episode: Episode) -> float:
    return 1.0 / float(np.median(np.diff(episode.time)))


def _moved(episode: Episode, change: Array) -> Episode:
    """Commands and positions moved by the same ``(T, narm)`` of the arm's joints."""
    action, state, arm = episode.action.copy(), episode.state.copy(), _arm(episode)
    action[:, arm] += change
    state[:, arm] += change
    return replace(episode, action=action, state=state)


def _rows(episode: Episode, at: NDArray[Any]) -> Episode:
    """The episode at other frames, between frames linearly, at its own rate."""
    frames = np.arange(len(episode))
    action, state = (
        np.column_stack([np.interp(at, frames, column) for column in table.T])
        for table in (episode.action, episode.state)
    )
    return replace(
        episode, time=episode.time[0] + np.arange(len(at)) / _rate(episode), action=action, state=state, signals={}
    )


def tremor(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """A shaking hand: 8 Hz, ``severity`` of each joint's range (physiological tremor: 8 to 12 Hz)."""
    arm = _arm(episode)
    phase = 2 * np.pi * (8.0 * (episode.time - episode.time[0])[:, None] + rng.random(len(arm)))
    return _moved(episode, severity * np.ptp(episode.state[:, arm], axis=0) * np.sin(phase))


def jerky(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """The filter of a teleoperation is broken: commands and positions hold for ``severity`` frames, then jump."""
    offset = int(rng.integers(0, int(severity)))
    held = np.maximum((np.arange(len(episode)) + offset) // int(severity) * int(severity) - offset, 0)
    arm, action, state = _arm(episode), episode.action.copy(), episode.state.copy()
    action[:, arm], state[:, arm] = action[held][:, arm], state[held][:, arm]
    return replace(episode, action=action, state=state)


def detour(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """``severity`` times out and back by 60 % of its range in two joints, a second each: searching about."""
    arm = _arm(episode)
    width = min(round(_rate(episode)), (len(episode) - 2) // int(severity))
    starts = np.linspace(1, len(episode) - width - 1, int(severity) + 2)[1:-1].astype(int)
    change = np.zeros((len(episode), len(arm)))
    for start in starts:
        joints = rng.choice(len(arm), size=min(2, len(arm)), replace=False)
        side = rng.choice([-1.0, 1.0], size=len(joints))
        change[start : start + width, joints] += side * np.hanning(width)[:, None]
    return _moved(episode, 0.6 * np.ptp(episode.state[:, arm], axis=0) * change)


def hesitation(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """``severity`` seconds of standing still, at a moment at which the arm moves."""
    speed = np.abs(np.diff(episode.state[:, _arm(episode)], axis=0)).sum(axis=1)
    fast = np.flatnonzero(speed >= np.quantile(speed, 0.75))
    inner = fast[(fast > len(episode) // 10) & (fast < len(episode) * 9 // 10)]
    at = int(rng.choice(inner if len(inner) else fast))
    still = np.full(round(severity * _rate(episode)), float(at))
    return _rows(episode, np.concatenate([np.arange(at), still, np.arange(at, len(episode))]))


def flutter(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """``severity`` more closings and openings, three a second."""
    grip, action, state = _grip(episode), episode.action.copy(), episode.state.copy()
    low, high = float(action[:, grip].min()), float(action[:, grip].max())
    half = max(1, round(_rate(episode) / 6))
    frames = int(min(len(episode) - 4, 2 * half * severity))
    begin = int(rng.integers(1, len(episode) - frames - 1))
    wave = np.where(np.arange(frames) // half % 2 == 0, low, high)
    action[begin : begin + frames, grip] = wave
    state[begin : begin + frames, grip] = 0.5 * (low + high) + 0.3 * (wave - 0.5 * (low + high))
    return replace(episode, action=action, state=state)


def empty(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """The gripper closes on nothing: of what held it off its command, ``severity`` is gone."""
    del rng
    grip, state = _grip(episode), episode.state.copy()
    action = episode.action[:, grip]
    closed = action < action.min() + 0.35 * np.ptp(action)
    settled = np.convolve(closed, np.ones(7), mode="full")[: len(closed)] >= 7
    left = state[:, grip] - action
    state[:, grip] -= np.where(settled, severity * left, 0.0)
    return replace(episode, state=state)


def conflict(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Commands that go ``severity`` of the way to the other side: a column's sign is wrong, or a log is misaligned."""
    del rng
    action, arm = episode.action.copy(), _arm(episode)
    action[:, arm] -= 2 * severity * (action[:, arm] - episode.state[:, arm])
    return replace(episode, action=action)


def exact(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """The same again."""
    del severity, rng
    return episode


def shifted(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Begins later or ends earlier by ``severity`` of its length."""
    cut = round(severity * len(episode))
    at = np.arange(len(episode), dtype=np.float64)
    return _rows(episode, at[cut:] if rng.random() < 0.5 else at[:-cut])


def noisy(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """With noise of ``severity`` of each joint's range."""
    arm = _arm(episode)
    return _moved(episode, severity * np.ptp(episode.state[:, arm], axis=0) * rng.normal(size=(len(episode), len(arm))))


def paced(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """In ``severity`` times the time."""
    del rng
    return _rows(episode, np.linspace(0, len(episode) - 1, round(severity * len(episode))))


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="tremor, 8 Hz",
        severities=((0.0025, "0.25 % of range"), (0.005, "0.5 %"), (0.01, "1 %")),
        checks=("demonstration/smoothness", "demonstration/jerk"),
        plant=tremor,
    ),
    Fault(
        name="jerky: values hold, then jump",
        severities=((2, "2 frames"), (4, "4 frames"), (8, "8 frames")),
        checks=("demonstration/smoothness", "demonstration/jerk"),
        plant=jerky,
    ),
    Fault(
        name="detours",
        severities=((1, "1"), (3, "3"), (6, "6")),
        checks=("demonstration/path",),
        plant=detour,
    ),
    Fault(
        name="hesitation",
        severities=((1.0, "1 s"), (1.5, "1.5 s"), (3.0, "3 s")),
        checks=("demonstration/hesitation",),
        plant=hesitation,
    ),
    Fault(
        name="gripper flutter",
        severities=((1, "1 more closing"), (2, "2"), (4, "4")),
        checks=("demonstration/gripper",),
        plant=flutter,
    ),
    Fault(
        name="closing on nothing",
        severities=((0.5, "half of the gap"), (0.9, "90 %"), (1.0, "all of it")),
        checks=("demonstration/gripper",),
        plant=empty,
    ),
    Fault(
        name="conflicting actions",
        severities=((0.5, "no way to go"), (1.0, "the other way"), (2.0, "thrice the other way")),
        checks=("demonstration/actions",),
        plant=conflict,
    ),
    Fault(
        name="exact copy",
        severities=((0.0, "–"),),
        checks=("demonstration/near_duplicates",),
        plant=exact,
        copies=True,
    ),
    Fault(
        name="copy, cut",
        severities=((0.05, "5 % of its length"), (0.15, "15 %"), (0.3, "30 %")),
        checks=("demonstration/near_duplicates",),
        plant=shifted,
        copies=True,
    ),
    Fault(
        name="copy, noisy",
        severities=((0.005, "0.5 % of range"), (0.02, "2 %"), (0.05, "5 %")),
        checks=("demonstration/near_duplicates",),
        plant=noisy,
        copies=True,
    ),
    Fault(
        name="copy, at another pace",
        severities=((0.8, "0.8 of the time"), (1.25, "1.25"), (2.0, "2")),
        checks=("demonstration/near_duplicates",),
        plant=paced,
        copies=True,
    ),
)
