"""Which features give simulation away, and how one is spread over real and simulated clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, interval_bars, new_figure, new_panels, set_layout, with_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]
_ROW = 22
_BINS = 30


def told_apart(
    names: Sequence[str], auc: ArrayLike, low: ArrayLike, high: ArrayLike, significant: Sequence[bool]
) -> Figure:
    """Area under the curve of each group of features alone, a dot with its interval; the line at ½ is chance."""
    figure, seen = new_figure(), np.asarray(significant, dtype=bool)
    values, ends = np.asarray(auc, dtype=float), (np.asarray(low, dtype=float), np.asarray(high, dtype=float))
    for label, rows, colour in (("told apart", seen, ORANGE), ("not told apart", ~seen, GREY)):
        if not rows.any():
            continue
        figure.add_scatter(
            x=values[rows],
            y=[name for name, row in zip(names, rows, strict=True) if row],
            mode="markers",
            name=label,
            marker={"color": colour, "size": 10},
            error_x=interval_bars(values[rows], (ends[0][rows], ends[1][rows]), colour),
            customdata=np.stack([ends[0][rows], ends[1][rows]], axis=-1),
            hovertemplate="%{y}: %{x:.2f} [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>",
        )
    figure.add_vline(x=0.5, line={"color": INK, "dash": "dot", "width": 1})
    figure.update_xaxes(title="area under the curve, features of this group alone", range=[0, 1.02])
    figure.update_yaxes(categoryorder="array", categoryarray=list(names), autorange="reversed", showgrid=False)
    set_layout(figure, height=100 + _ROW * len(names))
    return figure


def feature_map(channels: Sequence[str], kinds: Sequence[str], effect: ArrayLike, hover: ArrayLike) -> Figure:
    """How far every feature was moved, in standard deviations: a row per channel, darker where further.

    Args:
        channels: rows.
        kinds: columns.
        effect: ``(channel, kind)``; NaN where a channel has no such feature.
        hover: text of each cell.
    """
    figure = new_figure()
    figure.add_heatmap(
        z=np.asarray(effect, dtype=float),
        x=[kind.replace("_", " ") for kind in kinds],
        y=list(channels),
        zmin=0,
        zmax=max(1.0, float(np.nanmax(np.asarray(effect, dtype=float)))),
        text=hover,
        hovertemplate="%{text}<extra></extra>",
        hoverongaps=False,
        xgap=2,
        ygap=2,
        colorscale=[[0, "rgba(221,122,38,0.05)"], [1, "rgba(221,122,38,1)"]],
        colorbar={"title": "W₁ / sd", "thickness": 10, "outlinewidth": 0},
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(tickangle=-40, showgrid=False)
    set_layout(figure, height=200 + 28 * len(channels))
    return figure


def spread_pairs(
    titles: Sequence[str],
    units: Sequence[str],
    real: Array,
    sim: Array,
    *,
    names: tuple[str, str] = ("real", "simulated"),
) -> Figure:
    """Shares of real and simulated clips over the values of a few features, a panel each.

    Args:
        titles: of the features.
        units: theirs.
        real: ``(nclip, k)``.
        sim: likewise.
        names: of the two sets.
    """
    columns = min(2, len(titles))
    lines = -(-len(titles) // columns)
    named = [with_unit(title, unit) for title, unit in zip(titles, units, strict=True)]
    figure = new_panels(lines, columns, subplot_titles=named, vertical_spacing=0.3 / lines)
    for number in range(len(titles)):
        both = np.concatenate([real[:, number], sim[:, number]])
        edges = np.histogram_bin_edges(both, bins=_BINS, range=tuple(np.quantile(both, [0.005, 0.995])))
        middle = 0.5 * (edges[1:] + edges[:-1])
        for name, values, colour in zip(names, (real[:, number], sim[:, number]), (BLUE, ORANGE), strict=True):
            share = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)[0] / len(values)
            figure.add_scatter(
                x=middle,
                y=100 * share,
                mode="lines",
                name=name,
                legendgroup=name,
                showlegend=number == 0,
                line={"color": colour, "width": 1.6, "shape": "hvh"},
                fill="tozeroy",
                opacity=0.8,
                hovertemplate=f"{name}: %{{y:.1f}} % of clips at %{{x:.3g}} {units[number]}<extra></extra>",
                row=number // columns + 1,
                col=number % columns + 1,
            )
    figure.update_yaxes(title="% of clips", title_font_size=12, rangemode="tozero")
    set_layout(figure, height=90 + 220 * lines)
    return figure
