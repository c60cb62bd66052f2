"""The gap of trajectories in words: which channels and features give simulation away, the plainest first."""

from __future__ import annotations

import numpy as np

from twinloop.gap.states import StatesGap

_MOST = 12
_FACTOR = 1.5  # what is so many times as large is told as a factor
_LEVELS = ("position_mean", "command_mean", "tracking_mean")  # their zero is a convention: no factor


def verdict(gap: StatesGap) -> str:
    """One sentence: whether held-out clips can be told apart, and by which channels."""
    auc = gap.classifier.auc
    figure = f"{float(auc.estimate):.2f} [{float(auc.low):.2f}, {float(auc.high):.2f}]"
    if np.isnan(gap.classifier.p_value):
        return (
            f"Of pairs of held-out clips, one {gap.sides[0]} and one {gap.sides[1]}, a classifier tells which is which "
            f"in a share of {figure}, where 0.5 is chance; no test was asked for."
        )
    p = f"p = {gap.classifier.p_value:.2g}"
    if gap.classifier.p_value > 1 - gap.level:
        alone = [name for name, value in gap.p_channel.items() if value <= 1 - gap.level]
        also = (
            f" Of single channels {', '.join(alone)} can be told apart."
            if alone
            else " That is no sign of equality: few episodes show only large gaps."
        )
        return f"Clips cannot be told apart: area under the curve {figure}, where 0.5 is chance ({p}).{also}"
    rows = sorted(gap.p_channel, key=lambda name: -float(gap.by_channel[name].auc.estimate))
    seen = [
        f"{name} ({float(gap.by_channel[name].auc.estimate):.2f})"
        for name in rows
        if gap.p_channel[name] <= 1 - gap.level
    ]
    which = f" Channels that give it away alone: {', '.join(seen)}." if seen else " No single channel gives it away."
    return f"Clips can be told apart: area under the curve {figure}, where 0.5 is chance ({p}).{which}"


def findings(gap: StatesGap, most: int = _MOST) -> list[str]:
    """A sentence for every feature that gives simulation away, the largest difference for its spread first.

    Only features whose adjusted p-value is at most 1 − level; none where no test was asked for.
    """
    table = gap.columns
    effect = table.distance.estimate / gap.scale
    rows = [i for i in np.argsort(-effect) if table.p_adjusted[i] <= 1 - gap.level]
    return [_sentence(gap, int(i)) for i in rows[:most]]


def _sentence(gap: StatesGap, row: int) -> str:
    feature, table = gap.features[row], gap.columns
    unit = "" if feature.unit == "1" else f" {feature.unit}"
    moved, low, high = (float(getattr(table.distance, end)[row]) for end in ("estimate", "low", "high"))
    distance = f"W₁ {moved:.3g}{unit} [{low:.3g}, {high:.3g}], p = {table.p_adjusted[row]:.2g}"
    return f"{feature.channel}: {feature.meaning} {_change(gap, row, unit)} ({distance})."


def _change(gap: StatesGap, row: int, unit: str) -> str:
    """How the simulated values differ: shifted, scaled, or spread otherwise."""
    there = "in simulation" if gap.sides[1] == "simulated" else f"in {gap.sides[1]}"
    real, sim = (float(rows[:, row].mean()) for rows in (gap.real_rows, gap.sim_rows))
    if abs(sim - real) < 0.5 * float(gap.columns.distance.estimate[row]):  # moved to both sides: spread or shape
        spread = float(gap.columns.spread[row])
        how = "varies more" if spread > 1 else "varies less"
        times = f", {spread:.2g} times as much" if np.isfinite(spread) else ""
        return f"{how} {there}{times}"
    side = "larger" if sim > real else "smaller"
    level = gap.features[row].kind in _LEVELS
    if not level and min(real, sim) > 0 and max(real, sim) / min(real, sim) >= _FACTOR:
        times = max(real, sim) / min(real, sim)
        how = "as large" if sim > real else "smaller"
        return f"is {times:.2g} times {how} {there}, {sim:.3g}{unit} for {real:.3g}{unit}"
    return f"is {abs(sim - real):.3g}{unit} {side} {there}, {sim:.3g}{unit} for {real:.3g}{unit}"
