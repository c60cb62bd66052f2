"""Run counterfactuals (one parameter changed) and ablations (one physical effect switched off) of a scenario."""

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
from twinloop.report.scenario import dose_response, term_bars
from twinloop.rollout.pinned import PinnedWorld
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
from twinloop.workflows.scenario import places
from twinloop.workflows.scenario.failure import format_failure_rate
from twinloop.workflows.scenario.requests import AblateRequest, CounterfactualRequest

_SHOWN = 6


def scenario_section(page: ReportPage, pinned: PinnedWorld, base: TrialOutcomes, level: float) -> None:
    """Write the meaning of a scenario, and its failure rate without changes."""
    rate = base.failure_rate(level)
    page.section(pinned.name, pinned.meaning or pinned.reason)
    page.key_metrics(
        [
            KeyMetric(
                label="fails as it is",
                value=f"{float(rate.estimate):.0%}",
                source=f"{base.failures} of {base.trials} worlds, {float(rate.low):.0%} to {float(rate.high):.0%}",
            ),
            KeyMetric(label="own parameters", value=len(pinned.departs), source="in which it departs from its twin"),
        ]
    )
    page.text(f"Actor: {base.actor}; task {pinned.task} on {pinned.twin}.")


def doses_section(
    page: ReportPage,
    whats: Sequence[ParameterChange],
    contrasts: Sequence[CounterfactualEffect],
    crossings: Sequence[HalfSuccessDose],
    base: TrialOutcomes,
    level: float,
) -> None:
    """Write a dose-response plot for each change with several doses, and a table of all changes."""
    found = {one.what: one for one in crossings}
    rate = float(base.success_rate(level).estimate)
    page.section(
        "What if it had been different?",
        "Every change was tried in the same worlds with the same chance as none, so that a world that turns does so "
        "because of the change.",
    )
    for what in whats:
        rows = effect_series(contrasts, what.text, level)
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


def terms_section(page: ReportPage, ablation: AblationResult, level: float) -> None:
    """Write the physical terms, ranked by how much the failure needs them."""
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
            [row.gain_without for row in rows],
            (
                [float(row.without.difference.low) for row in rows],
                [float(row.without.difference.high) for row in rows],
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
                row.without.p_adjusted,
                row.alone.p_adjusted,
                row.verdict(),
                _format_names(row.parameters),
            ]
            for row in rows
        ],
        caption="P-values are exact and adjusted (Holm) over all terms.",
    )
    if ablation.idle:
        page.text(f"Neutral in this world, and not tried: {', '.join(ablation.idle)}.")


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True, kw_only=True)
class ScenarioQuestion:
    """A scenario with its actor, number of worlds and randomness, as counterfactuals and ablations use it."""

    pinned: PinnedWorld
    twin: Twin
    attempt: Attempt
    pictures: bool
    own: ParamTable
    level: float

    @classmethod
    def begin(cls, request: CounterfactualRequest | AblateRequest) -> ScenarioQuestion:
        """Open the scenario and find its actor, without a run.

        Raises:
            InputError: no actor is given and none was stored, or there are too few tries.
        """
        tries, chance, level = request.tries, request.random_numbers, request.level
        if tries < 1:
            raise InputError(f"--tries {tries}: give at least one.")
        _, pinned = places.open_scenario(request.name, request.scenarios)
        twin, task = pinned.open()
        actor = places.open_actor(resolve_actor(pinned, request.policy), twin, task)
        backend = open_backend()

        def attempt(values: Mapping[str, Any]) -> TrialOutcomes:
            return try_actor(pinned, twin, task, actor, tries, chance=chance, values=values, backend=backend)

        own = pinned.make_worlds(tries, twin=twin, task=task, chance=chance).params
        pictures = getattr(actor, "photograph", None) is not None
        return cls(pinned=pinned, twin=twin, attempt=attempt, pictures=pictures, own=own, level=level)

    @functools.cached_property
    def base(self) -> TrialOutcomes:
        """Outcomes of the scenario without changes."""
        return self.attempt({})


def resolve_actor(pinned: PinnedWorld, policy: str) -> str:
    """Return the reference of the actor: the given one, or the one stored with the scenario.

    Raises:
        InputError: there is neither.
    """
    stored = pinned.evidence.get("expected")
    reference = policy or (str(stored.get("reference", "")) if isinstance(stored, dict) else "")
    if not reference:
        raise InputError(f"No actor is stored in the scenario {pinned.name}. Name a policy or the expert: --policy.")
    return reference


def run_counterfactual(request: CounterfactualRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Measure success with and without each change, in the same worlds with the same randomness."""
    if not request.change:
        raise InputError("Give the change: --change 'object/cube/mass=0.05,0.1'.")
    run = MeasuredRun.begin("scenario", "counterfactual", request.output, request.fail_if, console)
    asking = ScenarioQuestion.begin(request)
    whats = [parse_change(text, asking.twin) for text in request.change]
    run.expect(
        [f"{one.text}{dose:.4g}" for one in whats for dose in one.doses]
        + [f"{w.text}*" for w in whats if request.refine]
    )
    contrasts, crossings = compare_doses(
        asking.attempt, asking.base, asking.own, whats, refine=request.refine, level=request.level
    )
    console.print(f"Without changes: {format_failure_rate(asking.base)}.", soft_wrap=True)
    console.print(_contrasts_table(contrasts, request.level))
    for one in crossings:
        console.print(
            f"{one.what}: half of the worlds turn between {one.low:.4g} and {one.high:.4g} "
            f"(success {' and '.join(_format_rate(rate, asking.base.trials, request.level) for rate in one.rates)}).",
            soft_wrap=True,
        )

    def fill(page: ReportPage) -> None:
        scenario_section(page, asking.pinned, asking.base, request.level)
        doses_section(page, whats, contrasts, crossings, asking.base, request.level)

    figures = {
        **_scenario_facts(asking),
        "contrasts": [one.to_json(request.level) for one in contrasts],
        "crossings": [vars(one) | {"rates": list(one.rates)} for one in crossings],
    }
    return run.end(
        figures,
        [
            _difference_metric(f"{one.what}{one.dose:.4g}", one, "success with the change less that without")
            for one in contrasts
        ],
        title=f"What if: {asking.pinned.name}",
        subtitle=_subtitle(asking),
        fill=fill,
    )


def run_ablate(request: AblateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Measure success with each physical term switched off, and with all others switched off."""
    run = MeasuredRun.begin("scenario", "ablate", request.output, request.fail_if, console)
    asking = ScenarioQuestion.begin(request)
    chosen = find_terms(asking.twin, request.term, pictures=asking.pictures)
    run.expect([term.name for term in chosen if term.active_parameters(asking.own)])
    found = ablate(asking.attempt, asking.base, asking.own, chosen, level=request.level)
    console.print(
        f"Without changes: {format_failure_rate(asking.base)}; without these terms: {format_failure_rate(found.bare)}.",
        soft_wrap=True,
    )
    console.print(_terms_table(found.terms))
    console.print(_describe_top_term(found.terms[0]), soft_wrap=True)

    def fill(page: ReportPage) -> None:
        scenario_section(page, asking.pinned, asking.base, request.level)
        terms_section(page, found, request.level)

    figures = {
        **_scenario_facts(asking),
        "bare": found.bare.to_json(request.level),
        "terms": [row.to_json(request.level) for row in found.terms],
        "idle": list(found.idle),
    }
    return run.end(
        figures,
        [
            _difference_metric(row.term.name, row.without, "success without the term less that with it")
            for row in found.terms
        ],
        title=f"Ablation: {asking.pinned.name}",
        subtitle=_subtitle(asking),
        fill=fill,
    )


def _scenario_facts(asking: ScenarioQuestion) -> dict[str, Any]:
    return {
        "scenario": asking.pinned.name,
        "twin": asking.pinned.twin,
        "twin_hash": asking.pinned.twin_hash,
        "base": asking.base.to_json(asking.level),
        "level": asking.level,
    }


def _subtitle(asking: ScenarioQuestion) -> str:
    return f"{asking.base.trials} worlds, {asking.pinned.task} on {asking.pinned.twin} {asking.pinned.twin_hash[:12]}"


def _difference_metric(name: str, one: CounterfactualEffect, meaning: str) -> HeadlineMetric:
    return one.difference.headline(name, better="higher", meaning=meaning)


def _format_rate(rate: float, trials: int, level: float) -> str:
    return clopper_pearson(round(rate * trials), trials, level=level).percent()


def _contrasts_table(contrasts: Sequence[CounterfactualEffect], level: float) -> Table:
    table = Table("change", "success", "gained", "lost", "difference", f"{level:.0%} interval", "p")
    for one in contrasts:
        table.add_row(
            f"{one.what}{one.dose:.4g}",
            one.tried.success_rate(level).percent(),
            str(one.pairs.only_a),
            str(one.pairs.only_b),
            f"{float(one.difference.estimate):+.2f}",
            f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
            f"{one.p_adjusted:.2g}",
        )
    return table


def _describe_top_term(first: TermEffect) -> str:
    """Return a sentence on the term that the failure needs most."""
    if first.gain_without <= 0:
        return (
            "No single term is needed: without any one of them it fails as often. Ask for several with counterfactual."
        )
    said = f"The failure needs {first.term.name} most ({first.term.meaning}): {first.verdict()}"
    shown = first.without.p_adjusted <= 0.05
    return (
        f"{said}." if shown else f"{said}; {first.without.pairs.pairs} worlds are too few for significance; try more."
    )


def _terms_table(rows: Sequence[TermEffect]) -> Table:
    table = Table("term", "gained without", "lost alone", "p without", "p alone", "verdict")
    for row in rows:
        gains = (f"{gain:+.2f}" for gain in (row.gain_without, row.loss_alone))
        chances = (f"{one.p_adjusted:.2g}" for one in (row.without, row.alone))
        table.add_row(row.term.name, *gains, *chances, row.verdict())
    return table
