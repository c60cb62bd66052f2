"""Plot metrics over several runs, scores of episodes relative to limits, and the curves of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.core.headline import HeadlineMetric
from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, make_error_bars, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def plot_history_curves(labels: Sequence[str], metrics: Sequence[HeadlineMetric]) -> Figure:
    """Plot one metric of several runs in order, with intervals; a run without the metric leaves a gap.

    Args:
        labels: Labels of the runs.
        metrics: Metric of each run; its estimate is NaN if the run does not have the metric.
    """
    values = np.array([metric.estimate for metric in metrics])
    low = np.array([metric.low for metric in metrics])
    high = np.array([metric.high for metric in metrics])
    curve = new_figure()
    curve.add_scatter(
        x=list(range(len(labels))),
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 1.6},
        marker={"size": 8},
        error_y=make_error_bars(
            values, (np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)), BLUE
        ),
        text=list(labels),
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{text}<br>%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra></extra>",
        showlegend=False,
    )
    curve.update_xaxes(tickvals=list(range(len(labels))), ticktext=list(labels), range=[-0.5, len(labels) - 0.5])
    named = next((metric for metric in metrics if np.isfinite(metric.estimate)), metrics[0])
    curve.update_yaxes(title_text=named.unit)
    set_layout(curve, height=300)
    return curve


_VERDICT_COLOURS = {"good": BLUE, "suspect": ORANGE, "bad": "#c8382f", "unknown": GREY, "unreadable": "#c8382f"}
_WIDTH = 0.3  # of a row's height: largest offset of a point
_LEAST, _MOST = 1e-2, 1e2  # times the limit: points outside are drawn at the edge


def plot_score_strips(rows: Mapping[str, Sequence[tuple[float, str, str]]]) -> Figure:
    """Plot the scores of each check as a row of points relative to the check's limit, which is a line at 1.

    Args:
        rows: Points by name of the check: score divided by the limit, verdict (such as ``good`` or ``bad``), hover
            text.
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
    figure.update_xaxes(type="log", title_text="metric / limit", range=[np.log10(_LEAST) - 0.1, np.log10(_MOST) + 0.1])
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, autorange="reversed", zeroline=False)
    set_layout(figure, height=110 + 26 * len(names))
    return figure


def _spread_offsets(count: int) -> NDArray[np.float64]:
    """Return offsets that separate points of one row, shape ``(count,)``; they are the same in every call.

    Offsets are from -0.3 to 0.3, in units of the row's height.
    """
    return np.asarray(_WIDTH * (2 * ((np.arange(count) * 0.6180339887) % 1) - 1), dtype=np.float64)


_COLOURS = (ORANGE, BLUE, GREEN, VIOLET, GREY)
_HEIGHT = 320


def plot_loss_curve(steps: Sequence[int], losses: Sequence[float]) -> Figure:
    """Plot the training loss over training steps, on a logarithmic axis.

    Args:
        steps: Training steps of the records.
        losses: Mean loss from the previous record up to each of these steps.
    """
    figure = new_figure()
    figure.add_scatter(
        x=list(steps), y=list(losses), mode="lines+markers", marker={"size": 5}, line={"color": INK, "width": 1.6},
        hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="training loss", type="log")
    set_layout(figure, height=_HEIGHT)
    return figure


def plot_learning_curves(lines: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Plot values over the iterations of a training by reinforcement, a line per name.

    Args:
        lines: Values of the iterations, by name.
        title: Title of the vertical axis.
    """
    figure = new_figure()
    for place, (name, values) in enumerate(lines.items()):
        figure.add_scatter(
            x=list(range(1, len(values) + 1)), y=list(values), mode="lines", name=name, showlegend=len(lines) > 1,
            line={"color": (INK, *_COLOURS)[place % (1 + len(_COLOURS))], "width": 1.6},
            hovertemplate=f"{name}, iteration %{{x}}: %{{y:.3g}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="iteration")
    figure.update_yaxes(title=title)
    set_layout(figure, height=_HEIGHT)
    return figure


def plot_error_curves(
    steps: Sequence[int], errors: Mapping[str, Sequence[float]], *, unit: str, policy_step: int | None
) -> Figure:
    """Plot the held-out action error at each evaluation of a training run, a line per source of data.

    Args:
        steps: Training steps of the evaluations.
        errors: Errors at these steps, by name of the source.
        unit: Unit of the errors.
        policy_step: Step whose weights became the policy, marked by a line; None for no line.
    """
    figure = new_figure()
    for place, (source, values) in enumerate(errors.items()):
        figure.add_scatter(
            x=list(steps), y=list(values), mode="lines+markers", name=source, marker={"size": 5},
            line={"color": _COLOURS[place % len(_COLOURS)], "width": 1.6},
            hovertemplate=f"{source}, step %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    if policy_step is not None:
        figure.add_vline(x=policy_step, line={"color": GREY, "dash": "dot", "width": 1.4})
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"error / {unit}", rangemode="tozero")
    set_layout(figure, height=_HEIGHT)
    return figure
