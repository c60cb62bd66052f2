"""Begin and end the run of a command: lock its folder, write its result and report, and determine its exit code.

The exit code is 1 if a metric meets a condition of the flag ``--fail-if``.
"""

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
    """Return a JSON-compatible value in which NaN and infinity, which JSON cannot represent, are replaced by None."""
    if isinstance(value, Mapping):
        return {str(key): replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def claim_output(folder: Path) -> None:
    """Check, before the work of a run begins, that its results can be written to a folder afterwards.

    Raises:
        InputError: If the folder contains an earlier run or a dataset, is inside a dataset, or cannot be written.
    """
    if (folder / "result.json").exists():
        forget_locks(folder)
        (folder / ".result.json.tmp").unlink(missing_ok=True)  # of a run whose disk refused a call
        raise InputError(f"{folder} holds an earlier run. Choose another --output, or move that one away.")
    if (folder / layout.INFO).is_file():
        raise InputError(f"{folder} holds a dataset. Choose another --output, or move that one away.")
    for above in folder.resolve().parents:
        if (above / layout.INFO).is_file():
            raise InputError(f"{folder} is inside the dataset {above}. Choose an --output outside it.")
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{folder} cannot be made: {existing} is no folder to write to. Choose another --output.")


def require_new_class_file(path: Path) -> str:
    """Return the name of the class in a new Python file of the user: that of the file, in capitalized words.

    Raises:
        InputError: If the file exists, or its name is not that of a Python module.
    """
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise InputError(f"{path} is not the name of a Python file. Give one such as my_robot.py or my_task.py.")
    if path.exists():
        raise InputError(f"{path} exists. Choose another name, or move it.")
    return "".join(part.capitalize() for part in path.stem.split("_"))


@contextlib.contextmanager
def lock_run_folder(folder: Path, purpose: str = "") -> Generator[None]:
    """Return a context manager that locks a run's folder while its files are written.

    Args:
        folder: the folder of the run.
        purpose: name of the lock; nested blocks for one folder need different names.

    Raises:
        DatasetLockedError: If another process is writing to the folder.
        InputError: If another process has finished a run in the folder since this run began.
    """
    with hold_folder_lock(folder, purpose):
        claim_output(folder)
        yield


_COMMAND: ContextVar[tuple[Sequence[str], Any] | None] = ContextVar("command", default=None)


@contextlib.contextmanager
def record_request(words: Sequence[str], request: Any) -> Generator[None]:
    """Return a context manager that sets the current command, for `recorded_words` and `write_request`.

    Args:
        words: words of its command line, the name of the command first.
        request: its request, stored with all defaults.
    """
    token = _COMMAND.set((words, request))
    try:
        yield
    finally:
        _COMMAND.reset(token)


def recorded_words() -> list[str]:
    """Return the words of the command line of the current command, for its record; empty outside of a command."""
    made = _COMMAND.get()
    return [] if made is None else list(made[0])


def write_request(folder: Path) -> None:
    """Write the request of the current command to ``FOLDER/request.json``; do nothing outside of `record_request`."""
    if (made := _COMMAND.get()) is not None:
        form = {
            "schema": 1,
            "twinloop": __version__,
            "command": made[0][0],
            "request": redact_values(to_plain_value(made[1])),
        }
        write_json(folder / "request.json", form)


def write_result(folder: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Write the request and then the metrics of a run, without credentials, to ``request.json`` and ``result.json``.

    The request is that of the current command, see `record_request`; outside of a command, only the metrics are
    written.

    Returns:
        The metrics as stored.
    """
    write_request(folder)
    stored = redact_values(replace_nonfinite(dict(metrics)))
    write_json(folder / "result.json", stored)
    return stored


def write_report(page: ReportPage, fill: Callable[[ReportPage], None], path: Path, console: Console) -> Path | None:
    """Fill a report page and write it to a file.

    Args:
        page: the empty page.
        fill: function that adds the sections to the page.
        path: the HTML file.
        console: console on which the path is printed or, if a package for reports is missing, the name of the package.

    Returns:
        The path; None if a package is missing.
    """
    try:
        fill(page)
        page.write(path)
    except MissingDependencyError as error:
        console.print(f"No report: {error}")
        return None
    console.print(f"Report: {path}")
    return path


def write_run(
    folder: Path, metrics: Mapping[str, Any], page: ReportPage, fill: Callable[[ReportPage], None], console: Console
) -> dict[str, Any]:
    """Write the report of a run, and then its metrics.

    ``result.json`` is written last, so that a folder with this file is complete. A run that was killed, or whose disk
    was full, can therefore be repeated in the same folder.

    Args:
        folder: the folder of the run.
        metrics: metrics of the run.
        page: the empty report page.
        fill: function that adds the sections to the page.
        console: console on which the path of the report is printed.

    Returns:
        The metrics as stored.
    """
    with lock_run_folder(folder):
        write_report(page, fill, folder / "report.html", console)
        return write_result(folder, metrics)


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
    """Return names of metrics and, for each, a pattern for the same metric of each item, such as ``rmse/*``.

    Items are, for example, joints, tasks or policies.
    """
    return (*names, *(f"{name}/*" for name in names))


# Metrics by verb and kind; * matches a name from the data: a joint, a task, a policy, a signal.
_METRICS: Mapping[tuple[str, str], tuple[str, ...]] = {
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
    """Return the names of a command's metrics, so that a wrong name in ``--fail-if`` is refused before the work begins.

    Args:
        verb: the command, such as ``gap``.
        kind: its subcommand or variant, such as ``dynamics``.

    Returns:
        Names in which ``*`` matches a name from the data; empty if the names are known only during the command.
    """
    return _METRICS.get((verb, kind)) or _METRICS.get((verb, ""), ())


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PATTERN = re.compile(r"^\s*(?P<name>[^<>]+?)(?:\.(?P<end>low|high))?\s*(?P<sign><=|>=|<|>)\s*(?P<number>\S+)\s*$")


@dataclass(frozen=True, kw_only=True)
class FailCondition:
    """Condition on a metric, such as ``skill.low < 0.5``, that makes a command fail.

    Attributes:
        text: the condition as the user wrote it.
        name: name of the metric, or a pattern of names. Characters that a metric's name cannot have, such as spaces,
            are replaced by underscores.
        end: ``low`` or ``high`` for a bound of the metric's interval, "" for the estimate.
        sign: ``<``, ``<=``, ``>`` or ``>=``.
        number: the limit.
    """

    text: str
    name: str
    end: str
    sign: str
    number: float

    def matches(self, metrics: Mapping[str, HeadlineMetric]) -> list[HeadlineMetric]:
        """Return the metrics that the condition names.

        Args:
            metrics: metrics of the run by name.

        Raises:
            UnknownNameError: If no metric has the name.
        """
        found = [metric for name, metric in metrics.items() if name == self.name or fnmatchcase(name, self.name)]
        if not found:
            raise UnknownNameError("metric", self.name, list(metrics), where=f"--fail-if '{self.text}'")
        return found

    def holds(self, metric: HeadlineMetric) -> bool:
        """Return whether the condition is true for a metric.

        Raises:
            InputError: If the metric is NaN, or has no interval although the condition is on a bound of it.
        """
        value = getattr(metric, self.end or "estimate")
        if math.isnan(value):
            reason = f" ({metric.method})" if metric.method else ""
            what = f"The interval of {metric.name}" if self.end else metric.name
            raise InputError(f"--fail-if '{self.text}' cannot be decided: {what} is not known{reason}.")
        return _COMPARE[self.sign](value, self.number)


def parse_conditions(texts: Sequence[str]) -> tuple[FailCondition, ...]:
    """Parse the conditions of ``--fail-if``.

    Raises:
        InputError: If a condition has another form than NAME < NUMBER or NAME.low < NUMBER.
    """
    return tuple(_parse_condition(text) for text in texts)


def _parse_condition(text: str) -> FailCondition:
    found = _PATTERN.match(text)
    number = _parse_number(found["number"]) if found else math.nan
    if found is None or math.isnan(number):
        raise InputError(
            f"--fail-if '{text}' is not a condition. Write NAME < NUMBER, with <, <=, > or >=, such as 'skill < 0.5', "
            "or a bound of the interval: 'skill.low < 0.5'."
        )
    return FailCondition(
        text=text, name=format_metric_name(found["name"]), end=found["end"] or "", sign=found["sign"], number=number
    )


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_names(conditions: Sequence[FailCondition], metrics: Sequence[str]) -> None:
    """Check, before the work begins, that conditions are on metrics that a command has.

    Args:
        conditions: conditions of the user.
        metrics: names of the metrics; ``*`` matches names from the data, such as the name of a joint.

    Raises:
        UnknownNameError: If no metric can have the name in a condition.
    """
    names = [format_metric_name(name) for name in metrics]
    for condition in conditions:
        if not any(_patterns_overlap(condition.name, name) for name in names):
            raise UnknownNameError("metric", condition.name, names, where=f"--fail-if '{condition.text}'")


def _patterns_overlap(wanted: str, available: str) -> bool:
    """Return whether two patterns with ``*`` may match the same name.

    If both have wildcards, only the texts before the first wildcard are compared.

    Args:
        wanted: name or pattern in a condition.
        available: name or pattern of a metric.
    """
    if wanted == available or fnmatchcase(wanted, available) or fnmatchcase(available, wanted):
        return True
    both = [re.split(r"[*?\[]", text, maxsplit=1) for text in (wanted, available)]
    begins = [parts[0] for parts in both]
    return all(len(parts) > 1 for parts in both) and (
        begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])
    )


@dataclass(frozen=True, kw_only=True)
class FailVerdict:
    """Result of the conditions of a run.

    Attributes:
        failed: the true conditions, each with its metric; empty if the run passed.
    """

    failed: tuple[tuple[FailCondition, HeadlineMetric], ...]

    @property
    def code(self) -> int:
        """Exit code: 1 if any condition is true, else 0."""
        return 1 if self.failed else 0

    def lines(self) -> list[str]:
        """Return a line to print for each true condition."""
        return [
            f"FAILED {condition.text}: {metric.name} is "
            f"{metric.estimate:.4g}{_format_interval(metric)}{_format_unit(metric)}"
            for condition, metric in self.failed
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the true conditions and their metrics as a JSON-compatible list."""
        return [{"condition": condition.text, "metric": metric.name} for condition, metric in self.failed]


def check_conditions(conditions: Sequence[FailCondition], metrics: Mapping[str, HeadlineMetric]) -> FailVerdict:
    """Evaluate every condition on every metric that it names.

    Args:
        conditions: the conditions.
        metrics: metrics of the run by name.

    Raises:
        UnknownNameError: If a condition names no metric.
        InputError: If a condition cannot be decided, because the metric or its interval is unknown.
    """
    tried = [(condition, metric) for condition in conditions for metric in condition.matches(metrics)]
    return FailVerdict(failed=tuple((condition, metric) for condition, metric in tried if condition.holds(metric)))


def _format_interval(metric: HeadlineMetric) -> str:
    return "" if math.isnan(metric.low) else f" [{metric.low:.4g}, {metric.high:.4g}]"


def _format_unit(metric: HeadlineMetric) -> str:
    return f" {metric.unit}" if metric.unit else ""


Outcome = tuple[dict[str, Any], int]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run of a measuring command: it checks the output folder, stores the results and determines the exit code.

    Attributes:
        verb: name of the command, such as ``gap``.
        kind: its subcommand or variant, such as ``dynamics``.
        output: folder for the results; if None, nothing is stored.
        conditions: conditions of ``--fail-if``.
        console: console of the command.
    """

    verb: str
    kind: str
    output: Path | None
    conditions: tuple[FailCondition, ...]
    console: Console

    @classmethod
    def begin(cls, verb: str, kind: str, output: Path | None, fail_if: Sequence[str], console: Console) -> MeasuredRun:
        """Check the output folder and the conditions of ``--fail-if`` before any computation, and return the new run.

        Args:
            verb: name of the command.
            kind: its subcommand or variant.
            output: folder for the results, or None.
            fail_if: conditions as texts.
            console: console of the command.

        Raises:
            InputError: If the folder cannot be used, or a condition cannot be parsed.
            UnknownNameError: If a condition is on a metric that this command never has.
        """
        run = cls(verb=verb, kind=kind, output=output, conditions=parse_conditions(fail_if), console=console)
        run.expect(list_metric_names(verb, kind))
        if output is not None:
            claim_output(output)
        return run

    def expect(self, metrics: Sequence[str]) -> None:
        """Check that the ``--fail-if`` conditions are on metrics of this run, as soon as the metrics' names are known.

        Args:
            metrics: names of the metrics; ``*`` matches a part, such as a joint's name, that depends on the data.

        Raises:
            UnknownNameError: If no metric can have the name in a condition.
        """
        if metrics:
            check_names(self.conditions, metrics)

    def lock_output(self) -> AbstractContextManager[None]:
        """Return a context manager that locks the output folder while a command writes its own files there.

        Call `end` inside the same ``with`` block, so that its files are written before the lock is released.

        Raises:
            DatasetLockedError: If another process is writing to the folder.
            InputError: If another process has finished a run in the folder since this run began.
        """
        return nullcontext() if self.output is None else lock_run_folder(self.output, "run")

    def end(
        self,
        metrics: Mapping[str, Any],
        headline: Sequence[HeadlineMetric],
        *,
        title: str = "",
        subtitle: str = "",
        fill: Callable[[ReportPage], None] | None = None,
    ) -> Outcome:
        """Write result.json and report.html, evaluate the conditions of ``--fail-if``, and return the result.

        Args:
            metrics: the result, JSON-compatible.
            headline: the metrics for the conditions and for the history of runs.
            title: title of the report.
            subtitle: subtitle of the report.
            fill: function that adds the sections to the report; None for no report.

        Returns:
            The result with the true conditions, and exit code 1 if a condition is true, else 0.

        Raises:
            UnknownNameError: If a condition names a metric that the data did not give. The result is stored before.
        """
        result: dict[str, Any] = {
            **metrics,
            "verb": self.verb,
            "kind": self.kind,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "headline": [metric.to_json() for metric in headline],
        }
        if self.output is not None:  # stored before the conditions are evaluated, which may raise
            with lock_run_folder(self.output):
                if fill is not None:  # result.json is written last, see `write_run`
                    write_report(ReportPage(title, subtitle), fill, self.output / "report.html", self.console)
                result = write_result(self.output, result)
        verdict = check_conditions(self.conditions, {metric.name: metric for metric in headline})
        for line in verdict.lines():
            self.console.print(line, soft_wrap=True)
        return {**result, "failed": verdict.to_json()}, verdict.code
