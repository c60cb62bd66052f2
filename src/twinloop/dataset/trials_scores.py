"""Published tables of mean scores: one row per policy with its real and its simulated score.

Columns: ``policy``, ``real``, ``sim``; ``real_trials`` and ``sim_trials`` (``trials`` for both) where they are known;
``real_sd`` and ``sim_sd``, the standard deviation between trials, where scores are not successes; ``task``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from twinloop.core.errors import InputError
from twinloop.dataset.trials_table import Row, number, read_rows
from twinloop.stats.ranking_scores import PolicyScores, Scores


def is_score_table(rows: Sequence[Row]) -> bool:
    """Whether rows have a real and a simulated score each, rather than one trial."""
    return {"real", "sim"} <= rows[0].keys()


def scores_of_rows(rows: Sequence[Row], *, where: str) -> tuple[PolicyScores, ...]:
    """The scores of each task.

    Raises:
        InputError: no policy, a policy twice in a task, no score from 0 to 1, no number of trials or standard
            deviation; names the row.
    """
    if "policy" not in rows[0]:
        raise InputError(f"{where} has no column policy. It has: {', '.join(rows[0].theirs.values())}.")
    tasks: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        tasks.setdefault(row.get("task", ""), []).append(at)
    return tuple(_task(task, [(at + 1, rows[at]) for at in chosen], where) for task, chosen in tasks.items())


def read_scores(path: Path | str) -> tuple[PolicyScores, ...]:
    """The scores of a table of means, by task.

    Raises:
        InputError: as `scores_of_rows`; the file cannot be read.
    """
    return scores_of_rows(read_rows(Path(path)), where=str(path))


def _task(task: str, numbered: Sequence[tuple[int, Row]], where: str) -> PolicyScores:
    policies = tuple(row["policy"] for _, row in numbered)
    again = [policy for policy in policies if policies.count(policy) > 1]
    if again:
        of = f" in task '{task}'" if task else ""
        raise InputError(f"{where}: policy {again[0]} has {policies.count(again[0])} rows{of}. Keep one.")
    if "" in policies:
        raise InputError(f"{where}, row {numbered[policies.index('')][0]} names no policy. Write it in column policy.")
    return PolicyScores(
        policies=policies, real=_side("real", numbered, where), sim=_side("sim", numbered, where), task=task
    )


def _side(side: str, numbered: Sequence[tuple[int, Row]], where: str) -> Scores:
    mean, trials, deviation = [], [], []
    for at, row in numbered:
        place = f"{where}, row {at}"
        value = number(row, side, place)
        if not 0 <= value <= 1:
            known = "Divide percents by 100." if value > 1 else "Leave the row out if it is not known."
            raise InputError(f"{place}: {side} score '{row[side]}' is no number from 0 to 1. {known}")
        own, spread = number(row, f"{side}_trials", place), number(row, f"{side}_sd", place)
        count = own if np.isfinite(own) else number(row, "trials", place)
        if count <= 0 or np.isinf(count):
            raise InputError(f"{place}: {count:g} trials give no mean score. Leave the cell empty if it is not known.")
        if spread < 0 or np.isinf(spread):
            raise InputError(f"{place}: {side}_sd is {spread:g}, and a standard deviation is 0 or more.")
        mean.append(value)
        trials.append(count)
        deviation.append(spread)
    if np.isnan(deviation).all():
        return Scores.of_table(mean, trials)
    most = np.sqrt(np.multiply(mean, np.subtract(1.0, mean)))  # of scores in [0, 1], that of successes
    return Scores.of_table(mean, trials, np.where(np.isnan(deviation), most, deviation))
