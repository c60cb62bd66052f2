"""Attribute a twin's error to groups of parameters, locate the unexplained part, and rank the causes."""

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
from twinloop.report.gap_attribution import index_matrix, share_panels
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


_LEFT = "nothing in the twin"


def why_section(
    page: ReportPage,
    sentences: Sequence[str],
    found: Attribution,
    where: UnexplainedResult | None = None,
    moved: Sensitivity | None = None,
) -> None:
    """Write the ranked answer, its bars, single exchanges of groups, the unexplained part, and the sensitivity."""
    page.section(
        "Why the twin errs",
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
    if where is not None:
        unexplained_section(page, where)
    if moved is not None:
        _sensitivity(page, moved)


def _panels(explanations: Sequence[ChannelExplanation]) -> Figure:
    names, shares, ends, told = [], [], [], []
    for item in explanations:
        rows = [*((cause.name, cause.share, cause.claimed) for cause in item.causes), (_LEFT, item.left, True)]
        names.append([row[0] for row in rows])
        shares.append([float(row[1].estimate) for row in rows])
        ends.append(([float(row[1].low) for row in rows], [float(row[1].high) for row in rows]))
        told.append([row[2] for row in rows])
    return share_panels([item.short_name for item in explanations], names, shares, ends, told, rest=_LEFT)


def _exchanges(page: ReportPage, found: Attribution) -> None:
    columns = [name.removeprefix("position/") for name in found.columns]
    tables = (
        ("Shapley value of each group", found.share),
        ("Only this group identified, all others nominal: error taken away", found.alone),
        ("Only this group nominal, all others identified: error that comes back", found.back),
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
        caption=f"What is in each group. {found.worlds} worlds were replayed: {found.coalitions}"
        + (f", and {found.ndraw} draws of the identified parameters." if found.ndraw else ".")
        + f" Beyond pairs, groups interact by up to {100 * float(np.nan_to_num(found.interactions).max()):.0f} % of a "
        "channel's error."
        + (f" Unidentifiable and fixed at their estimates: {', '.join(found.held)}." if found.held else ""),
    )


def _sensitivity(page: ReportPage, moved: Sensitivity) -> None:
    what = "what identification leaves open" if moved.over == "identified" else "the twin's default ranges"
    page.section(
        "What moves the predictions",
        f"Parameters were drawn from {what}, group by group independently, in {moved.worlds} worlds. The total Sobol' "
        "index of a group is the part of the predictions' variance that goes away when it is known, its interactions "
        "with others included; those of a channel may add up to more than 1.",
    )
    total, first = moved.motion.total, moved.motion.first
    shape = total.estimate.shape
    words = [
        [
            f"total {total.estimate[r, c]:.2f} ({total.low[r, c]:.2f} to {total.high[r, c]:.2f}), alone "
            f"{first.estimate[r, c]:.2f}"
            for c in range(shape[1])
        ]
        for r in range(shape[0])
    ]
    channels = [name.removeprefix("position/") for name in moved.channels]
    page.plot(index_matrix([group.name for group in moved.groups], channels, total.estimate, words))
    rows = [
        [channel, f"{moved.spread[c]:.3g} {moved.units[c]}", *(_format_index(moved, row, c) for row in range(shape[0]))]
        for c, channel in enumerate(channels)
    ]
    page.table(
        ["channel", "spread (RMS)", *(group.name for group in moved.groups)],
        rows,
        caption="Total index of predicted motion / of each episode's mean squared error, with 95 % intervals over rows "
        "of the design and episodes." + (f" Not drawn: {', '.join(moved.fixed)}." if moved.fixed else ""),
    )


def _format_index(moved: Sensitivity, row: int, column: int) -> str:
    parts = []
    for of in (moved.motion.total, moved.error.total):
        value, low, high = (float(end[row, column]) for end in (of.estimate, of.low, of.high))
        parts.append("–" if np.isnan(value) else f"{value:.2f} ({low:.2f} to {high:.2f})")
    return " / ".join(parts)


def load_groups(attributing: AttributionOptionsRequest) -> dict[str, tuple[str, ...]]:
    """Return the user's groups, from the file and from the command line.

    Raises:
        InputError: the file is not a mapping of names to lists of patterns; see `read_groups`.
    """
    found = {} if attributing.groups is None else _read_groups_file(attributing.groups)
    return found | read_groups(attributing.group)


@dataclass(frozen=True, kw_only=True)
class GapCauses:
    """Attribution, unexplained part, and sensitivity (None if not requested, or without draws)."""

    twin: str
    data: str
    attribution: Attribution
    where: UnexplainedResult
    moved: Sensitivity | None

    def explanations(self) -> list[ChannelExplanation]:
        """Return the explanation of all channels together, then of each, the largest remaining error first."""
        noise = dict(zip(self.where.channels, self.where.noise.estimate.tolist(), strict=True))
        every = [replace(e, floor=noise.get(e.channel, e.floor)) for e in self.attribution.explanations()]
        first, *others = every
        return [first, *sorted(others, key=lambda e: -float(e.nominal**2 * e.left.estimate if e.nominal else 0.0))]

    def sentences(self) -> list[str]:
        """Return the ranked answer, with one or two sentences for each channel."""
        return [
            explanation.sentence(self._describe_location(explanation.channel)) for explanation in self.explanations()
        ]

    def _describe_location(self, channel: str) -> str:
        """Return where a channel's unexplained part occurs, and the term to try first."""
        hint = None if channel == OVERALL else self.where.hint(channel)
        if hint is None:
            return ""
        return (
            f"sits at {hint.rule.where} ({hint.evidence[0]}): {hint.term} is the first model term to try, "
            f"`{hint.command(self.twin, self.data)}`"
        )

    def text(self) -> str:
        """Return the answer as text for a terminal."""
        found = self.attribution
        head = f"Why: shares of the mean squared error over {len(found.episodes)} episodes, {found.note}."
        how = f"{found.worlds} worlds: {found.coalitions}" + (
            f"; {found.ndraw} draws of the parameters" * bool(found.ndraw)
        )
        lines = [head, how, *self.parts(), "", *(f"- {sentence}" for sentence in self.sentences())]
        if self.moved is not None:
            lines += ["", *(f"- {self.moved.sentence(column)}" for column in range(len(self.moved.channels)))]
        return "\n".join(lines)

    def parts(self) -> list[str]:
        """Return lines on the replayed part of the log, if the budget did not allow all of it."""
        moved = "" if self.moved is None else self.moved.part
        every = (("shares and what is left", self.attribution.part), ("sensitivity", moved))
        return [f"Replayed for {what}: {part}." for what, part in every if part]

    def headline(self) -> list[HeadlineMetric]:
        """Return shares of all channels together by group, and the unexplained part of each channel and of all."""
        found, last = self.attribution, len(self.attribution.channels)
        left, share = found.left.interval, found.share.interval
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
            "unexplained": self.where.to_json(),
            "sensitivity": None if self.moved is None else self.moved.to_json(),
        }


def explain(
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution,
    *,
    backend: Backend,
    options: ReplayOptions,
    asking: AttributionOptionsRequest | None = None,
    note: str = "",
    names: tuple[str, str] = ("TWIN", "LOG"),
) -> GapCauses:
    """Attribute the error, locate the rest, and compute the sensitivity of the predictions.

    Args:
        twin: the twin.
        episodes: preferably held out from the fit of ``params``.
        params: the identified distribution.
        backend: runs the replays.
        options: windows of the log and compared channels.
        asking: options on groups, draws and sensitivity.
        note: remark on the episodes for readers.
        names: of twin and log, for commands in the result.
    """
    asked = asking or AttributionOptionsRequest()
    told = {name: value for name, value in params.estimate.items() if name not in options.conditions}
    groups = parameter_groups(twin, changed_params(twin, told), by=asked.by, own=load_groups(asked))
    how = AttributionOptions(replay=options, draws=asked.draws, seed=asked.seed)
    shared = attribute(backend, twin, episodes, params, groups, options=how, note=note)
    where = locate_unexplained_error(
        twin, episodes, backend=backend, params=params, options=options, part=shared.replayed, seed=asked.seed
    )
    moved = None
    if asked.over != "none" and any(params.determined):
        how_much = SensitivityOptions(over=asked.over, replay=options, seed=asked.seed)
        moved = sensitivity(backend, twin, episodes, params, groups, options=how_much)
    return GapCauses(twin=names[0], data=names[1], attribution=shared, where=where, moved=moved)


def run_why(request: GapWhyRequest, console: Console) -> Outcome:
    """Attribute a twin's error on a log; print and store the result.

    With ``params`` from a run on the same log, only that run's held-out episodes are used.
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
        asking=request.attributing,
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
        why_section(page, found.sentences(), found.attribution, found.where, found.moved)
        if nested is not None:
            nested_section(page, nested)

    told = {**found.to_json(), "nested": None if nested is None else nested.to_json()}
    return started.end(
        {**told, "twin": name_and_hash(twin), "data": log.describe(), "note": split.note, "params": fitted},
        found.headline(),
        title=f"Why {twin.name} errs",
        subtitle=f"{log.label}; {split.note}",
        fill=fill,
    )


def _read_groups_file(path: Path) -> dict[str, tuple[str, ...]]:
    value = load_yaml(path)
    if not isinstance(value, Mapping) or not all(_is_patterns(item) for item in value.values()):
        raise InputError(
            f"{path} holds no groups. Write `NAME: [PATTERN, …]` for each, such as `gains: [actuator/*/kp]`."
        )
    return {str(name): tuple(patterns) for name, patterns in value.items()}


def _is_patterns(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(pattern, str) for pattern in item)
