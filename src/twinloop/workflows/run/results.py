"""Begin and end every run: its folder, ``result.json``, its report, conditions on metrics, and its exit code."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop import __version__
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import write_json
from twinloop.core.headline import HeadlineMetric, format_metric_name
from twinloop.core.plain import to_plain_value
from twinloop.core.redaction import redact_values
from twinloop.dataset.lerobot import layout
from twinloop.dataset.storage.snapshot import forget_locks, hold_folder_lock
from twinloop.report import ReportPage


def replace_nonfinite(value: Any) -> Any:
    """Return the same JSON-compatible value with null for NaN and infinity, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {str(key): replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def claim_output(folder: Path) -> None:
    """Refuse a run's folder before the work begins if it could not be written afterwards.

    Raises:
        InputError: it has an earlier run, is in a dataset, or is below something that is not a folder or not writable.
    """
    if (folder / "result.json").exists():
        forget_locks(folder)
        raise InputError(f"{folder} holds an earlier run. Choose another --output, or move that one away.")
    if (folder / layout.INFO).is_file():
        raise InputError(f"{folder} holds a dataset. Choose another --output, or move that one away.")
    for above in folder.resolve().parents:
        if (above / layout.INFO).is_file():
            raise InputError(f"{folder} lies in the dataset {above}. Choose an --output outside it.")
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{folder} cannot be made: {existing} is no folder to write to. Choose another --output.")


@contextlib.contextmanager
def lock_run_folder(folder: Path, purpose: str = "") -> Generator[None]:
    """Lock a run's folder while its files are written; nested blocks need a different ``purpose`` each.

    Raises:
        DatasetLockedError: another process writes there.
        InputError: another process has finished a run there since this one began.
    """
    with hold_folder_lock(folder, purpose):
        claim_output(folder)
        yield


_COMMAND: ContextVar[tuple[str, Any] | None] = ContextVar("command", default=None)


@contextlib.contextmanager
def record_request(command: str, request: Any) -> Generator[None]:
    """Store a command and its request, all defaults included, in the folders that are written within the block."""
    token = _COMMAND.set((command, request))
    try:
        yield
    finally:
        _COMMAND.reset(token)


def write_request(folder: Path) -> None:
    """Store the request of the current command, if there is one, as ``FOLDER/request.json``."""
    if (made := _COMMAND.get()) is not None:
        form = {
            "schema": 1,
            "twinloop": __version__,
            "command": made[0],
            "request": redact_values(to_plain_value(made[1])),
        }
        write_json(folder / "request.json", form)


def write_result(folder: Path, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Store a run's request and then its metrics, without credentials, as ``FOLDER/result.json``.

    Returns:
        The metrics as stored.
    """
    write_request(folder)
    stored = redact_values(replace_nonfinite(dict(figures)))
    write_json(folder / "result.json", stored)
    return stored


def write_report(page: ReportPage, fill: Callable[[ReportPage], None], path: Path, console: Console) -> Path | None:
    """Fill and write a page; if a package for it is missing, print its name and return None."""
    try:
        fill(page)
        page.write(path)
    except MissingDependencyError as error:
        console.print(f"No report: {error}")
        return None
    console.print(f"Report: {path}")
    return path


def write_run(
    folder: Path, figures: Mapping[str, Any], page: ReportPage, fill: Callable[[ReportPage], None], console: Console
) -> dict[str, Any]:
    """Write a run's report and then its metrics; return the metrics as stored.

    ``result.json`` is written last: a folder that has it is complete. A run that was killed, or whose disk was full,
    can therefore be repeated in the same folder.
    """
    with lock_run_folder(folder):
        write_report(page, fill, folder / "report.html", console)
        return write_result(folder, figures)


_WHY = ("unexplained", "unexplained/*", "share/*")
_NEAR = ("recall", "coverage", "precision", "density")
_SCORES = (
    "pearson",
    "spearman",
    "kendall",
    "mmrv",
    "pairwise_accuracy",
    "best_agrees",
    "regret",
    "bias",
    "absolute_gap",
)


def _add_item_patterns(*names: str) -> tuple[str, ...]:
    """Return the names of metrics, and the patterns of the same metrics per joint, task or policy."""
    return (*names, *(f"{name}/*" for name in names))


# Metrics by verb and kind; * matches a name from the data: a joint, a task, a policy, a signal.
_FIGURES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("gap", "dynamics"): (*_add_item_patterns("skill", "gap_ratio"), "nrmse", "rmse/*", "delay/*", *_WHY),
    ("gap", "why"): _WHY,
    ("gap", "sensors"): ("sensors_differ", "*/*"),
    ("gap", "vision"): ("mmd", "kid", "auc", "accuracy", *_NEAR, "difference/*"),
    ("gap", "data"): ("auc", "auc/*", "mmd", "energy", "coverage", "precision"),
    ("gap", "classes"): ("classes", "class/*"),
    ("gap", "policies"): (
        *_add_item_patterns("success_gap", "score_gap"),
        *(f"{measure}_{what}" for measure in ("success", "score") for what in ("largest", "conditions_differ")),
    ),
    ("gap", "predictivity"): ("best_policy", *_add_item_patterns(*_SCORES)),
    ("gap", "estimate"): ("real/*", "trials_saved/*"),
    ("gap", "compare"): _add_item_patterns("difference", "p_differs", "p_equivalent"),
    ("coverage", "reality"): (*_NEAR, "largest_hole"),
    ("scenario", "search"): ("failure_rate",),
    ("evidence", "claim"): ("trials", "watched_trials", "rate_shown", "more_without_failure", "bound"),
    ("compare", ""): ("difference", "p_value", "pairs"),
}


def list_metric_names(verb: str, kind: str) -> tuple[str, ...]:
    """Return the metric names for conditions on a command; empty if only the command itself can determine them.

    Args:
        verb: the command.
        kind: its subcommand or variant.
    """
    return _FIGURES.get((verb, kind)) or _FIGURES.get((verb, ""), ())


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PATTERN = re.compile(r"^\s*(?P<name>[^<>]+?)(?:\.(?P<end>low|high))?\s*(?P<sign><=|>=|<|>)\s*(?P<number>\S+)\s*$")


@dataclass(frozen=True, kw_only=True)
class FailCondition:
    """A condition ``text``; it compares the estimate of metrics ``name``, or an ``end`` of their intervals.

    Characters that a metric's name cannot have (spaces, =) may be written, and match the underscore in it.
    """

    text: str
    name: str
    end: str
    sign: str
    number: float

    def matches(self, figures: Mapping[str, HeadlineMetric]) -> list[HeadlineMetric]:
        """Return the metrics that the condition names.

        Raises:
            UnknownNameError: there is none.
        """
        found = [figure for name, figure in figures.items() if name == self.name or fnmatchcase(name, self.name)]
        if not found:
            raise UnknownNameError("figure", self.name, list(figures), where=f"--fail-if '{self.text}'")
        return found

    def holds(self, figure: HeadlineMetric) -> bool:
        """Return whether the condition is true for a metric.

        Raises:
            InputError: the metric is unknown, or has no interval although the condition names an end of it.
        """
        value = getattr(figure, self.end or "estimate")
        if math.isnan(value):
            reason = f" ({figure.method})" if figure.method else ""
            what = f"The interval of {figure.name}" if self.end else figure.name
            raise InputError(f"--fail-if '{self.text}' cannot be decided: {what} is not known{reason}.")
        return _COMPARE[self.sign](value, self.number)


def parse_conditions(texts: Sequence[str]) -> tuple[FailCondition, ...]:
    """Parse conditions, before the work begins.

    Raises:
        InputError: a condition has another form than NAME < NUMBER or NAME.low < NUMBER.
    """
    return tuple(_parse_condition(text) for text in texts)


def _parse_condition(text: str) -> FailCondition:
    found = _PATTERN.match(text)
    number = _parse_number(found["number"]) if found else math.nan
    if found is None or math.isnan(number):
        raise InputError(
            f"--fail-if '{text}' is no condition. Write NAME < NUMBER, with <, <=, > or >=, such as 'skill < 0.5', or "
            "an end of the interval: 'skill.low < 0.5'."
        )
    return FailCondition(
        text=text, name=format_metric_name(found["name"]), end=found["end"] or "", sign=found["sign"], number=number
    )


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_names(conditions: Sequence[FailCondition], figures: Sequence[str]) -> None:
    """Refuse a condition on a metric that a command never has, before the work begins.

    Args:
        conditions: the user's conditions.
        figures: names of metrics; ``*`` matches names from the data, such as a joint's.

    Raises:
        UnknownNameError: a condition names none of them.
    """
    names = [format_metric_name(name) for name in figures]
    for condition in conditions:
        if not any(_patterns_overlap(condition.name, name) for name in names):
            raise UnknownNameError("figure", condition.name, names, where=f"--fail-if '{condition.text}'")


def _patterns_overlap(asked: str, told: str) -> bool:
    """Return whether two patterns may match one name; of two with wildcards only the beginnings are compared."""
    if asked == told or fnmatchcase(asked, told) or fnmatchcase(told, asked):
        return True
    both = [re.split(r"[*?\[]", text, maxsplit=1) for text in (asked, told)]
    begins = [parts[0] for parts in both]
    return all(len(parts) > 1 for parts in both) and (
        begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])
    )


@dataclass(frozen=True, kw_only=True)
class FailVerdict:
    """The true conditions, each with its metric; empty if the run passed."""

    failed: tuple[tuple[FailCondition, HeadlineMetric], ...]

    @property
    def code(self) -> int:
        """Exit code: 1 if any condition is true, else 0."""
        return 1 if self.failed else 0

    def lines(self) -> list[str]:
        """Return a line for each true condition."""
        return [
            f"FAILED {condition.text}: {figure.name} is "
            f"{figure.estimate:.4g}{_format_interval(figure)}{_format_unit(figure)}"
            for condition, figure in self.failed
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """Return a JSON-compatible list for files."""
        return [{"condition": condition.text, "figure": figure.name} for condition, figure in self.failed]


def check_conditions(conditions: Sequence[FailCondition], figures: Mapping[str, HeadlineMetric]) -> FailVerdict:
    """Evaluate every condition on every metric that it names."""
    tried = [(condition, figure) for condition in conditions for figure in condition.matches(figures)]
    return FailVerdict(failed=tuple((condition, figure) for condition, figure in tried if condition.holds(figure)))


def _format_interval(figure: HeadlineMetric) -> str:
    return "" if math.isnan(figure.low) else f" [{figure.low:.4g}, {figure.high:.4g}]"


def _format_unit(figure: HeadlineMetric) -> str:
    return f" {figure.unit}" if figure.unit else ""


Outcome = tuple[dict[str, Any], int]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run of a measuring command. ``kind`` is the word after ``twinloop`` ``verb``, or its variant.

    Without ``output`` nothing is stored.
    """

    verb: str
    kind: str
    output: Path | None
    conditions: tuple[FailCondition, ...]
    console: Console

    @classmethod
    def begin(cls, verb: str, kind: str, output: Path | None, fail_if: Sequence[str], console: Console) -> MeasuredRun:
        """Claim the folder and read the conditions, before any computation.

        Raises:
            InputError: the folder is taken, or a condition cannot be read.
            UnknownNameError: a condition is on a metric that this command never has.
        """
        run = cls(verb=verb, kind=kind, output=output, conditions=parse_conditions(fail_if), console=console)
        run.expect(list_metric_names(verb, kind))
        if output is not None:
            claim_output(output)
        return run

    def expect(self, figures: Sequence[str]) -> None:
        """Check the conditions against the metric names as soon as these are known, ``*`` for names from the data.

        Raises:
            UnknownNameError: a condition names none of them.
        """
        if figures:
            check_names(self.conditions, figures)

    def lock_output(self) -> AbstractContextManager[None]:
        """Lock the folder while a command writes its own files there, before `end` writes the others.

        Raises:
            DatasetLockedError: another process writes there.
            InputError: another process has finished a run there since this one began.
        """
        return nullcontext() if self.output is None else lock_run_folder(self.output, "run")

    def end(
        self,
        figures: Mapping[str, Any],
        headline: Sequence[HeadlineMetric],
        *,
        title: str = "",
        subtitle: str = "",
        fill: Callable[[ReportPage], None] | None = None,
    ) -> Outcome:
        """Store result.json and report.html, evaluate the conditions, and return the metrics and the exit code.

        Args:
            figures: the result, JSON-compatible.
            headline: the metrics for conditions and the history.
            title: title of the page.
            subtitle: subtitle of the page.
            fill: adds the sections of the page; None for no page.

        Raises:
            UnknownNameError: a condition names a metric that the data did not give; the result is stored before.
        """
        result: dict[str, Any] = {
            **figures,
            "verb": self.verb,
            "kind": self.kind,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "headline": [figure.to_json() for figure in headline],
        }
        if self.output is not None:  # stored before the conditions are evaluated, which may raise
            with lock_run_folder(self.output):
                if fill is not None:  # result.json is written last, see `write_run`
                    write_report(ReportPage(title, subtitle), fill, self.output / "report.html", self.console)
                result = write_result(self.output, result)
        verdict = check_conditions(self.conditions, {figure.name: figure for figure in headline})
        for line in verdict.lines():
            self.console.print(line, soft_wrap=True)
        return {**result, "failed": verdict.to_json()}, verdict.code
