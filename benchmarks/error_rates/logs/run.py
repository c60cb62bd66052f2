"""Measure detection rate and false alarms of the log checks on planted defects: ``python -m benchmarks logs``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.error_rates.logs.planted import DEFECTS, Defect, Planted, raw
from benchmarks.studies import markdown_table, write_between
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.seeds import generator
from twinloop.dataset.logs.checks.check import check_log
from twinloop.dataset.logs.checks.finding import JointExpectations, LogFinding, LogReport
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.sets.registry import SETS, load_raw
from twinloop.hardware import virtual_log
from twinloop.stats import wilson
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import build_joint_expectations

PLACE = "benchmarks logs"
_CHUNK = 6  # episodes of one trial: a log of a minute
_VIRTUAL = {"so101_tabletop": (30.0, 9.0), "panda_tabletop": (20.0, 9.0)}  # twin: rate in Hz, seconds of an episode
_TWINS = {"so101_pick_place_tape": "so101_tabletop", "dfki_double_pendulum": "double_pendulum"}
_ONSET_S = 0.5  # largest error of a correct time


@dataclass(frozen=True, kw_only=True)
class Source:
    """A good log, and the joint limits and units that its twin expects; None if it has no twin."""

    name: str
    records: list[RawEpisode]
    expectations: JointExpectations | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of one defect planted into one part of a log.

    Attributes:
        found: Whether a finding of an expected kind is new.
        named: Whether such a finding also names the correct column and episode.
        timed: Whether it also has the correct time; None if the defect has no beginning.
        false: Errors and warnings that are explained neither by the good log nor by the defect.
    """

    source: str
    defect: str
    found: bool
    named: bool
    timed: bool | None
    false: tuple[LogFinding, ...]


def sources(*, seed: int = 0, only: Sequence[str] = ()) -> Iterable[Source]:
    """Yield logs of virtual robots, then every registered data set that can be loaded."""
    for twin, (hz, seconds) in _VIRTUAL.items():
        name = f"virtual {twin}"
        if not only or name in only:
            log = virtual_log(seed=seed, twin=twin, episodes=8, seconds=seconds, hz=hz, nthread=1)
            yield Source(
                name=name, records=[raw(e) for e in log], expectations=build_joint_expectations(load_twin(twin))
            )
    for name in SETS:
        if only and name not in only:
            continue
        try:
            records, _ = load_raw(name)
        except MissingDependencyError:
            continue
        twin = _TWINS.get(name)
        yield Source(
            name=name, records=records, expectations=None if twin is None else build_joint_expectations(load_twin(twin))
        )


def run_trials(source: Source, *, trials: int, seed: int = 0, defects: Collection[str] = tuple(DEFECTS)) -> list[Trial]:
    """Plant every defect that the log can have ``trials`` times, each time into a few episodes, and check the log."""
    made, good = [], {}
    for number, defect in enumerate(DEFECTS.values()):
        for trial in range(trials if defect.name in defects else 0):
            random = generator(seed, f"planted/{source.name}", number * trials + trial)
            first = int(random.integers(0, max(1, len(source.records) - _CHUNK + 1)))
            log = source.records[first : first + _CHUNK]
            planted = defect.plant(log, random)
            if planted is not None:
                if first not in good:
                    good[first] = check_log(log, source.expectations)
                made.append(_judge(source, defect, planted, good[first]))
    return made


def _judge(source: Source, defect: Defect, planted: Planted, good: LogReport) -> Trial:
    report = check_log(planted.records, source.expectations)
    before = {(finding.kind, finding.column) for finding in good.findings}
    right = [finding for finding in report.findings if finding.kind in defect.finds]
    right = [finding for finding in right if (finding.kind, finding.column) not in before]
    named = [finding for finding in right if planted.episode in finding.episodes and _names_column(planted, finding)]
    timed = None
    if not np.isnan(planted.begin_s):
        timed = any(abs(f.begin_s - planted.begin_s) <= _ONSET_S for f in named if f.episodes[0] == planted.episode)
    explained = defect.finds | defect.also
    false = [
        finding
        for finding in report.findings
        if finding.severity != "note" and finding.kind not in explained and (finding.kind, finding.column) not in before
    ]
    return Trial(
        source=source.name,
        defect=defect.name,
        found=bool(right),
        named=bool(named),
        timed=timed,
        false=tuple(false),
    )


def _names_column(planted: Planted, finding: LogFinding) -> bool:
    return planted.column in ("", "*") or planted.column in finding.column


def run_bench_logs(
    console: Console, *, trials: int, seed: int = 0, only: Sequence[str] = (), page: Path | None = None
) -> dict[str, Any]:
    """Run the study and print its two tables; if ``page`` is given, also replace the tables in that page."""
    good: dict[str, tuple[LogReport, bool]] = {}
    made: list[Trial] = []
    if trials < 1:
        raise InputError(f"--trials {trials}: give at least 1.")
    known = [*(f"virtual {twin}" for twin in _VIRTUAL), *SETS]
    for name in only:
        if name not in known:
            raise UnknownNameError("log", name, known)
    for source in sources(seed=seed, only=only):
        good[source.name] = check_log(source.records, source.expectations), source.expectations is not None
        made += run_trials(source, trials=trials, seed=seed)
        console.print(f"{source.name}: {sum(trial.source == source.name for trial in made)} planted defects")
    clean = [_clean_row(name, report, twin=twin) for name, (report, twin) in good.items()]
    rows = [_defect_row(name, [t for t in made if t.defect == name]) for name in DEFECTS]
    heads = ("Good log", "twin", "episodes", "errors", "warnings", "notes"), (
        "Planted", "expected report", "logs", "trials", "found", "column correct", "time correct", "others"
    )  # fmt: skip
    for head, table in zip(heads, (clean, rows), strict=True):
        shown = Table(*head)
        for row in table:
            shown.add_row(*row)
        console.print(shown)
    if page is not None:
        write_between(page, PLACE, "\n\n".join(markdown_table(h, t) for h, t in zip(heads, (clean, rows), strict=True)))
    return {
        "schema": 1,
        "verb": "bench logs",
        "trials": len(made),
        "found": sum(trial.named for trial in made),
        "false": sum(len(trial.false) for trial in made),
        "missed": sorted({f"{t.defect} in {t.source}" for t in made if not t.named}),
        "wrong": sorted({f"{f.kind} for {t.defect} in {t.source}" for t in made for f in t.false}),
        "errors_in_good_logs": {name: len(report.errors) for name, (report, _) in good.items()},
    }


def _clean_row(name: str, report: LogReport, *, twin: bool) -> list[str]:
    def kinds(severity: str) -> str:
        return ", ".join(dict.fromkeys(f.kind for f in report.findings if f.severity == severity)) or "none"

    return [name, "yes" if twin else "no", str(report.episodes), *(kinds(s) for s in ("error", "warning", "note"))]


def _defect_row(name: str, trials: Sequence[Trial]) -> list[str]:
    kinds = ", ".join(sorted(DEFECTS[name].finds))
    if not trials:
        return [name, kinds, "0", "0", *["–"] * 4]
    timings = [trial.timed for trial in trials if trial.timed is not None and trial.named]
    return [
        name,
        kinds,
        str(len({trial.source for trial in trials})),
        str(len(trials)),
        wilson(sum(trial.found for trial in trials), len(trials)).percent(),
        wilson(sum(trial.named for trial in trials), len(trials)).percent(),
        wilson(sum(timings), len(timings)).percent() if timings else "–",
        f"{sum(len(trial.false) for trial in trials) / len(trials):.2f}",
    ]
