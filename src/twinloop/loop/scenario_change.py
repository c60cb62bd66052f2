"""What changed between two policies on the same trials: figures, table and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from twinloop.core.decision import GateDecision
from twinloop.core.evaluation import Evaluation
from twinloop.report import KeyFigure, Report
from twinloop.rollout.pinned import PinnedWorld
from twinloop.stats import Interval, clopper_pearson
from twinloop.stats.two_by_two_paired import PairedCounts, mcnemar, paired_difference_interval


@dataclass(frozen=True, kw_only=True)
class Change:
    """One suite or scenario before and after, on the same trials."""

    name: str
    before: Interval
    after: Interval
    pairs: PairedCounts

    @classmethod
    def of(cls, name: str, before: Evaluation, after: Evaluation) -> Change:
        """Trials that both had, by name."""
        old, new = _outcomes(before, name), _outcomes(after, name)
        same = [(old[trial], new[trial]) for trial in old if trial in new]
        a, b = [new for _, new in same], [old for old, _ in same]
        counts = PairedCounts(
            both=sum(x and y for x, y in zip(a, b, strict=True)),
            only_a=sum(x and not y for x, y in zip(a, b, strict=True)),
            only_b=sum(y and not x for x, y in zip(a, b, strict=True)),
            neither=sum(not x and not y for x, y in zip(a, b, strict=True)),
        )
        return cls(
            name=name,
            before=clopper_pearson(sum(b), len(b)),
            after=clopper_pearson(sum(a), len(a)),
            pairs=counts,
        )

    @property
    def difference(self) -> Interval:
        """Success after less success before, with Tango's interval."""
        return paired_difference_interval(self.pairs)

    def to_json(self) -> dict[str, Any]:
        """A plain form for results."""
        return {
            "name": self.name,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "difference": self.difference.to_json(),
            "gained": self.pairs.only_a,
            "lost": self.pairs.only_b,
            "p_value": mcnemar(self.pairs),
        }


def _outcomes(made: Evaluation, name: str) -> dict[str, bool]:
    rows = zip(
        made.trials["slice"].to_pylist(),
        made.trials["trial"].to_pylist(),
        made.trials["success"].to_pylist(),
        made.trials["valid"].to_pylist(),
        strict=True,
    )
    return {trial: bool(success and valid) for part, trial, success, valid in rows if part == name}


def changes_table(changes: Sequence[Change], pinned: PinnedWorld) -> Table:
    """A row for each slice that both were tried in."""
    table = Table("trials", "before", "after", "gained", "lost", "difference", "95% interval", "p")
    for one in changes:
        table.add_row(
            f"{one.name} (this one)" if one.name == pinned.name else one.name,
            one.before.percent(),
            one.after.percent(),
            str(one.pairs.only_a),
            str(one.pairs.only_b),
            f"{float(one.difference.estimate):+.2f}",
            f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
            f"{mcnemar(one.pairs):.2g}",
        )
    return table


def changes_page(
    page: Report, pinned: PinnedWorld, changes: Sequence[Change], decision: GateDecision, augmented: Mapping[str, Any]
) -> None:
    """Success before and after, what was done for it, and whether the failure is mended."""
    page.section(pinned.name, pinned.meaning or pinned.reason)
    page.figures(
        [
            KeyFigure(
                label=one.name,
                value=f"{one.before.percent()} → {one.after.percent()}",
                source=f"{one.pairs.pairs} trials in the same worlds",
                tone="good" if float(one.difference.low) > 0 else "bad" if float(one.difference.high) < 0 else None,
            )
            for one in changes[:4]
        ]
    )
    page.section("What was done")
    page.text(
        f"{augmented['episodes']} of {augmented['attempted']} demonstrations around the failure succeeded and were "
        "mixed with what the policy was trained on before; training went on from its weights."
    )
    page.section("What changed", "Both policies were tried in the same worlds with the same chance.")
    page.table(
        ["trials", "before", "after", "gained", "lost", "difference", "p"],
        [
            [
                one.name,
                one.before.percent(),
                one.after.percent(),
                one.pairs.only_a,
                one.pairs.only_b,
                float(one.difference.estimate),
                mcnemar(one.pairs),
            ]
            for one in changes
        ],
        caption="p is McNemar's exact one.",
    )
    page.section(
        f"Mended, with nothing else lost: {'yes' if decision.passed else 'no'}",
        "This decides on the scenario alone and is no release gate.",
    )
    page.table(["rule", "verdict", "asked", "found"], [[r.rule, r.verdict, r.asked, r.reason] for r in decision.rules])
