"""Plot metrics over runs, scores of episodes against limits, and the curves of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.core.headline import HeadlineMetric
from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, interval_bars, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def history_curves(labels: Sequence[str], figures: Sequence[HeadlineMetric]) -> Figure:
    """Plot one metric of several runs in order, with intervals; a run without the metric leaves a gap.

    Args:
        labels: labels of the runs.
        figures: the metric of each run, NaN if the run does not have it.
    """
    values = np.array([figure.estimate for figure in figures])
    low = np.array([figure.low for figure in figures])
    high = np.array([figure.high for figure in figures])
    curve = new_figure()
    curve.add_scatter(
        x=list(range(len(labels))),
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 1.6},
        marker={"size": 8},
        error_y=interval_bars(
            values, (np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)), BLUE
        ),
        text=list(labels),
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{text}<br>%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra></extra>",
        showlegend=False,
    )
    curve.update_xaxes(tickvals=list(range(len(labels))), ticktext=list(labels), range=[-0.5, len(labels) - 0.5])
    named = next((figure for figure in figures if np.isfinite(figure.estimate)), figures[0])
    curve.update_yaxes(title_text=named.unit)
    set_layout(curve, height=300)
    return curve


_VERDICT_COLOURS = {"good": BLUE, "suspect": ORANGE, "bad": "#c8382f", "unknown": GREY, "unreadable": "#c8382f"}
_WIDTH = 0.3  # of a row's height: largest offset of a point
_LEAST, _MOST = 1e-2, 1e2  # times the limit: points outside are drawn at the edge


def score_strips(rows: Mapping[str, Sequence[tuple[float, str, str]]]) -> Figure:
    """Plot the scores of each check as a row of points, relative to its limit, which is a line at 1.

    Args:
        rows: by check, the scores divided by their limits, with verdict and hover text.
    """
    figure = new_figure()
    names = list(rows)
    for verdict, colour in _VERDICT_COLOURS.items():
        points = [(ratio, place, text) for place, name in enumerate(names) for ratio, kind, text in rows[name]
                  if kind == verdict]  # fmt: skip
        if points:
            figure.add_scatter(
                x=np.clip([ratio for ratio, *_ in points], _LEAST, _MOST),
                y=np.array([place for _, place, _ in points]) + _spread_offsets(len(points)),
                mode="markers",
                name=verdict,
                marker={"color": colour, "size": 5 if verdict == "good" else 7, "opacity": 0.75},
                text=[text for *_, text in points],
                hovertemplate="%{text}<extra></extra>",
            )
    figure.add_vline(x=1.0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(type="log", title_text="figure / limit", range=[np.log10(_LEAST) - 0.1, np.log10(_MOST) + 0.1])
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, autorange="reversed", zeroline=False)
    set_layout(figure, height=110 + 26 * len(names))
    return figure


def _spread_offsets(count: int) -> NDArray[np.float64]:
    """Return evenly spread offsets ``(count,)``, which are the same in every call."""
    return np.asarray(_WIDTH * (2 * ((np.arange(count) * 0.6180339887) % 1) - 1), dtype=np.float64)


_COLOURS = (ORANGE, BLUE, GREEN, VIOLET, GREY)
_HEIGHT = 320


def loss_curve(steps: Sequence[int], losses: Sequence[float]) -> Figure:
    """Plot the mean training loss up to each of the steps, on a logarithmic axis."""
    figure = new_figure()
    figure.add_scatter(
        x=list(steps), y=list(losses), mode="lines+markers", marker={"size": 5}, line={"color": INK, "width": 1.6},
        hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="training loss", type="log")
    set_layout(figure, height=_HEIGHT)
    return figure


def error_curves(steps: Sequence[int], errors: Mapping[str, Sequence[float]], *, unit: str, kept: int | None) -> Figure:
    """Plot the held-out action error at each evaluation, a line per source.

    Args:
        steps: training steps of the evaluations.
        errors: errors at these steps, by source.
        unit: unit of the errors.
        kept: the step whose weights became the policy.
    """
    figure = new_figure()
    for place, (source, values) in enumerate(errors.items()):
        figure.add_scatter(
            x=list(steps), y=list(values), mode="lines+markers", name=source, marker={"size": 5},
            line={"color": _COLOURS[place % len(_COLOURS)], "width": 1.6},
            hovertemplate=f"{source}, step %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    if kept is not None:
        figure.add_vline(x=kept, line={"color": GREY, "dash": "dot", "width": 1.4})
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"error / {unit}", rangemode="tozero")
    set_layout(figure, height=_HEIGHT)
    return figure
