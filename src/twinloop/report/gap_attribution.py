"""Plot the causes of a twin's error: shares by group of parameters, sensitivity indices, events, states."""

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
    make_error_bars,
    new_figure,
    new_panels,
    require_length,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_ROW, _FRAME, _BETWEEN = 22, 90, 46  # px


def plot_share_panels(
    panels: Sequence[str],
    names: Sequence[Sequence[str]],
    shares: Sequence[ArrayLike],
    ends: Sequence[tuple[ArrayLike, ArrayLike]],
    significant: Sequence[Sequence[bool]],
    *,
    rest: str = "",
    columns: int = 2,
) -> Figure:
    """Plot the share of each cause in a channel's error as a bar with its interval, a panel per channel.

    Args:
        panels: Titles of the panels.
        names: Names of each panel's causes, from the top.
        shares: Shares of each panel's causes, as fractions of 1; they are shown in per cent.
        ends: Lower and upper limits of the intervals of these shares.
        significant: Whether each share differs significantly from 0. Other shares are grey, and significant causes that
            add error are orange.
        rest: Name of the unexplained part, drawn violet.
        columns: Number of panels per row.

    Raises:
        InputError: If the lists have different lengths.
    """
    if not len(panels) == len(names) == len(shares) == len(ends) == len(significant):
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
        _add_bars(figure, names[number], shares[number], ends[number], significant[number], rest, place)
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
    significant: Sequence[bool],
    rest: str,
    place: dict[str, int],
) -> None:
    percent = 100 * np.asarray(shares, dtype=float)
    low, high = (100 * np.asarray(end, dtype=float) for end in ends)
    rows = zip(names, significant, percent, strict=True)
    colours = [VIOLET if n == rest else GREY if not sure else BLUE if v > 0 else ORANGE for n, sure, v in rows]
    figure.add_bar(
        x=percent,
        y=list(names),
        orientation="h",
        marker={"color": colours, "opacity": [0.9 if sure else 0.5 for sure in significant]},
        error_x=make_error_bars(percent, (low, high), INK) if np.isfinite(low).all() else {"visible": False},
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{y}: %{x:.1f} % (%{customdata[0]:.1f} to %{customdata[1]:.1f})<extra></extra>",
        **place,
    )


def plot_index_matrix(
    groups: Sequence[str], channels: Sequence[str], total: ArrayLike, words: Sequence[Sequence[str]]
) -> Figure:
    """Plot total-order Sobol' indices as a heat map, a row per group of parameters and a column per channel.

    Args:
        groups: Names of the groups.
        channels: Names of the channels.
        total: Indices, shape ``(ngroup, nchannel)``; NaN if no group has an effect.
        words: Hover texts, by row and column.
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


def plot_share_bars(channels: Sequence[str], shares: Mapping[str, ArrayLike]) -> Figure:
    """Plot the parts of each channel's error as stacked bars in per cent.

    Args:
        channels: Names of the channels.
        shares: Shares by name of the part, as fractions of 1, shape ``(nchannel,)``; at most three parts, in the order
            of the bars.
    """
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


def plot_share_forest(
    names: Sequence[str],
    estimates: ArrayLike,
    interval: tuple[ArrayLike, ArrayLike],
    significant: Sequence[bool],
    *,
    title: str,
    null: float,
    words: Sequence[str],
) -> Figure:
    """Plot estimates with their intervals, a row each; significant estimates are coloured.

    Args:
        names: Names of ``n`` rows.
        estimates: Estimates, shape ``(n,)``.
        interval: Lower and upper limits, shape ``(n,)`` each.
        significant: Whether each row is significant.
        title: Title of the axis.
        null: Value that means no effect, marked by a line.
        words: Hover text of each row.
    """
    figure, values = new_figure(), require_length(estimates, len(names), "estimates")
    low, high = (require_length(end, len(names), "an interval") for end in interval)
    for wanted, colour, label in ((True, ORANGE, "significant"), (False, GREY, "not significant")):
        rows = [row for row, is_significant in enumerate(significant) if is_significant == wanted]
        if not rows:
            continue
        figure.add_scatter(
            x=values[rows],
            y=rows,
            mode="markers",
            name=label,
            marker={"color": colour, "size": 9},
            error_x=make_error_bars(values[rows], (low[rows], high[rows]), colour),
            text=[words[row] for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.add_vline(x=null, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=list(names), autorange="reversed", zeroline=False)
    figure.update_xaxes(title_text=title)
    set_layout(figure, height=_FRAME_OF_EVENTS + _ROW_OF_EVENTS * len(names))
    return figure
