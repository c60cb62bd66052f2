"""``twinloop bench real``: every public set that is reachable, fitted and scored on what the fit has not seen."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_bytes
from twinloop.core.records import Episode
from twinloop.dataset.registry import RealDataUnavailableError, fetch, load_set
from twinloop.loop.marked import around, markdown_table, write_between
from twinloop.loop.real.case import Fitted, RealCase, Score
from twinloop.simulate import Backend, open_backend

PLACE = "twinloop bench real"
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
_COLUMNS = ("data", "figure", "unit", "baseline", "fitted", "95 %", "target", "reached", "fit / s")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case, run: figures of the baseline and of the fit on the same test episodes; or why it was not run."""

    case: RealCase
    rule: str = ""
    training: int = 0
    test: int = 0
    before: tuple[Score, ...] = ()
    after: tuple[Score, ...] = ()
    fitted: Fitted | None = None
    fit_seconds: float = math.nan
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        if self.fitted is None:
            return {"data": self.case.name, "skipped": self.skipped}
        return {
            "data": self.case.name,
            "twin": self.case.twin,
            "split": self.rule,
            "training_episodes": self.training,
            "test_episodes": self.test,
            "baseline": self.case.baseline,
            "baseline_scores": [score.to_json() for score in self.before],
            "scores": [score.to_json() for score in self.after],
            "fit_seconds": self.fit_seconds,
            "values": dict(self.fitted.values),
            "notes": list(self.fitted.notes),
        }


def open_case(name: str) -> RealCase:
    """The case of a set.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in CASES:
        raise UnknownNameError("real set with a fit", name, CASES)
    return importlib.import_module(f"twinloop.loop.real.{CASES[name]}").CASE


def run_bench_real(
    console: Console,
    *,
    only: Sequence[str] = (),
    train: Path | None = None,
    test: Path | None = None,
    nthread: int = 0,
    page: Path | None = None,
) -> dict[str, Any]:
    """Fit and score; prints a row per figure.

    Args:
        console: where the table goes.
        only: names of sets; default all.
        train: folder that holds the sets' folders, to fit on; with ``test``. Without it each set is looked for as
            always (``TWINLOOP_DATA``, then its public address) and split by its own rule.
        test: folder of the same layout, to score on.
        nthread: C threads (0: every core).
        page: a page that takes the table between its two marks.

    Raises:
        InputError: one folder without the other, none of the sets in them, or a page without marks.
    """
    if (train is None) != (test is None):
        raise InputError("--train and --test go together: one folder to fit on, one of the same layout to score on.")
    if page is not None:
        around(page, PLACE)
    backend, outcomes = open_backend("threads", nthread=nthread), []
    for name in only or CASES:
        outcomes.append(_run(open_case(name), backend, train, test))
        console.print(_line(outcomes[-1]))
    if all(outcome.skipped for outcome in outcomes):
        reasons = "; ".join(f"{o.case.name}: {o.skipped}" for o in outcomes)
        raise InputError(f"No set was there to fit. {reasons}")
    console.print(_table(outcomes))
    for note in (f"{o.case.name}: {note}" for o in outcomes if o.fitted for note in o.fitted.notes):
        console.print(note)
    if page is not None:
        write_between(page, PLACE, _markdown(outcomes))
    return {"schema": 1, "verb": "bench real", "cases": [outcome.to_json() for outcome in outcomes]}


def _run(case: RealCase, backend: Backend, train: Path | None, test: Path | None) -> Outcome:
    try:
        training, held_out, rule = _episodes(case, train, test)
    except RealDataUnavailableError as error:
        return Outcome(case=case, skipped=str(error))
    if not training or not held_out:
        which = "train on" if not training else "score on"
        return Outcome(case=case, skipped=f"nothing to {which}")
    began = time.perf_counter()
    fitted = case.fit(training, backend)
    seconds = time.perf_counter() - began
    return Outcome(
        case=case,
        rule=rule,
        training=len(training),
        test=len(held_out),
        before=tuple(case.score(None, held_out, backend)),
        after=tuple(case.score(fitted, held_out, backend)),
        fitted=fitted,
        fit_seconds=seconds,
    )


def _episodes(case: RealCase, train: Path | None, test: Path | None) -> tuple[list[Episode], list[Episode], str]:
    """Episodes to fit and to score, and how they were told apart; a test episode that is in training is left out."""
    if train is None or test is None:
        located = fetch(case.name)
        training, held_out = case.split(load_set(case.name, located.path))
        return training, held_out, case.split_rule
    folders = [folder / case.name for folder in (train, test)]
    training, found = (load_set(case.name, folder) if folder.is_dir() else [] for folder in folders)
    seen = {_content(episode) for episode in training}
    held_out = [episode for episode in found if _content(episode) not in seen]
    left_out = len(found) - len(held_out)
    rule = "folders given" + (f"; {left_out} test episodes are training episodes and were left out" * bool(left_out))
    return training, held_out, rule


def _content(episode: Episode) -> str:
    """What an episode says, whatever it is called."""
    arrays = [episode.time, episode.action, episode.state]
    arrays += [signal.values for _, signal in sorted(episode.signals.items())]
    return sha256_bytes(*(values.tobytes() for values in arrays))


def _line(outcome: Outcome) -> str:
    name = outcome.case.name
    if outcome.skipped:
        return f"{name}: not run ({outcome.skipped})"
    return (
        f"{name}: fitted to {outcome.training} episodes in {outcome.fit_seconds:.1f} s, scored on {outcome.test} "
        f"others ({outcome.rule}); baseline: {outcome.case.baseline}"
    )


def _rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The table's cells, a row per figure."""
    table = []
    for outcome in outcomes:
        for before, after in zip(outcome.before, outcome.after, strict=True):
            table.append(
                (
                    outcome.case.name,
                    after.name,
                    after.unit,
                    _number(before.value),
                    "not determined" if after.kind == "undetermined" and after.reached else _number(after.value),
                    "" if math.isnan(after.low) else f"{after.low:.4g} to {after.high:.4g}",
                    "" if after.target is None else _number(after.target),
                    {True: "yes", False: "no", None: ""}[after.reached],
                    f"{outcome.fit_seconds:.1f}",
                )
            )
    return table


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(*_COLUMNS, title="Real sets: scored on episodes that the fit has not seen")
    for row in _rows(outcomes):
        table.add_row(*row)
    return table


def _markdown(outcomes: Sequence[Outcome]) -> str:
    """The table, how each set was split, and what each fit must say."""
    lines = []
    for outcome in outcomes:
        notes = outcome.fitted.notes if outcome.fitted else ()
        lines.append(f"- {' '.join([_line(outcome) + '.', *notes])}")
    return markdown_table(_COLUMNS, _rows(outcomes)) + "\n\n" + "\n".join(lines)
