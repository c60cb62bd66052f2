"""Pages about a scenario: what would have been different, and which term of the physics it needs."""

from __future__ import annotations

from collections.abc import Sequence

from twinloop.report import KeyFigure, Report
from twinloop.report.scenario import dose_response, term_bars
from twinloop.rollout.pinned import PinnedWorld
from twinloop.scenario.ablate import Ablation
from twinloop.scenario.counterfactual import Contrast, Crossing, series
from twinloop.scenario.trials import Tried
from twinloop.scenario.what import What

_SHOWN = 6


def scenario_section(page: Report, pinned: PinnedWorld, base: Tried, level: float) -> None:
    """What the scenario is, and how often it fails as it is."""
    rate = base.failure_rate(level)
    page.section(pinned.name, pinned.meaning or pinned.reason)
    page.figures(
        [
            KeyFigure(
                label="fails as it is",
                value=f"{float(rate.estimate):.0%}",
                source=f"{base.failures} of {base.trials} worlds, {float(rate.low):.0%} to {float(rate.high):.0%}",
            ),
            KeyFigure(label="own parameters", value=len(pinned.departs), source="in which it departs from its twin"),
        ]
    )
    page.text(f"Who acts: {base.actor}, at {pinned.task} on {pinned.twin}.")


def doses_section(
    page: Report,
    whats: Sequence[What],
    contrasts: Sequence[Contrast],
    crossings: Sequence[Crossing],
    base: Tried,
    level: float,
) -> None:
    """A plot of doses for each question with several, and a table of all."""
    found = {one.what: one for one in crossings}
    rate = float(base.success_rate(level).estimate)
    page.section(
        "What if it had been different?",
        "Every change was tried in the same worlds with the same chance as none, so that a world that turns does so "
        "because of the change.",
    )
    for what in whats:
        rows = series(contrasts, what.text, level)
        if len(rows) < 2:
            continue
        cross = found.get(what.text)
        page.plot(
            dose_response(
                rows[:, 0],
                rows[:, 1],
                (rows[:, 2], rows[:, 3]),
                base=rate,
                title=f"{what.pattern} {'× its own' if what.op == 'scale' else ''}",
                crossing=None if cross is None else (cross.low, cross.high),
                by_ratio=what.op == "scale" and bool((rows[:, 0] > 0).all()),
            ),
            f"Bars are exact {level:.0%} intervals."
            + ("" if cross is None else f" Half of the worlds turn between {cross.low:.4g} and {cross.high:.4g}."),
        )
    page.table(
        ["change", "success", "gained", "lost", "difference", f"{level:.0%} interval", "p (Holm)"],
        [
            [
                f"{one.what}{one.dose:.4g}",
                one.tried.success_rate(level).percent(),
                one.pairs.only_a,
                one.pairs.only_b,
                float(one.difference.estimate),
                f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
                one.p_adjusted,
            ]
            for one in contrasts
        ],
        caption="Gained and lost count worlds that turn; the interval of the paired difference is Tango's, p McNemar's "
        "exact one, adjusted for all changes on this page.",
    )


def terms_section(page: Report, ablation: Ablation, level: float) -> None:
    """Terms by what the failure needs."""
    rows = ablation.terms
    bare = ablation.bare.success_rate(level).percent()
    page.section(
        "Which term of the physics does the failure need?",
        f"With all of these terms switched off {bare} of the worlds succeed. A term that the failure needs gains "
        "success when it alone is switched off; one that is enough loses it when all others are.",
    )
    page.plot(
        term_bars(
            [row.term.name for row in rows],
            [row.needed for row in rows],
            (
                [float(row.without.difference.low) for row in rows],
                [float(row.without.difference.high) for row in rows],
            ),
            [row.enough for row in rows],
        ),
        f"Bars are {level:.0%} intervals of paired differences.",
    )
    page.table(
        ["term", "meaning", "gained without", "lost alone", "p without", "p alone", "verdict", "parameters"],
        [
            [
                row.term.name,
                row.term.meaning,
                row.needed,
                row.enough,
                row.without.p_adjusted,
                row.alone.p_adjusted,
                row.verdict(),
                _some(row.parameters),
            ]
            for row in rows
        ],
        caption="P-values are exact and adjusted (Holm) over all terms.",
    )
    if ablation.idle:
        page.text(f"Neutral in this world, and not tried: {', '.join(ablation.idle)}.")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
