"""Minimize a fit by Levenberg–Marquardt over batched replays, and store checkpoints of long fits.

All trial steps of all blocks run in one batch. A step is accepted only if the total loss of all channels falls, so that
the coupling that a block-diagonal Jacobian ignores cannot mislead the solver. A descent is a generator that yields
queries for residuals. Many descents, from different starts, can thus be replayed in one batch (`solve_together`).

A checkpoint file belongs to one fit: data, twin, free parameters and settings. It stores the progress of each stage;
numbers are written such that they read back exactly.
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
_REJECTIONS = 3  # consecutive rejected steps: the damping is then 30³ times higher, and the minimum is reached
_MOST_NUMBERS = 20_000_000  # residuals replayed at once: 160 MB


@dataclass(frozen=True, kw_only=True)
class SolverSolution:
    """Result of a descent: ``history`` is the total loss after each accepted step, ``replays`` the number of worlds."""

    end: Linearization
    history: tuple[float, ...]
    replays: int
    converged: bool

    @property
    def point(self) -> Array:
        """The estimate."""
        return self.end.point

    @property
    def loss(self) -> float:
        """Total loss at the end."""
        return float(self.end.losses.sum())

    @property
    def diverged(self) -> bool:
        """Whether the twin cannot be replayed at the start point, so that no step was taken."""
        return not np.isfinite(self.loss)


@dataclass(frozen=True, kw_only=True)
class SolverState:
    """State of a descent, sufficient to resume it with the same result.

    ``damping`` has one value per block. ``rejections`` is the number of consecutive rejected steps; ``iteration``
    counts accepted and rejected steps.
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
    """Points ``(k, p)`` and corrections ``(k, nwindow, m)`` whose residuals a descent needs."""

    points: Array
    local: Array


class _StepTrial(NamedTuple):
    """A trial step: the first row of ``points`` and ``local`` lowers the loss; None if no step does."""

    tried: _ResidualQuery | None
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
    """Minimize from ``start`` until the total loss falls by less than ``tolerance`` (relative) in two steps.

    Args:
        problem: the fit.
        start: start point, ``(p,)``.
        local: initial corrections of the first states, ``(nwindow, m)``.
        iterations: maximum number of steps, accepted or rejected.
        tolerance: relative fall of the total loss in two steps, below which the descent ends.
    """
    return solve_together(problem, [start_descent(problem, start, local)], iterations=iterations, tolerance=tolerance)[
        0
    ]


def start_descent(problem: FitProblem, start: Array, local: Array | None = None) -> SolverState:
    """Return the initial state of a descent, its start clipped to the bounds."""
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
    """Minimize from many starts, each as `solve` would, with all their replays in one batch.

    ``watch`` is called after every step with the number of the start and the state of its descent.
    """

    def make_watch(number: int) -> Watch:
        return lambda descent: watch(number, descent) if watch else None

    walks = {
        number: _run_descent(problem, start, iterations=iterations, tolerance=tolerance, watch=make_watch(number))
        for number, start in enumerate(starts)
    }
    asked = {number: next(walk) for number, walk in walks.items()}
    solutions: dict[int, SolverSolution] = {}
    while asked:
        for number, residual in _replay_queries(problem, asked):
            try:
                asked[number] = walks[number].send(residual)
            except StopIteration as end:
                solutions[number] = end.value
                del asked[number]
    return [solutions[number] for number in range(len(starts))]


def _replay_queries(problem: FitProblem, asked: dict[int, _ResidualQuery]) -> list[tuple[int, Array]]:
    """Return residuals for some of the queries: as many as fit into one batch, at least those of one descent."""
    most, chosen, worlds = max(1, _MOST_NUMBERS // max(problem.measured.size, 1)), [], 0
    for number, ask in sorted(asked.items()):
        if chosen and worlds + len(ask.points) > most:
            break
        chosen.append(number)
        worlds += len(ask.points)
    points, local = (np.concatenate([asked[number][part] for number in chosen]) for part in (0, 1))
    ends = np.cumsum([len(asked[number].points) for number in chosen])
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
        if trial.tried is None:
            rejections = now.rejections + 1
            now = replace(now, rejections=rejections, converged=rejections == _REJECTIONS)
        else:
            here, replays = yield from _query_linearization(problem, trial.tried.points[0], trial.tried.local[0])
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


def _query_linearization(
    problem: FitProblem, point: Array, local: Array
) -> Generator[_ResidualQuery, Array, tuple[Linearization, int]]:
    """Return the linearization at a point, and the number of worlds it needed."""
    probed = probe(problem, point, local)
    residual = yield _ResidualQuery(probed.points, probed.local)
    return linearization_from_probe(problem, probed, residual), len(probed.points)


def _best_trial(
    problem: FitProblem, here: Linearization, damping: Array
) -> Generator[_ResidualQuery, Array, _StepTrial]:
    """Return the best step among several dampings, per block if that lowers the total loss; and the next damping."""
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
    """Return the damped Gauss–Newton step of every block, within the bounds and at most one prior deviation."""
    target, local = here.point.copy(), here.local
    for number, (block, level) in enumerate(zip(problem.blocks, damping, strict=True)):
        equations = normal_equations(problem, here, number, damping=level)
        moved = _bounded_move(problem, here.point, block.columns, equations.matrix, equations.gradient)
        target[block.columns] = moved
        local = here.local + equations.recover(moved - here.point[block.columns])
    return target, local


def _bounded_move(
    problem: FitProblem, point: Array, columns: NDArray[np.intp], matrix: Array, gradient: Array
) -> Array:
    """Solve for a block's step; parameters stop at their bounds, and the others are then solved again."""
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
    """Progress of the stages of a fit; without a path it is only kept in memory."""

    def __init__(self, path: Path | None, fit: Mapping[str, str]) -> None:
        """Start a new checkpoint, or resume the one at ``path``.

        Args:
            path: the file; it is created with the first saved stage.
            fit: identity of the fit, by name: data, twin, parameters, settings.

        Raises:
            InputError: the file is not a checkpoint, or belongs to another fit; the message names the differences.
        """
        self._path, self._fit = path, dict(fit)
        self._stages: dict[str, Any] = {}
        if path is not None and path.exists():
            self._stages = _read_stages(path, self._fit)

    def load_descents(self, stage: str) -> list[SolverState]:
        """Return the states of a stage's descents; empty if the stage has not started."""
        return [_parse_descent(row) for row in self._stages.get(stage, [])]

    def load_losses(self, stage: str) -> list[list[float]]:
        """Return the losses of every generation of a stage; empty if the stage has not started."""
        return self._stages.get(stage, [])

    def save_descents(self, stage: str, descents: Sequence[SolverState]) -> None:
        """Save the states of a stage's descents."""
        self._save_stage(stage, [{**to_plain_value(one), "local_shape": list(one.local.shape)} for one in descents])

    def save_losses(self, stage: str, losses: Sequence[Sequence[float]]) -> None:
        """Save the losses of every generation of a stage."""
        self._save_stage(stage, [list(row) for row in losses])

    def _save_stage(self, stage: str, value: list[Any]) -> None:
        self._stages[stage] = value
        if self._path is not None:
            write_json(self._path, {"schema": _SCHEMA, "fit": self._fit, "stages": self._stages})


def _read_stages(path: Path, fit: Mapping[str, str]) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != _SCHEMA or not isinstance(value.get("stages"), dict):
        raise InputError(f"{path} is no checkpoint of a fit. Give another file, or remove it.")
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
