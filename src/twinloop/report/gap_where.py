"""Figures of where an error lives: what shares explain, which events hold more of it, on which states it depends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, fitting, interval_bars, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW, _FRAME = 26, 90  # px


def share_bars(channels: Sequence[str], shares: Mapping[str, ArrayLike]) -> Figure:
    """Stacked shares of the error by channel, in per cent; at most three parts, in the order given."""
    figure = new_figure()
    for (name, values), colour in zip(shares.items(), (BLUE, ORANGE, GREY), strict=False):
        percent = 100 * fitting(values, len(channels), name)
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
    set_layout(figure, height=_FRAME + _ROW * len(channels))
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
    """Estimates with their intervals, a row each; those that stand out are coloured.

    Args:
        names: of the rows.
        estimates: ``(n,)``.
        interval: both ends, ``(n,)`` each.
        found: which rows stand out.
        title: of the axis.
        null: where nothing would be.
        words: what to say under the cursor, by row.
    """
    figure, values = new_figure(), fitting(estimates, len(names), "estimates")
    low, high = (fitting(end, len(names), "an interval") for end in interval)
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
    set_layout(figure, height=_FRAME + _ROW * len(names))
    return figure
