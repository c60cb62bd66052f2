"""Draw motions for excitation, compute their Fisher information, and check that a robot may execute them.

Finite Fourier series (Swevers, Ganseman, Tükel, De Schutter & Van Brussel, IEEE Trans. Robotics and Automation 13,
1997) move all joints at once. Steps with pauses excite delay, saturation and static friction. Frequency sweeps excite
the servo's lag and inertia. Slow motion back and forth excites friction and the zero of the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from twinloop.core.records import Episode
from twinloop.hardware.limits import ClearanceCheck, MotionLimits
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk
from twinloop.identify.assembly import FitSpace, fit_problem, limit_physics_rate
from twinloop.identify.config import FitConfig
from twinloop.identify.fisher import FisherInformation, ResidualNoiseModel, compute_excitation, compute_information
from twinloop.identify.problem import FitProblem, Linearization, linearize
from twinloop.simulate import Backend, InitialState, rollout
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
Shape = Callable[[np.random.Generator, Array, Array, MotionLimits], Array]

# Peak speed and acceleration of a minimum-jerk move over 1 in 1: 30 s² (1−s)² at ½, and 60 s − 180 s² + 120 s³.
_JERK_SPEED, _JERK_ACCELERATION = 1.875, 5.7735
_REST = 0.3  # s at rest at either end of a piece, so that its start does not depend on the piece before it
_REACH = 1.4  # rad or m that a centre may be from home: most of an arm's work space (see teleop_motion)
_HARMONICS = 5  # as in Swevers et al.
# A series moves at 0.1 Hz at least, and a sweep ends at a sixth of the rate of commands at most: held commands
# are a good sine up to there (a sixth loses sinc(1/6), 4.5 %).
_FASTEST_SHARE = 1.0 / 6.0
_SHRINK, _TRIES = 0.75, 9
_BOUND = 1.0 - 1e-9


def draw_fourier_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Return a finite Fourier series about a random pose, at rest at both ends, ``(T, n)``."""
    centre, span, within, path = _plan_around_pose(random, time, home, limits)
    highest = random.uniform(0.8, 3.0) * 5.0 / span  # Hz, of the fundamental of five seconds or less
    stride = max(1, int(highest * span / _HARMONICS / 2))
    harmonics = stride * np.arange(1.0, _HARMONICS + 1.0)
    swing = _draw_fourier_series(random, 2.0 * np.pi * within, harmonics, len(home))
    return path + _scale_amplitude(random, swing, centre, limits, time)


def draw_step_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Return moves between random poses, as fast as the limits allow, with pauses, ``(T, n)``."""
    centre, reach = _draw_centre(random, home, limits), random.uniform(0.1, _REACH)
    knots, poses = [0.0, _REST], [home, home]
    while True:
        goal = _clip_to_range(centre + reach * random.uniform(-1.0, 1.0, len(home)), limits)
        arrival = knots[-1] + _move_duration(goal - poses[-1], limits)
        pause = random.uniform(0.1, 0.6)
        if arrival + pause + _move_duration(goal - home, limits) > time[-1] - _REST:
            break
        knots += [arrival, arrival + pause]
        poses += [goal, goal]
    back = knots[-1] + _move_duration(poses[-1] - home, limits)
    return interpolate_minimum_jerk([*knots, back, back + time[-1]], [*poses, home, home], time)


def draw_chirp_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Return sines of rising frequency, each joint with its own frequencies and amplitude, ``(T, n)``."""
    centre, span, within, path = _plan_around_pose(random, time, home, limits)
    within = within[:, None]
    low = random.uniform(0.2, 0.6, len(home))
    high = random.uniform(0.3, 1.0, len(home)) * _FASTEST_SHARE / (time[1] - time[0])
    ratio = np.log(high / low)
    phase = 2.0 * np.pi * low * span * (np.exp(ratio * within) - 1.0) / ratio
    omega = 2.0 * np.pi * low * np.exp(ratio * within)
    room = np.minimum(
        _distance_to_limits(centre, limits), np.minimum(limits.speed / omega, limits.acceleration / omega**2)
    )
    taper = np.sin(np.pi * np.clip(within * 8.0, 0.0, 0.5)) * np.sin(np.pi * np.clip((1.0 - within) * 8.0, 0.0, 0.5))
    swing = random.uniform(0.3, 0.95, len(home)) * room * taper**2 * np.sin(phase)
    return path + swing


def draw_slow_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Return back-and-forth motion at nearly constant, low speed; friction appears at every reversal, ``(T, n)``."""
    centre, span, within, path = _plan_around_pose(random, time, home, limits)
    within = within[:, None]
    periods = random.integers(1, 5, len(home))
    speed = random.uniform(0.03, 0.2, len(home)) * limits.speed
    size = np.minimum(0.9 * _distance_to_limits(centre, limits), speed * span / periods / 4.0)
    corner = 0.97  # sine of the angle at which corners are rounded: the speed has no jumps
    triangle = np.arcsin(corner * np.sin(2.0 * np.pi * periods * within)) / np.arcsin(corner)
    return path + size * triangle


SHAPES: Mapping[str, Shape] = {
    "fourier": draw_fourier_motion,
    "steps": draw_step_motion,
    "chirp": draw_chirp_motion,
    "slow": draw_slow_motion,
}


def scale_into_limits(
    commands: Array, home: Array, limits: MotionLimits, hz: float, clearance: ClearanceCheck | None
) -> Array | None:
    """Return commands ``(T, n)`` scaled towards home until they keep limits and clearance; None if they never do."""
    for attempt in range(_TRIES):
        smaller = home + _SHRINK**attempt * (commands - home)
        inside = ((smaller >= limits.low - 1e-12) & (smaller <= limits.high + 1e-12)).all()
        if (
            inside
            and limits.largest_usage(smaller, hz) <= 1.0
            and (clearance is None or clearance.find_first_contact(smaller) is None)
        ):
            return smaller
    return None


def _draw_fourier_series(random: np.random.Generator, angle: Array, harmonics: Array, count: int) -> Array:
    """Return Σ aₖ sin(kθ)/k − bₖ cos(kθ)/k with value, slope and curvature 0 at θ = 0, ``(T, count)``."""
    k, none = harmonics, np.zeros_like(harmonics)
    ends = np.stack([np.concatenate([none, -1.0 / k]), np.concatenate([k / k, none]), np.concatenate([none, k])])
    free = null_space(ends)
    weights = free @ random.normal(size=(free.shape[1], count))
    waves = np.concatenate([np.sin(np.outer(angle, k)) / k, -np.cos(np.outer(angle, k)) / k], axis=1)
    return waves @ weights


def _scale_amplitude(
    random: np.random.Generator, swing: Array, centre: Array, limits: MotionLimits, time: Array
) -> Array:
    """Scale each joint's motion to a random part of the maximum that range, speed and acceleration allow."""
    hz = 1.0 / (time[1] - time[0])
    rate = np.abs(np.diff(swing, axis=0)).max(axis=0) * hz
    change = np.abs(np.diff(swing, n=2, axis=0)).max(axis=0) * hz**2
    most = np.minimum(_distance_to_limits(centre, limits) / np.abs(swing).max(axis=0), limits.speed / rate)
    return swing * np.minimum(most, limits.acceleration / change) * random.uniform(0.3, _BOUND, swing.shape[1])


def _draw_centre(random: np.random.Generator, home: Array, limits: MotionLimits) -> Array:
    return _clip_to_range(home + random.uniform(0.0, 1.0) * random.uniform(-_REACH, _REACH, len(home)), limits)


def _clip_to_range(pose: Array, limits: MotionLimits) -> Array:
    return np.clip(pose, limits.low, limits.high)


def _distance_to_limits(centre: Array, limits: MotionLimits) -> Array:
    """Return the distance from a pose to the nearer end of each joint's range, at least a tenth of the range."""
    return np.maximum(np.minimum(centre - limits.low, limits.high - centre), 0.1 * (limits.high - limits.low))


def _move_duration(distance: Array, limits: MotionLimits) -> float:
    """Return the duration in s of the fastest minimum-jerk move over distances ``(n,)``, plus a margin."""
    speed = _JERK_SPEED * np.abs(distance) / limits.speed
    acceleration = np.sqrt(_JERK_ACCELERATION * np.abs(distance) / limits.acceleration)
    return float(1.05 * np.maximum(speed, acceleration).max()) + 0.05


def _plan_around_pose(
    random: np.random.Generator, time: Array, home: Array, limits: MotionLimits
) -> tuple[Array, float, Array, Array]:
    """Return a random pose, the duration there in s, the elapsed part of it ``(T,)``, and the path ``(T, n)``."""
    centre = _draw_centre(random, home, limits)
    begin = _move_duration(centre - home, limits)
    end = time[-1] - begin
    path = interpolate_minimum_jerk(
        [0.0, begin, end, time[-1], time[-1] + 1.0], [home, centre, centre, home, home], time
    )
    return centre, end - begin, np.clip((time - begin) / (end - begin), 0.0, 1.0), path


_SETTLE_S = 1.2  # s at home before a motion: as for virtual robots (hardware.arms.SETTLE_S)
_LOOK = 3  # frames between two checks of a moving arm's clearance


@dataclass(frozen=True, kw_only=True)
class MotionTrials:
    """Simulations of motions on a twin at several plausible parameter points ``(npoint, p)``.

    ``space`` defines the columns of the points. ``noise`` is the noise of the joint readings in the twin's units.
    """

    twin: Twin
    space: FitSpace
    points: Array
    noise: ResidualNoiseModel
    config: FitConfig
    backend: Backend
    limits: MotionLimits

    @property
    def home(self) -> Array:
        """Command at which every motion begins and ends, SI."""
        return self.twin.home()[1]

    def motion_information(self, commands: Array, *, alone: bool = False) -> FisherInformation:
        """Return the information of motions ``(nmotion, T, n)`` from rest, at every point: ``(npoint, nmotion, p, p)``.

        With ``alone`` each parameter is perturbed in a separate world, see `problem.linearize`: slower, but exact.
        """
        each = [
            compute_information(problem, here, self.noise)
            for problem, here in self._linearize_motions(commands, alone=alone)
        ]
        return FisherInformation(matrix=np.stack([i.matrix for i in each]), score=np.stack([i.score for i in each]))

    def motion_excitation(self, commands: Array) -> Array:
        """Return `fisher.compute_excitation` of the motions at every point, ``(npoint, p)``."""
        return np.stack(
            [
                compute_excitation(problem, here, self.noise)
                for problem, here in self._linearize_motions(commands, alone=True)
            ]
        )

    def _linearize_motions(self, commands: Array, *, alone: bool) -> Iterator[tuple[FitProblem, Linearization]]:
        """Yield the fit problem of the motions and its linearization at every point."""
        for point, start in zip(self.points, self._settle_at_home(), strict=True):
            logs = self._motion_logs(commands, start)
            problem = fit_problem(self.backend, logs, replace(self.space, twin=logs.twin), point, self.config)
            yield problem, linearize(problem, point, alone=alone)

    def _motion_logs(self, commands: Array, start: Array) -> ReplayLogs:
        """Return motions as logs of a robot whose first reading is ``start`` ``(n,)``."""
        twin, torque = self.twin, self.twin.robot.control == "torque"
        time = np.arange(commands.shape[1]) / twin.control_hz
        episodes = [
            Episode(
                index=number,
                time=time,
                action=rows if torque else twin.units.from_si(rows),
                state=np.tile(start, (len(rows), 1)),
                units=twin.units,
                command="torque" if torque else "position",
                source="sim",
            )
            for number, rows in enumerate(commands)
        ]
        options = replace(self.config.replay, window=None, stride=None, start="rest", compare=("position",))
        options = replace(options, torque="command", conditions={}, local={})
        return limit_physics_rate(prepare_replay(twin, episodes, options), self.config.physics_hz)

    def _settle_at_home(self) -> Array:
        """Return the readings at rest at home, at every point, ``(npoint, n)``."""
        held = np.tile(self.home, (1, round(_SETTLE_S * self.twin.control_hz), 1))
        logs = self._motion_logs(held, self.twin.units.from_si(self.twin.home()[0][self.twin.joint_qpos]))
        return replay(self.backend, logs, self.space.table(self.points))[:, 0, -1]

    def find_admissible(self, commands: Array) -> tuple[NDArray[np.bool_], Array]:
        """Return which motions ``(nmotion, T, n)`` the robot may execute at all points, simulated with contacts.

        Joints must stay within their ranges and speeds and drives within their torque limits, and no bodies may come
        near each other that are not near at home. Also return the largest distance of readings from commands,
        ``(nmotion, n)`` in rad or m.
        """
        nmotion, npoint = len(commands), len(self.points)
        issued = np.repeat(commands, npoint, axis=0)
        rows = np.tile(np.arange(npoint), nmotion)
        table = replace(self.space, twin=self.twin).table(self.points).take(rows)
        initial = InitialState.home(self.twin, len(issued))
        run = rollout(self.backend, self.twin, table, initial, issued, issued.shape[1], record=("actuator_force",))
        positions = run.qpos[:, 1:, self.twin.joint_qpos]
        speeds = run.qvel[:, 1:, self.twin.joint_qvel]
        torque = np.sqrt(np.mean(run.records["actuator_force"][:, 1:] ** 2, axis=1))
        fine = run.valid & (torque <= self.limits.torque).all(axis=1) & self._in_range(positions)
        fine &= (np.abs(speeds) <= self._allowed_overshoot() * self.limits.speed).all(axis=(1, 2))
        clearance = ClearanceCheck(
            self.twin, self.limits.clearance / 2
        )  # the other half is for the lag behind the command
        for world in np.flatnonzero(fine):
            fine[world] = clearance.find_first_contact(positions[world, ::_LOOK]) is None
        lag = np.abs(positions - issued).max(axis=1)
        return fine.reshape(nmotion, npoint).all(axis=1), lag.reshape(nmotion, npoint, -1).max(axis=1)

    def _in_range(self, positions: Array) -> NDArray[np.bool_]:
        """Return whether all joints with limits stay between them, ``(nworld,)``."""
        model = self.twin.model
        limited = [bool(model.jnt_limited[model.joint(name).id]) for name in self.twin.robot.joints]
        low, high = np.where(np.array(limited)[:, None], self.twin.joint_ranges, [-np.inf, np.inf]).T
        return ((positions >= low) & (positions <= high)).all(axis=(1, 2))

    def _allowed_overshoot(self) -> float:
        """Return the allowed ratio of speed to limit: servos may overshoot, torque-controlled arms may not."""
        return 1.0 if self.twin.robot.control == "torque" else 1.5
