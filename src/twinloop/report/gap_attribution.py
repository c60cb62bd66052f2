"""Plot why and where a twin errs: shares of the error by group, sensitivity indices, events, states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError
from twinloop.report.figure import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    VIOLET,
    interval_bars,
    new_figure,
    new_panels,
    require_length,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_ROW, _FRAME, _BETWEEN = 22, 90, 46  # px


def share_panels(
    panels: Sequence[str],
    names: Sequence[Sequence[str]],
    shares: Sequence[ArrayLike],
    ends: Sequence[tuple[ArrayLike, ArrayLike]],
    claimed: Sequence[Sequence[bool]],
    *,
    rest: str = "",
    columns: int = 2,
) -> Figure:
    """Plot a panel for each channel with a bar for each cause: its share in per cent, with its interval.

    Args:
        panels: titles of the panels.
        names: names of each panel's causes, from the top.
        shares: shares of each panel's causes, as fractions of 1.
        ends: lower and upper limits of their intervals.
        claimed: which of them differ significantly from 0; the others are grey, and those that add error orange.
        rest: the name of the unexplained part, drawn violet.
        columns: number of panels per row.

    Raises:
        InputError: lists of different lengths.
    """
    if not len(panels) == len(names) == len(shares) == len(ends) == len(claimed):
        raise InputError(f"{len(panels)} panels were given {len(names)} lists of names and {len(shares)} of shares.")
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    depth = [max(len(n) for n in names[line * columns : (line + 1) * columns]) for line in range(lines)]
    height = [_ROW * (rows + 1) for rows in depth]
    plotted = sum(height) + _BETWEEN * (lines - 1)
    figure = new_panels(
        lines,
        columns,
        subplot_titles=list(panels),
        row_heights=height,
        horizontal_spacing=0.5 / columns,  # space for the names of groups
        vertical_spacing=_BETWEEN / plotted if lines > 1 else 0.0,
    )
    for number in range(len(panels)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        _add_bars(figure, names[number], shares[number], ends[number], claimed[number], rest, place)
        axis = {"autorange": "reversed", "showgrid": False, "categoryorder": "array"}
        figure.update_yaxes(axis | {"categoryarray": list(names[number])}, row=place["row"], col=place["col"])
    figure.update_layout(showlegend=False)
    set_layout(figure, height=_FRAME + plotted)
    figure.update_xaxes(zeroline=True, ticksuffix=" %")  # after the layout, which has no lines at zero
    return figure


def _add_bars(
    figure: Figure,
    names: Sequence[str],
    shares: ArrayLike,
    ends: tuple[ArrayLike, ArrayLike],
    claimed: Sequence[bool],
    rest: str,
    place: dict[str, int],
) -> None:
    percent = 100 * np.asarray(shares, dtype=float)
    low, high = (100 * np.asarray(end, dtype=float) for end in ends)
    rows = zip(names, claimed, percent, strict=True)
    colours = [VIOLET if n == rest else GREY if not told else BLUE if v > 0 else ORANGE for n, told, v in rows]
    figure.add_bar(
        x=percent,
        y=list(names),
        orientation="h",
        marker={"color": colours, "opacity": [0.9 if told else 0.5 for told in claimed]},
        error_x=interval_bars(percent, (low, high), INK) if np.isfinite(low).all() else {"visible": False},
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{y}: %{x:.1f} % (%{customdata[0]:.1f} to %{customdata[1]:.1f})<extra></extra>",
        **place,
    )


def index_matrix(
    groups: Sequence[str], channels: Sequence[str], total: ArrayLike, words: Sequence[Sequence[str]]
) -> Figure:
    """Plot total Sobol' indices as a heat map: a row for each group, a column for each channel, darker for larger ones.

    Args:
        groups: names of the rows.
        channels: names of the columns.
        total: indices ``(ngroup, nchannel)``; NaN without any effect.
        words: hover texts, by row and column.
    """
    figure = new_figure()
    values = np.asarray(total, dtype=float)
    figure.add_heatmap(
        z=values,
        x=list(channels),
        y=list(groups),
        zmin=0,
        zmax=1,
        xgap=2,
        ygap=2,
        customdata=np.array(words, dtype=object),
        hovertemplate="%{y} on %{x}: %{customdata}<extra></extra>",
        text=[["" if np.isnan(v) else f"{v:.2f}" for v in row] for row in values],
        texttemplate="%{text}",
        colorscale=[[0, "rgba(63,127,214,0.04)"], [1, "rgba(63,127,214,1)"]],
        colorbar={"title": "total index", "thickness": 10, "outlinewidth": 0},
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    set_layout(figure, height=_FRAME + 30 + (_ROW + 6) * len(groups))
    return figure


_ROW_OF_EVENTS, _FRAME_OF_EVENTS = 26, 90  # px


def share_bars(channels: Sequence[str], shares: Mapping[str, ArrayLike]) -> Figure:
    """Plot stacked shares of the error by channel, in per cent; at most three parts, in the given order."""
    figure = new_figure()
    for (name, values), colour in zip(shares.items(), (BLUE, ORANGE, GREY), strict=False):
        percent = 100 * require_length(values, len(channels), name)
        figure.add_bar(
            x=percent,
            y=list(channels),
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.2f} % " + name + "<extra></extra>",
        )
    figure.update_layout(barmode="relative", bargap=0.35)
    figure.update_xaxes(title_text="share of the mean squared error / %")
    figure.update_yaxes(autorange="reversed")
    set_layout(figure, height=_FRAME_OF_EVENTS + _ROW_OF_EVENTS * len(channels))
    return figure


def share_forest(
    names: Sequence[str],
    estimates: ArrayLike,
    interval: tuple[ArrayLike, ArrayLike],
    found: Sequence[bool],
    *,
    title: str,
    null: float,
    words: Sequence[str],
) -> Figure:
    """Plot estimates with their intervals, a row each; significant ones are coloured.

    Args:
        names: names of the rows.
        estimates: estimates, ``(n,)``.
        interval: both limits, ``(n,)`` each.
        found: which rows are significant.
        title: title of the axis.
        null: value without an effect.
        words: hover texts, by row.
    """
    figure, values = new_figure(), require_length(estimates, len(names), "estimates")
    low, high = (require_length(end, len(names), "an interval") for end in interval)
    for wanted, colour, label in ((True, ORANGE, "stands out"), (False, GREY, "does not")):
        rows = [row for row, stands in enumerate(found) if stands == wanted]
        if not rows:
            continue
        figure.add_scatter(
            x=values[rows],
            y=rows,
            mode="markers",
            name=label,
            marker={"color": colour, "size": 9},
            error_x=interval_bars(values[rows], (low[rows], high[rows]), colour),
            text=[words[row] for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.add_vline(x=null, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=list(names), autorange="reversed", zeroline=False)
    figure.update_xaxes(title_text=title)
    set_layout(figure, height=_FRAME_OF_EVENTS + _ROW_OF_EVENTS * len(names))
    return figure
