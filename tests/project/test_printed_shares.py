"""A share of few trials is printed with its interval: success in one trial of one is no certainty."""

from types import SimpleNamespace
from typing import Any

from benchmarks.error_rates.logs.run import Trial, _defect_row
from benchmarks.speed import gpu
from twinloop.curate.plan import FillTarget
from twinloop.stats import clopper_pearson
from twinloop.stats.matched_trials import PairedCounts
from twinloop.workflows.coverage.next_plan import target_lines
from twinloop.workflows.coverage.result_text import format_failure_rate
from twinloop.workflows.scenario.interventions import _format_rate
from twinloop.workflows.scenario.retrain import ScenarioChange, changes_table


def test_success_before_and_after_is_printed_with_intervals():
    pairs = PairedCounts(both=0, only_a=8, only_b=0, neither=0)
    scenario: Any = SimpleNamespace(name="other")
    change = ScenarioChange(name="miss", before=clopper_pearson(0, 8), after=clopper_pearson(8, 8), pairs=pairs)
    cells = [next(iter(column.cells)) for column in changes_table([change], scenario).columns]
    assert cells[1:3] == ["0% [0%, 37%]", "100% [63%, 100%]"]


def test_failures_of_a_hole_are_printed_with_their_interval():
    assert format_failure_rate(0.0, 21) == "0% [0%, 15%]"
    assert format_failure_rate(0.5, 2) == "50% [9%, 91%]"
    assert format_failure_rate(float("nan"), 0) == "–"


def test_planted_defects_of_a_log_are_counted_with_intervals():
    found = Trial(source="log", defect="NaN", found=True, named=False, timed=True, false=())
    named = Trial(source="log", defect="NaN", found=True, named=True, timed=True, false=())
    one, two = "100% [21%, 100%]", "100% [34%, 100%]"
    assert _defect_row("NaN", [found, named])[3:] == ["2", two, "50% [9%, 91%]", one, "0.00"]
    assert _defect_row("NaN", [])[3:] == ["0", "–", "–", "–", "–"]


def test_failures_that_a_plan_answers_are_printed_with_their_interval():
    known = {"kind": "failures", "box": {}, "why": "They fail.", "mass": 0.2, "episodes": 3, "weight": 0.1}
    (line,) = target_lines([FillTarget(name="hole 1", failure=0.5, judged=2, **known)])
    assert line == "1. hole 1: 20.0% of reality (3 episodes), 50% [9%, 91%] failing. They fail."
    (line,) = target_lines([FillTarget(name="hole 1", failure=float("nan"), **known)])
    assert line == "1. hole 1: 20.0% of reality (3 episodes). They fail."


def test_one_world_that_succeeds_is_no_certainty():
    rates = {"steps_per_s": 1.0, "bare_steps_per_s": 1.0, "trajectories_per_s": 1.0, "successful_per_s": 1.0}
    row = {"worlds": 1, "ratio": 1.0, "success": 1.0, "memory_bytes": 0, **rates}
    assert gpu._cells(row)[-2] == "100.0% [2.5%, 100.0%]"
    assert _format_rate(0.5, 4, 0.95) == "50% [7%, 93%]"
