"""Plot scenarios: success over doses, ablations of physical effects, a map of failures over two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, interval_bars, new_figure, require_length, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def dose_response(
    doses: ArrayLike,
    rates: ArrayLike,
    ends: tuple[ArrayLike, ArrayLike],
    *,
    base: float,
    title: str,
    crossing: tuple[float, float] | None = None,
    by_ratio: bool = False,
) -> Figure:
    """Plot the success rate over the dose of a change, with intervals; a line marks the rate without the change.

    Args:
        doses: doses ``(n,)`` in ascending order.
        rates: success rates, ``(n,)``.
        ends: lower and upper limits of their intervals, ``(n,)`` each.
        base: success rate without the change.
        title: title of the axis of doses.
        crossing: the two doses between which the outcome of half of the worlds flips.
        by_ratio: whether the axis of doses is logarithmic.
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
        error_y=interval_bars(values, ends, BLUE),
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


def term_bars(names: Sequence[str], needed: ArrayLike, ends: tuple[ArrayLike, ArrayLike], enough: ArrayLike) -> Figure:
    """Plot the effect of each physical term on the success rate, a row per term, from the top.

    Args:
        names: names of ``n`` terms.
        needed: success rate gained without the term, ``(n,)``.
        ends: lower and upper limits of the intervals of ``needed``, ``(n,)`` each.
        enough: success rate lost with the term alone, ``(n,)``.
    """
    n, rows, figure = len(names), np.arange(len(names)), new_figure()
    gained = require_length(needed, n, "differences")
    figure.add_scatter(
        x=gained,
        y=rows - 0.12,
        mode="markers",
        name="success gained without the term: the failure needs it",
        marker={"color": BLUE, "size": 10},
        error_x=interval_bars(gained, ends, BLUE),
        hovertemplate="%{x:+.2f}<extra></extra>",
    )
    figure.add_scatter(
        x=require_length(enough, n, "differences"),
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


def failure_map(odds: NDArray[np.float64], axes: Sequence[str]) -> Any:
    """Plot a heat map of the improbability ½ z² of the most probable failure in each cell; NaN cells stay empty.

    Args:
        odds: ½ z² of each cell, ``(n, n)``; the first axis is horizontal.
        axes: names of both parameters.
    """
    figure, count = new_figure(), len(odds)
    places = [f"{100 * i // count}–{100 * (i + 1) // count} %" for i in range(count)]
    text = np.where(np.isnan(odds.T), "", np.char.mod("%.1f", np.nan_to_num(odds.T)))
    figure.add_heatmap(
        x=places,
        y=places,
        z=odds.T,
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
