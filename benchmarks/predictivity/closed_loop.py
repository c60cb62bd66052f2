"""Simulate a policy on the two-joint arm under the real robot's conditions.

These are delayed readings, velocities from differences, motor lag, and an emergency stop. Worlds are stepped at a
multiple of the policy's rate, so that the motors respond between two commands.
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
SECONDS = 10.0  # length of a rollout, as in the leaderboard
PHYSICS_HZ = 800.0  # at least; half a period of the 400 Hz at which the real controllers ran
_STREAM = "loop/real_policies"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Imperfections between policy and arm: delay, noise and quantization of readings, and lag of the motors.

    Attributes:
        late: Age of a reading in control periods. It is 1 on the robot, because a drive answers a command with its
            current state, so that the policy's reading is from the time of its previous command.
        lag: Time constant with which a motor's torque follows its command, s.
        noise: Standard deviation of a position reading, rad.
        quantum: Quantization step of a position reading, rad.
        differences: Whether velocities are differences of successive readings divided by the period; otherwise they are
            the true ones.
    """

    late: int = 0
    lag: float = 0.0
    noise: float = 0.0
    quantum: float = 0.0
    differences: bool = False


IDEAL = Wiring()


class Acting(Protocol):
    """A policy during its rollouts."""

    def __call__(self, time: float, position: Array, velocity: Array) -> Array:
        """Return the commanded torques ``(nworld, 2)`` in N·m for the current readings, ``(nworld, 2)`` each."""
        ...


class Policy(Protocol):
    """A controller of the arm, with its rate on the robot and the velocity limit of the emergency stop."""

    @property
    def name(self) -> str:
        """Name of the controller."""
        ...

    @property
    def hz(self) -> float:
        """Control rate on the robot, Hz."""
        ...

    @property
    def speed_limit(self) -> float:
        """Joint velocity at which the robot is switched off, rad/s."""
        ...

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:
        """Start rollouts in ``nworld`` worlds, at rest.

        If ``on_robot`` is true, the velocity filter and the friction compensation of the real robot are active.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Rollouts as policy and logger observe them: ``time`` ``(T,)`` in s, other arrays ``(nworld, T, 2)``.

    ``true`` are true positions, without encoder offsets. ``stopped`` ``(nworld,)`` marks worlds with an emergency stop.
    """

    time: Array
    position: Array
    velocity: Array
    torque: Array
    true: Array
    stopped: NDArray[np.bool_]


class _Readings:
    """Readings of all worlds with delay, noise and quantization; called once per control period."""

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
    """Return the twin with control rate ``hz`` and one physics step per control step."""
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
    """Run a swing-up policy from the hanging position, in every world of ``params``.

    Args:
        backend: Where the worlds run.
        twin: The arm.
        params: Parameter values of the worlds.
        policy: The controller.
        wiring: Delay, noise and motor lag; `IDEAL` for exact readings and torques.
        zero: Encoder offsets ``(nworld, 2)``, rad. The arm starts where it reads 0, held by friction.
        push: Disturbing torques of the joints, ``(nworld, period, 2)``, N·m.
        seconds: Length of the rollouts.
        seed: Run seed of noise and of stochastic policies.
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
    response = 1.0 if not wiring.lag else 1.0 - np.exp(-1.0 / (policy.hz * substeps * wiring.lag))
    torque, stopped = np.zeros((nworld, 2)), np.zeros(nworld, dtype=np.bool_)
    recorded = np.empty((4, nworld, periods, 2))
    for period in range(periods):
        true = simulation.qpos
        position, velocity = readings(true, simulation.qvel)
        stopped |= wiring.differences & (np.abs(velocity) > policy.speed_limit).any(axis=-1)
        command = acting(period / policy.hz, position, velocity)
        recorded[:, :, period] = position, velocity, command, true
        applied = np.where(stopped[:, None], 0.0, command)
        disturbance = 0.0 if push is None else push[:, period]
        for _ in range(substeps):
            torque = torque + response * (applied - torque)
            simulation.advance(torque + disturbance)
    time = np.arange(periods) / policy.hz
    return Rollouts(
        time=time,
        position=recorded[0],
        velocity=recorded[1],
        torque=recorded[2],
        true=recorded[3],
        stopped=stopped.copy(),
    )
