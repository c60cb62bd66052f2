"""Explain the error of a twin (`twinloop gap why`): shares of parameter groups, unexplained part, sensitivity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.records import Episode
from twinloop.core.yaml_documents import load_yaml
from twinloop.gap.attribution.attribute import AttributionOptions, attribute
from twinloop.gap.attribution.groups import changed_params, parameter_groups, read_groups
from twinloop.gap.attribution.result import OVERALL, Attribution, ChannelExplanation, format_share
from twinloop.gap.attribution.sensitivity import Sensitivity, SensitivityOptions, sensitivity
from twinloop.gap.dynamics.unexplained_result import UnexplainedResult
from twinloop.randomize import read_identified
from twinloop.report import ReportPage
from twinloop.report.gap_attribution import plot_index_matrix, plot_share_panels
from twinloop.simulate import Backend, open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import open_logs
from twinloop.workflows.gap.options import build_replay_options, held_out_split, name_and_hash
from twinloop.workflows.gap.requests import AttributionOptionsRequest, GapWhyRequest
from twinloop.workflows.gap.unexplained import (
    locate_unexplained_error,
    nested_section,
    parse_nested,
    unexplained_section,
)
from twinloop.workflows.run.results import MeasuredRun, Outcome

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_LEFT = "not explained by the twin"


def why_section(
    page: ReportPage,
    sentences: Sequence[str],
    found: Attribution,
    unexplained: UnexplainedResult | None = None,
    sensitivity: Sensitivity | None = None,
) -> None:
    """Add to a report the ranked causes of a twin's error, with plots and tables.

    Args:
        page: the report.
        sentences: the causes as sentences, one per channel.
        found: shares of the error by group of parameters (Shapley values).
        unexplained: events and states at which the unexplained error arises; None to leave them out.
        sensitivity: sensitivity of the predictions to the parameters; None to leave it out.
    """
    page.section(
        "Causes of the twin's error",
        "The twin was replayed with its nominal parameters, with the identified ones, and with mixtures of both, "
        f"always on the same windows of {len(found.episodes)} episodes ({found.note}). The removed error is "
        "divided among groups of parameters by Shapley values: the mean error that a group removes over all orders "
        "of exchanging groups. Shares are of the mean squared error with nominal parameters, and with the "
        "unexplained part they add up to 100 %. A negative share adds error. Groups that the data cannot "
        "separate are reported together.",
    )
    for sentence in sentences:
        page.text(sentence)
    page.plot(
        _panels(found.explanations()),
        "Bars are shares of each channel's squared error, lines their 95 % intervals over episodes and the "
        "uncertainty of the parameters. Blue removes error, orange adds it, violet is explained by no parameter. "
        "Grey is not significant: bars of a panel are tested together (Holm), so an interval may exclude 0 by "
        "a little and still be grey.",
    )
    _exchanges(page, found)
    if unexplained is not None:
        unexplained_section(page, unexplained)
    if sensitivity is not None:
        _sensitivity(page, sensitivity)


def _panels(explanations: Sequence[ChannelExplanation]) -> Figure:
    names, shares, ends, significant = [], [], [], []
    for item in explanations:
        rows = [*((cause.name, cause.share, cause.significant) for cause in item.causes), (_LEFT, item.remaining, True)]
        names.append([row[0] for row in rows])
        shares.append([float(row[1].estimate) for row in rows])
        ends.append(([float(row[1].low) for row in rows], [float(row[1].high) for row in rows]))
        significant.append([row[2] for row in rows])
    return plot_share_panels([item.short_name for item in explanations], names, shares, ends, significant, rest=_LEFT)


def _exchanges(page: ReportPage, found: Attribution) -> None:
    columns = [name.removeprefix("position/") for name in found.columns]
    tables = (
        ("Shapley value of each group", found.share),
        ("Only this group identified, all others nominal: error taken away", found.join_first_gain),
        ("Only this group nominal, all others identified: error that comes back", found.join_last_gain),
    )
    for caption, table in tables:
        rows = [
            [group, *(format_share(table.interval.at(row, column)) for column in range(len(columns)))]
            for row, group in enumerate(found.names)
        ]
        page.table(["group", *columns], rows, caption=f"{caption}, in per cent of the nominal squared error.")
    page.table(
        ["group", "parameters"],
        [[group.name, group.text().partition(": ")[2]] for group in found.groups],
        caption=f"Parameters of each group. {found.worlds} worlds were replayed: {found.coalitions}"
        + (f", and {found.ndraw} draws of the identified parameters." if found.ndraw else ".")
        + f" Beyond pairs, groups interact by up to {100 * float(np.nan_to_num(found.interactions).max()):.0f} % of a "
        "channel's error."
        + (
            f" Unidentifiable and fixed at their estimates: {', '.join(found.undetermined)}."
            if found.undetermined
            else ""
        ),
    )


def _sensitivity(page: ReportPage, sensitivity: Sensitivity) -> None:
    what = "the identified distribution" if sensitivity.over == "identified" else "the twin's default ranges"
    page.section(
        "Sensitivity of the predictions",
        f"Parameters were drawn from {what}, group by group independently, in {sensitivity.worlds} worlds. The total "
        "Sobol' index of a group is the part of the predictions' variance that goes away when it is known, its "
        "interactions with others included; those of a channel may add up to more than 1.",
    )
    total, first = sensitivity.motion.total, sensitivity.motion.first
    shape = total.estimate.shape
    words = [
        [
            f"total {total.estimate[r, c]:.2f} ({total.low[r, c]:.2f} to {total.high[r, c]:.2f}), alone "
            f"{first.estimate[r, c]:.2f}"
            for c in range(shape[1])
        ]
        for r in range(shape[0])
    ]
    channels = [name.removeprefix("position/") for name in sensitivity.channels]
    page.plot(plot_index_matrix([group.name for group in sensitivity.groups], channels, total.estimate, words))
    rows = [
        [
            channel,
            f"{sensitivity.spread[c]:.3g} {sensitivity.units[c]}",
            *(_format_index(sensitivity, row, c) for row in range(shape[0])),
        ]
        for c, channel in enumerate(channels)
    ]
    page.table(
        ["channel", "spread (RMS)", *(group.name for group in sensitivity.groups)],
        rows,
        caption="Total index of predicted motion / of each episode's mean squared error, with 95 % intervals over rows "
        "of the design and episodes." + (f" Not drawn: {', '.join(sensitivity.fixed)}." if sensitivity.fixed else ""),
    )


def _format_index(sensitivity: Sensitivity, row: int, column: int) -> str:
    parts = []
    for of in (sensitivity.motion.total, sensitivity.error.total):
        value, low, high = (float(end[row, column]) for end in (of.estimate, of.low, of.high))
        parts.append("–" if np.isnan(value) else f"{value:.2f} ({low:.2f} to {high:.2f})")
    return " / ".join(parts)


def load_groups(attributing: AttributionOptionsRequest) -> dict[str, tuple[str, ...]]:
    """Return the parameter groups that the user gave in a file and on the command line, as patterns by name.

    Raises:
        InputError: If the file is not a mapping of names to lists of patterns, or a group of the command line has the
            wrong form (see `read_groups`).
    """
    found = {} if attributing.groups is None else _read_groups_file(attributing.groups)
    return found | read_groups(attributing.group)


@dataclass(frozen=True, kw_only=True)
class GapCauses:
    """Causes of the difference between a twin and a log.

    Attributes:
        twin: reference of the twin, for commands in the text.
        data: references of the logs, for commands in the text.
        attribution: shares of the error by group of parameters.
        unexplained: events and states at which the unexplained error arises.
        sensitivity: sensitivity of the predictions; None if it was not requested or no parameter is identified.
    """

    twin: str
    data: str
    attribution: Attribution
    unexplained: UnexplainedResult
    sensitivity: Sensitivity | None

    def explanations(self) -> list[ChannelExplanation]:
        """Return the explanation for all channels together, then for each channel, largest remaining error first."""
        noise = dict(zip(self.unexplained.channels, self.unexplained.noise.estimate.tolist(), strict=True))
        every = [replace(e, floor=noise.get(e.channel, e.floor)) for e in self.attribution.explanations()]
        first, *others = every
        return [first, *sorted(others, key=lambda e: -float(e.nominal**2 * e.remaining.estimate if e.nominal else 0.0))]

    def sentences(self) -> list[str]:
        """Return the causes as sentences: one or two for all channels together, then one or two for each channel."""
        return [
            explanation.sentence(self._describe_location(explanation.channel)) for explanation in self.explanations()
        ]

    def _describe_location(self, channel: str) -> str:
        """Return where a channel's unexplained error occurs and which model term to try first; empty if unknown."""
        hint = None if channel == OVERALL else self.unexplained.hint(channel)
        if hint is None:
            return ""
        return (
            f"occurs at {hint.rule.where} ({hint.evidence[0]}): {hint.term} is the first model term to try, "
            f"`{hint.command(self.twin, self.data)}`"
        )

    def text(self) -> str:
        """Return all results as text for a terminal."""
        found = self.attribution
        head = f"Why: shares of the mean squared error over {len(found.episodes)} episodes, {found.note}."
        how = f"{found.worlds} worlds: {found.coalitions}" + (
            f"; {found.ndraw} draws of the parameters" * bool(found.ndraw)
        )
        lines = [head, how, *self.parts(), "", *(f"- {sentence}" for sentence in self.sentences())]
        if self.sensitivity is not None:
            lines += [
                "",
                *(f"- {self.sensitivity.sentence(column)}" for column in range(len(self.sensitivity.channels))),
            ]
        return "\n".join(lines)

    def parts(self) -> list[str]:
        """Return a line for each analysis that replayed only a part of the log to limit the number of physics steps."""
        sensitivity_part = "" if self.sensitivity is None else self.sensitivity.replayed_part
        every = (("shares and unexplained part", self.attribution.replayed_part), ("sensitivity", sensitivity_part))
        return [f"Replayed for {what}: {part}." for what, part in every if part]

    def headline(self) -> list[HeadlineMetric]:
        """Return the share of the nominal error that each parameter group explains, and the unexplained share.

        The unexplained share is also given for each channel.
        """
        found, last = self.attribution, len(self.attribution.channels)
        left, share = found.remaining.interval, found.share.interval
        rows = [
            left.headline("unexplained", (0, last), meaning="share of the nominal error that no parameter explains")
        ]
        rows += [
            left.headline(
                f"unexplained/{channel.name.removeprefix('position/')}", (0, column), meaning="of one channel"
            )
            for column, channel in enumerate(found.channels)
        ]
        return rows + [
            share.headline(
                f"share/{name.replace(' ', '_')}", (row, last), meaning=f"share of the nominal error: {name}"
            )
            for row, name in enumerate(found.names)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files (schema 1)."""
        return {
            "schema": 1,
            "sentences": self.sentences(),
            "attribution": self.attribution.to_json(),
            "unexplained": self.unexplained.to_json(),
            "sensitivity": None if self.sensitivity is None else self.sensitivity.to_json(),
        }


def explain(
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution,
    *,
    backend: Backend,
    options: ReplayOptions,
    attribution_options: AttributionOptionsRequest | None = None,
    note: str = "",
    names: tuple[str, str] = ("TWIN", "LOG"),
) -> GapCauses:
    """Attribute a twin's error to parameters, locate the unexplained error, and compute parameter sensitivities.

    Args:
        twin: the twin.
        episodes: the replayed episodes, preferably held out from the fit of ``params``.
        params: the identified distribution.
        backend: runs the replays.
        options: windows of the log and compared channels.
        attribution_options: options on groups of parameters, draws, and sensitivity of the predictions to each group;
            None for the defaults.
        note: remark on the episodes for readers.
        names: references of twin and log, for commands in the result.
    """
    chosen = attribution_options or AttributionOptionsRequest()
    estimates = {name: value for name, value in params.estimate.items() if name not in options.conditions}
    groups = parameter_groups(twin, changed_params(twin, estimates), by=chosen.by, own=load_groups(chosen))
    how = AttributionOptions(replay=options, draws=chosen.draws, seed=chosen.seed)
    shared = attribute(backend, twin, episodes, params, groups, options=how, note=note)
    unexplained = locate_unexplained_error(
        twin,
        episodes,
        backend=backend,
        params=params,
        options=options,
        replayed_part=shared.replayed_log,
        seed=chosen.seed,
    )
    result = None
    if chosen.over != "none" and any(params.determined):
        how_much = SensitivityOptions(over=chosen.over, replay=options, seed=chosen.seed)
        result = sensitivity(backend, twin, episodes, params, groups, options=how_much)
    return GapCauses(twin=names[0], data=names[1], attribution=shared, unexplained=unexplained, sensitivity=result)


def run_why(request: GapWhyRequest, console: Console) -> Outcome:
    """Attribute a twin's error on a log to groups of parameters; print and store the result.

    If ``params`` is a run on the same log, only that run's held-out episodes are used.
    """
    log = open_logs(request.data, request.reading)
    started = MeasuredRun.begin("gap", "why", request.output, request.fail_if, console)
    twin, run = load_twin(request.twin), read_identified(request.params)
    split = held_out_split(log, run)
    found = explain(
        twin,
        split.measured,
        ParamDistribution.from_json(run["distribution"]),
        backend=open_backend(),
        options=build_replay_options(request.comparing, twin, split.measured),
        attribution_options=request.attributing,
        note=split.note,
        names=(request.twin, " ".join(request.data)),
    )
    console.print(f"{log.label}; {split.note}", soft_wrap=True)
    console.print(found.text(), soft_wrap=True)
    fitted = request.params.name
    nested = parse_nested(run, fitted)
    for sentence in nested.sentences() if nested else ():
        console.print(f"- {sentence}", soft_wrap=True)

    def fill(page: ReportPage) -> None:
        why_section(page, found.sentences(), found.attribution, found.unexplained, found.sensitivity)
        if nested is not None:
            nested_section(page, nested)

    result = {**found.to_json(), "nested": None if nested is None else nested.to_json()}
    return started.end(
        {**result, "twin": name_and_hash(twin), "data": log.describe(), "note": split.note, "params": fitted},
        found.headline(),
        title=f"Causes of the error of {twin.name}",
        subtitle=f"{log.label}; {split.note}",
        fill=fill,
    )


def _read_groups_file(path: Path) -> dict[str, tuple[str, ...]]:
    value = load_yaml(path)
    if not isinstance(value, Mapping) or not all(_is_patterns(item) for item in value.values()):
        raise InputError(
            f"{path} contains no groups. Write `NAME: [PATTERN, …]` for each, such as `gains: [actuator/*/kp]`."
        )
    return {str(name): tuple(patterns) for name, patterns in value.items()}


def _is_patterns(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(pattern, str) for pattern in item)
