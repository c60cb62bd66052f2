"""Pages and tables of questions to a scenario: every number under its heading, plots only for doses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.pages import KeptReport
from twinloop.core.decision import GateDecision
from twinloop.scenario.ablate import AblationResult, AblationTerm, TermEffect
from twinloop.scenario.counterfactual import HalfSuccessDose, ParameterChange, adjust_p_values, compare_outcomes
from twinloop.scenario.trials import TrialOutcomes
from twinloop.stats import clopper_pearson
from twinloop.stats.matched_trials import PairedCounts, mcnemar, paired_difference_interval
from twinloop.workflows.scenario.continued_training import ContinuedTraining
from twinloop.workflows.scenario.interventions import _contrasts_table, doses_section, scenario_section, terms_section
from twinloop.workflows.scenario.retrain import ScenarioChange, changes_section, changes_table

LEVEL = 0.9
WHAT = ParameterChange(pattern="object/cube/mass", names=("object/cube/mass",), op="scale", doses=(0.5, 2.0))
PINNED: Any = SimpleNamespace(
    name="miss", meaning="it slips", reason="", non_nominal={"a": 1, "b": 2}, task="pick", twin="arm", commands=None
)


def tried(letters: str) -> TrialOutcomes:
    success = np.array([letter == "1" for letter in letters])
    return TrialOutcomes(actor="expert", success=success, valid=np.ones(len(letters), dtype=bool))


BASE = tried("1100000000")


def asked():
    halved = compare_outcomes(WHAT.text, ("m",), 0.5, BASE, tried("0111110000"), level=LEVEL)
    doubled = compare_outcomes(WHAT.text, ("m",), 2.0, BASE, tried("1000000000"), level=LEVEL)
    return adjust_p_values([halved, doubled])


def ends(interval) -> str:
    return f"{float(interval.low):+.2f} to {float(interval.high):+.2f}"


EXPECTED = {
    "change": [f"{WHAT.text}0.5", f"{WHAT.text}2"],
    "success": [clopper_pearson(5, 10, level=LEVEL).percent(), clopper_pearson(1, 10, level=LEVEL).percent()],
    "gained": [4, 0],
    "lost": [1, 1],
    "difference": [0.3, -0.1],
    "90% interval": [
        ends(paired_difference_interval(PairedCounts(both=1, only_a=4, only_b=1, neither=4), level=LEVEL)),
        ends(paired_difference_interval(PairedCounts(both=1, only_a=0, only_b=1, neither=8), level=LEVEL)),
    ],
}
P = [2 * mcnemar(PairedCounts(both=1, only_a=4, only_b=1, neither=4)), 1.0]  # Holm: the smaller one doubled


def test_doses_are_told_under_their_headings_and_plotted_where_there_are_several():
    page = KeptReport()
    crossing = HalfSuccessDose(change=WHAT.text, low=0.5, high=2.0, rates=(0.5, 0.1))
    doses_section(page, [WHAT], asked(), [crossing], BASE, LEVEL)
    (table,) = page.tables
    assert table.pop("p (Holm)") == pytest.approx(P)
    assert {name: pytest.approx(cells) if name == "difference" else cells for name, cells in EXPECTED.items()} == table
    ((plot, caption),) = page.plots
    assert list(plot.data[0].x) == [0.5, 2.0]
    assert list(plot.data[0].y) == pytest.approx([0.5, 0.1])
    assert caption == "Bars are exact 90% intervals. Half of the worlds succeed between 0.5 and 2."
    alone = KeptReport()
    doses_section(alone, [WHAT], asked()[:1], [], BASE, LEVEL)
    assert alone.plots == []
    assert alone.tables[0]["gained"] == [4]


def test_the_printed_table_of_doses_says_what_the_page_says():
    table = {
        str(column.header): [str(cell) for cell in column.cells] for column in _contrasts_table(asked(), LEVEL).columns
    }
    assert table.pop("p") == [f"{p:.2g}" for p in P]
    assert table.pop("difference") == ["+0.30", "-0.10"]
    assert table == {name: [str(cell) for cell in cells] for name, cells in EXPECTED.items() if name != "difference"}


def test_how_often_a_scenario_fails_counts_failures():
    page = KeptReport()
    scenario_section(page, PINNED, BASE, LEVEL)
    rate = clopper_pearson(8, 10, level=LEVEL)
    told = {label: (value, source) for label, value, source in page.shown_metrics}
    assert told["fails as it is"] == ("80%", f"8 of 10 worlds, {float(rate.low):.0%} to {float(rate.high):.0%}")
    assert told["own parameters"][0] == 2
    assert page.heads == ["miss"]
    assert page.words[0] == "it slips"


def test_terms_are_told_with_what_is_needed_and_what_is_enough():
    term = AblationTerm(name="delay", meaning="commands come late", neutral={})
    bare = tried("1" * 10)
    without = compare_outcomes("delay", ("d",), 0.0, BASE, tried("1111111110"), level=LEVEL, alternative="greater")
    alone = compare_outcomes("delay", ("d",), 0.0, bare, tried("0000011111"), level=LEVEL, alternative="less")
    row = TermEffect(term=term, parameters=("actuator/a/delay",), term_off=without, only_term_on=alone)
    page = KeptReport()
    terms_section(page, AblationResult(base=BASE, all_off=bare, terms=(row,), untested=("play",)), LEVEL)
    (table,) = page.tables
    assert table["gained without"] == pytest.approx([0.7])
    assert table["lost alone"] == pytest.approx([0.5])
    assert table["p without"] == [without.p_adjusted]
    assert table["p alone"] == [alone.p_adjusted]
    assert table["verdict"] == [row.verdict()]
    assert (table["term"], table["meaning"], table["parameters"]) == (
        ["delay"],
        ["commands come late"],
        ["actuator/a/delay"],
    )
    assert page.words[0].startswith("With all of these effects (terms) switched off, 100%")
    assert page.words[-1] == "Not tried, because they have no effect in this world: play."


def test_a_change_is_told_before_and_after_and_whether_it_is_mended():
    pairs = PairedCounts(both=10, only_a=7, only_b=2, neither=1)
    change = ScenarioChange(name="miss", before=clopper_pearson(12, 20), after=clopper_pearson(17, 20), pairs=pairs)
    decision = GateDecision(candidate="new", candidate_hash="", alpha=0.05, looks="any", rules=())
    page, done = KeptReport(), ContinuedTraining(targeted={}, trained={}, summary="Two rounds of teaching.")
    changes_section(page, PINNED, [change], decision, done)
    before, after = clopper_pearson(12, 20).percent(), clopper_pearson(17, 20).percent()
    assert page.shown_metrics == [("miss", f"{before} → {after}", "20 trials in the same worlds")]
    assert page.tables[0] == {
        "trials": ["miss"],
        "before": [before],
        "after": [after],
        "gained": [7],
        "lost": [2],
        "difference": [pytest.approx(0.25)],
        "p": [mcnemar(pairs)],
    }
    assert page.heads[-1] == "Failure fixed, nothing else lost: no"
    assert page.words[1] == "Two rounds of teaching."
    printed = {str(column.header): next(iter(column.cells)) for column in changes_table([change], PINNED).columns}
    assert printed == {
        "trials": "miss (this one)",
        "before": before,
        "after": after,
        "gained": "7",
        "lost": "2",
        "difference": "+0.25",
        "95% interval": ends(paired_difference_interval(pairs)),
        "p": f"{mcnemar(pairs):.2g}",
    }
