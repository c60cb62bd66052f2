"""Measure which parameters and physical effects cause the failure of a scenario (one stored world with its policy).

A counterfactual changes one parameter of the scenario; an ablation switches off one physical effect.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.params import ParamTable
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.scenario import plot_dose_response, plot_term_bars
from twinloop.rollout.scenario import Scenario
from twinloop.scenario.ablate import AblationResult, TermEffect, ablate, find_terms
from twinloop.scenario.counterfactual import (
    Attempt,
    CounterfactualEffect,
    HalfSuccessDose,
    ParameterChange,
    compare_doses,
    effect_series,
    parse_change,
)
from twinloop.scenario.trials import TrialOutcomes, try_actor
from twinloop.simulate import open_backend
from twinloop.stats import clopper_pearson
from twinloop.twin import Twin
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.failure import format_failure_rate
from twinloop.workflows.scenario.requests import AblateRequest, CounterfactualRequest

_SHOWN = 6


def scenario_section(page: ReportPage, scenario: Scenario, base: TrialOutcomes, level: float) -> None:
    """Add a scenario to a report: its meaning, its actor, and its failure rate without changes.

    Args:
        page: the report page.
        scenario: the scenario.
        base: outcomes without changes.
        level: confidence level of the interval.
    """
    rate = base.failure_rate(level)
    page.section(scenario.name, scenario.meaning or scenario.reason)
    page.key_metrics(
        [
            KeyMetric(
                label="fails as it is",
                value=f"{float(rate.estimate):.0%}",
                source=f"{base.failures} of {base.trials} worlds, {float(rate.low):.0%} to {float(rate.high):.0%}",
            ),
            KeyMetric(
                label="own parameters",
                value=len(scenario.non_nominal),
                source="that differ from the nominal values of the twin",
            ),
        ]
    )
    page.text(f"Actor: {base.actor}; task {scenario.task} on {scenario.twin}.")


def doses_section(
    page: ReportPage,
    changes: Sequence[ParameterChange],
    effects: Sequence[CounterfactualEffect],
    half_success_doses: Sequence[HalfSuccessDose],
    base: TrialOutcomes,
    level: float,
) -> None:
    """Add counterfactual changes to a report: a table, and a plot of the success rate against the size of each change.

    Args:
        page: the report page.
        changes: the changes; each is plotted if it was tried with several sizes (doses).
        effects: effect of each change of one size on the success rate.
        half_success_doses: for a change, the two neighbouring sizes between which the success rate crosses one half.
        base: outcomes without changes.
        level: confidence level of the intervals.
    """
    found = {one.change: one for one in half_success_doses}
    rate = float(base.success_rate(level).estimate)
    page.section(
        "Effect of each change",
        "Every change was tried in the same worlds and with the same random numbers as the unchanged scenario. If the "
        "outcome of a world differs, the change is the cause.",
    )
    for change in changes:
        rows = effect_series(effects, change.text, level)
        if len(rows) < 2:
            continue
        cross = found.get(change.text)
        page.plot(
            plot_dose_response(
                rows[:, 0],
                rows[:, 1],
                (rows[:, 2], rows[:, 3]),
                base=rate,
                title=f"{change.pattern} {'× its own value' if change.op == 'scale' else ''}",
                crossing=None if cross is None else (cross.low, cross.high),
                by_ratio=change.op == "scale" and bool((rows[:, 0] > 0).all()),
            ),
            f"Bars are exact {level:.0%} intervals."
            + ("" if cross is None else f" Half of the worlds succeed between {cross.low:.4g} and {cross.high:.4g}."),
        )
    page.table(
        ["change", "success", "gained", "lost", "difference", f"{level:.0%} interval", "p (Holm)"],
        [
            [
                f"{one.change}{one.dose:.4g}",
                one.changed_outcomes.success_rate(level).percent(),
                one.pairs.only_a,
                one.pairs.only_b,
                float(one.difference.estimate),
                f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
                one.p_adjusted,
            ]
            for one in effects
        ],
        caption="Gained and lost are the numbers of worlds whose outcome changed to success and to failure. The "
        "interval of the paired difference is Tango's. p is the p-value of McNemar's exact test, adjusted (Holm) for "
        "all changes on this page.",
    )


def terms_section(page: ReportPage, ablation: AblationResult, level: float) -> None:
    """Add an ablation to a report: the physical effects, sorted by how much the failure needs them.

    Args:
        page: the report page.
        ablation: the ablation.
        level: confidence level of the intervals.
    """
    rows = ablation.terms
    all_off = ablation.all_off.success_rate(level).percent()
    page.section(
        "Which physical effects does the failure need?",
        f"With all of these effects (terms) switched off, {all_off} of the worlds succeed. If the failure needs a "
        "term, success rises when this term alone is switched off. If a term alone is enough for the failure, success "
        "falls when only this term is left on.",
    )
    page.plot(
        plot_term_bars(
            [row.term.name for row in rows],
            [row.gain_without for row in rows],
            (
                [float(row.term_off.difference.low) for row in rows],
                [float(row.term_off.difference.high) for row in rows],
            ),
            [row.loss_alone for row in rows],
        ),
        f"Bars are {level:.0%} intervals of paired differences.",
    )
    page.table(
        ["term", "meaning", "gained without", "lost alone", "p without", "p alone", "verdict", "parameters"],
        [
            [
                row.term.name,
                row.term.meaning,
                row.gain_without,
                row.loss_alone,
                row.term_off.p_adjusted,
                row.only_term_on.p_adjusted,
                row.verdict(),
                _format_names(row.parameters),
            ]
            for row in rows
        ],
        caption="P-values are exact and adjusted (Holm) over all terms.",
    )
    if ablation.untested:
        page.text(f"Not tried, because they have no effect in this world: {', '.join(ablation.untested)}.")


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True, kw_only=True)
class ScenarioExperiment:
    """Scenario that is ready for counterfactuals or ablations.

    Attributes:
        scenario: the scenario.
        twin: its twin.
        attempt: function that runs all worlds with changed parameter values, given by name, and returns their outcomes.
        images: whether the actor uses camera images.
        own: parameters of the unchanged worlds, one row per world.
        level: confidence level of intervals.
    """

    scenario: Scenario
    twin: Twin
    attempt: Attempt
    images: bool
    own: ParamTable
    level: float

    @classmethod
    def begin(cls, request: CounterfactualRequest | AblateRequest) -> ScenarioExperiment:
        """Open the scenario and its actor; nothing is simulated yet.

        Raises:
            InputError: If no actor is given and none was stored, or the number of tries is below 1.
        """
        tries, random_numbers, level = request.tries, request.random_numbers, request.level
        if tries < 1:
            raise InputError(f"--tries {tries}: give at least one.")
        _, scenario = references.open_scenario(request.name, request.scenarios)
        twin, task = scenario.open()
        actor = references.open_actor(resolve_actor(scenario, request.policy), twin, task)
        backend = open_backend()

        def attempt(values: Mapping[str, Any]) -> TrialOutcomes:
            return try_actor(
                scenario, twin, task, actor, tries, random_numbers=random_numbers, values=values, backend=backend
            )

        own = scenario.make_worlds(tries, twin=twin, task=task, random_numbers=random_numbers).params
        images = getattr(actor, "images", None) is not None
        return cls(scenario=scenario, twin=twin, attempt=attempt, images=images, own=own, level=level)

    @functools.cached_property
    def base(self) -> TrialOutcomes:
        """Outcomes of the scenario without changes; simulated at the first access."""
        return self.attempt({})


def resolve_actor(scenario: Scenario, policy: str) -> str:
    """Return the reference of the actor (policy or expert) for a scenario.

    Args:
        scenario: the scenario.
        policy: the requested actor, or "" for the actor stored with the scenario.

    Raises:
        InputError: If no actor is requested, and none was stored.
    """
    stored = scenario.evidence.get("expected")
    reference = policy or (str(stored.get("reference", "")) if isinstance(stored, dict) else "")
    if not reference:
        raise InputError(f"No actor is stored in the scenario {scenario.name}. Name a policy or the expert: --policy.")
    return reference


def run_counterfactual(request: CounterfactualRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Measure the success rate of a scenario with and without each change of a parameter, and print the differences.

    Both rates are from the same worlds with the same random numbers.

    Returns:
        The metrics, and exit code 1 if a condition of ``--fail-if`` is true, else 0.
    """
    if not request.change:
        raise InputError("Give the change: --change 'object/cube/mass=0.05,0.1'.")
    run = MeasuredRun.begin("scenario", "counterfactual", request.output, request.fail_if, console)
    experiment = ScenarioExperiment.begin(request)
    changes = [parse_change(text, experiment.twin) for text in request.change]
    run.expect(
        [f"{one.text}{dose:.4g}" for one in changes for dose in one.doses]
        + [f"{w.text}*" for w in changes if request.refine]
    )
    effects, half_success_doses = compare_doses(
        experiment.attempt, experiment.base, experiment.own, changes, refine=request.refine, level=request.level
    )
    console.print(f"Without changes: {format_failure_rate(experiment.base)}.", soft_wrap=True)
    console.print(_contrasts_table(effects, request.level))
    for one in half_success_doses:
        rates = " and ".join(_format_rate(rate, experiment.base.trials, request.level) for rate in one.rates)
        console.print(
            f"{one.change}: half of the worlds succeed between {one.low:.4g} and {one.high:.4g} (success {rates}).",
            soft_wrap=True,
        )

    def fill(page: ReportPage) -> None:
        scenario_section(page, experiment.scenario, experiment.base, request.level)
        doses_section(page, changes, effects, half_success_doses, experiment.base, request.level)

    result = {
        **_scenario_facts(experiment),
        "contrasts": [one.to_json(request.level) for one in effects],
        "crossings": [_crossing_to_json(one) for one in half_success_doses],
    }
    return run.end(
        result,
        [
            _difference_metric(f"{one.change}{one.dose:.4g}", one, "success with the change less that without")
            for one in effects
        ],
        title=f"What if: {experiment.scenario.name}",
        subtitle=_subtitle(experiment),
        fill=fill,
    )


def run_ablate(request: AblateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Measure the success rate of a scenario with each physical effect switched off, and with each one alone left on.

    Returns:
        The metrics, and exit code 1 if a condition of ``--fail-if`` is true, else 0.
    """
    run = MeasuredRun.begin("scenario", "ablate", request.output, request.fail_if, console)
    experiment = ScenarioExperiment.begin(request)
    chosen = find_terms(experiment.twin, request.term, images=experiment.images)
    run.expect([term.name for term in chosen if term.active_parameters(experiment.own)])
    found = ablate(experiment.attempt, experiment.base, experiment.own, chosen, level=request.level)
    console.print(
        f"Without changes: {format_failure_rate(experiment.base)}; without these terms: "
        f"{format_failure_rate(found.all_off)}.",
        soft_wrap=True,
    )
    console.print(_terms_table(found.terms))
    console.print(_describe_top_term(found.terms[0]), soft_wrap=True)

    def fill(page: ReportPage) -> None:
        scenario_section(page, experiment.scenario, experiment.base, request.level)
        terms_section(page, found, request.level)

    result = {
        **_scenario_facts(experiment),
        "bare": found.all_off.to_json(request.level),
        "terms": [row.to_json(request.level) for row in found.terms],
        "idle": list(found.untested),
    }
    return run.end(
        result,
        [
            _difference_metric(row.term.name, row.term_off, "success without the term less that with it")
            for row in found.terms
        ],
        title=f"Ablation: {experiment.scenario.name}",
        subtitle=_subtitle(experiment),
        fill=fill,
    )


def _crossing_to_json(crossing: HalfSuccessDose) -> dict[str, Any]:
    return {"change": crossing.change, "low": crossing.low, "high": crossing.high, "rates": list(crossing.rates)}


def _scenario_facts(experiment: ScenarioExperiment) -> dict[str, Any]:
    return {
        "scenario": experiment.scenario.name,
        "twin": experiment.scenario.twin,
        "twin_hash": experiment.scenario.twin_hash,
        "base": experiment.base.to_json(experiment.level),
        "level": experiment.level,
    }


def _subtitle(experiment: ScenarioExperiment) -> str:
    scenario = experiment.scenario
    return f"{experiment.base.trials} worlds, {scenario.task} on {scenario.twin} {scenario.twin_hash[:12]}"


def _difference_metric(name: str, one: CounterfactualEffect, meaning: str) -> HeadlineMetric:
    return one.difference.headline(name, better="higher", meaning=meaning)


def _format_rate(rate: float, trials: int, level: float) -> str:
    return clopper_pearson(round(rate * trials), trials, level=level).percent()


def _contrasts_table(effects: Sequence[CounterfactualEffect], level: float) -> Table:
    table = Table("change", "success", "gained", "lost", "difference", f"{level:.0%} interval", "p")
    for one in effects:
        table.add_row(
            f"{one.change}{one.dose:.4g}",
            one.changed_outcomes.success_rate(level).percent(),
            str(one.pairs.only_a),
            str(one.pairs.only_b),
            f"{float(one.difference.estimate):+.2f}",
            f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
            f"{one.p_adjusted:.2g}",
        )
    return table


def _describe_top_term(first: TermEffect) -> str:
    """Return a sentence on the physical effect that the failure needs most."""
    if first.gain_without <= 0:
        return (
            "No single effect is needed: with any one of them switched off, the scenario fails as often as before. "
            "Switch off several at the same time with `twinloop scenario counterfactual`."
        )
    said = f"The failure needs {first.term.name} most ({first.term.meaning}): {first.verdict()}"
    shown = first.term_off.p_adjusted <= 0.05
    return (
        f"{said}."
        if shown
        else f"{said}. This is not significant with {first.term_off.pairs.pairs} worlds; repeat it with more --tries."
    )


def _terms_table(rows: Sequence[TermEffect]) -> Table:
    table = Table("term", "gained without", "lost alone", "p without", "p alone", "verdict")
    for row in rows:
        gains = (f"{gain:+.2f}" for gain in (row.gain_without, row.loss_alone))
        chances = (f"{one.p_adjusted:.2g}" for one in (row.term_off, row.only_term_on))
        table.add_row(row.term.name, *gains, *chances, row.verdict())
    return table
