"""Add evaluations and policy comparisons to report pages.

A slice is one condition of a suite, for example one value of a parameter; slices with the lowest success are first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.comparison import PairedComparison
from twinloop.evaluate.suite import ENDS
from twinloop.evaluate.summary import EvaluationSummary, SliceSummary
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.figure import new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_BARS = 40  # slices in the plot; the table has all
_LOW, _MIDDLE, _HIGH = "#c8553d", "#d9c58b", "#3a7d8c"


def evaluation_section(page: ReportPage, evaluation: Evaluation, summary: EvaluationSummary) -> None:
    """Add an evaluation to a report: key metrics, a table by slice (condition of the suite), and plots of success.

    Args:
        page: the report page.
        evaluation: the evaluation.
        summary: its success rates by slice.
    """
    page.section(f"{evaluation.policy} in {evaluation.suite}", _describe_evaluation(evaluation, summary))
    page.key_metrics(_key_metrics(evaluation, summary))
    if len(summary.slices) > 1:
        page.plot(
            slice_bars(summary),
            f"Success of {'every slice' if len(summary.slices) <= _BARS else f'the {_BARS} worst slices'} with exact "
            f"{summary.level:.0%} intervals.",
        )
    if pairs := evaluation.extra.get("pairs"):
        ends = evaluation.extra.get("ends") or {}
        page.plot(
            pair_map(pairs, ends, summary), "Success with two axes at these ends of their ranges at the same time."
        )
    head = (
        "slice",
        "success",
        "low",
        "high",
        "won",
        "of",
        "invalid worlds" if evaluation.domain == "sim" else "invalid",
        "progress",
        "time s",
        "smoothness",
    )
    page.table(
        (*head, "peak N", "most N", "unsafe"),
        [_slice_row(item) for item in summary.slices],
        caption="Slices, worst first. Time to success, smoothness (spectral arc length) and peak contact force are "
        "medians; unsafe is the share of trials in which a limit of joint range, speed or acceleration was exceeded, "
        "or the robot touched the table or itself.",
    )
    if evaluation.extra.get("left_out"):
        page.text("Left out:\n\n" + "\n\n".join(evaluation.extra["left_out"]))


def slice_bars(summary: EvaluationSummary) -> Figure:
    """Return a plot of the success rates of slices (conditions of a suite) with intervals, the lowest rate on top."""
    shown = summary.slices[:_BARS]
    rates = np.array([float(item.success.estimate) for item in shown])
    figure = new_figure()
    figure.add_scatter(
        x=rates,
        y=[item.name for item in shown],
        mode="markers",
        marker={"color": _HIGH, "size": 8},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [float(item.success.high) - rate for item, rate in zip(shown, rates, strict=True)],
            "arrayminus": [rate - float(item.success.low) for item, rate in zip(shown, rates, strict=True)],
            "thickness": 1.5,
            "width": 0,
            "color": _HIGH,
        },
        customdata=[[item.successes, item.trials] for item in shown],
        hovertemplate="%{y}<br>%{customdata[0]} of %{customdata[1]}<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=float(summary.overall.estimate), line={"color": _LOW, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="success rate (dotted: over all trials)", range=[-0.02, 1.02])
    figure.update_yaxes(autorange="reversed", showgrid=True)
    set_layout(figure, height=90 + 22 * len(shown))
    return figure


def pair_map(pairs: list[str], ends: dict[str, dict[str, str]], summary: EvaluationSummary) -> Figure:
    """Return a heat map of success rates for pairs of axes, each axis at the low or the high end of its range.

    Args:
        pairs: the axes (single names, not pairs) in the order of the plot; every axis of a pair is listed once.
        ends: for each slice, the end (``low`` or ``high``) of each of its two axes.
        summary: the success rates by slice.
    """
    labels = [f"{axis} {end}" for axis in pairs for end in ENDS]
    place = {(axis, end): 2 * at + ENDS.index(end) for at, axis in enumerate(pairs) for end in ENDS}
    values = np.full((len(labels), len(labels)), np.nan)
    for item in summary.slices:
        cell = [place[axis, end] for axis, end in (ends.get(item.name) or {}).items() if (axis, end) in place]
        if len(cell) == len(ENDS):
            values[cell[0], cell[1]] = values[cell[1], cell[0]] = float(item.success.estimate)
    figure = new_figure()
    figure.add_heatmap(
        z=values,
        x=labels,
        y=labels,
        zmin=0,
        zmax=1,
        colorscale=[[0, _LOW], [0.5, _MIDDLE], [1, _HIGH]],
        xgap=1,
        ygap=1,
        hovertemplate="%{y}<br>%{x}<br>success %{z:.2f}<extra></extra>",
        colorbar={"title": "success", "thickness": 10, "outlinewidth": 0},
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, tickangle=-60)
    set_layout(figure, height=220 + 24 * len(labels))
    return figure


def comparison_section(page: ReportPage, comparison: PairedComparison) -> None:
    """Add a comparison of two policies to a report.

    The section has the answer, the difference of the success rates with its confidence sequence, and a table by slice
    (condition of the suite).

    Args:
        page: the report page.
        comparison: the comparison.
    """
    page.section(f"{comparison.a} against {comparison.b}", comparison.format_sentence())
    only_a, only_b = comparison.discordant_counts
    i = comparison.interval
    page.key_metrics(
        [
            KeyMetric(label="answer", value=comparison.answer, source=f"α = {comparison.alpha:g}"),
            KeyMetric(label="pairs", value=comparison.counts.pairs, source=f"decided at {comparison.decided or '–'}"),
            KeyMetric(label="won by only one", value=f"{only_a} : {only_b}", source="discordant pairs"),
            KeyMetric(
                label="difference",
                value=float(i.estimate),
                source=f"[{float(i.low):+.3f}, {float(i.high):+.3f}], valid at every pair",
            ),
        ]
    )
    page.plot(
        _confidence_sequence_plot(comparison),
        "Confidence sequence of the difference of success rates: it is valid at all pairs simultaneously.",
    )
    if len(comparison.by_slice) > 1:
        rows = sorted(comparison.by_slice.items(), key=lambda row: row[1][2] - row[1][1], reverse=True)
        page.table(
            ("slice", "pairs", f"only {comparison.a}", f"only {comparison.b}"),
            [(name, *counts) for name, counts in rows],
            caption=f"Slices, sorted by how much more often only {comparison.b} succeeds.",
        )


def _confidence_sequence_plot(comparison: PairedComparison) -> Figure:
    figure, n = new_figure(), np.arange(1, comparison.counts.pairs + 1)
    figure.add_scatter(x=n, y=comparison.test.high, mode="lines", line={"width": 0}, showlegend=False, hoverinfo="skip")
    figure.add_scatter(
        x=n,
        y=comparison.test.low,
        mode="lines",
        line={"width": 0},
        fill="tonexty",
        fillcolor="rgba(58,125,140,0.25)",
        name=f"{1 - comparison.alpha:.0%} confidence sequence",
    )
    figure.add_hline(y=0, line={"color": _LOW, "width": 1})
    for edge in () if comparison.margin is None else (-comparison.margin, comparison.margin):
        figure.add_hline(y=edge, line={"color": _LOW, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="pairs")
    figure.update_yaxes(title=f"success of {comparison.a} minus {comparison.b}")
    set_layout(figure, height=340)
    return figure


def _key_metrics(evaluation: Evaluation, summary: EvaluationSummary) -> list[KeyMetric]:
    overall, worst = summary.overall, summary.worst
    found = [
        KeyMetric(
            label="success",
            value=float(overall.estimate),
            source=f"[{float(overall.low):.3f}, {float(overall.high):.3f}], {summary.trials} trials",
        )
    ]
    if len(summary.slices) > 1:
        ends = f"[{float(worst.low):.3f}, {float(worst.high):.3f}], chosen among {len(summary.slices)}"
        found.append(KeyMetric(label="worst slice", value=float(worst.estimate), source=ends))
    found.append(KeyMetric(label="invalid", value=summary.invalid, source="count as failures"))
    if latency := evaluation.extra.get("latency"):
        source = f"95 % within {1e3 * latency['p95_s']:.2f} ms"
        found.append(KeyMetric(label="time per command", value=1e3 * latency["median_s"], unit="ms", source=source))
    return found


def _describe_evaluation(evaluation: Evaluation, summary: EvaluationSummary) -> str:
    where = (
        "Real trials."
        if evaluation.domain == "real"
        else f"Simulated on {evaluation.twin}, run seed {evaluation.run_seed}."
    )
    many = len(summary.slices)
    chosen = (
        f" The worst of {many} slices is chosen from the results: its interval is derived from intervals of all slices "
        f"at level 1 − α / {many}, and contains the lowest of their true rates."
        if many > 1
        else ""
    )
    return f"{where} Intervals are exact (Clopper–Pearson).{chosen}"


def _slice_row(item: SliceSummary) -> list[Any]:
    rate = item.success
    ends = [float(x) for x in (rate.estimate, rate.low, rate.high)]
    figures = [item.progress, item.time_s, item.smoothness, item.peak_force_n, item.peak_force_most_n, item.violating]
    return [item.name, *ends, item.successes, item.trials, item.invalid, *figures]
