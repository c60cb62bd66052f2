"""Fit and score every available public data set by nested cross-validation: ``python -m benchmarks real``."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.real_data.case import SHIPPED, Array, Fold, RealCase
from benchmarks.real_data.nested import Fits, FoldResult, content, run_fold
from benchmarks.studies import around, markdown_table, write_between
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.logs.sets.registry import RealDataUnavailableError, fetch, load_set
from twinloop.simulate import Backend, open_backend
from twinloop.stats import Interval

PLACE = "benchmarks real"
# Modules of this package with a ``CASE`` each, by the name of its set.
CASES = {
    "bam_servo": "bam_servo",
    "dfki_double_pendulum": "double_pendulum",
    "contactnets_cube_tosses": "cube_tosses",
    "so101_pick_place_tape": "so101",
    "dfki_simple_pendulum": "simple_pendulum",
    "crazyflie_sysid": "crazyflie",
    "planar_impacts": "planar_impacts",
}
_MEANS = ("data", "metric", "unit", "as shipped", "fitted", "SD of folds", "worse folds", "reference", "worse folds")
_FOLDS = ("data", "held out", "chosen", "metric", "fitted", "minus as shipped, 95 %", "minus reference, 95 %")
_CONSTANTS = ("data", "constant", "unit", "published", "fitted, one per fold", "folds that cover the published value")
_CHOICES = ("data", "held out", "candidate", "mean loss of the inner folds", "chosen")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of one case: its scored folds, or the reason why it was skipped."""

    case: RealCase
    folds: tuple[FoldResult, ...] = ()
    rule: str = ""
    seconds: float = 0.0
    processor_seconds: float = 0.0
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain JSON types."""
        if self.skipped:
            return {"data": self.case.name, "skipped": self.skipped}
        return {
            "data": self.case.name,
            "twin": self.case.twin,
            "rule": self.rule,
            "candidates": [candidate.name for candidate in self.case.candidates],
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "folds": [_fold_json(result) for result in self.folds],
        }


def _fold_json(result: FoldResult) -> dict[str, Any]:
    return {
        "left_out": result.fold.name,
        "training_episodes": len(result.fold.training),
        "test_episodes": len(result.fold.test),
        "chosen": result.choice.candidate.name,
        "losses": dict(result.choice.losses),
        "metrics": list(result.errors.names),
        "fitted": result.errors.metrics.tolist(),
        "references": {name: errors.metrics.tolist() for name, errors in result.references.items()},
        "differences": {name: _ends(result.difference(name)) for name in result.references},
        "constants": [dict(constant.__dict__) for constant in result.constants],
        "values": dict(result.fitted.values),
        "notes": list(result.fitted.notes),
    }


def _ends(interval: Interval | None) -> list[list[float]] | None:
    return None if interval is None else [interval.low.tolist(), interval.high.tolist()]


def open_case(name: str) -> RealCase:
    """Return the case of a data set.

    Raises:
        UnknownNameError: If there is no case of that name.
    """
    if name not in CASES:
        raise UnknownNameError("real set with a fit", name, CASES)
    return importlib.import_module(f"benchmarks.real_data.{CASES[name]}").CASE


def run_bench_real(
    console: Console,
    *,
    only: Sequence[str] = (),
    train: Path | None = None,
    test: Path | None = None,
    nthread: int = 0,
    page: Path | None = None,
) -> dict[str, Any]:
    """Choose, fit and score in every fold, and print one row per metric.

    Args:
        console: Where to print the tables.
        only: Names of data sets. Default: all.
        train: Folder with one subfolder per data set, to choose and fit on; needs ``test``. If it is None, each data
            set is searched in ``TWINLOOP_DATA``, then at its public address, and split by its own rule.
        test: Folder of the same layout, to score on.
        nthread: Number of C threads; 0 uses every core.
        page: Markdown page with the marker comments of this command.

    Raises:
        InputError: If only one folder is given, no data set is available, or the page has no markers.
    """
    if (train is None) != (test is None):
        raise InputError(
            "Give --train and --test together: a folder to fit on, and one of the same layout to score on."
        )
    if page is not None:
        around(page, PLACE)
    backend, outcomes = open_backend("threads", nthread=nthread), []
    for name in only or CASES:
        outcomes.append(_run(open_case(name), backend, train, test))
        console.print(_line(outcomes[-1]))
    if all(outcome.skipped for outcome in outcomes):
        reasons = "; ".join(f"{o.case.name}: {o.skipped}" for o in outcomes)
        raise InputError(f"No data set could be fitted. {reasons}")
    tables = [table for table in _tables([o for o in outcomes if not o.skipped]) if table[2]]
    for title, head, rows in tables:
        printed = Table(*head, title=title)
        for row in rows:
            printed.add_row(*row)
        console.print(printed)
    if page is not None:
        parts = [f"{title}:\n\n{markdown_table(head, rows)}" for title, head, rows in tables]
        lines = [f"- {_line(outcome)}" for outcome in outcomes]
        write_between(page, PLACE, "\n\n".join([*parts, "\n".join(lines)]))
    return {"schema": 2, "verb": "bench real", "cases": [outcome.to_json() for outcome in outcomes]}


def _run(case: RealCase, backend: Backend, train: Path | None, test: Path | None) -> Outcome:
    try:
        folds, rule = _folds(case, train, test)
    except RealDataUnavailableError as error:
        return Outcome(case=case, skipped=str(error))
    if not folds or not folds[0].training or not folds[0].test:
        which = "score on" if folds and folds[0].training else "train on"
        return Outcome(case=case, skipped=f"no episodes to {which}")
    clocks = time.perf_counter(), time.process_time()
    fits = Fits(case, backend)
    results = tuple(run_fold(fold, fits) for fold in folds)
    return Outcome(
        case=case,
        folds=results,
        rule=rule,
        seconds=time.perf_counter() - clocks[0],
        processor_seconds=time.process_time() - clocks[1],
    )


def _folds(case: RealCase, train: Path | None, test: Path | None) -> tuple[list[Fold], str]:
    """Return the outer folds and how they were made; test episodes that are also in training are excluded."""
    if train is None or test is None:
        return case.folds(load_set(case.name, fetch(case.name).path)), case.rule
    folders = [folder / case.name for folder in (train, test)]
    training, found = (load_set(case.name, folder) if folder.is_dir() else [] for folder in folders)
    training_content = {content(episode) for episode in training}
    held_out = [episode for episode in found if content(episode) not in training_content]
    left_out = len(found) - len(held_out)
    rule = "folders given" + (f"; {left_out} test episodes are training episodes and were excluded" * bool(left_out))
    return [Fold(name="folder", training=training, test=held_out)], rule


def _line(outcome: Outcome) -> str:
    name = outcome.case.name
    if outcome.skipped:
        return f"{name}: not run ({outcome.skipped})"
    return (
        f"{name}: {len(outcome.folds)} folds ({outcome.rule}), {len(outcome.case.candidates)} candidates, "
        f"{outcome.processor_seconds:.0f} s of CPU time ({outcome.seconds:.0f} s elapsed)."
    )


def _tables(outcomes: Sequence[Outcome]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return title, head and rows of every table."""
    return [
        ("Mean over outer folds", _MEANS, [row for o in outcomes for row in _mean_rows(o)]),
        ("Every outer fold", _FOLDS, [row for o in outcomes for result in o.folds for row in _fold_rows(o, result)]),
        ("Constants", _CONSTANTS, [row for o in outcomes for row in _constant_rows(o)]),
        ("Choices", _CHOICES, [row for o in outcomes for result in o.folds for row in _choice_rows(o, result)]),
    ]


def _mean_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Make one row per metric: means over folds, and the number of folds in which the fit is significantly worse."""
    first, rows = outcome.folds[0].errors, []
    fitted = np.array([result.errors.metrics for result in outcome.folds])
    means = {
        name: np.mean([result.references[name].metrics for result in outcome.folds], axis=0)
        for name in outcome.folds[0].references
    }
    other = list(means)[-1]
    for column, (name, unit) in enumerate(zip(first.names, first.units, strict=True)):
        cells = [outcome.case.name, name, unit, _number(means[SHIPPED][column]), _number(fitted[:, column].mean())]
        cells += [
            _number(fitted[:, column].std(ddof=1)) if len(fitted) > 1 else "",
            _worse_folds(outcome, SHIPPED, column),
        ]
        against = [f"{_number(means[other][column])} ({other})", _worse_folds(outcome, other, column)]
        rows.append((*cells, *(against if other != SHIPPED else ["", ""])))
    return rows


def _worse_folds(outcome: Outcome, reference: str, column: int) -> str:
    known = [difference for result in outcome.folds if (difference := result.difference(reference)) is not None]
    return f"{sum(difference.low[column] > 0 for difference in known)} of {len(known)}" if known else ""


def _fold_rows(outcome: Outcome, result: FoldResult) -> list[tuple[str, ...]]:
    other = list(result.references)[-1]
    return [
        (
            outcome.case.name,
            f"{result.fold.name} ({len(result.fold.training)} fitted, {len(result.fold.test)} scored)",
            result.choice.candidate.name,
            f"{name}, {result.errors.units[column]}",
            _number(result.errors.metrics[column]),
            _difference_cell(result, SHIPPED, column),
            _difference_cell(result, other, column) if other != SHIPPED else "",
        )
        for column, name in enumerate(result.errors.names)
    ]


def _difference_cell(result: FoldResult, reference: str, column: int) -> str:
    estimate = _number(result.errors.metrics[column] - result.references[reference].metrics[column])
    difference = result.difference(reference)
    if difference is None:
        return estimate
    return f"{estimate} ({_number(difference.low[column])} to {_number(difference.high[column])})"


def _constant_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    rows = []
    for each in zip(*(result.constants for result in outcome.folds), strict=True):
        values = [f"{_number(c.value)} ± {c.half:.2g}" if c.half >= 0 else _number(c.value) for c in each]
        known = [c for c in each if not np.isnan(c.published)]
        covering = f"{sum(c.covers for c in known)} of {len(known)}" if known else ""
        published = _number(each[0].published) if known else ""
        rows.append((outcome.case.name, each[0].name, each[0].unit, published, "; ".join(values), covering))
    return rows


def _choice_rows(outcome: Outcome, result: FoldResult) -> list[tuple[str, ...]]:
    return [
        (outcome.case.name, result.fold.name, name, _number(loss), "chosen" * (name == result.choice.candidate.name))
        for name, loss in result.choice.losses.items()
    ]


def _number(value: float | Array) -> str:
    return "not determined" if np.isnan(value) else f"{float(value):.3g}"
