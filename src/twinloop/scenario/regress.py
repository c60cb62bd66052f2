"""Compare the outcomes of stored scenarios with earlier outcomes, trial by trial in the same worlds, by exact tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from twinloop.core.errors import InputError
from twinloop.scenario.trials import TrialOutcomes
from twinloop.stats import holm
from twinloop.stats.matched_trials import mcnemar

Verdict = Literal["regressed", "improved", "unchanged", "gone", "refused"]
_LETTERS = frozenset("01x")


@dataclass(frozen=True, kw_only=True)
class RegressionVerdict:
    """Comparison of the earlier and the present outcomes of one scenario, with a verdict.

    Attributes:
        name: Name of the scenario.
        verdict: The verdict. ``regressed`` or ``improved``: the success rate of this scenario fell or rose
            significantly, with p-values adjusted for the number of scenarios. ``gone``: the twin no longer reproduces a
            failure of a real robot. ``refused``: the scenario could not be run. ``unchanged``: none of these.
        before: Earlier outcomes.
        after: Present outcomes; None if the scenario could not be run.
        gained: Number of trials that changed from failure to success.
        lost: Number of trials that changed from success to failure.
        p_fell: P-value of the test that the success rate fell.
        p_rose: P-value of the test that the success rate rose.
        note: Reason why the scenario could not be run, or another remark.
    """

    name: str
    verdict: Verdict
    before: TrialOutcomes
    after: TrialOutcomes | None
    gained: int = 0
    lost: int = 0
    p_fell: float = 1.0
    p_rose: float = 1.0
    note: str = ""

    @property
    def fails_build(self) -> bool:
        """Whether a build in continuous integration must fail: the verdict is regressed, gone or refused."""
        return self.verdict in ("regressed", "gone", "refused")

    def to_json(self, level: float) -> dict[str, Any]:
        """Return the verdict as a JSON-compatible dictionary.

        Args:
            level: Confidence level of the failure rates.
        """
        return {
            "scenario": self.name,
            "verdict": self.verdict,
            "before": self.before.to_json(level) if self.before.trials else None,
            "after": None if self.after is None else self.after.to_json(level),
            "gained": self.gained,
            "lost": self.lost,
            "p_fell": self.p_fell,
            "p_rose": self.p_rose,
            "note": self.note,
        }


def parse_stored_outcomes(evidence: Any, name: str) -> tuple[str, TrialOutcomes]:
    """Return the policy with which a stored scenario was run, and the outcomes of its trials.

    Args:
        evidence: Stored evidence of the scenario, as plain values.
        name: Name of the scenario, for error messages.

    Raises:
        InputError: If no outcomes are stored, or if their format is invalid.
    """
    stored = evidence.get("expected") if isinstance(evidence, dict) else None
    if not isinstance(stored, dict) or not {"reference", "actor", "outcomes"} <= stored.keys():
        raise InputError(
            f"Scenario {name} has no stored outcomes to compare with. Store it again with `twinloop scenario "
            f"from-failure`, or accept a policy's present outcomes: `twinloop scenario regress {name} --policy P "
            "--accept`."
        )
    outcomes = str(stored["outcomes"])
    if not outcomes or not _LETTERS.issuperset(outcomes):
        raise InputError(f"Scenario {name}: evidence.expected.outcomes is {outcomes[:20]!r}. Use only 0, 1 and x.")
    return str(stored["reference"]), TrialOutcomes.of_outcomes(outcomes, str(stored["actor"]))


def format_stored_outcomes(reference: str, tried: TrialOutcomes) -> dict[str, Any]:
    """Return outcomes in the format in which a scenario stores them, for comparison with later outcomes.

    Args:
        reference: Name or folder of the policy.
        tried: Outcomes of the trials.
    """
    return {"reference": reference, **tried.to_json()}


def compare_trials(name: str, before: TrialOutcomes, after: TrialOutcomes, *, note: str = "") -> RegressionVerdict:
    """Compare earlier and present outcomes of one scenario trial by trial; `decide_verdicts` adds the verdict.

    Args:
        name: Name of the scenario.
        before: Earlier outcomes.
        after: Present outcomes.
        note: Remark that is stored in the result.

    Raises:
        InputError: If no trial is valid in both.
    """
    counts = after.pair_with(before)
    if counts is None:
        raise InputError(
            f"Scenario {name}: no world is valid in both the earlier and the present trials. Check its twin with "
            "`twinloop twin check`."
        )
    return RegressionVerdict(
        name=name,
        verdict="unchanged",
        before=before,
        after=after,
        gained=counts.only_a,
        lost=counts.only_b,
        p_fell=mcnemar(counts, alternative="less"),
        p_rose=mcnemar(counts, alternative="greater"),
        note=note,
    )


def decide_verdicts(
    rows: Sequence[RegressionVerdict], *, alpha: float = 0.05, real: Sequence[bool] = ()
) -> list[RegressionVerdict]:
    """Return the comparisons with verdicts, from p-values adjusted for the number of scenarios (Holm's method).

    Args:
        rows: One comparison per scenario, from `compare_trials`, or without new outcomes if it could not be run.
        alpha: Largest probability that any scenario is called regressed although none is; the same for improved.
        real: For a comparison of two versions of a twin: whether each scenario comes from a log of a real robot. If
            such a scenario no longer fails, the new twin does not reproduce a known failure (``gone``). Empty if
            policies are compared.
    """
    compared = [row for row in rows if row.after is not None]
    fell, rose = (
        dict(zip((row.name for row in compared), holm(values), strict=True)) if compared else {}
        for values in ([row.p_fell for row in compared], [row.p_rose for row in compared])
    )
    from_robot = dict(zip((row.name for row in rows), real, strict=True)) if real else {}

    def decide(row: RegressionVerdict) -> Verdict:
        if row.after is None:
            return "refused"
        if fell[row.name] <= alpha:
            return "regressed"
        if rose[row.name] <= alpha:
            return "gone" if from_robot.get(row.name) else "improved"
        return "unchanged"

    return [
        replace(
            row, verdict=decide(row), p_fell=float(fell.get(row.name, np.nan)), p_rose=float(rose.get(row.name, np.nan))
        )
        for row in rows
    ]
