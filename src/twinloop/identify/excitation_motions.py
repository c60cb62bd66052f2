"""Draw random motions for excitation, compute their Fisher information, and check that a robot may execute them.

Finite Fourier series (Swevers, Ganseman, Tükel, De Schutter & Van Brussel, IEEE Trans. Robotics and Automation 13,
1997) move all joints at once. Steps with pauses excite delay, saturation and static friction. Frequency sweeps excite
the servo's lag and inertia. Slow motion back and forth excites friction and the zero of the command.

Motions are commands of shape ``(T, n)`` for T control steps and n joints, in rad or m.
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
from twinloop.identify.assembly import FitSpace, fit_problem
from twinloop.identify.config import FitConfig
from twinloop.identify.fisher import FisherInformation, ResidualNoiseModel, compute_excitation, compute_information
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.problem import FitProblem, Linearization, linearize
from twinloop.simulate import Backend, InitialState, rollout
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
Shape = Callable[[np.random.Generator, Array, Array, MotionLimits], Array]

# Peak speed and acceleration of a minimum-jerk move over distance 1 in time 1: 30 s² (1−s)² at ½, and the maximum of
# 60 s − 180 s² + 120 s³.
_JERK_SPEED, _JERK_ACCELERATION = 1.875, 5.7735
_REST = 0.3  # s at rest at either end of a segment, so that its start does not depend on the segment before it
_REACH = 1.4  # rad or m: largest distance of a centre from home, most of an arm's work space (see teleop_motion)
_HARMONICS = 5  # number of harmonics, as in Swevers et al.
# A series moves at 0.1 Hz at least, and a sweep ends at a sixth of the rate of commands at most: held commands
# are a good sine up to there (a sixth loses sinc(1/6), 4.5 %).
_FASTEST_SHARE = 1.0 / 6.0
_SHRINK, _TRIES = 0.75, 9
_BOUND = 1.0 - 1e-9


def draw_fourier_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Draw a finite Fourier series about a random pose, at rest at both ends, ``(T, n)``.

    Args:
        random: Random generator.
        time: Times of the T commands, s.
        home: Pose at which the motion begins and ends, ``(n,)``.
        limits: Motion limits of the robot.
    """
    centre, span, within, path = _plan_around_pose(random, time, home, limits)
    highest = random.uniform(0.8, 3.0) * 5.0 / span  # Hz, of the fundamental of five seconds or less
    stride = max(1, int(highest * span / _HARMONICS / 2))
    harmonics = stride * np.arange(1.0, _HARMONICS + 1.0)
    swing = _draw_fourier_series(random, 2.0 * np.pi * within, harmonics, len(home))
    return path + _scale_amplitude(random, swing, centre, limits, time)


def draw_step_motion(random: np.random.Generator, time: Array, home: Array, limits: MotionLimits) -> Array:
    """Draw moves between random poses, as fast as the limits allow, with pauses, ``(T, n)``.

    Arguments as in `draw_fourier_motion`.
    """
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
    """Draw sines of rising frequency, with separate frequencies and amplitude per joint, ``(T, n)``.

    The commands are in rad or m, or torques in N·m or N if the robot is controlled by torque.

    Args:
        random: Random generator.
        time: Times of the T commands, s.
        home: Commands of the n joints at which the motion begins and ends, ``(n,)``.
        limits: Motion limits of the robot.
    """
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
    """Draw back-and-forth motion at nearly constant, low speed, ``(T, n)``; every reversal shows friction.

    The commands are in rad or m, or torques in N·m or N if the robot is controlled by torque.

    Args:
        random: Random generator.
        time: Times of the T commands, s.
        home: Commands of the n joints at which the motion begins and ends, ``(n,)``.
        limits: Motion limits of the robot.
    """
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
    """Scale commands ``(T, n)`` towards home until they keep the limits and the clearance.

    Args:
        commands: Commands in rad or m.
        home: Pose towards which they are scaled, ``(n,)``.
        limits: Motion limits of the robot.
        hz: Control rate.
        clearance: Check that bodies do not come too near to each other; None skips it.

    Returns:
        The scaled commands, or None if no scale in nine attempts keeps the limits and the clearance.
    """
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
    """Return Σ aₖ sin(kθ)/k − bₖ cos(kθ)/k with random a and b, and with value, slope and curvature 0 at θ = 0.

    Args:
        random: Random generator.
        angle: Angle θ at T times, ``(T,)``.
        harmonics: Multiples k of the fundamental frequency.
        count: Number of series, one per joint.

    Returns:
        The series, ``(T, count)``.
    """
    k, none = harmonics, np.zeros_like(harmonics)
    ends = np.stack([np.concatenate([none, -1.0 / k]), np.concatenate([k / k, none]), np.concatenate([none, k])])
    free = null_space(ends)
    weights = free @ random.normal(size=(free.shape[1], count))
    waves = np.concatenate([np.sin(np.outer(angle, k)) / k, -np.cos(np.outer(angle, k)) / k], axis=1)
    return waves @ weights


def _scale_amplitude(
    random: np.random.Generator, motion: Array, centre: Array, limits: MotionLimits, time: Array
) -> Array:
    """Scale each joint's motion to a random fraction (at least 0.3) of the largest amplitude within its limits.

    The limits are those of range, speed and acceleration.

    Args:
        random: Random generator.
        motion: Difference of the motion from the pose, ``(T, n)``.
        centre: The pose, ``(n,)``.
        limits: Motion limits of the robot.
        time: Times of the T commands, s.
    """
    hz = 1.0 / (time[1] - time[0])
    rate = np.abs(np.diff(motion, axis=0)).max(axis=0) * hz
    change = np.abs(np.diff(motion, n=2, axis=0)).max(axis=0) * hz**2
    most = np.minimum(_distance_to_limits(centre, limits) / np.abs(motion).max(axis=0), limits.speed / rate)
    return motion * np.minimum(most, limits.acceleration / change) * random.uniform(0.3, _BOUND, motion.shape[1])


def _draw_centre(random: np.random.Generator, home: Array, limits: MotionLimits) -> Array:
    return _clip_to_range(home + random.uniform(0.0, 1.0) * random.uniform(-_REACH, _REACH, len(home)), limits)


def _clip_to_range(pose: Array, limits: MotionLimits) -> Array:
    return np.clip(pose, limits.low, limits.high)


def _distance_to_limits(centre: Array, limits: MotionLimits) -> Array:
    """Return each joint's distance from a pose to the nearer end of its range, ``(n,)``.

    It is at least a tenth of the range.
    """
    return np.maximum(np.minimum(centre - limits.low, limits.high - centre), 0.1 * (limits.high - limits.low))


def _move_duration(distance: Array, limits: MotionLimits) -> float:
    """Return the duration in s of the fastest minimum-jerk move over ``distance`` ``(n,)``, plus a margin."""
    speed = _JERK_SPEED * np.abs(distance) / limits.speed
    acceleration = np.sqrt(_JERK_ACCELERATION * np.abs(distance) / limits.acceleration)
    return float(1.05 * np.maximum(speed, acceleration).max()) + 0.05


def _plan_around_pose(
    random: np.random.Generator, time: Array, home: Array, limits: MotionLimits
) -> tuple[Array, float, Array, Array]:
    """Plan a move from home to a random pose, a stay there, and the move back.

    Returns:
        The pose ``(n,)``, the duration of the stay in s, the elapsed fraction of the stay at each time ``(T,)``, and
        the path ``(T, n)``.
    """
    centre = _draw_centre(random, home, limits)
    begin = _move_duration(centre - home, limits)
    end = time[-1] - begin
    path = interpolate_minimum_jerk(
        [0.0, begin, end, time[-1], time[-1] + 1.0], [home, centre, centre, home, home], time
    )
    return centre, end - begin, np.clip((time - begin) / (end - begin), 0.0, 1.0), path


_SETTLE_S = 1.2  # s at home before a motion, as for virtual robots (hardware.arms.SETTLE_S)
_LOOK = 3  # every third frame of a motion is checked for clearance


@dataclass(frozen=True, kw_only=True)
class MotionTrials:
    """Simulator of candidate motions on a twin with several sets of plausible parameters.

    Attributes:
        twin: The twin.
        space: The free parameters; they define the columns of ``points``.
        points: Sets of plausible parameters in solver coordinates (ln or SI), ``(npoint, p)``.
        noise: Noise of the joint readings in the twin's units.
        config: Configuration of the fit.
        backend: The backend that runs the simulations.
        limits: Motion limits of the robot.
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
        """Pose at which every motion begins and ends, as a command ``(n,)``, SI."""
        return self.twin.home()[1]

    def motion_information(self, commands: Array, *, separate_worlds: bool = False) -> FisherInformation:
        """Return the Fisher information of motions from rest at every point, shape ``(npoint, nmotion, p, p)``.

        Args:
            commands: The motions, ``(nmotion, T, n)``.
            separate_worlds: Perturb each parameter in a separate world; slower, but exact. If false, parameters of
                different joints share worlds, which ignores their effects on other joints (see `problem.linearize`).
        """
        each = [
            compute_information(problem, here, self.noise)
            for problem, here in self._linearize_motions(commands, separate_worlds=separate_worlds)
        ]
        return FisherInformation(matrix=np.stack([i.matrix for i in each]), score=np.stack([i.score for i in each]))

    def motion_excitation(self, commands: Array) -> Array:
        """Return the RMS change of the readings per prior standard deviation of each parameter, ``(npoint, p)``.

        The change is in units of noise, over all motions ``(nmotion, T, n)``; see `fisher.compute_excitation`.
        """
        return np.stack(
            [
                compute_excitation(problem, here, self.noise)
                for problem, here in self._linearize_motions(commands, separate_worlds=True)
            ]
        )

    def _linearize_motions(
        self, commands: Array, *, separate_worlds: bool
    ) -> Iterator[tuple[FitProblem, Linearization]]:
        """Yield the fit problem of the motions and its linearization, for every set of plausible parameters.

        Args:
            commands: The motions, ``(nmotion, T, n)`` for T frames and n joints.
            separate_worlds: Perturb each parameter in a separate world; slower, but exact.
        """
        for point, start in zip(self.points, self._settle_at_home(), strict=True):
            logs = self._motion_logs(commands, start)
            problem = fit_problem(self.backend, logs, replace(self.space, twin=logs.twin), point, self.config)
            yield problem, linearize(problem, point, separate_worlds=separate_worlds)

    def _motion_logs(self, commands: Array, start: Array) -> ReplayLogs:
        """Return motions ``(nmotion, T, n)`` as logs of a robot whose first reading is ``start`` ``(n,)``."""
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
        return limit_physics_rate(prepare_replay(twin, episodes, options), self.config.replay_hz)

    def _settle_at_home(self) -> Array:
        """Simulate the robot at home until it rests, and return its readings at every point, ``(npoint, n)``."""
        held = np.tile(self.home, (1, round(_SETTLE_S * self.twin.control_hz), 1))
        logs = self._motion_logs(held, self.twin.units.from_si(self.twin.home()[0][self.twin.joint_qpos]))
        return replay(self.backend, logs, self.space.table(self.points))[:, 0, -1]

    def find_admissible(self, commands: Array) -> tuple[NDArray[np.bool_], Array]:
        """Simulate motions with contacts, and find those that the robot may execute at all points.

        Joints must stay within their ranges and speed limits, and drives within their torque limits. Bodies must not
        come near each other, except bodies that are near each other at home.

        Args:
            commands: The motions, ``(nmotion, T, n)``.

        Returns:
            A mask of the admissible motions ``(nmotion,)``, and the largest distance of each joint's readings from its
            commands, ``(nmotion, n)`` in rad or m.
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
        # Half of the clearance; the other half is for the lag of the readings behind the command.
        clearance = ClearanceCheck(self.twin, self.limits.clearance / 2)
        for world in np.flatnonzero(fine):
            fine[world] = clearance.find_first_contact(positions[world, ::_LOOK]) is None
        lag = np.abs(positions - issued).max(axis=1)
        return fine.reshape(nmotion, npoint).all(axis=1), lag.reshape(nmotion, npoint, -1).max(axis=1)

    def _in_range(self, positions: Array) -> NDArray[np.bool_]:
        """Return whether all limited joints stay within their ranges in each world, ``(nworld,)``."""
        model = self.twin.model
        limited = [bool(model.jnt_limited[model.joint(name).id]) for name in self.twin.robot.joints]
        low, high = np.where(np.array(limited)[:, None], self.twin.joint_ranges, [-np.inf, np.inf]).T
        return ((positions >= low) & (positions <= high)).all(axis=(1, 2))

    def _allowed_overshoot(self) -> float:
        """Return the allowed ratio of measured speed to speed limit.

        It is 1.5 for servos, which overshoot, and 1 for torque control.
        """
        return 1.0 if self.twin.robot.control == "torque" else 1.5
