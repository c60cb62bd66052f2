"""Plots of real and simulated clips together: a map with the holes, motion that is left alone, success by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import BLUE, GREEN, GREY, ORANGE, VIOLET, new_figure, new_panels, set_layout, with_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]
_HOLES = ("#d0473f", VIOLET, GREEN, "#b08900", "#c2519b")
_MOST_POINTS = 6000  # of a side: more make a page heavy and the map no clearer


def clip_map(
    real: Array,
    sim: Array,
    axes: tuple[str, str],
    holes: Sequence[Sequence[int]],
    uncovered: NDArray[np.bool_],
    hover: Sequence[str],
) -> Figure:
    """Real clips over simulated ones; those that are left alone are filled, in the colour of their hole.

    Args:
        real: ``(n, 2)``.
        sim: ``(m, 2)``.
        axes: what across and up are.
        holes: rows of the largest holes, which get a colour each.
        uncovered: real clips without a simulated neighbour ``(n,)``.
        hover: what is said of each real clip.
    """
    figure = new_figure()
    kept = np.random.default_rng(0).permutation(len(sim))[:_MOST_POINTS]
    figure.add_scatter(
        x=sim[kept, 0],
        y=sim[kept, 1],
        mode="markers",
        name="simulated",
        marker={"color": ORANGE, "size": 5, "opacity": 0.55},
        hoverinfo="skip",
    )
    told = np.zeros(len(real), dtype=bool)
    rows = [("real, covered", np.flatnonzero(~uncovered), BLUE, "circle-open")]
    for number, hole in enumerate(holes[: len(_HOLES)]):
        rows.append((f"hole {number + 1}", np.asarray(hole, dtype=np.intp), _HOLES[number], "diamond"))
        told[np.asarray(hole, dtype=np.intp)] = True
    rows.insert(1, ("real, other holes", np.flatnonzero(uncovered & ~told), GREY, "circle"))
    for name, chosen, colour, symbol in rows:
        if not len(chosen):
            continue
        figure.add_scatter(
            x=real[chosen, 0],
            y=real[chosen, 1],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 7, "symbol": symbol, "line": {"width": 1}},
            text=[hover[int(i)] for i in chosen],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(title=axes[0])
    figure.update_yaxes(title=axes[1])
    set_layout(figure, height=520)
    return figure


def clip_traces(time: Array, channels: Sequence[str], unit: str, real: Sequence[Array], sim: Sequence[Array]) -> Figure:
    """The clips of a hole and the simulated clips nearest to them, a panel per channel.

    Args:
        time: of the frames in s ``(nframe,)``.
        channels: ``n`` names.
        unit: of all channels.
        real: clips ``(nframe, n)`` of the hole.
        sim: the nearest simulated ones.
    """
    columns = min(3, len(channels))
    lines = -(-len(channels) // columns)
    figure = new_panels(lines, columns, subplot_titles=list(channels), vertical_spacing=0.3 / lines)
    sides = (("nearest simulated", sim, ORANGE, 0.55), ("real, in the hole", real, BLUE, 0.8))
    for number in range(len(channels)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for name, clips, colour, opacity in sides:
            for k, clip in enumerate(clips):
                figure.add_scatter(
                    x=time,
                    y=clip[:, number],
                    mode="lines",
                    name=name,
                    legendgroup=name,
                    showlegend=number == 0 and k == 0,
                    line={"color": colour, "width": 1.4},
                    opacity=opacity,
                    hovertemplate="%{y:.3g}<extra>" + name + "</extra>",
                    **place,
                )
    for column in range(columns):
        figure.update_xaxes(title="s", row=lines, col=column + 1)
    figure.update_yaxes(title=unit, col=1)
    set_layout(figure, height=90 + 190 * lines)
    return figure


def success_rows(
    name: str,
    unit: str,
    borders: Array,
    rate: Array,
    low: Array,
    high: Array,
    real_share: Array,
    sim_share: Array,
) -> Figure:
    """One parameter cut into cells: success of simulated episodes with intervals, over where episodes lie.

    Args:
        name: the parameter.
        unit: its unit.
        borders: of the cells ``(n + 1,)``.
        rate: success rates ``(n,)``, NaN where there is none.
        low: lower ends of their intervals.
        high: upper ends.
        real_share: share of real episodes in each cell, NaN where reality is not known.
        sim_share: share of simulated ones.
    """
    figure = new_figure()
    middle, width = (borders[1:] + borders[:-1]) / 2, np.diff(borders)
    for label, share, colour, shift in (("simulated", sim_share, ORANGE, 0.25), ("real", real_share, BLUE, -0.25)):
        if np.isnan(share).all():
            continue
        figure.add_bar(
            x=middle + shift * width * 0.8,
            y=share,
            width=width * 0.4,
            name=f"share of {label} episodes",
            marker={"color": colour, "opacity": 0.45},
            hovertemplate="%{y:.1%}<extra>" + label + "</extra>",
        )
    known = ~np.isnan(rate)
    figure.add_scatter(
        x=middle[known],
        y=rate[known],
        mode="markers",
        name="success rate, simulated",
        marker={"color": GREEN, "size": 9},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": (high - rate)[known],
            "arrayminus": (rate - low)[known],
            "color": GREEN,
            "thickness": 1.6,
            "width": 0,
        },
        hovertemplate="%{y:.0%}<extra>success</extra>",
    )
    figure.update_xaxes(title=with_unit(name, unit))
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    set_layout(figure, height=280)
    return figure
