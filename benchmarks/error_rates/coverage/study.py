"""Simulate logs of robots with known parameters and noise that is correlated in time, and fit them.

A population of episodes is simulated once with the true parameters; each episode has its own commands and a slightly
perturbed first state. Each repetition draws some episodes and adds new noise. The log is fitted either like any real
log (``refit``) or by the same solver on replays that are linearized at the best-fitting values. The linearized fit is
much cheaper and exact for small errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig
from twinloop.identify.assembly import FitSpace, fit_problem, fit_space
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.problem import FitProblem, Linearization, linearize
from twinloop.identify.solver import solve
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin, load_twin

Array = NDArray[np.float64]
# Loss tolerance of the solver: a hundredth of the change by one standard error in these logs.
_TOLERANCE = 1e-4
_ITERATIONS = 15
_EPISODES_OF_APPROXIMATE_FIT = 30  # episodes for the values at which replays are linearized
# Finite-difference steps of the first state: rad, rad/s.
_START_STEPS = {"position": 1e-3, "velocity": 1e-2}
_NOISE_DRAWS = 4  # noise draws of the whole population, for the best-fitting values


@dataclass(frozen=True, kw_only=True)
class CoverageCase:
    """A robot with known parameters, the twin that is fitted to it, and how its logs are recorded.

    Attributes:
        name: Name of the case, as printed.
        twin: Name of the built-in twin.
        commands: Function from a generator and times ``(T,)`` in s to commands ``(T, nu)``.
        truth: True values of the free parameters, SI.
        missing: Parameters of the true robot that the fit leaves at the twin's nominal value, SI.
        fit: Configuration of the fit.
        hz: Frame rate of the log.
        seconds: Length of an episode.
        episodes: Episodes per log.
        noise: Standard deviation of a reading, rad.
        rho: Correlation of the noise between successive frames.
        start: Standard deviation of the first state's unrecorded error: ``position`` in rad, ``velocity`` in rad/s.
        population: Number of episodes from which each log is drawn.
        refit: Whether each log is fitted by replays instead of by their linearization.
    """

    name: str
    twin: str
    commands: Callable[[np.random.Generator, Array], Array]
    truth: Mapping[str, float]
    missing: Mapping[str, float] = field(default_factory=dict[str, float])
    fit: FitConfig = field(default_factory=FitConfig)
    hz: float = 50.0
    seconds: float = 2.0
    episodes: int = 12
    noise: float = 0.005
    rho: float = 0.95
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    population: int = 150
    refit: bool = False


@dataclass(frozen=True, kw_only=True)
class Population:
    """Simulated episodes of the true robot: readings without noise, ``clean`` ``(nepisode, nframe, nchannel)``."""

    case: CoverageCase
    twin: Twin
    commands: Array
    clean: Array

    @classmethod
    def of(cls, case: CoverageCase, backend: Backend, *, seed: int = 0) -> Population:
        """Simulate the true robot of a case, at the physics rate of the fit."""
        rng, twin = generator(seed, f"coverage/{case.name}/population"), load_twin(case.twin)
        frames = round(case.seconds * case.hz) + 1
        time = np.arange(frames) / case.hz
        commands = np.stack([case.commands(rng, time) for _ in range(case.population)])
        still = [_episode(twin, i, time, each, np.zeros((frames, each.shape[1]))) for i, each in enumerate(commands)]
        logs = limit_physics_rate(prepare_replay(twin, still, ReplayOptions(local=case.start)), case.fit.replay_hz)
        off = rng.normal(size=(1, len(logs), logs.nlocal)) * logs.start.sd
        clean = replay(backend, logs, logs.twin.table(1, {**case.truth, **case.missing}), off)[0]
        return cls(case=case, twin=twin, commands=commands, clean=clean)

    def noise(self, rng: np.random.Generator, count: int) -> Array:
        """Draw stationary AR(1) noise for ``count`` episodes, ``(count, nframe, nchannel)``."""
        rho = self.case.rho
        white = rng.normal(size=(count, *self.clean.shape[1:])) * np.sqrt(1 - rho**2)
        white[:, 0] /= np.sqrt(1 - rho**2)
        return self.case.noise * np.asarray(lfilter([1.0], [1.0, -rho], white, axis=1), dtype=np.float64)

    def log(self, rows: NDArray[np.intp], noise: Array) -> list[Episode]:
        """Return the episodes at ``rows`` of the population with ``noise`` added to their readings."""
        time = np.arange(self.clean.shape[1]) / self.case.hz
        return [
            _episode(self.twin, number, time, self.commands[row], self.clean[row] + each)
            for number, (row, each) in enumerate(zip(rows, noise, strict=True))
        ]


def _episode(twin: Twin, index: int, time: Array, action: Array, state: Array) -> Episode:
    return Episode(index=index, time=time, action=action, state=state, units=twin.units, source="sim")


@dataclass(frozen=True, kw_only=True)
class LinearFits:
    """Fits to logs of one population, by replays that are linearized at its best-fitting values.

    Attributes:
        logs: Replay windows of the whole population, without noise.
        here: Linearization of the replays of ``logs`` in the units of the channels, also with respect to errors of the
            recorded first states.
    """

    population: Population
    space: FitSpace
    logs: ReplayLogs
    problem: FitProblem
    here: Linearization

    @classmethod
    def about(cls, population: Population, backend: Backend) -> LinearFits:
        """Linearize at the values that best fit a noisy log of a part of the population."""
        case = population.case
        point = _approximate_best_fit(population, backend)
        everything = np.arange(case.population)
        logs = _windows(population, everything, np.zeros_like(population.clean), _START_STEPS)
        space = fit_space(logs, case.fit)[0]
        problem = replace(fit_problem(backend, logs, space, point, case.fit), width=np.ones(len(logs.channels)))
        here = linearize(problem, point)
        return cls(population=population, space=space, logs=logs, problem=problem, here=here)

    def best(self, *, seed: int = 1) -> Array:
        """Return the values that best fit the whole population: the limit of the estimates, also for a wrong model."""
        rng = generator(seed, f"coverage/{self.population.case.name}/best")
        rows = np.arange(self.population.case.population)
        return np.mean(
            [self.fit(rows, self.population.noise(rng, len(rows)))[1].point for _ in range(_NOISE_DRAWS)], axis=0
        )

    @cached_property
    def _first_frames(self) -> NDArray[np.intp]:
        """Frame of its episode at which each window begins."""
        return np.round(self.logs.start_times * self.population.case.hz).astype(np.intp)

    def fit(self, rows: NDArray[np.intp], noise: Array) -> tuple[FitProblem, Linearization, Array]:
        """Fit a log of the episodes at ``rows``: return problem, final linearization, and window start times in s."""
        owners = np.asarray(self.logs.episode_numbers)
        windows = [np.flatnonzero(owners == row) for row in rows]
        chosen = np.concatenate(windows)
        clusters = np.repeat(np.arange(len(rows)), [len(each) for each in windows])
        begin = self._first_frames[chosen]
        nframe = self.here.residual.shape[1]
        added = np.stack([noise[c, b : b + nframe] for c, b in zip(clusters, begin, strict=True)])
        rate = np.gradient(noise, 1.0 / self.population.case.hz, axis=1)
        moving = self.population.case.fit.replay.start == "measured"
        first = np.concatenate([noise[clusters, begin], rate[clusters, begin] * moving], axis=1)
        slopes, starts = self.here.jacobians[0][chosen], self.here.local_jacobian[chosen]
        error = self.here.residual[chosen] - added + np.einsum("efcm,em->efc", starts, first)
        local_sd = _local_sd(self.logs, self.population.case.fit.replay.local)
        inner = starts[..., -len(local_sd) :] if len(local_sd) else starts[..., :0]

        def readings(points: Array, local: Array) -> Array:
            moved = np.einsum("efcp,wp->wefc", slopes, points - self.here.point, optimize=True)
            return moved + np.einsum("efcm,wem->wefc", inner, local, optimize=True)

        problem = replace(
            self.problem, readings=readings, measured=-error, clusters=clusters, local_sd=local_sd,
            width=np.median(np.abs(error), axis=(0, 1)),
        )  # fmt: skip
        solution = solve(problem, self.here.point, iterations=_ITERATIONS, tolerance=_TOLERANCE)
        width = self.population.case.fit.width * np.median(np.abs(solution.end.residual), axis=(0, 1)) * problem.width
        problem = replace(problem, width=width)
        end = solve(problem, solution.point, solution.end.local, iterations=_ITERATIONS, tolerance=_TOLERANCE).end
        return problem, end, self.logs.start_times[chosen]


def _windows(population: Population, rows: NDArray[np.intp], noise: Array, local: Mapping[str, float]) -> ReplayLogs:
    options = replace(population.case.fit.replay, local=local)
    logs = prepare_replay(population.twin, population.log(rows, noise), options)
    return limit_physics_rate(logs, population.case.fit.replay_hz)


def _local_sd(logs: ReplayLogs, local: Mapping[str, float]) -> Array:
    """Return standard deviations of the first-state corrections that the fit estimates: the last of all corrections."""
    half = logs.nlocal // 2
    return np.concatenate(
        [np.full(half, local[key]) for key in ("position", "velocity") if key in local] or [np.zeros(0)]
    )


def _approximate_best_fit(population: Population, backend: Backend) -> Array:
    case = population.case
    rows = np.arange(min(_EPISODES_OF_APPROXIMATE_FIT, case.population))
    noise = population.noise(generator(2, f"coverage/{case.name}/best"), len(rows))
    logs = _windows(population, rows, noise, case.fit.replay.local)
    space = fit_space(logs, case.fit)[0]
    point = space.column("start")
    return solve(fit_problem(backend, logs, space, point, case.fit), point, iterations=_ITERATIONS).point
