"""Plot coverage: which part of a parameter space was simulated, and which real motions have similar simulated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VIOLET,
    format_axis_title,
    new_figure,
    new_panels,
    plot_range_rows,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_BLUES = [[0, "rgba(63,127,214,0.03)"], [1, "rgba(63,127,214,1)"]]
_DECISIONS = {"widen": (GREEN, "triangle-up"), "narrow": (ORANGE, "triangle-down"), "keep": (GREY, "circle-open")}


def plot_marginal_rows(
    names: Sequence[str], ends: Sequence[str], kept: Sequence[Sequence[int]], attempted: Sequence[Sequence[int]]
) -> Figure:
    """Plot how the kept episodes are distributed over each parameter's range.

    Each parameter has a row of equally probable cells; a cell is darker if it has more episodes.

    Args:
        names: Names of ``n`` parameters.
        ends: Ranges of the parameters as text.
        kept: Number of kept episodes in each cell, a list per parameter.
        attempted: Number of attempted episodes in the same cells.
    """
    n, bins = len(names), max((len(row) for row in kept), default=1)
    place = [(np.arange(bins) * len(row) // bins).tolist() for row in kept]
    share = [np.array(row)[at] * len(row) / max(1, sum(row)) for row, at in zip(kept, place, strict=True)]
    words = [
        [f"{name}, {end}<br>{row[i]} kept of {tried[i]} attempted" for i in at]
        for name, end, row, tried, at in zip(names, ends, kept, attempted, place, strict=True)
    ]
    figure = plot_range_rows(
        names,
        ends,
        np.array(share),
        bar="× even",
        customdata=np.array(words),
        hovertemplate="%{customdata}<br>%{z:.2f} × an even share<extra></extra>",
        colorscale=_BLUES,
        zmax=2,
    )
    figure.update_xaxes(title="cumulative probability under the declared distribution")
    set_layout(figure, height=80 + 22 * n)
    return figure


def plot_pair_matrix(names: Sequence[str], fractions: Sequence[ArrayLike], expected: Sequence[ArrayLike]) -> Figure:
    """Plot for every pair of parameters the visited fraction of cells minus the expected fraction.

    The ranges of both parameters are divided into a two-dimensional grid of cells. A cell is visited if the parameters
    of a world are in it. Independent draws visit the expected fraction.

    Args:
        names: Names of ``n`` parameters.
        fractions: Visited fractions; row ``i`` pairs parameter ``i`` with every later parameter, as in `coverage.json`.
        expected: Fractions that independent draws visit, in the same form.
    """
    n = len(names)
    visited, wanted = _mirror_triangle(fractions, n), _mirror_triangle(expected, n)
    surplus = visited - wanted
    reach = max(float(np.nanmax(np.abs(surplus))), 1e-3)
    pairs = [[f"{a}<br>{b}" for b in names] for a in names]
    figure = new_figure()
    figure.add_heatmap(
        z=surplus,
        x=list(range(n)),
        y=list(range(n)),
        customdata=np.stack([np.array(pairs, dtype=object), visited, wanted], axis=-1),
        hovertemplate="%{customdata[0]}<br>%{customdata[1]:.1%} of the cells, expected %{customdata[2]:.1%}"
        "<extra></extra>",
        colorscale=[[0, ORANGE], [0.5, "rgba(138,144,153,0.12)"], [1, BLUE]],
        zmin=-reach,
        zmax=reach,
        colorbar={"title": "visited − expected", "thickness": 10, "outlinewidth": 0, "tickformat": "+.0%"},
    )
    labels = list(names) if n <= _NAMED else [""] * n
    figure.update_yaxes(
        tickvals=list(range(n)), ticktext=labels, autorange="reversed", showgrid=False, scaleanchor="x", zeroline=False
    )
    figure.update_xaxes(tickvals=list(range(n)), ticktext=labels, showgrid=False, constrain="domain", tickangle=-60)
    set_layout(figure, height=560)
    return figure


def _mirror_triangle(rows: Sequence[ArrayLike], n: int) -> NDArray[np.float64]:
    """Return a symmetric table from the rows of its upper triangle, shape ``(n, n)``, with NaN on the diagonal."""
    table = np.full((n, n), np.nan)
    for i, row in enumerate(rows):
        table[i, i + 1 :] = row
        table[i + 1 :, i] = row
    return table


_NAMED = 24  # with more parameters the names on the axes are unreadable; the hover texts have them


def plot_range_history(history: Mapping[str, Any]) -> Figure:
    """Plot the parameter ranges of adaptive randomization over episodes, a panel per parameter.

    Marks show the decisions to widen, narrow or keep a bound, which are made after every round of episodes.

    Args:
        history: Content of the file ``twinloop/adaptive.json``.
    """
    names, units, rounds = history["names"], history["units"], history["rounds"]
    columns = min(2, len(names))
    lines = -(-len(names) // columns)
    titles = [format_axis_title(name, unit) for name, unit in zip(names, units, strict=True)]
    figure = new_panels(lines, columns, subplot_titles=titles, vertical_spacing=0.28 / lines)
    ends = [item["first_episode"] for item in rounds] + [len(rounds) * history["every"]]
    shown: set[str] = set()
    for number, name in enumerate(names):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        pairs = np.array([*(item["ranges"][name] for item in rounds), history["ranges"][name]])
        _add_band(figure, ends, pairs, place)
        for side in (0, 1):
            _add_decisions(figure, history, name, side, shown, place)
    for column in range(columns):
        figure.update_xaxes(title="episode", row=lines, col=column + 1)
    set_layout(figure, height=110 + 230 * lines)
    return figure


def _add_band(figure: Figure, ends: list[int], pairs: NDArray[np.float64], place: dict[str, int]) -> None:
    for side, fill in ((0, None), (1, "tonexty")):
        figure.add_scatter(
            x=ends,
            y=pairs[:, side],
            mode="lines",
            line={"shape": "hv", "color": BLUE, "width": 1.4},
            fill=fill,
            fillcolor="rgba(63,127,214,0.14)",
            showlegend=False,
            hovertemplate="%{y:.4g} from episode %{x}<extra></extra>",
            **place,
        )


def _add_decisions(
    figure: Figure, history: Mapping[str, Any], name: str, side: int, shown: set[str], place: dict[str, int]
) -> None:
    """Mark every decision to widen, narrow or keep one bound of a parameter in adaptive randomization.

    A mark is at the end of the round (fixed number of episodes) after which the decision was made.

    Args:
        figure: Figure to change in place.
        history: Content of the file ``twinloop/adaptive.json``.
        name: Name of the parameter.
        side: 0 for the lower bound, 1 for the upper bound.
        shown: Decisions that are already in the legend; extended in place.
        place: Row and column of the panel.
    """
    index = 2 * history["names"].index(name) + side
    for decision, (colour, symbol) in _DECISIONS.items():
        rows = [
            (item["first_episode"] + history["every"], item["ranges"][name][side], item["boundaries"][index])
            for item in history["rounds"]
            if item["boundaries"][index]["decision"].partition(":")[0] == decision
        ]
        if not rows:
            continue
        figure.add_scatter(
            x=[row[0] for row in rows],
            y=[row[1] for row in rows],
            customdata=[
                f"{row[2]['success']} of {row[2]['attempted']} succeeded: {row[2]['decision']}" for row in rows
            ],
            mode="markers",
            name=decision,
            legendgroup=decision,
            showlegend=decision not in shown,
            marker={"color": colour, "symbol": symbol, "size": 8},
            hovertemplate="%{customdata}<extra></extra>",
            **place,
        )
        shown.add(decision)


Array = NDArray[np.float64]
_HOLES = ("#d0473f", VIOLET, GREEN, "#b08900", "#c2519b")
_MOST_POINTS = 6000  # per set: more points make a page large without a clearer map


def plot_clip_map(
    real: Array,
    sim: Array,
    axes: tuple[str, str],
    holes: Sequence[Sequence[int]],
    uncovered: NDArray[np.bool_],
    hover: Sequence[str],
) -> Figure:
    """Plot real clips over simulated clips in two dimensions, with the holes of the coverage.

    A hole is a region of real clips without simulated clips nearby. Uncovered clips are filled, in the colour of their
    hole.

    Args:
        real: Coordinates of the real clips, shape ``(n, 2)``.
        sim: Coordinates of the simulated clips, shape ``(m, 2)``.
        axes: Titles of the horizontal and vertical axis.
        holes: Rows of ``real`` in each of the largest holes; each hole has its own colour.
        uncovered: Mask of the real clips without a simulated neighbour, shape ``(n,)``.
        hover: Hover text of each real clip.
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
    in_hole = np.zeros(len(real), dtype=bool)
    rows = [("real, covered", np.flatnonzero(~uncovered), BLUE, "circle-open")]
    for number, hole in enumerate(holes[: len(_HOLES)]):
        rows.append((f"hole {number + 1}", np.asarray(hole, dtype=np.intp), _HOLES[number], "diamond"))
        in_hole[np.asarray(hole, dtype=np.intp)] = True
    rows.insert(1, ("real, other holes", np.flatnonzero(uncovered & ~in_hole), GREY, "circle"))
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


def plot_clip_traces(
    time: Array, channels: Sequence[str], unit: str, real: Sequence[Array], sim: Sequence[Array]
) -> Figure:
    """Plot the real clips of a coverage hole and the nearest simulated clips over time, a panel per channel.

    Args:
        time: Times of the frames in s, shape ``(nframe,)``.
        channels: Names of ``n`` channels.
        unit: Unit of all channels.
        real: Real clips of the hole, shape ``(nframe, n)`` each.
        sim: Nearest simulated clips, shape ``(nframe, n)`` each.
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


def plot_success_rows(
    name: str,
    unit: str,
    borders: Array,
    rate: Array,
    low: Array,
    high: Array,
    real_share: Array,
    sim_share: Array,
) -> Figure:
    """Plot the success rate of simulated episodes over one parameter, above the shares of real and simulated episodes.

    The range of the parameter is divided into ``n`` cells.

    Args:
        name: Name of the parameter.
        unit: Unit of the parameter.
        borders: Borders of the cells, shape ``(n + 1,)``.
        rate: Success rates, shape ``(n,)``; NaN for cells without episodes.
        low: Lower limits of their intervals, shape ``(n,)``.
        high: Upper limits of their intervals, shape ``(n,)``.
        real_share: Share of the real episodes in each cell, shape ``(n,)``; NaN if unknown.
        sim_share: Share of the simulated episodes in each cell, shape ``(n,)``.
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
    figure.update_xaxes(title=format_axis_title(name, unit))
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    set_layout(figure, height=280)
    return figure
