"""Command any robot with joints: Fourier series, reaches as in teleoperation, and small steps, ramps and chirps."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin import Twin

Array = NDArray[np.float64]
KINDS = ("fourier", "reach", "steps")

# All numbers are our choice.
_MARGIN, _REACH = 0.1, 0.3  # parts of the joint range: unused at either end; used to either side of the home pose
_LIGHT = 5.0  # kg, mass of a robot up to which it moves quickly
_QUICK, _CALM = (1.5, 3.0), (0.6, 1.4)  # rad/s, peak speeds of light and of heavy robots
_SLIDE_SPEED = 0.25  # of a slide's range per second
_HARMONICS, _LOWEST = 5, (0.12, 0.25)  # Hz, lowest frequency of a Fourier series
_START, _FILL = 1.0, 0.9  # s, in which a Fourier series starts from rest; largest part of the used range that it fills
_HOLD, _SHORTEST = (0.3, 0.8), 0.4  # s, rest between reaches; shortest reach
_PART, _CHIRP, _CHIRP_END = 2.0, (0.3, 4.0), 0.2  # s, length of an excitation of "steps"; Hz; s, to come to rest
_STEP, _TORQUE = 0.03, 2.0  # largest step: part of the range, and of the error at which the servo's torque limit is met
_SLOW = (0.03, 0.2)  # of the peak speed, on ramps


@dataclass(frozen=True, kw_only=True)
class _Scope:
    """What a robot may do: positions, speeds and steps per joint, shape ``(n,)`` each, and the times ``(T,)`` in s."""

    low: Array
    high: Array
    speed: tuple[Array, Array]
    step: Array
    time: Array

    def pose(self, rng: np.random.Generator) -> Array:
        return rng.uniform(self.low, self.high)

    def peak(self, rng: np.random.Generator) -> Array:
        return self.speed[0] + rng.random() * (self.speed[1] - self.speed[0])


def make_commands(twin: Twin, kind: str, episodes: int, seconds: float, rng: np.random.Generator) -> Array:
    """Draw position commands at the twin's control rate, shape ``(N, T, n)`` in rad (m for slides).

    Args:
        twin: Twin with a robot.
        kind: One of `KINDS`.
        episodes: Number N of episodes.
        seconds: Length of an episode, s.
        rng: Generator.
    """
    make = {"fourier": _fourier, "reach": _reach, "steps": _steps}[kind]
    scope = _scope(twin, seconds)
    return np.stack([make(scope, rng) for _ in range(episodes)])


def _scope(twin: Twin, seconds: float) -> _Scope:
    model, (low, high) = twin.model, twin.joint_ranges.T
    width, home = high - low, twin.home()[0][twin.joint_qpos]
    slide = [model.joint(name).type[0] == mujoco.mjtJoint.mjJNT_SLIDE for name in twin.robot.joints]
    actuators = [model.actuator(name).id for name in twin.robot.actuator_names]
    links = set(model.dof_bodyid[twin.joint_qvel].tolist())
    speeds = _QUICK if sum(model.body_mass[body] for body in links) < _LIGHT else _CALM
    error = model.actuator_forcerange[actuators, 1] / model.actuator_gainprm[actuators, 0]
    return _Scope(
        low=np.maximum(low + _MARGIN * width, home - _REACH * width),
        high=np.minimum(high - _MARGIN * width, home + _REACH * width),
        speed=(np.where(slide, _SLIDE_SPEED * width, speeds[0]), np.where(slide, _SLIDE_SPEED * width, speeds[1])),
        step=np.minimum(_STEP * width, _TORQUE * error),
        time=np.arange(round(seconds * twin.control_hz)) / twin.control_hz,
    )


def _smooth(part: Array) -> Array:
    """Return the minimum-jerk path from 0 to 1 at parts of its duration."""
    s = np.clip(part, 0.0, 1.0)
    return s**3 * (10.0 + s * (6.0 * s - 15.0))


def _fourier(scope: _Scope, rng: np.random.Generator) -> Array:
    n, order = len(scope.low), np.arange(1, _HARMONICS + 1)[:, None]
    rate = 2 * np.pi * rng.uniform(*_LOWEST) * order
    weight, phase = rng.uniform(0.3, 1.0, (_HARMONICS, n)), rng.uniform(0.0, 2 * np.pi, (_HARMONICS, n))
    angle = rate * scope.time[:, None, None] + phase
    wave, slope = (weight / rate * np.sin(angle)).sum(axis=1), (weight * np.cos(angle)).sum(axis=1)
    size = np.minimum(
        scope.peak(rng) / np.abs(slope).max(axis=0), _FILL * (scope.high - scope.low) / np.ptp(wave, axis=0)
    )
    wave = (wave - wave[0]) * size * _smooth(scope.time / _START)[:, None]
    return rng.uniform(scope.low - wave.min(axis=0), scope.high - wave.max(axis=0)) + wave


def _reach(scope: _Scope, rng: np.random.Generator) -> Array:
    time, speed, pose = scope.time[:, None], scope.peak(rng), scope.pose(rng)
    path, now = np.tile(pose, (len(time), 1)), 0.0
    while now < time[-1, 0]:
        now += rng.uniform(*_HOLD)
        change = scope.pose(rng) - pose
        length = max(1.875 * float(np.max(np.abs(change) / speed)), _SHORTEST)  # peak speed of minimum jerk: 1.875 / T
        path += change * _smooth((time - now) / length)
        now, pose = now + length, pose + change
    return path


def _steps(scope: _Scope, rng: np.random.Generator) -> Array:
    pose = scope.pose(rng)
    path = np.tile(pose, (len(scope.time), 1))
    for begin in np.arange(0.0, scope.time[-1], _PART):
        rows = (scope.time >= begin) & (scope.time < begin + _PART)
        for joint in rng.choice(len(pose), rng.integers(1, 3), replace=False):
            make = (_stairs, _ramps, _chirp)[rng.integers(3)]
            wave = make(scope.time[rows] - begin, scope, int(joint), rng)
            path[rows, joint] = np.clip(pose[joint] + wave, scope.low[joint], scope.high[joint])
    return path


def _stairs(time: Array, scope: _Scope, joint: int, rng: np.random.Generator) -> Array:
    """Return four steps to random levels, the last one back to 0."""
    levels = scope.step[joint] * np.append(rng.uniform(-1.0, 1.0, 3), 0.0)
    return levels[np.minimum((4 * time / _PART).astype(int), 3)]


def _ramps(time: Array, scope: _Scope, joint: int, rng: np.random.Generator) -> Array:
    """Return two slow ramps there and back."""
    quarter = _PART / 4
    speed = scope.peak(rng)[joint] * rng.uniform(*_SLOW) * rng.choice([-1, 1])
    return speed * (quarter - np.abs(time % (2 * quarter) - quarter))


def _chirp(time: Array, scope: _Scope, joint: int, rng: np.random.Generator) -> Array:
    """Return an oscillation that becomes faster and, at the peak speed, smaller; it ends at rest."""
    part = time / _PART
    rate = _CHIRP[0] + (_CHIRP[1] - _CHIRP[0]) * part
    angle = 2 * np.pi * _PART * (_CHIRP[0] * part + 0.5 * (_CHIRP[1] - _CHIRP[0]) * part**2)
    size = np.minimum(2.0 * scope.step[joint], scope.peak(rng)[joint] / (2 * np.pi * rate)) * rng.uniform(0.4, 1.0)
    return size * np.sin(angle) * _smooth((_PART - time) / _CHIRP_END)
