"""The pendubot's controllers of the leaderboard, re-implemented from descriptions and from what they did on the robot.

- ``mcpilco``: a clone of the policy (33 Hz, after ten periods of rest), which holds the arm upright by itself.
- ``sac_lqr``: a clone of the policy, which acts by chance, until the state is within the published region of attraction
  of the linear quadratic regulator, which then acts for good. Its gain comes from the published weights and reproduces
  the recorded torques to eight digits.
- ``ilqr_tvlqr_lqr``: a swing-up made anew, followed with the published weights; the same regulator at the end. No
  recording is at hand, so that nothing of it is checked against the robot's commands.

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
    """The gain ``(4,)`` of the regulator, u = −K (x − upright), for the shoulder."""
    return Arm().lqr(LQR_WEIGHTS[0], LQR_WEIGHTS[1], joint=0)[0]


def within_region(state: Array) -> NDArray[np.bool_]:
    """Whether states ``(…, 4)`` lie where the regulator takes over."""
    delta = deviation(state)
    return np.einsum("...i,ij,...j->...", delta, _FORM, delta) < REGION


def states_read(episode: Episode) -> Array:
    """What the policy read, ``(T, 4)``: positions and filtered speeds, as the log keeps them."""
    names = ("filtered_position", "filtered_velocity")
    return np.concatenate([episode.signals[name].values for name in names], axis=-1)


@dataclass(frozen=True, kw_only=True)
class McPilco:
    """The clone of both torques of MC-PILCO's policy."""

    clones: tuple[Clone, Clone]
    name: str = MCPILCO
    hz: float = 33.0
    speed_limit: float = 20.0

    @classmethod
    def of(cls, rollouts: Sequence[Episode]) -> McPilco:
        """The clone of recorded rollouts."""
        kept = [(states_read(each)[REST:], each.action[REST:]) for each in rollouts]
        state, torque = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        first, second = (clone_torques(state, torque[:, joint], float(LIMITS[joint])) for joint in range(2))
        return cls(clones=(first, second))

    def torque(self, state: Array) -> Array:
        """Torques ``(n, 2)`` of states ``(n, 4)``."""
        return np.stack([clone(state) for clone in self.clones], axis=-1)

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:  # noqa: ARG002
        """See `Policy`; it does not filter, nor act by chance."""

        def act(time: float, position: Array, velocity: Array) -> Array:
            asked = self.torque(np.concatenate([position, velocity], axis=-1))
            return asked * float(time * self.hz > REST - 0.5)

        return act


@dataclass(frozen=True, kw_only=True)
class SacLqr:
    """The clone of SAC's swing-up, then the regulator."""

    clone: Clone
    compensation: Compensation
    name: str = SAC_LQR
    hz: float = 400.0
    speed_limit: float = 20.0

    @classmethod
    def of(cls, rollouts: Sequence[Episode], compensation: Compensation) -> SacLqr:
        """The clone of recorded rollouts, up to where the regulator took over."""
        state, command, added = [], [], []
        for rollout in rollouts:
            read = states_read(rollout)
            inside = np.flatnonzero(within_region(read))
            end = inside[0] if len(inside) else len(read)
            state.append(read[:end])
            command.append(rollout.action[:end, 0])
            added.append(compensation(read[:end, 2:])[:, 0])
        read, told, helped = (np.concatenate(parts) for parts in (state, command, added))
        return cls(clone=clone_by_chance(read, told, helped, float(LIMITS[0])), compensation=compensation)

    def begin(self, nworld: int, rng: np.random.Generator, *, on_robot: bool) -> Acting:
        """See `Policy`."""
        return _Switching(nworld, lambda _, state: self.clone(state, rng), self.compensation if on_robot else None)


@dataclass(frozen=True, kw_only=True)
class TvLqr:
    """A swing-up followed with time-varying gains, then the regulator."""

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
        """See `Policy`; nothing of it is chance."""
        return _Switching(nworld, self._torque, self.compensation if on_robot else None)

    def _torque(self, time: float, state: Array) -> Array:
        step = time / self.path.dt
        k = min(int(step), len(self.gains) - 1)
        if step >= len(self.gains):
            return -deviation(state) @ self.gains[-1]
        share = step - k
        wanted = (1 - share) * self.path.state[k] + share * self.path.state[k + 1]
        return self.path.torque[k] - (state - wanted) @ self.gains[k]


class _Switching:
    """A swing-up and then, for good, the regulator; with filter and compensation on the robot."""

    def __init__(self, nworld: int, swing: _Swing, compensation: Compensation | None) -> None:
        self._swing, self._compensation = swing, compensation
        self._gain, self._balancing = regulator_gain(), np.zeros(nworld, dtype=np.bool_)
        self._filter = SpeedFilter(nworld)

    def __call__(self, time: float, position: Array, velocity: Array) -> Array:
        speed = velocity if self._compensation is None else self._filter(velocity)
        state = np.concatenate([position, speed], axis=-1)
        self._balancing |= within_region(state)
        asked = np.zeros((len(state), 2))
        swung = np.clip(self._swing(time, state), -LIMITS[0], LIMITS[0])
        held = np.clip(-deviation(state) @ self._gain, -LIMITS[0], LIMITS[0])
        asked[:, 0] = np.where(self._balancing, held, swung)
        if self._compensation is not None:
            asked = asked + self._compensation(speed)
        return np.clip(asked, -LIMITS, LIMITS)


def of_controller(rollouts: Sequence[Episode], controller: str) -> list[Episode]:
    """The pendubot's recorded rollouts of one controller.

    Raises:
        InputError: there is none.
    """
    found = [each for each in rollouts if each.task == f"pendubot_{controller}"]
    if not found:
        raise InputError(f"No rollout of the pendubot under {controller} is at hand; give the whole set.")
    return found
