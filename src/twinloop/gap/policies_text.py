"""The policies gap for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from twinloop.gap.policies import ALPHA, MeasureGap
from twinloop.gap.policies_rows import GapRow

_WIDTH = 110


def policies_text(gap: MeasureGap) -> str:
    """Overall, by policy, by condition where there are several, and what drives the difference."""
    word = "Success" if gap.measure == "success" else "Score (progress)"
    level = f"{gap.overall.difference.level:.0%}"
    lines = [f"{word}, simulated against real; differences within conditions with {level} intervals", _HEAD]
    lines.append(_row(gap.overall))
    for rows, what in ((gap.policies, "by policy"), (gap.conditions, "by condition")):
        if len(rows) > 1:
            lines += ["", f"{what} (p adjusted for {len(rows)} tests)", *map(_row, rows)]
    lines += ["", *(textwrap.fill(text, _WIDTH) for text in (driver_words(gap), *_row_notes(gap), *gap.notes))]
    return "\n".join(lines)


def driver_words(gap: MeasureGap) -> str:
    """Which conditions are shown to differ, and how much of the overall difference they make."""
    if len(gap.conditions) < 2:
        return _single(gap.overall)
    if not gap.drivers:
        return f"No condition is shown to differ (Holm's test of {len(gap.conditions)} at {ALPHA:.0%})."
    parts = [f"{row.name} adds {row.contribution:+.3f}" for row in gap.drivers[:5]]
    more = f", and {len(gap.drivers) - 5} more" if len(gap.drivers) > 5 else ""
    overall = float(gap.overall.difference.estimate)
    many = f"{len(gap.drivers)} of {len(gap.conditions)} conditions"
    return f"The difference of {overall:+.3f} overall: {many} are shown to differ: {', '.join(parts)}{more}."


def _single(row: GapRow) -> str:
    if row.p_value <= ALPHA:
        side = "flatters" if float(row.difference.estimate) > 0 else "is harder than reality"
        return f"The simulation {side}: p = {row.p_value:.3g} ({row.test})."
    return f"No difference is shown: p = {row.p_value:.3g} ({row.test})."


def _row_notes(gap: MeasureGap) -> list[str]:
    rows: Sequence[GapRow] = gap.conditions if len(gap.conditions) > 1 else (gap.overall,)
    return [f"{row.name}: {row.note}." for row in rows if row.note]


_HEAD = f"{'':<30}{'real':>8}{'trials':>8}{'sim':>8}{'trials':>8}{'sim − real':>12}{'interval':>20}{'p':>9}"


def _row(row: GapRow) -> str:
    d = row.difference
    ends = "–" if np.isnan(d.low) else f"[{d.low:+.3f}, {d.high:+.3f}]"
    return (
        f"{row.name[:29]:<30}{row.real:>8.3f}{row.trials_real:>8}{row.sim:>8.3f}{row.trials_sim:>8}"
        f"{float(d.estimate):>+12.3f}{ends:>20}{row.p_holm:>9.3g}"
    )
