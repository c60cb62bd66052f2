"""Survey data and twin before any fit: residual noise, plausible parameters, and the Fisher information of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.core.units import UnitMap
from twinloop.identify.assembly import (
    FitSpace,
    choose_main_windows,
    fit_problem,
    fit_space,
    select_free_parameters,
)
from twinloop.identify.config import FitConfig
from twinloop.identify.fisher import (
    FisherInformation,
    ResidualNoiseModel,
    compute_excitation,
    compute_information,
    estimate_residual_noise,
)
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.problem import FitProblem, linearize
from twinloop.identify.solver import solve
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
# Without a log: what a survey of the SO-101 log so101_pick_place_tape finds at 30 Hz, 0.15 to 0.6 of ±100 units of the
# five joints of the arm (3 to 11 mrad), with frame-to-frame correlations of 0.64 to 0.96.
USUAL_SD, USUAL_RHO, _USUAL_HZ = 0.0075, 0.9, 30.0
_TRIES = 3
_STILL = 3.0  # encoder counts within which a joint counts as not moving


@dataclass(frozen=True, kw_only=True)
class SurveyOptions:
    """Options of a survey, which computes what the data can determine at several sets of plausible parameters.

    Attributes:
        points: Number of sets of plausible parameters. The first set is the result of a few steps of a fit; the others
            are drawn from the distribution around it.
        steps: Number of steps of this fit. With 0 steps the error of the nominal parameters would count as noise.
        seed: Seed of the draws.
        noise: Noise of the readings in the log's units; by default estimated from the residuals after those steps.
    """

    points: int = 3
    steps: int = 3
    seed: int = 0
    noise: ResidualNoiseModel | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Information of a log about a twin's parameters, before any fit.

    Attributes:
        twin: The twin.
        space: Its free parameters.
        points: Sets of plausible parameters in solver coordinates (ln or SI), ``(npoint, p)``.
        information: Fisher information of all windows together at each set, ``(npoint, p, p)``.
        excitation: RMS change of the readings per prior standard deviation of each parameter, in units of noise,
            ``(npoint, p)``.
        noise: Noise of the readings.
        channels: Names of the channels.
        units: Unit of each channel.
        groups: Columns of the parameters that are fitted jointly, by name of the group.
        frames: Number of frames of the log; 0 without a log.
        episodes: Number of episodes of the log.
        still_joints: Joints that never move in the log.
        joint_units: Units of the joint readings in the log.
        hz: Control rate of the log.
    """

    twin: Twin
    space: FitSpace
    points: Array
    information: FisherInformation
    excitation: Array
    noise: ResidualNoiseModel
    channels: tuple[str, ...]
    units: tuple[str, ...]
    groups: dict[str, NDArray[np.intp]]
    frames: int
    episodes: int
    still_joints: tuple[str, ...] = ()
    joint_units: UnitMap | None = None
    hz: float = 0.0

    def joint_noise(self) -> ResidualNoiseModel:
        """Return the noise of the joint readings, converted to the twin's units and control rate."""
        known = {unit.joint: unit for unit in self.joint_units.joints} if self.joint_units else {}
        sd, rho = [], []
        for unit in self.twin.units.joints:
            row = self.channels.index(f"position/{unit.joint}")
            sd.append(self.noise.sd[row] * abs((known[unit.joint].scale or 1.0) / (unit.scale or 1.0)))
            rho.append(self.noise.rho[row] ** (self.hz / self.twin.control_hz))
        return ResidualNoiseModel(sd=np.array(sd), rho=np.array(rho))


def survey(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    config: FitConfig | None = None,
    options: SurveyOptions | None = None,
) -> Survey:
    """Compute the Fisher information of episodes about a twin's parameters, without a complete fit.

    The information is computed at several sets of plausible parameter values, because it depends on them.

    Args:
        twin: The twin.
        episodes: Episodes of the log. If there are none, the information is zero, and the sets of plausible parameters
            are drawn from the prior.
        backend: The backend that simulates the replays.
        config: Configuration of the later fit.
        options: Options of the survey.

    Raises:
        LogError, InputError: If the log does not match the twin.
    """
    config, options = config or FitConfig(), options or SurveyOptions()
    if not episodes:
        return _survey_prior(twin, config, options)
    logs = prepare_replay(twin, episodes, config.replay)
    space, _ = fit_space(logs, config)
    seen = limit_physics_rate(logs, config.replay_hz).take(choose_main_windows(logs, config))
    problem = fit_problem(backend, seen, space, space.column("start"), config)
    point = solve(problem, space.column("start"), iterations=options.steps).point if options.steps else problem.centre
    problem = fit_problem(backend, seen, space, point, config)
    noise = options.noise or estimate_residual_noise(problem, linearize(problem, point), _rounding_noise(logs))
    points, information, excited = _evaluate_points(problem, point, noise, options)
    share = float(np.sum(logs.lengths) / np.sum(seen.lengths))
    return Survey(
        twin=twin,
        space=space,
        points=points,
        information=information.times(share),
        excitation=excited,
        noise=noise,
        channels=tuple(channel.name for channel in logs.channels),
        units=tuple(channel.unit for channel in logs.channels),
        groups=_parameter_groups(space, problem),
        frames=int(np.sum(logs.lengths)),
        episodes=len(set(logs.episode_numbers)),
        still_joints=_find_still_joints(logs),
        joint_units=logs.units,
        hz=logs.twin.control_hz,
    )


def _evaluate_points(
    problem: FitProblem, first: Array, noise: ResidualNoiseModel, options: SurveyOptions
) -> tuple[Array, FisherInformation, Array]:
    """Compute Fisher information and excitation at several sets of plausible parameters.

    The excitation is the RMS change of the readings per prior standard deviation of a parameter, in units of noise. A
    set at which the replay diverges is replaced by another draw.

    Args:
        problem: Least-squares problem of the fit.
        first: The first set in solver coordinates (ln or SI), ``(p,)``.
        noise: Noise of the readings.
        options: Number of sets, and seed.

    Returns:
        The sets ``(npoint, p)``, the information of all windows at each set, and the excitation ``(npoint, p)``.
    """
    points, information, excited = [first], [], []
    for number in range(options.points * _TRIES):
        point = points[0] if not information else _draw_point(problem, points[0], information[0], number, options.seed)
        # Separate worlds: effects of a parameter on other joints must not be attributed to those joints' parameters.
        here = linearize(problem, point, separate_worlds=True)
        total = compute_information(problem, here, noise).total()
        if information and not np.isfinite(total.matrix).all():
            continue
        points[len(information) :] = [point]
        information.append(total)
        excited.append(compute_excitation(problem, here, noise))
        if len(information) == options.points:
            break
    stacked = FisherInformation(
        matrix=np.stack([i.matrix for i in information]), score=np.stack([i.score for i in information])
    )
    return np.array(points), stacked, np.array(excited)


def _draw_point(problem: FitProblem, centre: Array, information: FisherInformation, number: int, seed: int) -> Array:
    """Draw plausible parameters ``(p,)`` from the distribution expected after a fit, within the bounds.

    Args:
        problem: Least-squares problem of the fit.
        centre: Mean of the distribution in solver coordinates (ln or SI), ``(p,)``.
        information: Fisher information at the centre; where the information is small, the prior's width applies.
        number: Index of the draw.
        seed: Seed of the draws.
    """
    root = np.linalg.cholesky(information.covariance(problem.sd) + 1e-12 * np.diag(problem.sd**2))
    drawn = centre + root @ generator(seed, "plan/points", number).normal(size=len(centre))
    return np.clip(drawn, problem.low, problem.high)


def _survey_prior(twin: Twin, config: FitConfig, options: SurveyOptions) -> Survey:
    space = select_free_parameters(twin, config)
    count, sd = len(space.free), space.column("sd")
    draws = [generator(options.seed, "plan/points", i).normal(size=count) for i in range(1, options.points)]
    points = space.column("start") + sd * np.array([np.zeros(count), *draws])
    scale = np.array([abs(unit.scale or 1.0) for unit in twin.units.joints])
    usual = ResidualNoiseModel(sd=USUAL_SD / scale, rho=np.full(len(scale), USUAL_RHO ** (_USUAL_HZ / twin.control_hz)))
    zero = np.zeros((len(points), count, count))
    return Survey(
        twin=twin,
        space=space,
        points=np.clip(points, space.column("low"), space.column("high")),
        information=FisherInformation(matrix=zero, score=zero),
        excitation=np.zeros((len(points), count)),
        noise=options.noise or usual,
        channels=tuple(f"position/{joint}" for joint in twin.robot.joints),
        units=tuple(unit.unit for unit in twin.units.joints),
        groups={
            joint: space.joint_columns(j) for j, joint in enumerate(twin.robot.joints) if len(space.joint_columns(j))
        },
        frames=0,
        episodes=0,
        joint_units=twin.units,
        hz=twin.control_hz,
    )


def _parameter_groups(space: FitSpace, problem: FitProblem) -> dict[str, NDArray[np.intp]]:
    if len(problem.blocks) == 1:
        return {"all parameters": problem.blocks[0].columns}
    joints = space.twin.robot.joints
    return {joints[space.free[int(b.columns[0])].joint or 0]: b.columns for b in problem.blocks}


def _rounding_noise(logs: ReplayLogs) -> Array:
    """Return the standard deviation of rounding to encoder counts, in each channel's unit, ``(nchannel,)``.

    Rounding errors are uniform over one count. Channels without an encoder get a small positive value.
    """
    floor = 1e-9 + 1e-6 * np.nanmax(np.abs(logs.measured), axis=(0, 1))
    counts = logs.twin.robot.encoder_counts if logs.joints else None
    if counts is not None:
        for row, unit in enumerate(logs.units.joints):
            if logs.channels[row].name == f"position/{unit.joint}":
                floor[row] = 2.0 * np.pi / counts / abs(unit.scale or 1.0) / np.sqrt(12.0)
    return floor


def _find_still_joints(logs: ReplayLogs) -> tuple[str, ...]:
    """Return the names of the joints whose readings stay within a few encoder counts over all windows."""
    span = np.nanmax(logs.measured, axis=(0, 1)) - np.nanmin(logs.measured, axis=(0, 1))
    still = span <= _STILL * np.sqrt(12.0) * _rounding_noise(logs)
    names = [channel.name for channel in logs.channels]
    return tuple(name.removeprefix("position/") for name, is_still in zip(names, still, strict=True) if is_still)
