"""Read tables of trials of policies, and tables of mean scores, from CSV and JSON files.

A table of trials has these columns, in any order: ``policy``; ``domain`` (``real`` or ``sim``); ``success``
(1/0, true/false, yes/no) or ``score`` (0 to 1) or both. Optional columns are ``task``, ``condition`` (circumstance of
the trial, such as the lighting) and ``pair`` (identifier that a real and a simulated trial with the same initial state
share). Several conditions are columns ``condition/NAME``. A row may also give counts, ``successes`` and ``trials``,
in place of one trial. `ALIASES` lists other accepted column names. Further columns are ignored.

A table of mean scores, for example of published results, has the columns ``policy``, ``real`` and ``sim``.
Optional are ``real_trials`` and ``sim_trials`` (or ``trials`` for both), ``task``, and ``real_sd`` and
``sim_sd``, the standard deviations between trials, if scores are not successes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from twinloop.core.documents import MAX_LINES_BYTES, DocumentError, read_json, read_text
from twinloop.core.errors import InputError
from twinloop.core.trials import DOMAINS, Domain, Trials
from twinloop.stats.ranking import PolicyScoreMatrix, PolicyScores

ALIASES = {
    "policy": ("controller", "model", "checkpoint", "short_name"),
    "domain": ("source", "environment"),
    "success": ("succeeded", "is_success", "swingup_success"),
    "score": ("progress", "realai_score", "real_ai_score"),
    "successes": ("num_success", "n_success"),
    "trials": ("episodes", "num_trials", "n_trials", "n"),
    "task": ("task_name",),
    "condition": ("variant", "scene", "slice"),
    "pair": ("pair_id", "initial_state", "trial"),
}
_DOMAIN_WORDS = {"simulation": "sim", "simulated": "sim", "hardware": "real", "robot": "real"}
_MOST_COUNTED = 1_000_000  # most trials in a row of counts, which is expanded to one entry per trial
_YES, _NO = ("1", "1.0", "true", "yes", "success"), ("0", "0.0", "false", "no", "failure", "fail")
_SPLIT = {";": "semicolons", "\t": "tabs"}


class TrialRow(dict[str, str]):
    """Cells of one row by standard column name, for example ``policy``.

    Attributes:
        original_names: Column names in the file by standard column name, for error messages.
    """

    def __init__(self, cells: Mapping[str, str], original_names: Mapping[str, str]) -> None:
        super().__init__(cells)
        self.original_names = original_names

    def original_name(self, name: str) -> str:
        """Return the name in the file of a column with the standard name ``name``."""
        return self.original_names.get(name, name)


def read_rows(path: Path) -> list[TrialRow]:
    """Read the rows of a CSV or JSON file and rename columns with an alias to the standard column name.

    If a file has both a standard name and an alias of it, the column with the standard name is used. JSON is a list
    of objects, an object with that list as ``trials``, or an object of columns.

    Raises:
        InputError: If the file is empty, is not a table, has another format, or has two columns of the same
            meaning.
    """
    rows = _json_rows(path) if path.suffix == ".json" else _csv_rows(path)
    if not rows:
        raise InputError(f"{path} has no rows. A table of trials has a header such as policy,domain,success.")
    original_names = _match_columns(path, list(dict.fromkeys(name for row in rows for name in row)))
    return [
        TrialRow({ours: row[name] for ours, name in original_names.items() if name in row}, original_names)
        for row in rows
    ]


def _match_columns(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the name of the file's column for each standard column name."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_canonical_name(name), []).append(name)
    for ours, several in found.items():
        exact = [name for name in several if _normalize_name(name) == ours]
        if len(several) > 1 and len(exact) != 1:
            raise InputError(
                f"{path} has {len(several)} columns for {ours}: {', '.join(several)}. Name the one to use {ours}."
            )
        found[ours] = exact or several
    return {ours: several[0] for ours, several in found.items()}


def rows_to_trials(
    rows: Sequence[TrialRow], *, where: str, domain: Domain | None = None, policy: str | None = None
) -> Trials:
    """Convert rows to trials.

    Args:
        rows: Rows of one table.
        where: Name of the table, for messages and as the origin of the trials.
        domain: Domain of rows that state none.
        policy: Policy of rows that name none.

    Raises:
        InputError: If a column is missing or a value is invalid.
    """
    known, original_names = rows[0].keys(), list(rows[0].original_names.values())
    if "policy" not in known and policy is None:
        raise _missing_column_error(where, "policy", original_names)
    if {"real", "sim"} <= known:
        raise InputError(
            f"{where} holds mean scores (columns real and sim), not trials: see 'twinloop gap predictivity'."
        )
    if "domain" not in known and domain is None:
        raise InputError(
            f"{where} has no column domain (real or sim), so the domain of its trials is unknown. Add it, or give "
            "real and simulated trials as two files: --real FILE --sim FILE."
        )
    if "successes" in known:
        parts = [
            _expand_counts(row, f"{where}, row {number}", domain, policy) for number, row in enumerate(rows, start=1)
        ]
        return replace(Trials.concatenate_trials(parts), origin=where)
    if "success" not in known and "score" not in known:
        raise _missing_column_error(where, "success or score (or successes and trials)", original_names)
    places = [f"{where}, row {number}" for number in range(1, len(rows) + 1)]
    success = [parse_bool(row, "success", place) for row, place in zip(rows, places, strict=True)]
    return Trials(
        policy=tuple(_parse_policy(row, place, policy) for row, place in zip(rows, places, strict=True)),
        domain=tuple(_parse_domain(row, place, domain) for row, place in zip(rows, places, strict=True)),
        score=np.array([_parse_score(row, won, place) for row, won, place in zip(rows, success, places, strict=True)]),
        success=tuple(success),
        task=tuple(row.get("task", "") for row in rows),
        condition=tuple(_join_conditions(row) for row in rows),
        pair=tuple(row.get("pair", "") for row in rows),
        origin=where,
    )


def parse_number(row: TrialRow, name: str, place: str) -> float:
    """Return a number of a row; NaN if the cell is empty or the column is missing.

    Args:
        row: Row of a table.
        name: Standard column name.
        place: File and row number, for error messages.

    Raises:
        InputError: If the cell is not a number.
    """
    text = row.get(name, "")
    try:
        return float(text) if text else math.nan
    except ValueError:
        raise InputError(f"{place}: {row.original_name(name)} is '{text}', not a number.") from None


def _csv_rows(path: Path) -> list[dict[str, str]]:
    try:
        text = io.StringIO(read_text(path, MAX_LINES_BYTES), newline="")
        lines = [line for line in text if line.strip() and not line.startswith("#")]
    except DocumentError as error:
        raise InputError(f"{path} cannot be read as a table of trials ({error}). Save it as CSV in UTF-8.") from error
    rows = list(csv.DictReader(lines, skipinitialspace=True, restkey="", restval=""))
    for at, row in enumerate(rows, start=1):
        if "" in row:
            raise InputError(f"{path}, row {at} has more cells than the header. Put text with commas in quotes.")
    return [{name: value.strip() for name, value in row.items()} for row in rows]


def _json_rows(path: Path) -> list[dict[str, str]]:
    value: Any = read_json(path)
    if isinstance(value, dict) and isinstance(value.get("trials"), list):
        value = cast("Any", value)["trials"]
    if isinstance(value, dict):
        columns = {
            str(k): cast("list[Any]", v) for k, v in cast("dict[Any, Any]", value).items() if isinstance(v, list)
        }
        if len({len(column) for column in columns.values()}) != 1:
            raise InputError(f"{path}: its columns {', '.join(columns) or '(none)'} are not lists of equal length.")
        value = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in cast("list[Any]", value)):
        raise InputError(f"{path} is not a table of trials: give a list of objects like {{policy, domain, success}}.")
    rows = cast("list[dict[str, Any]]", value)
    return [{name: "" if cell is None else str(cell).strip() for name, cell in row.items()} for row in rows]


def _normalize_name(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _canonical_name(name: str) -> str:
    """Return the standard name of a column whose name may be an alias."""
    word = _normalize_name(name)
    if word.startswith("condition/"):
        return word
    return next((ours for ours, aliases in ALIASES.items() if word in aliases), word)


def _expand_counts(row: TrialRow, place: str, domain: Domain | None, policy: str | None) -> Trials:
    successes, trials = parse_number(row, "successes", place), parse_number(row, "trials", place)
    if not (successes.is_integer() and trials.is_integer() and 0 <= successes <= trials and trials >= 1):
        raise InputError(
            f"{place}: {row.original_name('successes')} '{row['successes']}' of {row.original_name('trials')} "
            f"'{row.get('trials', '')}' are not valid counts. Write whole numbers, such as 8 of 10."
        )
    if trials > _MOST_COUNTED:
        raise InputError(f"{place}: {trials:.0f} trials in a row are more than {_MOST_COUNTED}. Check the number.")
    return Trials.of_counts(
        _parse_policy(row, place, policy),
        _parse_domain(row, place, domain),
        int(successes),
        int(trials),
        task=row.get("task", ""),
        condition=_join_conditions(row),
    )


def _parse_policy(row: TrialRow, place: str, default: str | None) -> str:
    name = row.get("policy") or default
    if not name:
        raise InputError(f"{place} names no policy. Write its name in the column {row.original_name('policy')}.")
    return name


def _parse_domain(row: TrialRow, place: str, default: Domain | None) -> Domain:
    word = row.get("domain", "").lower() or default or ""
    word = _DOMAIN_WORDS.get(word, word)
    if word not in DOMAINS:
        raise InputError(f"{place}: {row.original_name('domain')} is '{word}'. Write real or sim.")
    return word


def _join_conditions(row: TrialRow) -> str:
    several = [
        f"{name.removeprefix('condition/')}={row[name]}" for name in row if name.startswith("condition/") and row[name]
    ]
    return ", ".join(part for part in (row.get("condition", ""), *several) if part)


def parse_bool(row: TrialRow, name: str, place: str) -> bool | None:
    """Parse a cell such as 1, true, yes or success to a bool; return None if the cell is empty.

    Args:
        row: Row of a table.
        name: Standard column name.
        place: File and row number, for error messages.

    Raises:
        InputError: If the cell is neither true nor false.
    """
    text = row.get(name, "")
    word = text.lower()
    if not word:
        return None
    if word in _YES or word in _NO:
        return word in _YES
    between = ", and a partial success as a score" if name == "success" else ""
    raise InputError(f"{place}: {row.original_name(name)} is '{text}'. Write 1 or 0{between}.")


def _parse_score(row: TrialRow, success: bool | None, place: str) -> float:
    value = parse_number(row, "score", place)
    if math.isnan(value):
        if row.get("score"):
            raise InputError(f"{place}: {row.original_name('score')} is '{row['score']}', not a number from 0 to 1.")
        if success is None:
            raise InputError(
                f"{place} has neither a success nor a score. Leave the row out if the trial did not count."
            )
        return float(success)
    if not 0 <= value <= 1:
        raise InputError(
            f"{place}: {row.original_name('score')} {value:g} is outside 0 to 1. Divide scores by the maximum score."
        )
    return value


def _missing_column_error(where: str, column: str, known: Any) -> InputError:
    alone = next(iter(known), "")
    split = next((f" Separate cells by commas, not by {name}." for sign, name in _SPLIT.items() if sign in alone), "")
    return InputError(f"{where} has no column {column}. It has: {', '.join(known)}.{split}")


def is_score_table(rows: Sequence[TrialRow]) -> bool:
    """Return whether the rows are mean real and simulated scores of policies, and not single trials."""
    return {"real", "sim"} <= rows[0].keys()


def rows_to_scores(rows: Sequence[TrialRow], *, where: str) -> tuple[PolicyScores, ...]:
    """Convert rows of mean scores to one `PolicyScores` per task.

    Args:
        rows: Rows of one table.
        where: Name of the table, for error messages.

    Raises:
        InputError: If a policy is missing or occurs twice in a task, a score is outside 0 to 1, or a number of
            trials or a standard deviation is invalid.
    """
    if "policy" not in rows[0]:
        raise InputError(f"{where} has no column policy. It has: {', '.join(rows[0].original_names.values())}.")
    tasks: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        tasks.setdefault(row.get("task", ""), []).append(at)
    return tuple(
        _parse_task_scores(task, [(at + 1, rows[at]) for at in chosen], where) for task, chosen in tasks.items()
    )


def read_scores(path: Path | str) -> tuple[PolicyScores, ...]:
    """Read a CSV or JSON table of mean scores, one `PolicyScores` per task.

    The table has one row per policy and task. It must have the columns ``policy``, ``real`` and ``sim``, the mean
    scores from 0 to 1. The module describes the optional columns.

    Raises:
        InputError: If the file cannot be read, or `rows_to_scores` refuses a row.
    """
    return rows_to_scores(read_rows(Path(path)), where=str(path))


def _parse_task_scores(task: str, numbered: Sequence[tuple[int, TrialRow]], where: str) -> PolicyScores:
    policies = tuple(row["policy"] for _, row in numbered)
    again = [policy for policy in policies if policies.count(policy) > 1]
    if again:
        of = f" in task '{task}'" if task else ""
        raise InputError(f"{where}: policy {again[0]} has {policies.count(again[0])} rows{of}. Keep one.")
    if "" in policies:
        raise InputError(f"{where}, row {numbered[policies.index('')][0]} names no policy. Write it in column policy.")
    return PolicyScores(
        policies=policies,
        real=_parse_side_scores("real", numbered, where),
        sim=_parse_side_scores("sim", numbered, where),
        task=task,
    )


def _parse_side_scores(side: str, numbered: Sequence[tuple[int, TrialRow]], where: str) -> PolicyScoreMatrix:
    mean, trials, deviation = [], [], []
    for at, row in numbered:
        place = f"{where}, row {at}"
        value = parse_number(row, side, place)
        if not 0 <= value <= 1:
            known = "Divide percents by 100." if value > 1 else "Leave the row out if it is not known."
            raise InputError(f"{place}: {side} score '{row[side]}' is not a number from 0 to 1. {known}")
        own, spread = parse_number(row, f"{side}_trials", place), parse_number(row, f"{side}_sd", place)
        count = own if np.isfinite(own) else parse_number(row, "trials", place)
        if count <= 0 or np.isinf(count):
            raise InputError(f"{place}: {count:g} trials give no mean score. Leave an unknown number of trials empty.")
        if spread < 0 or np.isinf(spread):
            raise InputError(f"{place}: {side}_sd is {spread:g}; a standard deviation is 0 or more.")
        mean.append(value)
        trials.append(count)
        deviation.append(spread)
    if np.isnan(deviation).all():
        return PolicyScoreMatrix.of_table(mean, trials)
    # The largest standard deviation of scores in [0, 1] is that of successes.
    most = np.sqrt(np.multiply(mean, np.subtract(1.0, mean)))
    return PolicyScoreMatrix.of_table(mean, trials, np.where(np.isnan(deviation), most, deviation))
