"""Optimize a fit from start to estimate, stage by stage, with notes for the user.

The first stage fits few parameters on few windows. Then all parameters are fitted by the configured search, and the
noise of every sensor is estimated again until it is stable. The last steps use all training windows. The checkpoint is
updated during every stage. An interrupt (Ctrl-C) ends the optimization at its current state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.identify.assembly import FitSpace, evenly_spaced_indices, fit_problem, huber_width, limit_physics_rate
from twinloop.identify.config import FitConfig
from twinloop.identify.problem import FitProblem, linearize
from twinloop.identify.search import EvolutionResult, Optimum, describe_optima, distinct_optima, evolve, starting_points
from twinloop.identify.solver import FitCheckpoint, SolverSolution, SolverState, solve_together, start_descent
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_NEAR_BOUND = 1e-3  # standard deviations of the prior


def check_measured(logs: ReplayLogs) -> None:
    """Check that every channel has a measurement.

    Raises:
        LogError: a channel has none; the message names it.
    """
    for column, channel in enumerate(logs.channels):
        if np.isnan(logs.measured[..., column]).all():
            raise LogError(
                f"{channel.name} has no measurement in the {len(logs)} training windows. Compare other channels, or "
                "correct the log."
            )


def describe_constant_channels(logs: ReplayLogs, space: FitSpace) -> list[str]:
    """Return notes on channels that never move, with the parameters that they therefore cannot identify."""
    said = []
    for column, channel in enumerate(logs.channels):
        values = logs.measured[..., column]
        family, _, joint = channel.name.partition("/")
        if family != "position" or np.nanmax(values) > np.nanmin(values):
            continue
        number = logs.joints.index(joint) if joint in logs.joints else None
        own = [p.name for p in space.free if p.joint is not None and p.joint == number]
        about = f"identify {', '.join(own)}" if own else "identify anything"
        said.append(
            f"{channel.name} is {np.nanmin(values):g} {channel.unit} in every training frame: it cannot {about}. "
            "Record a log in which it moves, or fix those parameters."
        )
    return said


def describe_divergence(logs: ReplayLogs, space: FitSpace, point: Array, residual: Array) -> str:
    """Describe where and when the replay at a point diverges, from its ``residual`` ``(nwindow, nframe, nchannel)``."""
    lost = np.asarray(np.isinf(residual).any(axis=-1))
    windows = np.flatnonzero(np.any(lost, axis=1))
    frame = np.argmax(lost[windows], axis=1)
    first = int(windows[np.argmin(frame)])
    when = float(frame.min()) / logs.twin.control_hz
    values = ", ".join(f"{name} {value:.4g}" for name, value in space.scalar_values(point).items())
    return (
        f"The twin {logs.twin.name} cannot be replayed where the fit starts: it diverges in {len(windows)} of "
        f"{len(logs)} windows, in episode {logs.numbers[first]} {when:.3f} s after its window begins at "
        f"{logs.begins[first]:.3f} s. The start: {values}. Give another start, raise physics_hz (now steps of "
        f"{1e3 * logs.twin.dt:.2g} ms) or the twin's substeps, or search from many starts (search: multistart)."
    )


def describe_diverged_starts(space: FitSpace, points: Array, lost: NDArray[np.bool_]) -> str:
    """Return a note on starts at which the twin diverges, with the first of them."""
    values = space.scalar_values(points[int(np.argmax(lost))])
    said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return (
        f"{int(lost.sum())} of {len(lost)} starts are omitted, because the twin diverges there; the first: {said}. "
        "Narrow the bounds to exclude implausible values."
    )


def describe_parameters_at_bounds(space: FitSpace, point: Array) -> list[str]:
    """Return notes on parameters that end on a bound."""
    said = []
    for value, parameter in zip(point, space.free, strict=True):
        for side, bound in (("lower", parameter.low), ("upper", parameter.high)):
            if abs(value - bound) < _NEAR_BOUND * parameter.sd:
                limit = float(np.exp(bound)) if parameter.is_logarithmic else bound
                said.append(
                    f"{parameter.name} ends on its {side} bound, {limit:g} {parameter.param.unit}: the data favour "
                    f"{'lower' if side == 'lower' else 'higher'} values. Widen the bound if that is possible, else fix "
                    "the parameter there and look for physics that the twin lacks."
                )
    return said


def describe_unconverged_fit(solution: SolverSolution) -> list[str]:
    """Return a note if the iterations ended while the loss was still falling."""
    history = solution.history
    if solution.converged or len(history) < 3:
        return []
    fell = 1.0 - history[-1] / history[-3] if history[-3] > 0 else 0.0
    return [f"The optimization ended while its loss was still falling, by {fell:.1%} in two steps. Raise iterations."]


_FIRST_ITERATIONS, _FIRST_TOLERANCE = 6, 1e-2
_STEADY = 1.25  # noise that changes by less than this factor is stable
_LOCAL_POLISH = 4  # iterations that first states need on windows outside the main iterations
_SCANNED = np.linspace(0.0, 0.2, 11)  # s; servo lags on a bus reach 130 ms (SO-101), camera lags 200 ms


@dataclass(frozen=True, kw_only=True)
class FitProgress:
    """Progress of a fit: its ``stage``, ``iteration`` of at most ``most`` in it, loss, and replayed worlds."""

    stage: str
    iteration: int
    most: int
    loss: float
    replays: int


@dataclass(frozen=True, kw_only=True)
class OptimizationResult:
    """Result of the optimization: the ``problem`` of its last steps, the solution, the replayed worlds, and notes.

    ``optima`` are solutions with nearly the same loss, the reported one first.
    """

    problem: FitProblem
    solution: SolverSolution
    worlds: int
    optima: tuple[Optimum, ...] = ()
    notes: tuple[str, ...] = ()


def optimize_fit(
    backend: Backend,
    training: ReplayLogs,
    space: FitSpace,
    config: FitConfig,
    checkpoint: FitCheckpoint,
    *,
    progress: Callable[[FitProgress], None] | None = None,
) -> OptimizationResult:
    """Fit ``space`` to the training windows.

    Raises:
        LogError: a channel has no measurement.
        InputError: the twin cannot be replayed from any start; the message states where it diverges and the next step.
        KeyboardInterrupt: interrupted before the first result.
    """
    logs = limit_physics_rate(training, config.physics_hz)
    stages = _FitStages(
        backend=backend, logs=logs, space=space, config=config, checkpoint=checkpoint, progress=progress
    )
    try:
        return stages.all()
    except KeyboardInterrupt:
        return stages.result_at_interrupt()


@dataclass(kw_only=True)
class _FitStages:
    """Stages of the optimization; ``found`` is the best point so far, ``worlds`` the number of replayed worlds."""

    backend: Backend
    logs: ReplayLogs
    space: FitSpace
    config: FitConfig
    checkpoint: FitCheckpoint
    progress: Callable[[FitProgress], None] | None
    worlds: int = 0
    found: Array | None = None
    notes: list[str] = field(default_factory=list[str])

    def all(self) -> OptimizationResult:
        """Run all stages in order."""
        logs, config = self.logs, self.config
        check_measured(logs)
        self.notes += describe_constant_channels(logs, self.space)
        rows = evenly_spaced_indices(len(logs), config.walk)
        starts = self._find_start_points(logs.take(rows))
        if config.search != "cma":
            starts[0] = self._fit_first_parameters(logs.take(rows[::2]), starts[0])
        problem = fit_problem(self.backend, logs.take(rows), self.space, starts[0], config)
        if config.search == "cma":
            starts = [self._run_cma_es(problem, starts[0]).point]
        solutions = self._descend(
            "walk", problem, [start_descent(problem, start) for start in starts], config.iterations
        )
        optima = distinct_optima(problem, solutions)
        best = min(solutions, key=lambda s: s.loss)
        problem, best = self._refine_noise(problem, best)
        self.notes += filter(None, [describe_optima(self.space, problem, optima)])
        if len(rows) < len(logs):
            problem, best = self._polish_solution(problem, best, rows)
        self.notes += describe_parameters_at_bounds(self.space, best.point)
        self.notes += describe_unconverged_fit(best)
        return OptimizationResult(
            problem=problem, solution=best, worlds=self.worlds, optima=optima, notes=tuple(self.notes)
        )

    def result_at_interrupt(self) -> OptimizationResult:
        """Return the best result at the time of an interrupt.

        Raises:
            KeyboardInterrupt: there is no result yet.
        """
        if self.found is None:
            raise KeyboardInterrupt
        problem = fit_problem(self.backend, self.logs, self.space, self.found, self.config)
        end = linearize(problem, self.found)
        solution = SolverSolution(end=end, history=(float(end.losses.sum()),), replays=self.worlds, converged=False)
        kept = self.config.checkpoint
        how = f"Run again with the checkpoint {kept}" if kept else "Give a checkpoint next time"
        note = f"Interrupted: this is the best result so far. {how} to finish the fit."
        return OptimizationResult(problem=problem, solution=solution, worlds=self.worlds, notes=(*self.notes, note))

    def _find_start_points(self, logs: ReplayLogs) -> list[Array]:
        """Return the start points at which the twin can be replayed."""
        start = self.space.column("start")
        spread = np.nanstd(logs.measured, axis=(0, 1))  # the scale of residuals is still unknown
        width = np.where(spread > 0, spread, 1.0)
        problem = fit_problem(self.backend, logs, self.space, start, self.config, width=width)
        many = self.config.starts if self.config.search != "lm" else 1
        start = _scan_delays(problem, self.space, start, self.config)
        points = starting_points(problem, start, many, seed=self.config.seed)
        local = np.repeat(problem.zero_corrections[None], len(points), axis=0)
        residual = problem.residual(points, local)
        self.worlds += len(points)
        lost = np.asarray(np.isinf(residual).any(axis=(1, 2, 3)))
        if lost.all():
            raise InputError(describe_divergence(logs, self.space, points[0], residual[0]))
        if lost.any():
            self.notes.append(describe_diverged_starts(self.space, points, lost))
        return list(points[~lost])

    def _fit_first_parameters(self, logs: ReplayLogs, start: Array) -> Array:
        """Fit only the parameters whose quantities declare ``first``, and return ``start`` with their values."""
        space = self.space
        first = space.select_columns(lambda fit: fit.first)
        if not 0 < len(first) < len(space.names):
            return start
        others = {n: v for i, (n, v) in enumerate(space.scalar_values(start).items()) if i not in first}
        small = replace(space, free=tuple(space.free[i] for i in first), fixed={**space.fixed, **others})
        problem = fit_problem(self.backend, logs, small, start[first], self.config)

        def whole(point: Array) -> Array:
            every = start.copy()
            every[first] = point
            return every

        begun = [start_descent(problem, start[first])]
        early = self._descend("first", problem, begun, _FIRST_ITERATIONS, tolerance=_FIRST_TOLERANCE, whole=whole)[0]
        return whole(early.point)

    def _run_cma_es(self, problem: FitProblem, start: Array) -> EvolutionResult:
        config = self.config

        def watch(now: EvolutionResult) -> None:
            self.found = now.point
            self.checkpoint.save_losses("cma", now.told)
            self._report_progress("cma", len(now.told), config.generations, now.loss, now.replays)

        found = evolve(
            problem,
            start,
            generations=config.generations,
            population=config.population,
            seed=config.seed,
            told=self.checkpoint.load_losses("cma"),
            watch=watch,
        )
        self.worlds += found.replays
        return found

    def _refine_noise(self, problem: FitProblem, solution: SolverSolution) -> tuple[FitProblem, SolverSolution]:
        """Continue with the noise of every sensor estimated from the last solution, until it is stable."""
        for number in range(self.config.rescale):
            width = huber_width(solution.end.residual * problem.width, problem.measured, self.config)
            change = np.maximum(width / problem.width, problem.width / width)
            if change.max() < _STEADY:
                break
            problem = replace(problem, width=width)
            begun = [start_descent(problem, solution.point, solution.end.local)]
            solution = self._descend(f"noise {number + 1}", problem, begun, self.config.iterations)[0]
        return problem, solution

    def _polish_solution(
        self, walked: FitProblem, solution: SolverSolution, rows: NDArray[np.intp]
    ) -> tuple[FitProblem, SolverSolution]:
        width = walked.width if self.logs.nlocal else None
        problem = fit_problem(self.backend, self.logs, self.space, solution.point, self.config, width=width)
        iterations, local = self.config.polish, problem.zero_corrections
        if self.logs.nlocal:
            local[rows] = solution.end.local
            iterations = max(iterations, _LOCAL_POLISH)
        polished = self._descend("polish", problem, [start_descent(problem, solution.point, local)], iterations)[0]
        return problem, replace(polished, converged=solution.converged)

    def _descend(
        self,
        stage: str,
        problem: FitProblem,
        begun: Sequence[SolverState],
        iterations: int,
        *,
        tolerance: float = 2e-3,
        whole: Callable[[Array], Array] | None = None,
    ) -> list[SolverSolution]:
        """Run descents together, resumed from the checkpoint; ``whole`` maps their point to one of all parameters."""
        now = self.checkpoint.load_descents(stage) or list(begun)

        def watch(number: int, descent: SolverState) -> None:
            now[number] = descent
            self.checkpoint.save_descents(stage, now)
            least = min((d for d in now if d.history), key=lambda d: d.history[-1])
            self.found = whole(least.point) if whole else least.point
            self._report_progress(stage, descent.iteration, iterations, least.history[-1], sum(d.replays for d in now))

        solutions = solve_together(problem, list(now), iterations=iterations, tolerance=tolerance, watch=watch)
        self.worlds += sum(solution.replays for solution in solutions)
        return solutions

    def _report_progress(self, stage: str, iteration: int, most: int, loss: float, replays: int) -> None:
        if self.progress is not None:
            replays += self.worlds
            self.progress(FitProgress(stage=stage, iteration=iteration, most=most, loss=loss, replays=replays))


def _scan_delays(problem: FitProblem, space: FitSpace, start: Array, config: FitConfig) -> Array:
    """Return ``start`` with the best delays of a scan, one value per block; given or estimated delays stay."""
    columns = space.select_columns(lambda fit: fit.scanned)
    columns = columns[[space.names[i] not in config.start and start[i] == problem.centre[i] for i in columns]]
    if not len(columns):
        return start
    points = np.repeat(start[None], len(_SCANNED), axis=0)
    points[:, columns] = np.clip(_SCANNED[:, None], problem.low[columns], problem.high[columns])
    points = np.concatenate([start[None], points])
    losses = problem.losses_at(points)
    best = start.copy()
    for block, loss in zip(problem.blocks, losses.T, strict=True):
        own = np.intersect1d(block.columns, columns)
        best[own] = points[int(np.argmin(loss)), own]
    return best
