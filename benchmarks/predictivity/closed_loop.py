"""A policy on the two-joint arm as it runs on the robot: late readings, speeds from differences, slow motors, a stop.

Worlds run side by side at a multiple of the policy's rate, so that the motors' response lies between its commands.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.simulate import Backend, InitialState
from twinloop.twin import Twin

Array = NDArray[np.float64]
SECONDS = 10.0  # of a rollout, the leaderboard's
PHYSICS_HZ = 800.0  # at least; half a period of the 400 Hz at which the real controllers ran
_STREAM = "loop/real_policies"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What lies between arm and policy.

    Attributes:
        late: periods by which a reading is old. A drive answers a command with the state it is in, so that what the
            policy reads is of the moment of its last command: 1 on the robot.
        lag: time constant with which a motor's torque follows its command, in s.
        noise: standard deviation of a position reading, in rad.
        quantum: step of a position reading, in rad.
        differences: speeds are differences of successive readings over the period; else they are the true ones.
    """

    late: int = 0
    lag: float = 0.0
    noise: float = 0.0
    quantum: float = 0.0
    differences: bool = False


IDEAL = Wiring()


class Acting(Protocol):
    """A policy in the middle of its rollouts."""

    def __call__(self, time: float, position: Array, velocity: Array) -> Array:
        """Torques ``(nworld, 2)`` asked for now, from readings ``(nworld, 2)``."""
        ...


class Policy(Protocol):
    """A controller of the arm: its rate on the robot, and the speed in rad/s at which the robot is switched off."""

    @property
    def name(self) -> str:
        """The controller's name."""
        ...

    @property
    def hz(self) -> float:
        """Its rate."""
        ...

    @property
    def speed_limit(self) -> float:
        """See the class."""
        ...

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:
        """At rest. ``on_robot`` turns on what only the robot needs: filters and the compensation of friction."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """What policy and logger saw: ``time`` ``(T,)``, the rest ``(nworld, T, 2)``; ``stopped`` where the robot stopped.

    ``true`` are true positions, without the zeros of the encoders.
    """

    time: Array
    position: Array
    velocity: Array
    torque: Array
    true: Array
    stopped: NDArray[np.bool_]


class _Readings:
    """Readings of a batch, one call a period."""

    def __init__(self, wiring: Wiring, hz: float, zero: Array, rng: np.random.Generator) -> None:
        self._wiring, self._hz, self._zero, self._rng = wiring, hz, zero, rng
        self._taken: list[tuple[Array, Array]] = []
        self._last: Array | None = None

    def __call__(self, position: Array, velocity: Array) -> tuple[Array, Array]:
        wiring = self._wiring
        reading = position + self._zero
        if wiring.noise:
            reading = reading + wiring.noise * self._rng.standard_normal(reading.shape)
        if wiring.quantum:
            reading = np.round(reading / wiring.quantum) * wiring.quantum
        self._taken.append((reading, velocity))
        if len(self._taken) > wiring.late + 1:
            self._taken.pop(0)
        old, speed = self._taken[0]
        if wiring.differences:
            speed = np.zeros_like(old) if self._last is None else (old - self._last) * self._hz
            self._last = old
        return old, speed


def at_rate(twin: Twin, hz: float) -> Twin:
    """The twin with one physics step per control step, at ``hz``."""
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / hz
    return replace(twin, spec=twin.spec.model_copy(update={"control_hz": hz, "substeps": 1}), model=model)


def run_policy(
    backend: Backend,
    twin: Twin,
    params: ParamTable,
    policy: Policy,
    wiring: Wiring,
    *,
    zero: Array | None = None,
    push: Array | None = None,
    seconds: float = SECONDS,
    seed: int = 0,
) -> Rollouts:
    """Let a policy swing the arm up from where it hangs, in every world of ``params``.

    Args:
        backend: where the worlds run.
        twin: the arm.
        params: rows of its parameters.
        policy: the controller.
        wiring: what lies between; `IDEAL` for exact readings and torques.
        zero: errors of the encoders' zeros ``(nworld, 2)`` in rad. The arm begins where it reads 0, held by friction.
        push: torques that disturb the joints, ``(nworld, period, 2)``.
        seconds: length of the rollouts.
        seed: run seed of noise and of policies that act by chance.
    """
    nworld = params.nworld
    substeps = int(np.ceil(PHYSICS_HZ / policy.hz - 1e-9))
    fast = at_rate(twin, policy.hz * substeps)
    offset = np.zeros((nworld, 2)) if zero is None else zero
    initial = replace(InitialState.home(fast, nworld), qpos=-offset)
    periods = int(np.ceil(seconds * policy.hz))
    simulation = backend.start(fast, params, initial, periods * substeps)
    rng = generator(seed, f"{_STREAM}/{policy.name}")
    acting = policy.begin(nworld, rng, on_robot=wiring.differences)
    readings = _Readings(wiring, policy.hz, offset, rng)
    kept = 1.0 if not wiring.lag else 1.0 - np.exp(-1.0 / (policy.hz * substeps * wiring.lag))
    torque, stopped = np.zeros((nworld, 2)), np.zeros(nworld, dtype=np.bool_)
    seen = np.empty((4, nworld, periods, 2))
    for period in range(periods):
        true = simulation.qpos
        position, velocity = readings(true, simulation.qvel)
        stopped |= wiring.differences & (np.abs(velocity) > policy.speed_limit).any(axis=-1)
        asked = acting(period / policy.hz, position, velocity)
        seen[:, :, period] = position, velocity, asked, true
        wanted = np.where(stopped[:, None], 0.0, asked)
        pushed = 0.0 if push is None else push[:, period]
        for _ in range(substeps):
            torque = torque + kept * (wanted - torque)
            simulation.advance(torque + pushed)
    time = np.arange(periods) / policy.hz
    return Rollouts(time=time, position=seen[0], velocity=seen[1], torque=seen[2], true=seen[3], stopped=stopped.copy())
