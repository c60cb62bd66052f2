"""Plot scenarios: success over the size of a change, ablations of physical effects, failures over two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, make_error_bars, new_figure, require_length, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def plot_dose_response(
    doses: ArrayLike,
    rates: ArrayLike,
    ends: tuple[ArrayLike, ArrayLike],
    *,
    base: float,
    title: str,
    crossing: tuple[float, float] | None = None,
    by_ratio: bool = False,
) -> Figure:
    """Plot the success rate over the size of a change (dose), with intervals.

    A dotted line marks the success rate without the change.

    Args:
        doses: Sizes of the change in ascending order, shape ``(n,)``.
        rates: Success rates, shape ``(n,)``.
        ends: Lower and upper limits of their intervals, shape ``(n,)`` each.
        base: Success rate without the change.
        title: Title of the axis of doses.
        crossing: Two neighbouring doses between which the success rate crosses one half, drawn as a band.
        by_ratio: Whether the axis of doses is logarithmic.
    """
    at = np.asarray(doses, dtype=np.float64)
    values = require_length(rates, len(at), "rates")
    figure = new_figure()
    figure.add_hline(y=base, line={"color": GREY, "dash": "dot", "width": 1.6})
    figure.add_scatter(
        x=at,
        y=values,
        mode="lines+markers",
        name="success with the change",
        line={"color": BLUE, "width": 1.6},
        marker={"size": 9},
        error_y=make_error_bars(values, ends, BLUE),
        hovertemplate="%{x:.4g}: %{y:.2f}<extra></extra>",
    )
    figure.add_scatter(
        x=[None], y=[None], mode="lines", name="without it", line={"color": GREY, "dash": "dot", "width": 1.6}
    )
    if crossing is not None:
        figure.add_vrect(x0=crossing[0], x1=crossing[1], fillcolor=ORANGE, opacity=0.2, line_width=0)
    figure.update_xaxes(title=title, type="log" if by_ratio else "linear")
    figure.update_yaxes(title="success rate", range=[-0.06, 1.06])
    set_layout(figure, height=380)
    return figure


def plot_term_bars(
    names: Sequence[str], gain_without: ArrayLike, ends: tuple[ArrayLike, ArrayLike], loss_alone: ArrayLike
) -> Figure:
    """Plot the effect of each physical term (such as friction or latency) on the success rate, a row per term.

    Args:
        names: Names of ``n`` terms, from the top.
        gain_without: Success rate gained if the term alone is switched off, shape ``(n,)``.
        ends: Lower and upper limits of the intervals of ``gain_without``, shape ``(n,)`` each.
        loss_alone: Success rate lost if the term alone is switched on and all other terms are off, shape ``(n,)``.
    """
    n, rows, figure = len(names), np.arange(len(names)), new_figure()
    gained = require_length(gain_without, n, "differences")
    figure.add_scatter(
        x=gained,
        y=rows - 0.12,
        mode="markers",
        name="success gained without the term: the failure needs it",
        marker={"color": BLUE, "size": 10},
        error_x=make_error_bars(gained, ends, BLUE),
        hovertemplate="%{x:+.2f}<extra></extra>",
    )
    figure.add_scatter(
        x=require_length(loss_alone, n, "differences"),
        y=rows + 0.16,
        mode="markers",
        name="success lost with the term alone: it is enough",
        marker={"color": ORANGE, "size": 9, "symbol": "diamond"},
        hovertemplate="%{x:+.2f}<extra></extra>",
    )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_xaxes(title="difference of success rates", range=[-1.06, 1.06])
    figure.update_yaxes(tickvals=rows, ticktext=list(names), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=130 + 34 * n)
    return figure


def plot_failure_map(log_density_drop: NDArray[np.float64], axes: Sequence[str]) -> Any:
    """Plot a heat map of how probable the most probable failure is in each cell of two parameters' quantiles.

    Args:
        log_density_drop: ½ |z|² of the most probable failure in each cell, shape ``(n, n)``; the first axis is
            horizontal. z are the parameters, transformed to independent standard normal numbers, so ½ |z|² is the
            decrease of the log density from the centre of the distribution. NaN for a cell without a failure, which
            stays empty.
        axes: Names of both parameters.
    """
    figure, count = new_figure(), len(log_density_drop)
    places = [f"{100 * i // count}–{100 * (i + 1) // count} %" for i in range(count)]
    text = np.where(np.isnan(log_density_drop.T), "", np.char.mod("%.1f", np.nan_to_num(log_density_drop.T)))
    figure.add_heatmap(
        x=places,
        y=places,
        z=log_density_drop.T,
        text=text,
        texttemplate="%{text}",
        colorscale="OrRd_r",
        colorbar={"title": "½ z²"},
        hoverongaps=False,
    )
    figure.update_xaxes(title=f"{axes[0]}, quantile")
    figure.update_yaxes(title=f"{axes[1]}, quantile")
    set_layout(figure, height=460)
    return figure
