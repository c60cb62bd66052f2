"""Real scores against simulated ones, and gaps by condition, as plotly figures from plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, fitting, interval_bars, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Ends = tuple[ArrayLike, ArrayLike]


def score_scatter(
    policies: Sequence[str],
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_ends: Ends,
    sim_ends: Ends,
    violations: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Simulated score across, real score up, a dot per policy with both intervals.

    Args:
        policies: ``P`` names.
        real: their real scores ``(P,)``.
        sim: their simulated scores.
        real_ends: lower and upper ends of the intervals of the real scores; NaN where there is none.
        sim_ends: the same of the simulated scores.
        violations: pairs (better in reality, the other) that the simulation does not order so, joined by a line.
    """
    n, figure = len(policies), new_figure()
    real, sim = fitting(real, n, "real scores"), fitting(sim, n, "simulated scores")
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="simulation equals reality",
        line={"color": GREY, "dash": "dot", "width": 1.4},
        hoverinfo="skip",
    )
    at = {policy: number for number, policy in enumerate(policies)}
    for number, (better, worse) in enumerate(violations):
        i, j = at[better], at[worse]
        figure.add_scatter(
            x=[sim[i], sim[j]],
            y=[real[i], real[j]],
            mode="lines",
            name="wrong order",
            legendgroup="wrong order",
            showlegend=number == 0,
            line={"color": ORANGE, "width": 1.8},
            hovertemplate=f"{better} is better in reality, {worse} or neither in simulation<extra></extra>",
        )
    figure.add_scatter(
        x=sim,
        y=real,
        mode="markers+text",
        name="policies with their intervals",
        text=list(policies),
        textposition=[_place(number, sim, real) for number in range(n)],
        textfont={"color": INK, "size": 12},
        marker={"color": BLUE, "size": 10},
        error_x=interval_bars(sim, _known(sim, sim_ends), BLUE),
        error_y=interval_bars(real, _known(real, real_ends), BLUE),
        hovertemplate="%{text}: simulated %{x:.3f}, real %{y:.3f}<extra></extra>",
    )
    figure.update_xaxes(title="simulated score", range=[-0.04, 1.04])
    figure.update_yaxes(title="real score", range=[-0.08, 1.08])
    set_layout(figure, height=560)
    return figure


def gap_rows(labels: Sequence[str], values: ArrayLike, ends: Ends, *, marked: Sequence[bool], unit: str) -> Figure:
    """Simulated − real by row, with intervals; marked rows are those whose difference is shown.

    Args:
        labels: ``n`` rows, drawn from the top.
        values: ``(n,)``.
        ends: lower and upper ends ``(n,)``; NaN where there is none.
        marked: which rows stand out.
        unit: what is compared, such as ``success rate``.
    """
    n, figure = len(labels), new_figure()
    values = fitting(values, n, "differences")
    low, high = _known(values, ends)
    rows = np.arange(n)
    for chosen, colour, name in (
        (~np.asarray(marked, dtype=np.bool_), GREY, "not shown to differ"),
        (np.asarray(marked, dtype=np.bool_), ORANGE, "differs, all rows tested together"),
    ):
        if chosen.any():
            figure.add_scatter(
                x=values[chosen],
                y=rows[chosen],
                mode="markers",
                name=name,
                marker={"color": colour, "size": 10},
                error_x=interval_bars(values[chosen], (low[chosen], high[chosen]), colour),
                customdata=[text for text, kept in zip(labels, chosen, strict=True) if kept],
                hovertemplate="%{customdata}: %{x:+.3f}<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_xaxes(title=f"simulated − real {unit}", range=[-1.04, 1.04])
    figure.update_yaxes(tickvals=rows, ticktext=list(labels), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=120 + 30 * n)
    return figure


def _known(values: NDArray[np.float64], ends: Ends) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of intervals, of no width where there is none."""
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), values.shape) for end in ends)
    return np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)


def _place(number: int, sim: NDArray[np.float64], real: NDArray[np.float64]) -> Any:
    """Where a name stands: away from the dot's nearest neighbour, and inside the frame."""
    across = "left" if sim[number] > 0.75 else "right"
    others = np.hypot(sim - sim[number], real - real[number])
    others[number] = np.inf
    nearest = int(np.argmin(others)) if len(sim) > 1 else number
    return f"{'top' if real[number] >= real[nearest] else 'bottom'} {across}"
