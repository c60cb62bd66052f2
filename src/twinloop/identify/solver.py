"""Minimize the loss of a fit by Levenberg–Marquardt over batched replays, and store checkpoints of long fits.

The Jacobian may consist of blocks: parameters that are solved jointly, for example those of one joint. It then ignores
the effects between blocks. To correct for this, a step is accepted only if the total loss of all channels falls. All
trial steps of all blocks run in one batch. A descent is one minimization from one start point.

A checkpoint file belongs to one fit: data, twin, free parameters and settings. It stores the progress of each stage.
Numbers are written such that reading them gives exactly the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.core.plain import to_plain_value
from twinloop.identify.problem import DIFFERENCE, FitProblem, Linearization, linearize, normal_equations

Array = NDArray[np.float64]

_FACTORS = np.array([0.1, 1.0, 10.0, 100.0])
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e4
# Consecutive rejected steps after which a point counts as a minimum: one with the usual derivatives, one with 30 times
# more damping, and two with coarser derivatives, which a rough loss (contacts, stiction) may need.
_REJECTIONS, _COARSER = 4, 4.0


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


class _StepTrial(NamedTuple):
    """Result of one iteration of Levenberg–Marquardt: the accepted step and the next damping.

    Attributes:
        accepted: The new point ``(p,)`` and the new corrections of the initial states ``(nwindow, m)``; None if no step
            lowers the loss.
        damping: Damping of each block for the next iteration.
    """

    accepted: tuple[Array, Array] | None
    damping: Array


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
    return continue_descent(problem, start_descent(problem, start, local), iterations=iterations, tolerance=tolerance)


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


def continue_descent(
    problem: FitProblem,
    now: SolverState,
    *,
    iterations: int = 15,
    tolerance: float = 2e-3,
    watch: Watch | None = None,
) -> SolverSolution:
    """Minimize the loss from an initial or a stored state, see `solve`.

    Args:
        problem: Least-squares problem of the fit.
        now: The state.
        iterations: Maximum number of steps, accepted or rejected.
        tolerance: The descent ends if two successive accepted steps together lower the total loss by less than this
            fraction.
        watch: Called after every step with the state.
    """
    here, replays = _linearize_state(problem, now), 1 + problem.probe_count
    if not now.history:
        now = replace(now, history=(float(here.losses.sum()),), replays=replays)
    if not np.isfinite(now.history[0]):
        return SolverSolution(end=here, history=now.history, replays=now.replays, converged=False)
    while now.iteration < iterations and not now.converged:
        before = now.history
        trial = _best_trial(problem, here, now.damping)
        now = replace(now, iteration=now.iteration + 1, damping=trial.damping, replays=now.replays + len(_FACTORS) + 1)
        if trial.accepted is None:
            rejections = now.rejections + 1
            now = replace(now, rejections=rejections, converged=rejections == _REJECTIONS)
            if not now.converged and rejections > 1:
                here = _linearize_state(problem, now)
                now = replace(now, damping=np.full(len(now.damping), _FIRST_DAMPING), replays=now.replays + replays)
        else:
            here = linearize(problem, *trial.accepted)
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
        if watch is not None:
            watch(now)
    return SolverSolution(end=here, history=now.history, replays=now.replays, converged=now.converged)


def _linearize_state(problem: FitProblem, now: SolverState) -> Linearization:
    """Return the linearization at a state, by larger differences if more than one step was rejected there."""
    coarser = _COARSER ** max(now.rejections - 1, 0)
    return linearize(problem, now.point, now.local, step=coarser * DIFFERENCE * problem.sd)


_REFINEMENTS, _FIRST_RADIUS, _LEAST_RADIUS = 6, 1.0, 1e-3  # steps; prior standard deviations


def refine(problem: FitProblem, here: Linearization, *, tolerance: float = 1e-4) -> SolverSolution:
    """Minimize the loss of a problem with one block from a linearization, whose derivatives are kept for all steps.

    The steps have a trust region in units of the prior's standard deviations. Where parameters trade off against each
    other the loss has a narrow, bent valley; damping by the curvature of each parameter alone would stop there.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the start.
        tolerance: The descent ends if a step lowers the total loss by less than this fraction.
    """
    radius, history, replays = _FIRST_RADIUS, [float(here.losses.sum())], 0
    while replays < _REFINEMENTS and radius > _LEAST_RADIUS and np.isfinite(history[0]):
        point, local = _trust_region_step(problem, here, radius)
        residual, replays = problem.residual(point[None], local[None]), replays + 1
        losses = problem.losses(residual, point[None], local[None])[0]
        if not losses.sum() < history[-1]:
            radius = radius / 4.0
            continue
        growth = np.where(problem.logarithmic, np.exp(point - here.point), 1.0)  # readings are linear in SI units
        slopes = (here.jacobians[0] * growth,)
        here = replace(here, point=point, local=local, residual=residual[0], losses=losses, jacobians=slopes)
        history.append(float(losses.sum()))
        if history[-2] - history[-1] < tolerance * history[-1]:
            break
    return SolverSolution(end=here, history=tuple(history), replays=replays, converged=True)


_INNER_STEPS, _INNER_MOVE = 8, 0.01  # steps without a replay; prior standard deviations of a step that is the last one
_PULLS = np.concatenate([[0.0], np.logspace(-8, 4, 25)])  # weights of the distance from the start


def _trust_region_step(problem: FitProblem, here: Linearization, radius: float) -> tuple[Array, Array]:
    """Minimize the loss with linearized residuals within a radius, and return the point and the corrections.

    The radius is the largest change of a parameter in prior standard deviations. It is kept by a penalty on the squared
    distance. Reweighted least squares are repeated, because one step of them covers only a part of the way to the
    minimum of Huber's loss.
    """
    low, high = (problem.move_between(here.point, edge) for edge in (problem.low, problem.high))
    move, local, pulls = np.zeros(len(here.point)), here.local, _PULLS
    for _ in range(_INNER_STEPS):
        residual = here.residual + here.jacobians[0] @ move
        residual = residual + (here.local_jacobian * (local - here.local)[:, None, None, :]).sum(axis=-1)
        predicted = replace(here, point=here.point + move, local=local, residual=residual)
        equations = normal_equations(problem, predicted, 0)
        before = move
        for weight in pulls:
            pull = weight / problem.sd**2
            step = _bounded_step(equations.matrix + np.diag(pull), equations.gradient + pull * before,
                                 low - before, high - before)  # fmt: skip
            move, pulls = before + step, [weight]
            if np.max(np.abs(move) / problem.sd) <= radius:
                break
        local = local + equations.recover(move - before)
        if np.max(np.abs(move - before) / problem.sd) < _INNER_MOVE:
            break
    return np.clip(problem.move_along(here.point, move), problem.low, problem.high), local


def _best_trial(problem: FitProblem, here: Linearization, damping: Array) -> _StepTrial:
    """Return the best of the steps with several dampings, and the next damping.

    First each block (jointly solved parameters) takes the damping that is best for its own loss. If the total loss of
    these combined steps is not lower than before, or not lower than with one common change of all dampings, the best
    common change is used. If no step lowers the loss, the damping is raised.
    """
    levels = np.clip(_FACTORS[:, None] * damping, _LEAST_DAMPING, _MOST_DAMPING)
    steps = [_step(problem, here, level) for level in levels]
    points = np.array([point for point, _ in steps])
    losses = problem.losses_at(points, np.array([local for _, local in steps]))
    uniform = losses.sum(axis=1)
    best, raised = int(np.argmin(uniform)), np.minimum(damping * 30.0, _MOST_DAMPING)
    better = losses.min(axis=0) < here.losses
    if len(problem.blocks) > 1 and better.any():
        choice = np.argmin(losses, axis=0)
        mixed = here.point.copy()
        for b in np.flatnonzero(better):
            columns = problem.blocks[b].columns
            mixed[columns] = points[choice[b], columns]
        if problem.losses_at(mixed[None], here.local[None]).sum() < min(here.losses.sum(), uniform[best]):
            return _StepTrial((mixed, here.local), np.where(better, levels[choice, np.arange(len(damping))], raised))
    if uniform[best] < here.losses.sum():
        return _StepTrial(steps[best], levels[best])
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
    move, local = np.zeros(len(here.point)), here.local
    low, high = (problem.move_between(here.point, edge) for edge in (problem.low, problem.high))
    for number, (block, level) in enumerate(zip(problem.blocks, damping, strict=True)):
        equations, own = normal_equations(problem, here, number, damping=level), block.columns
        step = _bounded_step(equations.matrix, equations.gradient, low[own], high[own])
        move[own] = step / max(1.0, np.max(np.abs(step) / problem.sd[own]))
        local = local + equations.recover(move[own])
    return np.clip(problem.move_along(here.point, move), problem.low, problem.high), local


def _bounded_step(matrix: Array, gradient: Array, low: Array, high: Array) -> Array:
    """Compute the step of k parameters to the minimum of a quadratic loss within bounds, ``(k,)``.

    Parameters on a bound are fixed, and the step of the other parameters is solved again.

    Args:
        matrix: Second derivative of the loss, ``(k, k)``.
        gradient: Gradient of the loss, ``(k,)``.
        low: Lowest step, ``(k,)``, at most 0.
        high: Highest step, ``(k,)``, at least 0.
    """
    move, loose = np.zeros(len(gradient)), np.ones(len(gradient), dtype=bool)
    while loose.any():
        rest = -gradient[loose] - matrix[np.ix_(loose, ~loose)] @ move[~loose]
        move[loose] = np.linalg.solve(matrix[np.ix_(loose, loose)], rest)
        outside = loose & ((move < low) | (move > high))
        if not outside.any():
            break
        move[outside] = np.clip(move, low, high)[outside]
        loose &= ~outside
    return move


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
