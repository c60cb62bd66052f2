"""Intervals of the difference p_a − p_b of two success rates that were measured apart."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import ndtri

from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson, wilson
from twinloop.stats.two_by_two import TwoByTwo, largest_tail, score_statistic

DifferenceMethod = Literal["newcombe", "agresti-caffo", "clopper-pearson", "chan-zhang"]
_SCAN = 25  # differences at which the exact tail is looked at before the first crossing is halved
_HALVINGS = 15  # to 3e-6 of the difference
_TIE = 1e-9


def difference_interval(table: TwoByTwo, *, level: float = 0.95, method: DifferenceMethod = "newcombe") -> Interval:
    """Interval of p_a − p_b.

    Args:
        table: the counts.
        level: confidence level.
        method: ``newcombe``, his hybrid of two Wilson intervals (method 10; Statistics in Medicine 17, 1998), near
            nominal on average; ``agresti-caffo``, two trials added to each arm (The American Statistician 54, 2000),
            the same with less arithmetic; ``chan-zhang``, the inversion of two exact one-sided score tests (Biometrics
            55, 1999), never below nominal; ``clopper-pearson``, the difference of two exact intervals of level √level
            each, never below nominal either and the widest.
    """
    check_level(level)
    made = {
        "newcombe": _newcombe,
        "agresti-caffo": _agresti_caffo,
        "clopper-pearson": _clopper_pearson,
        "chan-zhang": _chan_zhang,
    }
    low, high, said = made[method](table, level)
    return Interval(
        estimate=np.array(table.difference), low=np.array(low), high=np.array(high), level=level, method=said
    )


def _newcombe(table: TwoByTwo, level: float) -> tuple[float, float, str]:
    a = wilson(table.successes_a, table.trials_a, level=level)
    b = wilson(table.successes_b, table.trials_b, level=level)
    down = np.hypot(a.estimate - a.low, b.high - b.estimate)
    up = np.hypot(a.high - a.estimate, b.estimate - b.low)
    return table.difference - float(down), table.difference + float(up), "Newcombe hybrid score"


def _agresti_caffo(table: TwoByTwo, level: float) -> tuple[float, float, str]:
    z = float(ndtri((1 + level) / 2))
    n_a, n_b = table.trials_a + 2, table.trials_b + 2
    p_a, p_b = (table.successes_a + 1) / n_a, (table.successes_b + 1) / n_b
    half = z * float(np.sqrt(p_a * (1 - p_a) / n_a + p_b * (1 - p_b) / n_b))
    return max(p_a - p_b - half, -1.0), min(p_a - p_b + half, 1.0), "Agresti–Caffo"


def _clopper_pearson(table: TwoByTwo, level: float) -> tuple[float, float, str]:
    a = clopper_pearson(table.successes_a, table.trials_a, level=level**0.5)
    b = clopper_pearson(table.successes_b, table.trials_b, level=level**0.5)
    return float(a.low - b.high), float(a.high - b.low), "two Clopper–Pearson intervals"


def _chan_zhang(table: TwoByTwo, level: float) -> tuple[float, float, str]:
    tail = (1 - level) / 2
    low, high = _exact_low(table, tail), -_exact_low(table.swapped(), tail)
    return low, high, "Chan–Zhang exact unconditional"


def _exact_low(table: TwoByTwo, tail: float) -> float:
    """The smallest difference that the exact one-sided test at ``tail`` does not refuse as too small."""
    if table.difference <= -1 + _TIE:
        return -1.0
    scan = np.linspace(-1.0, table.difference, _SCAN)
    refused = -1.0
    for shift in scan[1:]:
        if _tail_at(table, float(shift)) > tail:
            break
        refused = float(shift)
    else:
        return table.difference
    kept = float(shift)
    for _ in range(_HALVINGS):
        middle = (refused + kept) / 2
        if _tail_at(table, middle) > tail:
            kept = middle
        else:
            refused = middle
    return refused


def _tail_at(table: TwoByTwo, difference: float) -> float:
    """The largest chance, at this difference, of a table that speaks as much for a larger one."""
    if difference >= 1.0:
        return 1.0
    won_a, won_b = np.arange(table.trials_a + 1)[:, None], np.arange(table.trials_b + 1)[None, :]
    z = score_statistic(won_a, table.trials_a, won_b, table.trials_b, difference=difference)
    return largest_tail(z >= z[table.successes_a, table.successes_b] - _TIE, difference)
