"""Measure the coverage of identification's intervals, over many logs of robots with known parameters.

``python -m benchmarks coverage`` prints the table; ``--write docs/evidence/identification.md`` puts it into that page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import ndtri

from benchmarks.error_rates.coverage.cases import CASES
from benchmarks.error_rates.coverage.study import CoverageCase, LinearFits, Population
from benchmarks.studies import around, markdown_table, write_between
from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.identify import identify
from twinloop.identify.assembly import FitSpace, fit_problem, fit_space
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.problem import FitProblem, Linearization, linearize
from twinloop.identify.uncertainty import compute_uncertainty
from twinloop.identify.uncertainty_scores import FrameTimes, frame_scores
from twinloop.simulate import Backend, open_backend
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import wilson

Array = NDArray[np.float64]
PLACE = "benchmarks coverage"
_HEAD = (
    *("parameter", "unit", "planted", "best-fitting", "bias / half width", "half width"),
    *("covers planted", "95 %", "covers best-fitting", "95 %", "naive covers planted"),
)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of intervals, from 0 to 1, with its Wilson interval ``low`` to ``high``."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ParameterCoverage:
    """Coverage of one parameter's intervals, over all logs of one case.

    Attributes:
        planted: True value, SI.
        best: Value that fits the whole population best, SI. If the twin lacks physics, it differs from ``planted``, and
            an interval that covers one of them may miss the other.
        half: Median half width of the intervals, SI.
        bias: ``best`` minus ``planted``, divided by ``half``.
        covers_planted: Share of intervals that cover ``planted``.
        covers_best: Share of intervals that cover ``best``.
        naive: Share of the intervals from σ²(JᵀJ)⁻¹ (independent noise assumed) that cover ``planted``.
        determined: Share of logs that give an interval for the parameter.
    """

    parameter: str
    unit: str
    planted: float
    best: float
    bias: float
    half: float
    covers_planted: Share
    covers_best: Share
    naive: float
    determined: float


@dataclass(frozen=True, kw_only=True)
class CaseCoverage:
    """Coverage of all parameters of one case; ``method`` and ``clusters`` describe the interval of its last log."""

    case: str
    repetitions: int
    refit: bool
    missing: dict[str, float]
    method: str
    clusters: str
    rows: tuple[ParameterCoverage, ...]

    @property
    def overall_planted(self) -> float:
        """Mean share of intervals that cover the planted value."""
        return float(np.mean([row.covers_planted.rate for row in self.rows]))

    @property
    def overall_best(self) -> float:
        """Mean share of intervals that cover the best-fitting value."""
        return float(np.mean([row.covers_best.rate for row in self.rows]))


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """Interval limits of p parameters from one log, SI, ``(p,)``; NaN if the log does not determine the parameter."""

    low: Array
    high: Array
    naive_low: Array
    naive_high: Array
    method: str
    clusters: str


def coverage(
    case: CoverageCase,
    backend: Backend,
    *,
    repetitions: int = 200,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> CaseCoverage:
    """Fit ``repetitions`` simulated logs of one case and count the intervals that cover the truth.

    Args:
        case: The case.
        backend: Where worlds run.
        repetitions: Number of logs.
        seed: Seed for the choice of episodes and their noise.
        progress: Called with the number of finished logs after each log.
    """
    population = Population.of(case, backend)
    linear = LinearFits.about(population, backend)
    rng = generator(seed, f"coverage/{case.name}/logs")
    found = []
    for number in range(repetitions):
        rows = rng.choice(case.population, case.episodes, replace=False)
        noise = population.noise(rng, len(rows))
        found.append(
            _refit_limits(population, rows, noise, backend) if case.refit else _linear_limits(linear, rows, noise)
        )
        if progress is not None:
            progress(number + 1)
    planted = np.array([case.truth[name] for name in case.fit.free or ()])
    best = _to_si(linear.space, linear.best())
    return CaseCoverage(
        case=case.name,
        repetitions=repetitions,
        refit=case.refit,
        missing=dict(case.missing),
        method=found[-1].method,
        clusters=found[-1].clusters,
        rows=tuple(
            _count_coverage(population, i, float(planted[i]), float(best[i]), found) for i in range(len(planted))
        ),
    )


def _count_coverage(
    population: Population, i: int, planted: float, best: float, found: Sequence[_Limits]
) -> ParameterCoverage:
    name = (population.case.fit.free or ())[i]
    low, high = np.array([f.low[i] for f in found]), np.array([f.high[i] for f in found])
    determined = ~np.isnan(low)
    half = float(np.median((high - low)[determined]) / 2) if determined.any() else float("nan")
    return ParameterCoverage(
        parameter=name,
        unit=population.twin.params[name].unit,
        planted=planted,
        best=best,
        bias=(best - planted) / half,
        half=half,
        covers_planted=_share(low[determined], planted, high[determined]),
        covers_best=_share(low[determined], best, high[determined]),
        naive=float(np.mean([f.naive_low[i] <= planted <= f.naive_high[i] for f in found])),
        determined=float(determined.mean()),
    )


def _share(low: Array, value: float, high: Array) -> Share:
    found = wilson(int(np.sum((low <= value) & (value <= high))), max(len(low), 1))
    return Share(rate=float(found.estimate), low=float(found.low), high=float(found.high))


def _linear_limits(linear: LinearFits, rows: NDArray[np.intp], noise: Array) -> _Limits:
    problem, end, begins = linear.fit(rows, noise)
    case, space = linear.population.case, linear.space
    times = FrameTimes(start_times=begins, dt=1.0 / case.hz)
    found = compute_uncertainty(problem, end, space.names, times=times, level=case.fit.level)
    naive = _naive_half_widths(problem, end, case.fit.level)
    return _Limits(
        low=_to_si(space, found.low),
        high=_to_si(space, found.high),
        naive_low=_to_si(space, end.point - naive),
        naive_high=_to_si(space, end.point + naive),
        method=found.method,
        clusters="none" if found.clusters is None else f"{found.clusters.count} {found.clusters.kind}s",
    )


def _refit_limits(population: Population, rows: NDArray[np.intp], noise: Array, backend: Backend) -> _Limits:
    case, log = population.case, population.log(rows, noise)
    result = identify(population.twin, log, backend=backend, config=case.fit)
    logs = limit_physics_rate(prepare_replay(population.twin, log, case.fit.replay), case.fit.replay_hz)
    space = fit_space(logs, case.fit)[0]
    point = result.distribution.mean[: len(space.names)]
    problem = fit_problem(backend, logs, space, point, case.fit)
    naive = _naive_half_widths(problem, linearize(problem, point), case.fit.level)
    limits = [(np.nan, np.nan) if e.low is None or e.high is None else (e.low, e.high) for e in result.estimates]
    low, high = np.array(limits).T
    return _Limits(
        low=low,
        high=high,
        naive_low=_to_si(space, point - naive),
        naive_high=_to_si(space, point + naive),
        method=result.evidence.method,
        clusters=f"{result.evidence.count} {result.evidence.clusters}s",
    )


def _naive_half_widths(problem: FitProblem, end: Linearization, level: float) -> Array:
    """Return half widths ``(p,)`` from σ²(JᵀJ)⁻¹, which assumes independent residuals."""
    slopes = frame_scores(problem, end, 0).slopes
    matrix = np.einsum("efcp,efcq->pq", slopes, slopes, optimize=True)
    variance = np.nansum(end.residual**2) / (np.sum(~np.isnan(end.residual)) - len(end.point))
    return ndtri((1 + level) / 2) * np.sqrt(variance * np.diag(np.linalg.inv(matrix)))


def _to_si(space: FitSpace, points: Array) -> Array:
    return np.array([float(value) for value in space.values(points).values()])


def run_bench_coverage(
    console: Console, *, only: Sequence[str] = (), repetitions: int = 200, nthread: int = 0, page: Path | None = None
) -> dict[str, Any]:
    """Measure and print coverage; if ``page`` is given, also replace the tables in that page.

    Args:
        console: Where to print.
        only: Words that the names of the cases contain. Default: all cases.
        repetitions: Number of logs per case.
        nthread: Number of C threads; 0 uses every core.
        page: Markdown page with the marker comments of this command.

    Raises:
        InputError: If no case matches, ``repetitions`` is below 2, or the page has no markers.
    """
    chosen = [case for case in CASES if not only or any(word in case.name for word in only)]
    if not chosen:
        raise InputError(f"No case matches {', '.join(only)}. The cases are: {'; '.join(case.name for case in CASES)}.")
    if repetitions < 2:
        raise InputError(f"--repetitions {repetitions}: give at least 2 logs per case. The published tables use 200.")
    if page is not None:
        around(page, PLACE)
    backend, results = open_backend("threads", nthread=nthread), []
    for case in chosen:
        with console.status(case.name) as status:
            result = coverage(
                case, backend, repetitions=repetitions,
                progress=lambda done, case=case, status=status: status.update(f"{case.name}: {done} of {repetitions}"),
            )  # fmt: skip
        results.append(result)
        table = Table(*_HEAD, title=title(result))
        for row in result.rows:
            table.add_row(*_cells(row))
        console.print(table)
        if page is not None:  # after each case, because a run takes minutes
            write_between(page, PLACE, "\n\n".join(map(_markdown, results)))
    return {"level": CASES[0].fit.level, "repetitions": repetitions, "cases": [asdict(result) for result in results]}


def _markdown(result: CaseCoverage) -> str:
    return f"**{title(result)}**\n\n{markdown_table(_HEAD, [_cells(row) for row in result.rows])}"


def title(result: CaseCoverage) -> str:
    """Return the title of a case's table."""
    how = "refitted by replays" if result.refit else "linear about the best fit"
    return (
        f"{result.case}: {result.repetitions} logs, {how}, {result.method} over {result.clusters}; "
        f"{result.overall_planted:.1%} cover the planted value, {result.overall_best:.1%} the best-fitting value"
    )


def _cells(row: ParameterCoverage) -> tuple[str, ...]:
    return (
        f"`{row.parameter}`",
        row.unit,
        f"{row.planted:.4g}",
        f"{row.best:.4g}",
        f"{row.bias:+.2f}",
        f"{row.half:.2g}",
        *_share_cells(row.covers_planted),
        *_share_cells(row.covers_best),
        f"{row.naive:.0%}",
    )


def _share_cells(share: Share) -> tuple[str, str]:
    return f"{share.rate:.1%}", f"{share.low:.0%} to {share.high:.0%}"
