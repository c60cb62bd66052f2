"""Coverage of identification's intervals, over many logs of robots whose true parameters are known.

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
from twinloop.identify.assembly import FitSpace, fit_problem, fit_space, limit_physics_rate
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
    """A share of intervals, with its Wilson interval ``low`` to ``high``."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Covered:
    """How often one parameter's intervals hold the true value, and how often the value that fits best.

    ``best`` fits the whole population best: where the twin lacks physics, it is not the ``planted`` value, and an
    interval that holds the one may miss the other. ``naive`` is the share of intervals of σ²(JᵀJ)⁻¹ that hold the
    planted value. ``half`` is the median half width, SI; ``bias`` is best less planted in half widths. ``determined``
    is the share of logs that give an interval at all.
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
    """One case: ``method`` and ``clusters`` are those of its last log."""

    case: str
    repetitions: int
    refit: bool
    missing: dict[str, float]
    method: str
    clusters: str
    rows: tuple[Covered, ...]

    @property
    def overall_planted(self) -> float:
        """Share of all intervals that hold the planted value."""
        return float(np.mean([row.covers_planted.rate for row in self.rows]))

    @property
    def overall_best(self) -> float:
        """Share of all intervals that hold the best-fitting value."""
        return float(np.mean([row.covers_best.rate for row in self.rows]))


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """Limits of one log's intervals and the naive ones, SI, ``(p,)``; NaN where there is none."""

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
    """Fit ``repetitions`` logs of one case and count.

    Args:
        case: the case.
        backend: where worlds run.
        repetitions: how many logs.
        seed: of their episodes and their noise.
        progress: is told the number of each log that is done.
    """
    population = Population.of(case, backend)
    linear = LinearFits.about(population, backend)
    rng = generator(seed, f"coverage/{case.name}/logs")
    found = []
    for number in range(repetitions):
        rows = rng.choice(case.population, case.episodes, replace=False)
        noise = population.noise(rng, len(rows))
        found.append(_refitted(population, rows, noise, backend) if case.refit else _linear(linear, rows, noise))
        if progress is not None:
            progress(number + 1)
    planted = np.array([case.truth[name] for name in case.fit.free or ()])
    best = _si(linear.space, linear.best())
    return CaseCoverage(
        case=case.name,
        repetitions=repetitions,
        refit=case.refit,
        missing=dict(case.missing),
        method=found[-1].method,
        clusters=found[-1].clusters,
        rows=tuple(_count(population, i, float(planted[i]), float(best[i]), found) for i in range(len(planted))),
    )


def _count(population: Population, i: int, planted: float, best: float, found: Sequence[_Limits]) -> Covered:
    name = (population.case.fit.free or ())[i]
    low, high = np.array([f.low[i] for f in found]), np.array([f.high[i] for f in found])
    told = ~np.isnan(low)
    half = float(np.median((high - low)[told]) / 2) if told.any() else float("nan")
    return Covered(
        parameter=name,
        unit=population.twin.params[name].unit,
        planted=planted,
        best=best,
        bias=(best - planted) / half,
        half=half,
        covers_planted=_share(low[told], planted, high[told]),
        covers_best=_share(low[told], best, high[told]),
        naive=float(np.mean([f.naive_low[i] <= planted <= f.naive_high[i] for f in found])),
        determined=float(told.mean()),
    )


def _share(low: Array, value: float, high: Array) -> Share:
    found = wilson(int(np.sum((low <= value) & (value <= high))), max(len(low), 1))
    return Share(rate=float(found.estimate), low=float(found.low), high=float(found.high))


def _linear(linear: LinearFits, rows: NDArray[np.intp], noise: Array) -> _Limits:
    problem, end, begins = linear.fit(rows, noise)
    case, space = linear.population.case, linear.space
    times = FrameTimes(begins=begins, dt=1.0 / case.hz)
    found = compute_uncertainty(problem, end, space.names, times=times, level=case.fit.level)
    naive = _naive(problem, end, case.fit.level)
    return _Limits(
        low=_si(space, found.low),
        high=_si(space, found.high),
        naive_low=_si(space, end.point - naive),
        naive_high=_si(space, end.point + naive),
        method=found.method,
        clusters="none" if found.clusters is None else f"{found.clusters.count} {found.clusters.kind}s",
    )


def _refitted(population: Population, rows: NDArray[np.intp], noise: Array, backend: Backend) -> _Limits:
    case, log = population.case, population.log(rows, noise)
    result = identify(population.twin, log, backend=backend, config=case.fit)
    logs = limit_physics_rate(prepare_replay(population.twin, log, case.fit.replay), case.fit.physics_hz)
    space = fit_space(logs, case.fit)[0]
    point = result.distribution.mean[: len(space.names)]
    problem = fit_problem(backend, logs, space, point, case.fit)
    naive = _naive(problem, linearize(problem, point), case.fit.level)
    limits = [(np.nan, np.nan) if e.low is None or e.high is None else (e.low, e.high) for e in result.estimates]
    low, high = np.array(limits).T
    return _Limits(
        low=low,
        high=high,
        naive_low=_si(space, point - naive),
        naive_high=_si(space, point + naive),
        method=result.evidence.method,
        clusters=f"{result.evidence.count} {result.evidence.clusters}s",
    )


def _naive(problem: FitProblem, end: Linearization, level: float) -> Array:
    """Half widths from σ²(JᵀJ)⁻¹, as if residuals were independent."""
    slopes = frame_scores(problem, end, 0).slopes
    matrix = np.einsum("efcp,efcq->pq", slopes, slopes, optimize=True)
    variance = np.nansum(end.residual**2) / (np.sum(~np.isnan(end.residual)) - len(end.point))
    return ndtri((1 + level) / 2) * np.sqrt(variance * np.diag(np.linalg.inv(matrix)))


def _si(space: FitSpace, points: Array) -> Array:
    return np.array([float(value) for value in space.values(points).values()])


def run_bench_coverage(
    console: Console, *, only: Sequence[str] = (), repetitions: int = 200, nthread: int = 0, page: Path | None = None
) -> dict[str, Any]:
    """Measure, print and, with ``page``, write the tables between its marks.

    Args:
        console: where to print.
        only: words of the names of the cases to run; default all.
        repetitions: logs of each case.
        nthread: C threads; 0 takes every core.
        page: a page with the marks of ``coverage``.

    Raises:
        InputError: no case of that name, no repetitions, or a page without the marks.
    """
    chosen = [case for case in CASES if not only or any(word in case.name for word in only)]
    if not chosen:
        raise InputError(f"No case is named {', '.join(only)}. There are: {'; '.join(case.name for case in CASES)}.")
    if repetitions < 2:
        raise InputError(f"--repetitions {repetitions}: coverage is counted over two at least, 200 for a figure.")
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
        if page is not None:  # case by case: a run takes minutes
            write_between(page, PLACE, "\n\n".join(map(_markdown, results)))
    return {"level": CASES[0].fit.level, "repetitions": repetitions, "cases": [asdict(result) for result in results]}


def _markdown(result: CaseCoverage) -> str:
    return f"**{title(result)}**\n\n{markdown_table(_HEAD, [_cells(row) for row in result.rows])}"


def title(result: CaseCoverage) -> str:
    """What a table shows."""
    how = "refitted by replays" if result.refit else "linear about the best fit"
    return (
        f"{result.case}: {result.repetitions} logs, {how}, {result.method} over {result.clusters}; "
        f"{result.overall_planted:.1%} cover the planted value, {result.overall_best:.1%} the best-fitting value"
    )


def _cells(row: Covered) -> tuple[str, ...]:
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
