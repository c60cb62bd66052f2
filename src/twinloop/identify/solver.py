"""Minimize the loss of a fit by Levenberg–Marquardt over batched replays, and store checkpoints of long fits.

The Jacobian may consist of blocks: parameters that are solved jointly, for example those of one joint. It then ignores
the effects between blocks. To correct for this, a step is accepted only if the total loss of all channels falls. All
trial steps of all blocks run in one batch. A descent is one minimization from one start point. It is a generator that
yields the points whose residuals it needs, so that many descents can be replayed in one batch (`solve_together`).

A checkpoint file belongs to one fit: data, twin, free parameters and settings. It stores the progress of each stage.
Numbers are written such that reading them gives exactly the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.core.plain import to_plain_value
from twinloop.identify.problem import FitProblem, Linearization, linearization_from_probe, normal_equations, probe

Array = NDArray[np.float64]

_FACTORS = np.array([0.1, 1.0, 10.0, 100.0])
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e4
_REJECTIONS = 3  # consecutive rejected steps: with 30³ times more damping no step helps, so it is a minimum
_MOST_NUMBERS = 20_000_000  # residuals replayed at once: 160 MB


@dataclass(frozen=True, kw_only=True)
class SolverSolution:
    """Result of one minimization.

    Attributes:
        end: Linearization at the last point.
        history: Total loss at the start and after each accepted step.
        replays: Number of simulated worlds.
        converged: Whether the loss stopped falling before the iteration limit.
    """

    end: Linearization
    history: tuple[float, ...]
    replays: int
    converged: bool

    @property
    def point(self) -> Array:
        """Estimate in solver coordinates (ln or SI), ``(p,)``."""
        return self.end.point

    @property
    def loss(self) -> float:
        """Total loss of all blocks at the estimate."""
        return float(self.end.losses.sum())

    @property
    def diverged(self) -> bool:
        """Whether the twin cannot be replayed at the start point, so that no step was taken."""
        return not np.isfinite(self.loss)


@dataclass(frozen=True, kw_only=True)
class SolverState:
    """State of a descent (minimization from one start point), sufficient to resume it with the same result.

    Attributes:
        point: Current point in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
        damping: Levenberg–Marquardt damping of each block, ``(nblock,)``.
        history: Total loss at the start and after each accepted step.
        replays: Number of simulated worlds.
        rejections: Number of consecutive rejected steps.
        iteration: Number of steps, accepted and rejected.
        converged: Whether the descent has ended at a minimum.
    """

    point: Array
    local: Array
    damping: Array
    history: tuple[float, ...] = ()
    replays: int = 0
    rejections: int = 0
    iteration: int = 0
    converged: bool = False


Watch = Callable[[SolverState], None]


class _ResidualQuery(NamedTuple):
    """Points whose residuals an optimizer run needs next: k points of p parameters.

    A window is a part of an episode that starts from its own initial state.

    Attributes:
        points: Parameters in solver coordinates (ln or SI), ``(k, p)``.
        local: Corrections of m coordinates of each window's initial state, ``(k, nwindow, m)``.
    """

    points: Array
    local: Array


class _StepTrial(NamedTuple):
    """Result of one iteration of Levenberg–Marquardt: the accepted step and the next damping.

    Attributes:
        accepted: The accepted step, a query with the new point as its only row; None if no step lowers the loss.
        damping: Damping of each block for the next iteration.
    """

    accepted: _ResidualQuery | None
    damping: Array


_Walk = Generator[_ResidualQuery, Array, SolverSolution]


def solve(
    problem: FitProblem,
    start: Array,
    local: Array | None = None,
    *,
    iterations: int = 15,
    tolerance: float = 2e-3,
) -> SolverSolution:
    """Minimize the loss of a fit from one start point by Levenberg–Marquardt.

    Args:
        problem: Least-squares problem of the fit.
        start: Start point in solver coordinates (ln or SI), ``(p,)``.
        local: Initial corrections of m coordinates of each window's initial state, ``(nwindow, m)``; by default zero.
        iterations: Maximum number of steps, accepted or rejected.
        tolerance: The descent ends if two successive accepted steps together lower the total loss by less than this
            fraction.
    """
    return solve_together(problem, [start_descent(problem, start, local)], iterations=iterations, tolerance=tolerance)[
        0
    ]


def start_descent(problem: FitProblem, start: Array, local: Array | None = None) -> SolverState:
    """Return the initial state of a minimization; the start point is clipped to the bounds.

    Args:
        problem: Least-squares problem of the fit.
        start: Start point in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``; by default zero.
    """
    return SolverState(
        point=np.clip(start, problem.low, problem.high),
        local=problem.zero_corrections if local is None else local,
        damping=np.full(len(problem.blocks), _FIRST_DAMPING),
    )


def solve_together(
    problem: FitProblem,
    starts: Sequence[SolverState],
    *,
    iterations: int = 15,
    tolerance: float = 2e-3,
    watch: Callable[[int, SolverState], None] | None = None,
) -> list[SolverSolution]:
    """Minimize the loss from many start points as `solve` does, with all their replays in one batch.

    Args:
        problem: Least-squares problem of the fit.
        starts: Initial or resumed states.
        iterations: Maximum number of steps of each descent, accepted or rejected.
        tolerance: A descent ends if two successive accepted steps together lower the total loss by less than this
            fraction.
        watch: Called after every step with the index of the start and the state of its descent.

    Returns:
        The solutions in the order of ``starts``.
    """

    def make_watch(number: int) -> Watch:
        return lambda descent: watch(number, descent) if watch else None

    descents = {
        number: _run_descent(problem, start, iterations=iterations, tolerance=tolerance, watch=make_watch(number))
        for number, start in enumerate(starts)
    }
    queries = {number: next(walk) for number, walk in descents.items()}
    solutions: dict[int, SolverSolution] = {}
    while queries:
        for number, residual in _replay_queries(problem, queries):
            try:
                queries[number] = descents[number].send(residual)
            except StopIteration as end:
                solutions[number] = end.value
                del queries[number]
    return [solutions[number] for number in range(len(starts))]


def _replay_queries(problem: FitProblem, queries: dict[int, _ResidualQuery]) -> list[tuple[int, Array]]:
    """Replay some of the queries in one batch, as many as fit into memory but at least one.

    Args:
        problem: Least-squares problem of the fit.
        queries: Query of each unfinished descent, by its index.

    Returns:
        Pairs of the descent's index and its residuals.
    """
    most, chosen, worlds = max(1, _MOST_NUMBERS // max(problem.measured.size, 1)), [], 0
    for number, query in sorted(queries.items()):
        if chosen and worlds + len(query.points) > most:
            break
        chosen.append(number)
        worlds += len(query.points)
    points, local = (np.concatenate([queries[number][part] for number in chosen]) for part in (0, 1))
    ends = np.cumsum([len(queries[number].points) for number in chosen])
    return list(zip(chosen, np.split(problem.residual(points, local), ends[:-1]), strict=True))


def _run_descent(problem: FitProblem, start: SolverState, *, iterations: int, tolerance: float, watch: Watch) -> _Walk:
    here, replays = yield from _query_linearization(problem, start.point, start.local)
    now = start if start.history else replace(start, history=(float(here.losses.sum()),), replays=replays)
    if not np.isfinite(now.history[0]):
        return SolverSolution(end=here, history=now.history, replays=now.replays, converged=False)
    while now.iteration < iterations and not now.converged:
        before = now.history
        trial = yield from _best_trial(problem, here, now.damping)
        now = replace(now, iteration=now.iteration + 1, damping=trial.damping, replays=now.replays + len(_FACTORS) + 1)
        if trial.accepted is None:
            rejections = now.rejections + 1
            now = replace(now, rejections=rejections, converged=rejections == _REJECTIONS)
        else:
            here, replays = yield from _query_linearization(problem, trial.accepted.points[0], trial.accepted.local[0])
            history = (*before, float(here.losses.sum()))
            slow = len(history) > 2 and history[-3] - history[-1] < tolerance * history[-1]
            now = replace(
                now,
                point=here.point,
                local=here.local,
                history=history,
                replays=now.replays + replays,
                rejections=0,
                converged=slow,
            )
        watch(now)
    return SolverSolution(end=here, history=now.history, replays=now.replays, converged=now.converged)


def refine(
    problem: FitProblem, here: Linearization, *, iterations: int = 10, tolerance: float = 1e-6
) -> SolverSolution:
    """Minimize the loss from a linearization, whose derivatives are kept for all steps.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the start.
        iterations: Maximum number of steps, accepted or rejected.
        tolerance: The descent ends if a step lowers the total loss by less than this fraction.
    """
    damping, history, replays = _LEAST_DAMPING, [float(here.losses.sum())], 0
    for _ in range(iterations if np.isfinite(history[0]) else 0):
        step = _step(problem, here, np.full(len(problem.blocks), damping))
        tried = _ResidualQuery(step[0][None], step[1][None])
        residual, replays = problem.residual(*tried), replays + 1
        losses = problem.losses(residual, *tried)[0]
        if not losses.sum() < history[-1]:
            damping = max(1e3 * damping, _FIRST_DAMPING)
            continue
        here = replace(here, point=tried.points[0], local=tried.local[0], residual=residual[0], losses=losses)
        history.append(float(losses.sum()))
        damping = max(damping / 1e2, _LEAST_DAMPING)
        if history[-2] - history[-1] < tolerance * history[-1]:
            break
    return SolverSolution(end=here, history=tuple(history), replays=replays, converged=True)


def _query_linearization(
    problem: FitProblem, point: Array, local: Array
) -> Generator[_ResidualQuery, Array, tuple[Linearization, int]]:
    """Yield the query for the linearization at a point; return the linearization and the number of simulated worlds.

    The caller sends the residuals of the query's k points, ``(k, nwindow, nframe, nchannel)``.

    Args:
        problem: Least-squares problem of the fit.
        point: The point in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
    """
    probed = probe(problem, point, local)
    residual = yield _ResidualQuery(probed.points, probed.local)
    return linearization_from_probe(problem, probed, residual), len(probed.points)


def _best_trial(
    problem: FitProblem, here: Linearization, damping: Array
) -> Generator[_ResidualQuery, Array, _StepTrial]:
    """Yield queries for steps with several dampings, and return the best step and the next damping.

    First each block (jointly solved parameters) takes the damping that is best for its own loss. If the total loss of
    these combined steps is not lower than before, or not lower than with one common change of all dampings, the best
    common change is used. If no step lowers the loss, the damping is raised.
    """
    levels = np.clip(_FACTORS[:, None] * damping, _LEAST_DAMPING, _MOST_DAMPING)
    steps = [_step(problem, here, level) for level in levels]
    tried = _ResidualQuery(np.array([point for point, _ in steps]), np.array([local for _, local in steps]))
    losses = problem.losses((yield tried), *tried)
    uniform = losses.sum(axis=1)
    best, raised = int(np.argmin(uniform)), np.minimum(damping * 30.0, _MOST_DAMPING)
    better = losses.min(axis=0) < here.losses
    if len(problem.blocks) > 1 and better.any():
        choice = np.argmin(losses, axis=0)
        mixed = here.point.copy()
        for b in np.flatnonzero(better):
            columns = problem.blocks[b].columns
            mixed[columns] = tried.points[choice[b], columns]
        together = _ResidualQuery(mixed[None], here.local[None])
        if problem.losses((yield together), *together).sum() < min(here.losses.sum(), uniform[best]):
            return _StepTrial(together, np.where(better, levels[choice, np.arange(len(damping))], raised))
    if uniform[best] < here.losses.sum():
        return _StepTrial(_ResidualQuery(tried.points[[best]], tried.local[[best]]), levels[best])
    return _StepTrial(None, raised)


def _step(problem: FitProblem, here: Linearization, damping: Array) -> tuple[Array, Array]:
    """Compute the damped Gauss–Newton step of all blocks, within the bounds and at most one prior standard deviation.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the current point.
        damping: Levenberg–Marquardt damping of each block, ``(nblock,)``.

    Returns:
        The new point ``(p,)`` and the new corrections of the initial states ``(nwindow, m)``.
    """
    target, local = here.point.copy(), here.local
    for number, (block, level) in enumerate(zip(problem.blocks, damping, strict=True)):
        equations = normal_equations(problem, here, number, damping=level)
        values = _bounded_move(problem, here.point, block.columns, equations.matrix, equations.gradient)
        target[block.columns] = values
        local = here.local + equations.recover(values - here.point[block.columns])
    return target, local


def _bounded_move(
    problem: FitProblem, point: Array, columns: NDArray[np.intp], matrix: Array, gradient: Array
) -> Array:
    """Compute the new values of one block (jointly solved parameters) by a step within the bounds.

    Parameters on a bound are fixed, and the step of the other parameters is solved again. The step is at most one prior
    standard deviation long.

    Args:
        problem: Least-squares problem of the fit.
        point: Current point of all parameters in solver coordinates (ln or SI).
        columns: Indices of the block's k parameters.
        matrix: Damped second derivative of the block's loss, ``(k, k)``.
        gradient: Gradient of the block's loss, ``(k,)``.

    Returns:
        The new values of the block's parameters, ``(k,)``.
    """
    here, low, high = point[columns], problem.low[columns], problem.high[columns]
    move, loose = np.zeros(len(columns)), np.ones(len(columns), dtype=bool)
    while loose.any():
        rest = -gradient[loose] - matrix[np.ix_(loose, ~loose)] @ move[~loose]
        move[loose] = np.linalg.solve(matrix[np.ix_(loose, loose)], rest)
        outside = loose & ((here + move < low) | (here + move > high))
        if not outside.any():
            break
        move[outside] = np.clip(here + move, low, high)[outside] - here[outside]
        loose &= ~outside
    longest = np.max(np.abs(move) / problem.sd[columns])
    return np.clip(here + move / max(1.0, longest), low, high)


_SCHEMA = 1


class FitCheckpoint:
    """Progress of a fit, saved to a file, or kept only in memory if there is no path.

    A fit has several stages, for example the main iterations. A stage consists of minimizations (descents) from one or
    several start points, or of generations of CMA-ES.
    """

    def __init__(self, path: Path | None, fit: Mapping[str, str]) -> None:
        """Start a new checkpoint, or resume the checkpoint at ``path``.

        Args:
            path: The file; it is created when the first stage is saved.
            fit: Identity of the fit, by name: data, twin, parameters, settings.

        Raises:
            InputError: If the file is not a checkpoint, or belongs to another fit.
        """
        self._path, self._fit = path, dict(fit)
        self._stages: dict[str, Any] = {}
        if path is not None and path.exists():
            self._stages = _read_stages(path, self._fit)

    def load_descents(self, stage: str) -> list[SolverState]:
        """Return the saved states of the minimizations in a stage of the fit; empty if the stage has not started."""
        return [_parse_descent(row) for row in self._stages.get(stage, [])]

    def load_losses(self, stage: str) -> list[list[float]]:
        """Return the saved losses of all CMA-ES generations in a stage of the fit; empty if it has not started."""
        return self._stages.get(stage, [])

    def save_descents(self, stage: str, descents: Sequence[SolverState]) -> None:
        """Save the states of the minimizations in a stage of the fit, replacing its earlier states."""
        self._save_stage(stage, [{**to_plain_value(one), "local_shape": list(one.local.shape)} for one in descents])

    def save_losses(self, stage: str, losses: Sequence[Sequence[float]]) -> None:
        """Save the losses of every CMA-ES generation in a stage of the fit."""
        self._save_stage(stage, [list(row) for row in losses])

    def _save_stage(self, stage: str, value: list[Any]) -> None:
        self._stages[stage] = value
        if self._path is not None:
            write_json(self._path, {"schema": _SCHEMA, "fit": self._fit, "stages": self._stages})


def _read_stages(path: Path, fit: Mapping[str, str]) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != _SCHEMA or not isinstance(value.get("stages"), dict):
        raise InputError(f"{path} is not a checkpoint of a fit. Give another file, or remove it.")
    other = value.get("fit", {})
    differs = [name for name in fit if other.get(name) != fit[name]]
    if differs:
        raise InputError(
            f"The checkpoint {path} belongs to another fit: {', '.join(differs)} differ. Use the same, or give "
            "another file."
        )
    return dict(value["stages"])


def _parse_descent(row: Mapping[str, Any]) -> SolverState:
    arrays = {name: np.array(row[name]) for name in ("point", "damping")}
    local = np.array(row["local"]).reshape(row["local_shape"])
    rest = {name: row[name] for name in ("replays", "rejections", "iteration", "converged")}
    return SolverState(**arrays, local=local, history=tuple(row["history"]), **rest)
