"""The page of a gate: one table, each rule with what it asked, what it found, and on how much."""

from __future__ import annotations

from typing import Any

from twinloop.core.decision import GateDecision, RuleVerdict
from twinloop.report import KeyFigure, Report
from twinloop.report.page import Tone

_MOST_ROWS = 30
_PAIRED = ("pairs", "wins", "losses", "difference", "low", "p_value")
# What is shown of the rows behind a rule.
_ROWS = {
    "slices": ("slice", "answer", "successes", "trials", "rate", *_PAIRED),
    "effects": ("effect", *_PAIRED, "missing"),
    "parameters": ("name", "identified", "drawn", "inside"),
}


def gate_section(page: Report, decision: GateDecision) -> None:
    """The answer, the table of rules, and the slices and parameters behind them."""
    tone: Tone = "good" if decision.passed else "bad"
    page.figures(
        [
            KeyFigure(label="decision", value="yes" if decision.passed else "no", tone=tone),
            KeyFigure(label="candidate", value=decision.candidate, source=decision.candidate_hash[:16]),
            KeyFigure(label="champion", value=decision.champion or "none yet", source=decision.champion_hash[:16]),
            KeyFigure(label="α", value=decision.alpha, source=f"looks: {decision.looks}"),
            KeyFigure(label="trials on a robot", value=decision.robot_trials, source="of the candidate"),
        ]
    )
    rows = [[rule.rule, rule.verdict, rule.asked, rule.reason] for rule in decision.rules]
    tones: dict[tuple[int, int], Tone] = {
        (number, 1): "good" if rule.verdict == "yes" else "bad"
        for number, rule in enumerate(decision.rules)
        if rule.verdict not in ("waived", "none")
    }
    page.table(["rule", "verdict", "asked", "found"], rows, tones=tones)
    for rule in decision.rules:
        _details(page, rule)
    page.section(
        "How to read this",
        "Every rule must say yes. Missing evidence refuses like a no: nothing is taken for granted. A rule that is "
        "waived was taken away by a person, with the reason beside it. The verdict `none` means that there is "
        "nothing to ask: no champion yet, or no trials on a robot.\n\n"
        f"α = {decision.alpha:g} is the chance of a yes to a candidate that breaks a tested rule. It is not divided "
        "between rules and slices, because all of them must be shown; only effects of which one suffices share it. "
        + (
            "The tests hold however often the evidence is looked at while it grows."
            if decision.looks == "any"
            else "The tests are exact for this one look: the evidence must not be looked at again after more trials."
        ),
    )


def _details(page: Report, rule: RuleVerdict) -> None:
    """The rows behind a rule that was asked of many."""
    for key, columns in _ROWS.items():
        rows: list[dict[str, Any]] = list(rule.evidence.get(key, ()))
        if not rows:
            continue
        names = [name for name in columns if any(name in row for row in rows)]
        shown = [[_cell(row.get(name)) for name in names] for row in rows[:_MOST_ROWS]]
        left = f"{len(rows) - _MOST_ROWS} more in decision.json" if len(rows) > _MOST_ROWS else ""
        order = "worst first" if key == "slices" else ""
        page.section(f"{rule.rule.capitalize()}, {key.removesuffix('s')} by {key.removesuffix('s')}")
        page.table(names, shown, caption="; ".join(part for part in (order, left) if part))


def _cell(value: Any) -> Any:
    return f"{value[0]:.4g} to {value[1]:.4g}" if isinstance(value, list) and len(value) == 2 else value
