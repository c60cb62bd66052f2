"""Re-implement the pendubot's controllers of the leaderboard, from descriptions and from recorded commands.

- ``mcpilco``: a clone of the policy (33 Hz, after ten periods of rest), which also balances the arm.
- ``sac_lqr``: a clone of the stochastic policy until the state enters the published region of attraction of the linear
  quadratic regulator, and this regulator from then on. Its gain is computed from the published weights and reproduces
  the recorded torques to eight digits.
- ``ilqr_tvlqr_lqr``: a new swing-up trajectory, tracked with the published weights, and the same regulator at the end.
  There is no recording of it, so that its commands are not checked against the robot's.

Weights, region, rates and limits: ``leaderboard/pendubot/simulation_v{1,2}/con_*.py`` and ``real_hardware_v1`` of
``dfki-ric-underactuated-lab/double_pendulum``; the rate of 400 Hz is that of the recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.predictivity.arm import Arm, deviation
from benchmarks.predictivity.clone import Clone, clone_by_chance, clone_torques
from benchmarks.predictivity.closed_loop import Acting
from benchmarks.predictivity.compensation import LIMITS, Compensation, SpeedFilter
from benchmarks.predictivity.swingup import Trajectory, swing_up, tracking_gains
from twinloop.core.errors import InputError
from twinloop.core.records import Episode

Array = NDArray[np.float64]
_Swing = Callable[[float, Array], Array]  # torque of the shoulder (n,) at a time, of states (n, 4)
MCPILCO, SAC_LQR, TVLQR = "mcpilco", "sac_lqr", "ilqr_tvlqr_lqr"
REST = 10  # periods for which MC-PILCO waits
LQR_WEIGHTS = (np.array([1.92, 1.92, 0.3, 0.3]), 0.82)
TVLQR_WEIGHTS = (np.array([0.64, 0.56, 0.13, 0.037]), 0.82)
REGION = 0.1690673829091186575  # of the quadratic form below, within which the regulator takes over
_FORM = np.array(
    [
        [78.57934201124567, 56.53751913776947, 17.89996146741197, 8.073612858295814],
        [56.53751913776947, 43.62786774581156, 13.06971194928728, 6.041705515910111],
        [17.89996146741197, 13.06971194928728, 4.125964000971944, 1.864116086667296],
        [8.073612858295814, 6.041705515910111, 1.864116086667296, 0.8609202333737846],
    ]
)


def regulator_gain() -> Array:
    """Return the regulator's gain ``(4,)`` for the shoulder torque, u = −K (x − upright)."""
    return Arm().lqr(LQR_WEIGHTS[0], LQR_WEIGHTS[1], joint=0)[0]


def within_region(state: Array) -> NDArray[np.bool_]:
    """Return whether states ``(…, 4)`` are in the region in which the regulator takes over."""
    delta = deviation(state)
    return np.einsum("...i,ij,...j->...", delta, _FORM, delta) < REGION


def states_read(episode: Episode) -> Array:
    """Return the policy's observations ``(T, 4)``: positions and filtered velocities, as logged."""
    names = ("filtered_position", "filtered_velocity")
    return np.concatenate([episode.signals[name].values for name in names], axis=-1)


@dataclass(frozen=True, kw_only=True)
class McPilco:
    """Clone of both torques of the MC-PILCO policy."""

    clones: tuple[Clone, Clone]
    name: str = MCPILCO
    hz: float = 33.0
    speed_limit: float = 20.0

    @classmethod
    def of(cls, rollouts: Sequence[Episode]) -> McPilco:
        """Fit the clone to recorded rollouts."""
        pairs = [(states_read(each)[REST:], each.action[REST:]) for each in rollouts]
        state, torque = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        first, second = (clone_torques(state, torque[:, joint], float(LIMITS[joint])) for joint in range(2))
        return cls(clones=(first, second))

    def torque(self, state: Array) -> Array:
        """Return torques ``(n, 2)`` in N·m for states ``(n, 4)``."""
        return np.stack([clone(state) for clone in self.clones], axis=-1)

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:  # noqa: ARG002
        """See `Policy`; this policy has no filter and is deterministic."""

        def act(time: float, position: Array, velocity: Array) -> Array:
            command = self.torque(np.concatenate([position, velocity], axis=-1))
            return command * float(time * self.hz > REST - 0.5)

        return act


@dataclass(frozen=True, kw_only=True)
class SacLqr:
    """Clone of SAC's swing-up, followed by the regulator."""

    clone: Clone
    compensation: Compensation
    name: str = SAC_LQR
    hz: float = 400.0
    speed_limit: float = 20.0

    @classmethod
    def of(cls, rollouts: Sequence[Episode], compensation: Compensation) -> SacLqr:
        """Fit the clone to recorded rollouts, up to the time at which the regulator took over."""
        state, command, added = [], [], []
        for rollout in rollouts:
            read = states_read(rollout)
            inside = np.flatnonzero(within_region(read))
            end = inside[0] if len(inside) else len(read)
            state.append(read[:end])
            command.append(rollout.action[:end, 0])
            added.append(compensation(read[:end, 2:])[:, 0])
        read, commands, compensations = (np.concatenate(parts) for parts in (state, command, added))
        return cls(clone=clone_by_chance(read, commands, compensations, float(LIMITS[0])), compensation=compensation)

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:
        """See `Policy`."""
        return _Switching(nworld, lambda _, state: self.clone(state, rng), self.compensation if on_robot else None)


@dataclass(frozen=True, kw_only=True)
class TvLqr:
    """Swing-up trajectory tracked with time-varying gains, followed by the regulator."""

    path: Trajectory
    gains: Array
    compensation: Compensation
    name: str = TVLQR
    hz: float = 400.0
    speed_limit: float = 30.0

    @classmethod
    def of(cls, compensation: Compensation) -> TvLqr:
        """Plan a swing-up of the frictionless arm."""
        arm = Arm()
        path, last = swing_up(arm), arm.lqr(*LQR_WEIGHTS, joint=0)[1]
        q, r = TVLQR_WEIGHTS
        return cls(path=path, gains=tracking_gains(arm, path, q=q, r=r, last=last), compensation=compensation)

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:  # noqa: ARG002
        """See `Policy`; this policy is deterministic."""
        return _Switching(nworld, self._torque, self.compensation if on_robot else None)

    def _torque(self, time: float, state: Array) -> Array:
        step = time / self.path.dt
        k = min(int(step), len(self.gains) - 1)
        if step >= len(self.gains):
            return -deviation(state) @ self.gains[-1]
        share = step - k
        target = (1 - share) * self.path.state[k] + share * self.path.state[k + 1]
        return self.path.torque[k] - (state - target) @ self.gains[k]


class _Switching:
    """A swing-up policy that switches permanently to the regulator; with filter and compensation on the robot."""

    def __init__(self, nworld: int, swing: _Swing, compensation: Compensation | None) -> None:
        self._swing, self._compensation = swing, compensation
        self._gain, self._balancing = regulator_gain(), np.zeros(nworld, dtype=np.bool_)
        self._filter = SpeedFilter(nworld)

    def __call__(self, time: float, position: Array, velocity: Array) -> Array:
        speed = velocity if self._compensation is None else self._filter(velocity)
        state = np.concatenate([position, speed], axis=-1)
        self._balancing |= within_region(state)
        command = np.zeros((len(state), 2))
        swing_torque = np.clip(self._swing(time, state), -LIMITS[0], LIMITS[0])
        balance = np.clip(-deviation(state) @ self._gain, -LIMITS[0], LIMITS[0])
        command[:, 0] = np.where(self._balancing, balance, swing_torque)
        if self._compensation is not None:
            command = command + self._compensation(speed)
        return np.clip(command, -LIMITS, LIMITS)


def of_controller(rollouts: Sequence[Episode], controller: str) -> list[Episode]:
    """Return the pendubot's recorded rollouts of one controller.

    Raises:
        InputError: If there is no such rollout.
    """
    found = [each for each in rollouts if each.task == f"pendubot_{controller}"]
    if not found:
        raise InputError(f"No pendubot rollout of the controller {controller} was found. Give the complete data set.")
    return found
