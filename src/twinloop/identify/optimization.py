"""Optimize the parameters of a fit, stage by stage, and collect notes about problems for the user.

The stages are:

1. ``first`` fits the parameters that explain most of a servo's lag, on few windows.
2. ``walk`` fits all parameters by the configured search. The noise of every sensor is then estimated again, and the fit
repeated, until the noise is stable.
3. ``blocks`` searches for lower losses around the solution, while residuals stay correlated in time.
4. ``joint`` makes the last steps with all parameters, all training windows and all effects between joints. Parameters
that all joints share, such as link masses, are fitted only here. The readings are corrected for the finite physics step
(`physics_rate`), so that errors of the integration do not enter the parameters.

The checkpoint is updated during every stage. An interrupt (Ctrl-C) ends the optimization at its current state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.params import ParamTable
from twinloop.identify.assembly import FitSpace, choose_main_windows, fit_problem, huber_width
from twinloop.identify.config import FitConfig
from twinloop.identify.model_error import find_structured_channels
from twinloop.identify.physics_rate import StepCorrection, compute_step_correction, limit_physics_rate
from twinloop.identify.problem import (
    FitProblem,
    Linearization,
    average_slopes,
    derivative_sizes,
    ignore_rough_frames,
    likelihood_weight,
    linearize,
    normal_equations,
    small_steps,
    standard_errors,
)
from twinloop.identify.search import (
    EvolutionResult,
    Optimum,
    combine_blocks,
    describe_optima,
    distinct_optima,
    evolve,
    evolve_blocks,
    lag_starts,
    starting_points,
)
from twinloop.identify.solver import (
    FitCheckpoint,
    SolverSolution,
    SolverState,
    continue_descent,
    refine,
    start_descent,
)
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_NEAR_BOUND = 1e-3  # standard deviations of the prior


def check_measured(logs: ReplayLogs) -> None:
    """Check that every channel has at least one measurement.

    Raises:
        LogError: If a channel has no measurement.
    """
    for column, channel in enumerate(logs.channels):
        if np.isnan(logs.measured[..., column]).all():
            raise LogError(
                f"{channel.name} has no measurement in the {len(logs)} training windows. Compare other channels, or "
                "correct the log."
            )


def describe_constant_channels(logs: ReplayLogs, space: FitSpace) -> list[str]:
    """Return notes on position channels that never move, with the parameters that they therefore cannot identify."""
    notes = []
    for column, channel in enumerate(logs.channels):
        values = logs.measured[..., column]
        family, _, joint = channel.name.partition("/")
        if family != "position" or np.nanmax(values) > np.nanmin(values):
            continue
        number = logs.joints.index(joint) if joint in logs.joints else None
        own = [p.name for p in space.free if p.joint is not None and p.joint == number]
        effect = f"identify {', '.join(own)}" if own else "identify anything"
        notes.append(
            f"{channel.name} is {np.nanmin(values):g} {channel.unit} in every training frame: it cannot {effect}. "
            "Record a log in which it moves, or fix those parameters."
        )
    return notes


def describe_divergence(logs: ReplayLogs, space: FitSpace, point: Array, residual: Array) -> str:
    """Describe in which window and at which time the replay at a point diverges.

    Args:
        logs: The replayed windows.
        space: The free parameters.
        point: The point in solver coordinates (ln or SI), ``(p,)``.
        residual: Residuals at the point, ``(nwindow, nframe, nchannel)``, infinite where the replay has diverged.
    """
    lost = np.asarray(np.isinf(residual).any(axis=-1))
    windows = np.flatnonzero(np.any(lost, axis=1))
    frame = np.argmax(lost[windows], axis=1)
    first = int(windows[np.argmin(frame)])
    when = float(frame.min()) / logs.twin.control_hz
    values = ", ".join(f"{name} {value:.4g}" for name, value in space.scalar_values(point).items())
    return (
        f"The twin {logs.twin.name} cannot be replayed where the fit starts: it diverges in {len(windows)} of "
        f"{len(logs)} windows, in episode {logs.episode_numbers[first]} {when:.3f} s after its window begins at "
        f"{logs.start_times[first]:.3f} s. The start: {values}. Give another start, raise physics_hz (now steps of "
        f"{1e3 * logs.twin.dt:.2g} ms) or the twin's substeps, or search from many starts (search: multistart)."
    )


def describe_diverged_starts(space: FitSpace, points: Array, lost: NDArray[np.bool_]) -> str:
    """Return a note on the start points at which the twin diverges, with the values of the first of them.

    Args:
        space: The free parameters.
        points: All start points in solver coordinates (ln or SI), ``(nstart, p)``.
        lost: Mask of the points at which the twin diverges, ``(nstart,)``.
    """
    values = space.scalar_values(points[int(np.argmax(lost))])
    value_text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return (
        f"{int(lost.sum())} of {len(lost)} starts are omitted, because the twin diverges there; the first: "
        f"{value_text}. Narrow the bounds to exclude implausible values."
    )


def describe_parameters_at_bounds(space: FitSpace, point: Array) -> list[str]:
    """Return notes on the parameters whose estimate is on a bound.

    Args:
        space: The free parameters.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
    """
    notes = []
    for value, parameter in zip(point, space.free, strict=True):
        for side, bound in (("lower", parameter.low), ("upper", parameter.high)):
            if abs(value - bound) < _NEAR_BOUND * parameter.sd:
                limit = float(np.exp(bound)) if parameter.is_logarithmic else bound
                notes.append(
                    f"{parameter.name} ends on its {side} bound, {limit:g} {parameter.param.unit}: the data favour "
                    f"{'lower' if side == 'lower' else 'higher'} values. Widen the bound if that is possible, else fix "
                    "the parameter there and look for physics that the twin lacks."
                )
    return notes


def describe_unconverged_fit(solution: SolverSolution) -> list[str]:
    """Return a note if the optimization reached its iteration limit while the loss was still falling.

    The list is empty otherwise.
    """
    history = solution.history
    if solution.converged or len(history) < 3:
        return []
    fell = 1.0 - history[-1] / history[-3] if history[-3] > 0 else 0.0
    return [f"The optimization ended while its loss was still falling, by {fell:.1%} in two steps. Raise iterations."]


_FIRST_ITERATIONS, _START_ITERATIONS, _FIRST_TOLERANCE, _TOLERANCE = 6, 3, 1e-2, 2e-3
# Search of blocks by CMA-ES: largest number of searches, generations and points of each, and autocorrelation of a
# residual from which on it is searched; our choice.
_SEARCHES, _GENERATIONS, _POPULATION, _SEARCHED = 3, 15, 12, 0.3
_STEADY = 1.25  # noise that changes by less than this factor is stable
# Changes of the readings, in Huber widths, by finite differences of the last stage: large enough for its steps to see
# past the roughness of stiction, and small enough for its result to leave open what no data determine.
_CHANGE, _FINEST_CHANGE = 1.0, 0.002
UNNOTICED = 0.005  # rise of the loss for an undetermined parameter at its prior, 0.25 % of the residuals; our choice
_STEP_DOUBT = 0.25  # part of the correction for the finite physics step that counts as uncertain; our choice
_PART_ROUNDS = 4  # of the last stage with the windows of the main iterations
# Largest move in standard errors, and fall of the loss, after which a round of the last stage is not repeated.
_NEAR, _FALL, _PART_FALL = 0.2, 5e-3, 1e-2
_SCANNED = np.linspace(0.0, 0.2, 11)  # s; servo lags on a bus reach 130 ms (SO-101), camera lags 200 ms


@dataclass(frozen=True, kw_only=True)
class FitProgress:
    """Progress of a running fit.

    Attributes:
        stage: Name of the current stage, for example ``walk`` (main iterations) or ``joint`` (last steps).
        iteration: Iterations done in this stage.
        max_iterations: Maximum number of iterations of this stage.
        loss: Lowest loss so far.
        replays: Number of worlds simulated (replayed) so far, over all stages.
    """

    stage: str
    iteration: int
    max_iterations: int
    loss: float
    replays: int


@dataclass(frozen=True, kw_only=True)
class OptimizationResult:
    """Result of the optimization of a fit.

    Attributes:
        problem: The least-squares problem of the last stage, with all training windows.
        solution: Its solution; after an interrupt, the best point so far.
        worlds: Number of simulated worlds.
        step_errors: Errors of the correction for the finite physics step, ``(k, nwindow, nframe, nchannel)`` in the
            channels' units: by the length of the shortest step, and by the last change of the parameters. None after
            an interrupt before the last stage.
        optima: Solutions with nearly the same loss, the reported solution first.
        notes: Notes for the user.
    """

    problem: FitProblem
    solution: SolverSolution
    worlds: int
    step_errors: Array | None = None
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
    """Fit the free parameters to the training windows, in stages.

    Args:
        backend: The backend that simulates the replays.
        training: The training windows.
        space: The free parameters.
        config: Configuration of the fit.
        checkpoint: Stores the progress, and resumes from it.
        progress: Called after every step with the progress.

    Raises:
        LogError: If a channel has no measurement.
        InputError: If the twin cannot be replayed from any start point.
        KeyboardInterrupt: If the fit is interrupted before its first result.
    """
    logs = limit_physics_rate(training, config.replay_hz)
    stages = _FitStages(
        backend=backend, logs=logs, own_substeps=training.twin.substeps, space=space, config=config,
        checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
    try:
        return stages.run()
    except KeyboardInterrupt:
        return stages.result_at_interrupt()


@dataclass(kw_only=True)
class _FitStages:
    """Optimization of one fit in several stages, for example first on some windows, then on all training windows.

    Attributes:
        backend: The backend that simulates the replays.
        logs: The training windows, with the twin at the physics rate of derivatives.
        own_substeps: The twin's own number of physics steps per control step.
        space: The free parameters.
        config: Configuration of the fit.
        checkpoint: Stores the progress of each stage.
        progress: Called after every step; None for no report.
        worlds: Number of worlds simulated so far.
        found: Best values of the p parameters so far, ``(p,)``: natural logarithms of parameters with a log transform,
            SI values of other parameters. None before the first result.
        notes: Notes for the user so far.
        step_errors: Errors of the correction for the finite physics step, see `OptimizationResult`.
    """

    backend: Backend
    logs: ReplayLogs
    own_substeps: int
    space: FitSpace
    config: FitConfig
    checkpoint: FitCheckpoint
    progress: Callable[[FitProgress], None] | None
    worlds: int = 0
    found: Array | None = None
    notes: list[str] = field(default_factory=list[str])
    step_errors: Array | None = None

    @property
    def early(self) -> NDArray[np.intp]:
        """Indices of the free parameters that are fitted from the beginning."""
        return np.flatnonzero([not parameter.shared for parameter in self.space.free])

    def run(self) -> OptimizationResult:
        """Run all stages in order, and return the result."""
        logs, config, space = self.logs, self.config, self.space.take(self.early)
        check_measured(logs)
        self.notes += describe_constant_channels(logs, space)
        rows = choose_main_windows(logs, config)
        starts = self._find_start_points(logs.take(rows), space)
        if config.search != "cma":
            starts[0] = self._fit_first_parameters(logs.take(rows[::2]), space, starts[0])
        if config.search == "lm":
            starts[0] = self._choose_delays(logs.take(rows[::2]), space, starts[0])
        problem = fit_problem(self.backend, logs.take(rows), space, starts[0], config)
        if config.search == "cma":
            starts = [self._run_cma_es(problem, starts[0]).point]
        solutions = self._descend(
            "walk", problem, [start_descent(problem, start) for start in starts], config.iterations,
            tolerance=_FIRST_TOLERANCE if config.search == "lm" else _TOLERANCE,
        )  # fmt: skip
        optima = distinct_optima(problem, solutions)
        best = min(solutions, key=lambda s: s.loss)
        problem, best = self._refine_noise(problem, best, logs.take(rows))
        self.notes += filter(None, [describe_optima(space, problem, optima)])
        self.notes += describe_unconverged_fit(best)
        converged = best.converged
        if config.search == "lm":
            problem, best = self._search_blocks(problem, best, logs.take(rows))
        problem, best = self._fit_all_jointly(problem, best, rows)
        best = replace(best, converged=converged)
        self.notes += describe_parameters_at_bounds(self.space, best.point)
        optima = tuple(replace(optimum, point=self._complete(optimum.point)) for optimum in optima)
        return OptimizationResult(
            problem=problem, solution=best, worlds=self.worlds, step_errors=self.step_errors, optima=optima,
            notes=tuple(self.notes),
        )  # fmt: skip

    def result_at_interrupt(self) -> OptimizationResult:
        """Return the best result so far, with a note about the interrupt.

        Raises:
            KeyboardInterrupt: If there is no result yet.
        """
        if self.found is None:
            raise KeyboardInterrupt
        problem = fit_problem(self.backend, self.logs, self.space, self.found, replace(self.config, coupled=True))
        end = linearize(problem, self.found)
        solution = SolverSolution(end=end, history=(float(end.losses.sum()),), replays=self.worlds, converged=False)
        checkpoint = self.config.checkpoint
        advice = f"Run again with the checkpoint {checkpoint}" if checkpoint else "Give a checkpoint next time"
        note = f"Interrupted: this is the best result so far. {advice} to finish the fit."
        return OptimizationResult(problem=problem, solution=solution, worlds=self.worlds, notes=(*self.notes, note))

    def _find_start_points(self, logs: ReplayLogs, space: FitSpace) -> list[Array]:
        """Return the start points at which the twin can be replayed; diverging starts add a note.

        Raises:
            InputError: If the twin diverges at every start point.
        """
        start = space.column("start")
        spread = np.nanstd(logs.measured, axis=(0, 1))  # the scale of residuals is still unknown
        width = np.where(spread > 0, spread, 1.0)
        problem = fit_problem(self.backend, logs, space, start, self.config, width=width)
        many = self.config.starts if self.config.search != "lm" else 1
        start = _scan_delays(problem, space, start, self.config)
        points = starting_points(problem, start, many, seed=self.config.seed)
        local = np.repeat(problem.zero_corrections[None], len(points), axis=0)
        residual = problem.residual(points, local)
        self.worlds += len(points)
        lost = np.asarray(np.isinf(residual).any(axis=(1, 2, 3)))
        if lost.all():
            raise InputError(describe_divergence(logs, space, points[0], residual[0]))
        if lost.any():
            self.notes.append(describe_diverged_starts(space, points, lost))
        return list(points[~lost])

    def _fit_first_parameters(self, logs: ReplayLogs, space: FitSpace, start: Array) -> Array:
        """Fit only the parameters of the first stage (`FitDeclaration.first`), such as the delay of a servo.

        They are fitted first because they explain most of a servo's lag.

        Returns:
            The point ``start`` with the fitted values of these parameters.
        """
        first = space.select_columns(lambda fit: fit.first)
        if not 0 < len(first) < len(space.names):
            return start
        others = {n: v for i, (n, v) in enumerate(space.scalar_values(start).items()) if i not in first}
        small = replace(space.take(first), fixed={**space.fixed, **others})
        problem = fit_problem(self.backend, logs, small, start[first], self.config)

        def complete(point: Array) -> Array:
            every = start.copy()
            every[first] = point
            return every

        states = [start_descent(problem, start[first])]
        early = self._descend(
            "first", problem, states, _FIRST_ITERATIONS, tolerance=_FIRST_TOLERANCE, to_all_parameters=complete
        )[0]
        return complete(early.point)

    def _choose_delays(self, logs: ReplayLogs, space: FitSpace, start: Array) -> Array:
        """Descend from several divisions of each servo's lag, see `lag_starts`, and return the best point by blocks."""
        others = lag_starts(space, start, keep=self.config.start)
        if not others:
            return start
        problem = fit_problem(self.backend, logs, space, start, self.config)
        states = [start_descent(problem, point) for point in (start, *others)]
        solutions = self._descend("delays", problem, states, _START_ITERATIONS, tolerance=_FIRST_TOLERANCE)
        return combine_blocks(problem, solutions)

    def _search_blocks(
        self, problem: FitProblem, best: SolverSolution, logs: ReplayLogs
    ) -> tuple[FitProblem, SolverSolution]:
        """Search for lower losses of correlated channels by CMA-ES, and descend again if there are any.

        A block whose residuals are not correlated in time has nothing to gain. The correction for the physics step
        depends on the point: a block moves if its loss with the correction at the new point is lower.
        """
        space, start = self.space.take(self.early), start_descent(problem, best.point, best.end.local)
        now = (self.checkpoint.load_descents("blocks") or [start])[0]
        while now.iteration < _SEARCHES and not now.converged:
            problem = self._correct_problem(problem, now.point, now.local, logs, space)
            here = linearize(problem, now.point, now.local)
            residual = here.residual * problem.width
            if not find_structured_channels(residual, problem.measured, least=_SEARCHED).any():
                break
            found = evolve_blocks(
                problem, here, generations=_GENERATIONS, population=_POPULATION, seed=self.config.seed + now.iteration
            )
            there = self._correct_problem(problem, found, now.local, logs, space)
            losses = there.losses_at(found[None], now.local[None])[0]
            point = now.point.copy()
            for block, before, after in zip(problem.blocks, here.losses, losses, strict=True):
                if after < before:
                    point[block.columns] = found[block.columns]
            fell = np.sum(np.maximum(here.losses - losses, 0.0)) > _FIRST_TOLERANCE * here.losses.sum()
            replays = now.replays + problem.probe_count + _GENERATIONS * _POPULATION + 2
            now = replace(now, point=point, iteration=now.iteration + 1, replays=replays, converged=not fell)
            self.found = self._complete(point)
            self.checkpoint.save_descents("blocks", [now])
            self._report_progress("blocks", now.iteration, _SEARCHES, float(here.losses.sum()), now.replays)
        self.worlds += now.replays
        if np.array_equal(now.point, start.point):
            return problem, best
        problem = self._correct_problem(problem, now.point, now.local, logs, space)
        states = [start_descent(problem, now.point, now.local)]
        solution = self._descend("again", problem, states, self.config.iterations, tolerance=_FIRST_TOLERANCE)[0]
        return self._refine_noise(problem, solution, logs, "noise again")

    def _correct_problem(
        self, problem: FitProblem, point: Array, local: Array, logs: ReplayLogs, space: FitSpace
    ) -> FitProblem:
        """Return the problem with the correction for the physics step at a point."""
        correction = self._correct_step(logs, space.table(point[None]), local[None], problem.width)
        return replace(problem, correction=correction.value)

    def _run_cma_es(self, problem: FitProblem, start: Array) -> EvolutionResult:
        config = self.config

        def watch(now: EvolutionResult) -> None:
            self.found = self._complete(now.point)
            self.checkpoint.save_losses("cma", now.generation_losses)
            self._report_progress("cma", len(now.generation_losses), config.generations, now.loss, now.replays)

        result = evolve(
            problem,
            start,
            generations=config.generations,
            population=config.population,
            seed=config.seed,
            generation_losses=self.checkpoint.load_losses("cma"),
            watch=watch,
        )
        self.worlds += result.replays
        return result

    def _refine_noise(
        self, problem: FitProblem, solution: SolverSolution, logs: ReplayLogs, stage: str = "noise"
    ) -> tuple[FitProblem, SolverSolution]:
        """Correct the error of the physics step, and continue the fit until the noise of every sensor is stable.

        The noise is estimated from the last solution. ``stage`` is the name of the stage in the checkpoint.
        """
        space = self.space.take(self.early)
        for number in range(self.config.rescale):
            point, local = solution.point[None], solution.end.local[None]
            problem = self._correct_problem(problem, solution.point, solution.end.local, logs, space)
            width = huber_width(problem.residual(point, local)[0] * problem.width, logs, self.config)
            change = np.maximum(width / problem.width, problem.width / width)
            if number and change.max() < _STEADY:
                break
            problem = replace(problem, width=width)
            states = [start_descent(problem, solution.point, solution.end.local)]
            solution = self._descend(
                f"{stage} {number + 1}", problem, states, self.config.iterations, tolerance=_FIRST_TOLERANCE
            )[0]
        return problem, solution

    def _fit_all_jointly(
        self, main: FitProblem, solution: SolverSolution, rows: NDArray[np.intp]
    ) -> tuple[FitProblem, SolverSolution]:
        """Make the last steps with all parameters and effects between joints.

        The first rounds have only the windows of the main iterations. Every round computes all derivatives and keeps
        them for its steps.

        Args:
            main: Least-squares problem of the main iterations.
            solution: Its solution.
            rows: Indices of its windows.
        """
        local = np.zeros((len(self.logs), self.logs.nlocal))
        local[rows] = solution.end.local
        point, width, size = self._complete(solution.point), main.width, np.zeros(len(self.space.free))
        size[self.early] = derivative_sizes(solution.end, main)
        every, config = np.arange(len(self.logs)), replace(self.config, coupled=True)
        chosen, problem, before, last, left = rows, main, solution.end, False, _PART_ROUNDS
        before_correction = np.zeros((0, 0, 0))
        for number in range(_PART_ROUNDS + 2 + config.polish):
            logs = self.logs.take(chosen)
            correction = self._correct_step(logs, self.space.table(point[None]), local[None, chosen], width)
            problem = fit_problem(self.backend, logs, self.space, point, config, width=width)
            problem = replace(problem, correction=correction.value)
            change = correction.value - before_correction if len(before_correction) == len(chosen) else None
            errors = [correction.error, _STEP_DOUBT * correction.value]
            self.step_errors = np.array(errors if change is None else [*errors, change])
            before_correction = correction.value
            if number == 0 and not logs.nlocal:
                residual = problem.residual(point[None], local[None, chosen])[0] * width
                width = huber_width(residual, logs, config)
                problem = replace(problem, width=width)
            steps = small_steps(problem, size, _FINEST_CHANGE if last else _CHANGE)
            part, probed = len(chosen) < len(every), len(point) + len(problem.local_sd) + 1
            here = linearize(problem, point, local[chosen], step=steps)
            if part:
                here = average_slopes(here, linearize(problem, point, local[chosen], step=-steps))
            size = derivative_sizes(here, problem)
            if last:
                here = ignore_rough_frames(here, before, problem)
            problem = replace(problem, prior_weight=likelihood_weight(here.residual))
            here = _return_to_prior(problem, here)
            losses = here.losses
            solution = refine(problem, here)
            self.worlds += (2 if part else 1) * probed + solution.replays
            moved = np.max(np.abs(solution.point - point) / standard_errors(problem, solution.end))
            point, self.found, before = solution.point, solution.point, here
            local[chosen] = solution.end.local
            self._report_progress("joint", number + 1, _PART_ROUNDS + 2 + config.polish, solution.loss, 0)
            if last:
                break
            noise = huber_width(solution.end.residual * width, logs, config)
            steady = bool(np.max(np.maximum(noise / width, width / noise)) < _STEADY)
            width, left = width if steady else noise, left - 1
            fall = losses.sum() - solution.loss
            settled = steady and bool(moved < _NEAR or fall < (_PART_FALL if part else _FALL) * solution.loss)
            if not part:
                last = settled or left == 0
            elif settled or left == 0:
                chosen, left = every, 1 + config.polish
        return problem, solution

    def _correct_step(self, logs: ReplayLogs, table: ParamTable, local: Array, width: Array) -> StepCorrection:
        """Return the correction for the finite physics step, see `compute_step_correction`.

        It is 0 for replays with contacts. They do not depend smoothly on the step, so that a correction at one point
        would only make all other points seem worse. Their parameters are those of the twin with its own step.
        """
        if self.config.replay.contacts:
            return StepCorrection(value=np.zeros(logs.measured.shape), error=np.zeros(logs.measured.shape))
        return compute_step_correction(self.backend, logs, table, local, width, own=self.own_substeps)

    def _complete(self, point: Array) -> Array:
        """Return a point of all free parameters from one of the parameters of the main iterations."""
        every = self.space.column("start")
        every[self.early] = point
        return every

    def _descend(
        self,
        stage: str,
        problem: FitProblem,
        states: Sequence[SolverState],
        iterations: int,
        *,
        tolerance: float,
        to_all_parameters: Callable[[Array], Array] | None = None,
    ) -> list[SolverSolution]:
        """Run minimizations (descents) from several states, or resume them from the checkpoint.

        Args:
            stage: Name of the stage in checkpoint and progress.
            problem: Least-squares problem of the fit.
            states: Initial states of the descents.
            iterations: Maximum number of steps.
            tolerance: Relative fall of the loss in two steps, below which a descent ends.
            to_all_parameters: If ``problem`` has only some of the parameters of the main iterations, function from its
                points to points of all of these; else None.
        """
        now = self.checkpoint.load_descents(stage) or list(states)

        def watch(number: int, descent: SolverState) -> None:
            now[number] = descent
            self.checkpoint.save_descents(stage, now)
            least = min((d for d in now if d.history), key=lambda d: d.history[-1])
            self.found = self._complete(to_all_parameters(least.point) if to_all_parameters else least.point)
            self._report_progress(stage, descent.iteration, iterations, least.history[-1], sum(d.replays for d in now))

        solutions = [
            continue_descent(problem, state, iterations=iterations, tolerance=tolerance, watch=partial(watch, number))
            for number, state in enumerate(list(now))
        ]
        self.worlds += sum(solution.replays for solution in solutions)
        return solutions

    def _report_progress(self, stage: str, iteration: int, most: int, loss: float, replays: int) -> None:
        if self.progress is not None:
            replays += self.worlds
            self.progress(
                FitProgress(stage=stage, iteration=iteration, max_iterations=most, loss=loss, replays=replays)
            )


def return_undetermined(problem: FitProblem, here: Linearization, undetermined: NDArray[np.bool_]) -> Linearization:
    """Return a solution with undetermined parameters at the mean of their prior, and the others fitted again.

    Those whose return alone costs least return first, and as many of them as raise the loss unnoticeably. The others
    cannot be made up for, and keep their values.

    Args:
        problem: Least-squares problem of the fit, with one block.
        here: Linearization at its solution.
        undetermined: Mask of the parameters, ``(p,)``.
    """
    centre = problem.prior_point
    candidates = np.flatnonzero(undetermined & (here.point != centre))
    covariance = np.linalg.inv(normal_equations(problem, here, 0).matrix)
    way = np.diag(centre - here.point)[candidates]  # without the others, and with them as the curvature tells
    follow = covariance[candidates] * (way.sum(axis=1) / np.diag(covariance)[candidates])[:, None]
    points = np.clip(here.point + np.concatenate([np.zeros((1, len(centre))), way, follow]), problem.low, problem.high)
    losses = problem.losses_at(points, np.repeat(here.local[None], len(points), axis=0)).sum(axis=1)
    alone = losses[1:].reshape(2, -1).min(axis=0)
    most = losses[0] * (1.0 + UNNOTICED)
    order = candidates[np.argsort(alone)][: np.sum(alone <= most)]
    best, good, bad, size = replace(here, losses=losses[:1]), 0, len(order) + 1, len(order)
    while size > good:  # bisection
        found = refit_at_prior(problem, here, order[:size])
        if found.losses.sum() <= most:
            best, good = found, size
        else:
            bad = size
        size = (good + bad) // 2
    return best


def refit_at_prior(
    problem: FitProblem, here: Linearization, columns: Sequence[int] | NDArray[np.int64]
) -> Linearization:
    """Return a solution with some parameters fixed at the mean of their prior, and the others fitted again.

    Args:
        problem: Least-squares problem of the fit, with one block.
        here: Linearization at its solution.
        columns: Indices of the parameters that are fixed.
    """
    low, high, point = problem.low.copy(), problem.high.copy(), here.point.copy()
    low[columns] = high[columns] = point[columns] = problem.prior_point[columns]
    residual = problem.residual(point[None], here.local[None])
    losses = problem.losses(residual, point[None], here.local[None])[0]
    moved = replace(here, point=point, residual=residual[0], losses=losses)
    return refine(replace(problem, low=low, high=high), moved).end


def _return_to_prior(problem: FitProblem, here: Linearization) -> Linearization:
    """Return the linearization with its losses, and with parameters of little effect at their prior's mean.

    Such a parameter is, for example, a torque limit that few training motions reach: an early step may have moved it,
    and short steps of all parameters do not bring it back. Each one returns only if the loss falls.

    Args:
        problem: Least-squares problem of the fit, with one block.
        here: Linearization at the current point.
    """
    prior = problem.prior_weight / problem.sd**2
    data = np.diag(normal_equations(problem, here, 0).matrix) - prior
    idle = np.flatnonzero((data < prior) & (here.point != problem.centre))
    centre = problem.prior_point
    points = np.repeat(here.point[None], len(idle) + 1, axis=0)
    points[1 + np.arange(len(idle)), idle] = centre[idle]
    local = np.repeat(here.local[None], len(points), axis=0)
    losses = problem.losses_at(points, local).sum(axis=1)
    helpful = idle[losses[1:] < losses[0]]
    points[0, helpful] = centre[helpful]
    residual = problem.residual(points[:1], local[:1])
    together = problem.losses(residual, points[:1], local[:1])[0]
    if together.sum() < losses[0]:
        return replace(here, point=points[0], residual=residual[0], losses=together)
    return replace(here, losses=problem.losses(here.residual[None], here.point[None], local[:1])[0])


def _scan_delays(problem: FitProblem, space: FitSpace, start: Array, config: FitConfig) -> Array:
    """Return ``start`` with the best delay of a scan over 11 values up to 0.2 s.

    Each block (parameters that are solved jointly, for example those of one joint) gets its own best value. Delays that
    the user gave or that were estimated from the log are not changed.
    """
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
