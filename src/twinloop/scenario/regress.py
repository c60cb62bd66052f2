"""Compare the outcomes of stored scenarios with earlier ones: exact tests, trial by trial in the same worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from twinloop.core.errors import InputError
from twinloop.scenario.trials import TrialOutcomes
from twinloop.stats import holm
from twinloop.stats.matched_trials import mcnemar

Word = Literal["regressed", "improved", "unchanged", "gone", "refused"]
_LETTERS = frozenset("01x")


@dataclass(frozen=True, kw_only=True)
class RegressionVerdict:
    """Verdict on one scenario: earlier outcomes, present outcomes, and their comparison.

    ``gained`` and ``lost`` are the numbers of trials that changed to success and to failure. ``word``: success fell
    (``regressed``) or rose (``improved``) beyond chance over all scenarios; ``gone``: a failure of a robot that the
    twin no longer reproduces; ``refused``: it could not be run, see ``note``.
    """

    name: str
    word: Word
    was: TrialOutcomes
    now: TrialOutcomes | None
    gained: int = 0
    lost: int = 0
    p_fell: float = 1.0
    p_rose: float = 1.0
    note: str = ""

    @property
    def fails_build(self) -> bool:
        """Whether a build must fail: regressed, gone or refused."""
        return self.word in ("regressed", "gone", "refused")

    def to_json(self, level: float) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "scenario": self.name,
            "verdict": self.word,
            "was": self.was.to_json(level) if self.was.trials else None,
            "now": None if self.now is None else self.now.to_json(level),
            "gained": self.gained,
            "lost": self.lost,
            "p_fell": self.p_fell,
            "p_rose": self.p_rose,
            "note": self.note,
        }


def parse_expectation(evidence: Any, name: str) -> tuple[str, TrialOutcomes]:
    """Return the policy of a stored scenario, and the outcomes of its trials.

    Raises:
        InputError: no expectation is stored, or its format is wrong.
    """
    stored = evidence.get("expected") if isinstance(evidence, dict) else None
    if not isinstance(stored, dict) or not {"reference", "actor", "outcomes"} <= stored.keys():
        raise InputError(
            f"Scenario {name} has no stored expectation. Store it again with `twinloop scenario "
            f"from-failure`, or accept a policy's present outcomes: `twinloop scenario regress {name} --policy P "
            "--accept`."
        )
    outcomes = str(stored["outcomes"])
    if not outcomes or not _LETTERS.issuperset(outcomes):
        raise InputError(f"Scenario {name}: evidence.expected.outcomes is {outcomes[:20]!r}. Use only 0, 1 and x.")
    return str(stored["reference"]), TrialOutcomes.of_outcomes(outcomes, str(stored["actor"]))


def format_expectation(reference: str, tried: TrialOutcomes) -> dict[str, Any]:
    """Return outcomes in the stored form, so that later ones can be compared with them."""
    return {"reference": reference, **tried.to_json()}


def compare_trials(name: str, was: TrialOutcomes, now: TrialOutcomes, *, note: str = "") -> RegressionVerdict:
    """Compare earlier and present outcomes trial by trial, without a verdict; see `decide_verdicts`.

    Raises:
        InputError: no trial is valid in both.
    """
    counts = now.pair_with(was)
    if counts is None:
        raise InputError(f"Scenario {name}: no world is valid both then and now. Check it with `twin check`.")
    return RegressionVerdict(
        name=name,
        word="unchanged",
        was=was,
        now=now,
        gained=counts.only_a,
        lost=counts.only_b,
        p_fell=mcnemar(counts, alternative="less"),
        p_rose=mcnemar(counts, alternative="greater"),
        note=note,
    )


def decide_verdicts(
    rows: Sequence[RegressionVerdict], *, alpha: float = 0.05, real: Sequence[bool] = ()
) -> list[RegressionVerdict]:
    """Return verdicts with an error rate over all scenarios (Holm).

    Args:
        rows: results of `compare_trials`, or refused scenarios.
        alpha: probability that any scenario is called regressed although none is; the same for improved.
        real: for a new version of a twin, whether each scenario comes from a robot's log: if it no longer fails, the
            twin has lost a known failure. Empty if policies are compared.
    """
    ran = [row for row in rows if row.now is not None]
    fell, rose = (
        dict(zip((row.name for row in ran), holm(values), strict=True)) if ran else {}
        for values in ([row.p_fell for row in ran], [row.p_rose for row in ran])
    )
    known = dict(zip((row.name for row in rows), real, strict=True)) if real else {}

    def word(row: RegressionVerdict) -> Word:
        if row.now is None:
            return "refused"
        if fell[row.name] <= alpha:
            return "regressed"
        if rose[row.name] <= alpha:
            return "gone" if known.get(row.name) else "improved"
        return "unchanged"

    return [
        replace(row, word=word(row), p_fell=float(fell.get(row.name, np.nan)), p_rose=float(rose.get(row.name, np.nan)))
        for row in rows
    ]
