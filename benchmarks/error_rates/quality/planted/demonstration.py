"""Plant faults of demonstrations into good episodes, at several severities."""

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
    """A fault of a demonstration.

    Attributes:
        name: Name, as printed.
        severities: Severities, each with its text.
        checks: Names of the checks that should detect it.
        plant: Function from an episode, a severity and a generator to the faulty episode.
        copies: Whether the faulty episode is added to the set; otherwise it replaces its original.
    """

    name: str
    severities: tuple[tuple[float, str], ...]
    checks: tuple[str, ...]
    plant: Plant
    copies: bool = False


def _arm_joints(episode: Episode) -> list[int]:
    return [i for i, joint in enumerate(episode.joints) if "grip" not in joint]


def _gripper_joint(episode: Episode) -> int:
    return next(i for i, joint in enumerate(episode.joints) if "grip" in joint)


def _rate(episode: Episode) -> float:
    return 1.0 / float(np.median(np.diff(episode.time)))


def _add_to_arm(episode: Episode, change: Array) -> Episode:
    """Add ``change`` ``(T, narm)`` to commands and positions of the arm's joints."""
    action, state, arm = episode.action.copy(), episode.state.copy(), _arm_joints(episode)
    action[:, arm] += change
    state[:, arm] += change
    return replace(episode, action=action, state=state)


def _resample(episode: Episode, at: NDArray[Any]) -> Episode:
    """Resample the episode at the frame positions ``at`` by linear interpolation; the frame rate is kept."""
    frames = np.arange(len(episode))
    action, state = (
        np.column_stack([np.interp(at, frames, column) for column in table.T])
        for table in (episode.action, episode.state)
    )
    return replace(
        episode, time=episode.time[0] + np.arange(len(at)) / _rate(episode), action=action, state=state, signals={}
    )


def tremor(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Add a tremor of 8 Hz with amplitude ``severity`` times each joint's range (physiological tremor: 8 to 12 Hz)."""
    arm = _arm_joints(episode)
    phase = 2 * np.pi * (8.0 * (episode.time - episode.time[0])[:, None] + rng.random(len(arm)))
    return _add_to_arm(episode, severity * np.ptp(episode.state[:, arm], axis=0) * np.sin(phase))


def jerky(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Hold commands and positions for ``severity`` frames, then jump, as with a broken filter of the teleoperation."""
    offset = int(rng.integers(0, int(severity)))
    held_frames = np.maximum((np.arange(len(episode)) + offset) // int(severity) * int(severity) - offset, 0)
    arm, action, state = _arm_joints(episode), episode.action.copy(), episode.state.copy()
    action[:, arm], state[:, arm] = action[held_frames][:, arm], state[held_frames][:, arm]
    return replace(episode, action=action, state=state)


def detour(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Add ``severity`` detours: two joints move out by 60 % of their range and back within a second."""
    arm = _arm_joints(episode)
    width = min(round(_rate(episode)), (len(episode) - 2) // int(severity))
    starts = np.linspace(1, len(episode) - width - 1, int(severity) + 2)[1:-1].astype(int)
    change = np.zeros((len(episode), len(arm)))
    for start in starts:
        joints = rng.choice(len(arm), size=min(2, len(arm)), replace=False)
        side = rng.choice([-1.0, 1.0], size=len(joints))
        change[start : start + width, joints] += side * np.hanning(width)[:, None]
    return _add_to_arm(episode, 0.6 * np.ptp(episode.state[:, arm], axis=0) * change)


def hesitation(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Insert a pause of ``severity`` seconds at a time at which the arm moves."""
    speed = np.abs(np.diff(episode.state[:, _arm_joints(episode)], axis=0)).sum(axis=1)
    fast = np.flatnonzero(speed >= np.quantile(speed, 0.75))
    inner = fast[(fast > len(episode) // 10) & (fast < len(episode) * 9 // 10)]
    at = int(rng.choice(inner if len(inner) else fast))
    still = np.full(round(severity * _rate(episode)), float(at))
    return _resample(episode, np.concatenate([np.arange(at), still, np.arange(at, len(episode))]))


def flutter(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Insert ``severity`` additional gripper closings and openings, three per second."""
    grip, action, state = _gripper_joint(episode), episode.action.copy(), episode.state.copy()
    low, high = float(action[:, grip].min()), float(action[:, grip].max())
    half = max(1, round(_rate(episode) / 6))
    frames = int(min(len(episode) - 4, 2 * half * severity))
    begin = int(rng.integers(1, len(episode) - frames - 1))
    wave = np.where(np.arange(frames) // half % 2 == 0, low, high)
    action[begin : begin + frames, grip] = wave
    state[begin : begin + frames, grip] = 0.5 * (low + high) + 0.3 * (wave - 0.5 * (low + high))
    return replace(episode, action=action, state=state)


def empty(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Make the gripper close without an object: remove the share ``severity`` of its deviation from the command."""
    del rng
    grip, state = _gripper_joint(episode), episode.state.copy()
    action = episode.action[:, grip]
    closed = action < action.min() + 0.35 * np.ptp(action)
    settled = np.convolve(closed, np.ones(7), mode="full")[: len(closed)] >= 7
    left = state[:, grip] - action
    state[:, grip] -= np.where(settled, severity * left, 0.0)
    return replace(episode, state=state)


def conflict(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Mirror commands about the positions by the share ``severity``, as with a wrong sign or a misaligned log."""
    del rng
    action, arm = episode.action.copy(), _arm_joints(episode)
    action[:, arm] -= 2 * severity * (action[:, arm] - episode.state[:, arm])
    return replace(episode, action=action)


def exact(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Return the episode unchanged, as an exact duplicate."""
    del severity, rng
    return episode


def shifted(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Cut the share ``severity`` of the episode off its beginning or its end."""
    cut = round(severity * len(episode))
    at = np.arange(len(episode), dtype=np.float64)
    return _resample(episode, at[cut:] if rng.random() < 0.5 else at[:-cut])


def noisy(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Add noise with standard deviation ``severity`` times each joint's range."""
    arm = _arm_joints(episode)
    return _add_to_arm(
        episode, severity * np.ptp(episode.state[:, arm], axis=0) * rng.normal(size=(len(episode), len(arm)))
    )


def paced(episode: Episode, severity: float, rng: np.random.Generator) -> Episode:
    """Change the duration to ``severity`` times the original."""
    del rng
    return _resample(episode, np.linspace(0, len(episode) - 1, round(severity * len(episode))))


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
