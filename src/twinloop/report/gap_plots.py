"""Plot the error of a twin over the horizon, and the features by which simulated clips differ from real clips.

The horizon is the time since the beginning of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.report.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VIOLET,
    format_axis_title,
    make_error_bars,
    new_figure,
    new_panels,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


Array = NDArray[np.float64]
_COLUMNS = 3
_ROW, _AROUND = 190, 110  # px: height of a row of panels, and of legend and titles
_BASELINES = (GREY, VIOLET, GREEN, GREY)
_DASHES = ("dot", "dash", "dashdot", "longdash")


@dataclass(frozen=True, kw_only=True)
class ErrorCurve:
    """Errors of a twin, a baseline or the noise floor by horizon bin and channel, in the channels' units.

    Attributes:
        name: Name in the legend.
        estimate: Errors, shape ``(nbin, nchannel)``.
        low: Lower limits of their intervals, same shape; NaN if there is no interval.
        high: Upper limits of their intervals, same shape; NaN if there is no interval.
    """

    name: str
    estimate: Array
    low: Array
    high: Array


def plot_error_over_horizon(
    channels: Sequence[str],
    units: Sequence[str],
    edges: Array,
    twins: Sequence[ErrorCurve],
    baselines: Sequence[ErrorCurve],
    floor: ErrorCurve | None,
) -> Figure:
    """Plot the error over the time since a window's beginning, a panel per channel; large baselines may be cut off.

    Args:
        channels: Names of ``n`` channels.
        units: Unit of each channel.
        edges: Edges of the horizon bins in s, shape ``(nbin + 1,)``.
        twins: Errors of the twins, drawn in colour with intervals; the last one is blue.
        baselines: Errors of the baselines, drawn as thin dashed lines.
        floor: Noise floor; None if no motion was repeated.
    """
    columns = min(_COLUMNS, len(channels))
    rows = -(-len(channels) // columns)
    titles = [format_axis_title(name, unit) for name, unit in zip(channels, units, strict=True)]
    figure = new_panels(rows, columns, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=0.34 / rows)
    for number in range(len(channels)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for position, curve in enumerate(baselines):
            style = {"color": _BASELINES[position % 4], "width": 1.2, "dash": _DASHES[position % 4]}
            _add_line(figure, edges, curve, number, place, style, units[number])
        if floor is not None:
            _add_band(figure, edges, floor, number, place, INK)
            _add_line(figure, edges, floor, number, place, {"color": INK, "width": 1.4, "dash": "dash"}, units[number])
        for position, curve in enumerate(twins):
            colour = BLUE if position == len(twins) - 1 else ORANGE
            _add_band(figure, edges, curve, number, place, colour)
            _add_line(figure, edges, curve, number, place, {"color": colour, "width": 2.0}, units[number])
        top = _compute_axis_end(number, twins, baselines, floor)
        figure.update_yaxes(range=[0, top], row=place["row"], col=place["col"])
    figure.update_xaxes(rangemode="tozero")
    for column in range(1, columns + 1):
        figure.update_xaxes(title_text="time since the beginning / s", row=rows, col=column)
    set_layout(figure, height=_ROW * rows + _AROUND)
    return figure


def plot_clip_series(times: Array, series: Mapping[str, Array], channel: str, unit: str) -> Figure:
    """Plot one channel during one clip, for example measured and simulated.

    Args:
        times: Times in s since the beginning of the episode, shape ``(n,)``.
        series: Values by name of the line, shape ``(n,)`` each; at most four lines.
        channel: Name of the channel.
        unit: Unit of the channel.
    """
    figure = new_figure()
    for (name, values), colour in zip(series.items(), (INK, BLUE, ORANGE, GREEN), strict=False):
        figure.add_scatter(
            x=times, y=values, mode="lines", name=name, line={"color": colour, "width": 1.8},
            hovertemplate=f"{name}<br>%{{x:.3f}} s<br>%{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="time / s")
    figure.update_yaxes(title_text=format_axis_title(channel, unit))
    set_layout(figure, height=240)
    return figure


def _compute_axis_end(
    number: int, twins: Sequence[ErrorCurve], baselines: Sequence[ErrorCurve], floor: ErrorCurve | None
) -> float:
    """Return the upper end of a panel's axis, so that the twins, the noise floor and the best baseline are visible.

    ``number`` is the index of the channel.
    """
    best = min(baselines, key=lambda curve: np.nanmean(curve.estimate[:, number]), default=None)
    shown = [curve for curve in (*twins, floor, best) if curve is not None]
    return 1.25 * max(float(np.nanmax([curve.estimate[:, number], curve.high[:, number]])) for curve in shown)


def _add_line(
    figure: Figure,
    edges: Array,
    curve: ErrorCurve,
    number: int,
    place: Mapping[str, int],
    style: Mapping[str, object],
    unit: str,
) -> None:
    ends = np.stack([curve.low[:, number], curve.high[:, number]], axis=-1)
    interval = "" if np.isnan(ends).all() else " [%{customdata[0]:.4g}, %{customdata[1]:.4g}]"
    figure.add_scatter(
        x=edges[1:],
        y=curve.estimate[:, number],
        mode="lines",
        name=curve.name,
        legendgroup=curve.name,
        showlegend=number == 0,
        line=dict(style),
        customdata=ends,
        hovertemplate=f"{curve.name}<br>%{{x:.3g}} s<br>%{{y:.4g}}{interval} {unit}<extra></extra>",
        **place,
    )


def _add_band(
    figure: Figure, edges: Array, curve: ErrorCurve, number: int, place: Mapping[str, int], colour: str
) -> None:
    low, high = curve.low[:, number], curve.high[:, number]
    known = ~(np.isnan(low) | np.isnan(high))
    if not known.any():
        return
    at = edges[1:][known]
    figure.add_scatter(
        x=np.concatenate([at, at[::-1]]),
        y=np.concatenate([high[known], low[known][::-1]]),
        fill="toself",
        fillcolor=GREY if colour == INK else colour,
        opacity=0.22,
        line={"width": 0},
        hoverinfo="skip",
        legendgroup=curve.name,
        showlegend=False,
        **place,
    )


_FEATURE_ROW = 22
_BINS = 30


def plot_group_auc(
    names: Sequence[str], auc: ArrayLike, low: ArrayLike, high: ArrayLike, significant: Sequence[bool]
) -> Figure:
    """Plot how well each group of features alone distinguishes simulated from real clips.

    Args:
        names: Names of ``n`` groups of features.
        auc: Area under the ROC curve of each group, shape ``(n,)``; 0.5, marked by a line, is chance.
        low: Lower limits of the intervals, shape ``(n,)``.
        high: Upper limits of the intervals, shape ``(n,)``.
        significant: Whether each group distinguishes significantly.
    """
    figure, separable = new_figure(), np.asarray(significant, dtype=bool)
    values, ends = np.asarray(auc, dtype=float), (np.asarray(low, dtype=float), np.asarray(high, dtype=float))
    for label, rows, colour in (("distinguishable", separable, ORANGE), ("not distinguishable", ~separable, GREY)):
        if not rows.any():
            continue
        figure.add_scatter(
            x=values[rows],
            y=[name for name, row in zip(names, rows, strict=True) if row],
            mode="markers",
            name=label,
            marker={"color": colour, "size": 10},
            error_x=make_error_bars(values[rows], (ends[0][rows], ends[1][rows]), colour),
            customdata=np.stack([ends[0][rows], ends[1][rows]], axis=-1),
            hovertemplate="%{y}: %{x:.2f} [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>",
        )
    figure.add_vline(x=0.5, line={"color": INK, "dash": "dot", "width": 1})
    figure.update_xaxes(title="area under the curve, features of this group alone", range=[0, 1.02])
    figure.update_yaxes(categoryorder="array", categoryarray=list(names), autorange="reversed", showgrid=False)
    set_layout(figure, height=100 + _FEATURE_ROW * len(names))
    return figure


def plot_feature_map(channels: Sequence[str], kinds: Sequence[str], effect: ArrayLike, hover: ArrayLike) -> Figure:
    """Plot the distance between real and simulated clips in every feature as a heat map, a row per channel.

    Args:
        channels: Names of the channels.
        kinds: Kinds of features, the columns.
        effect: Wasserstein distances in standard deviations, shape ``(nchannel, nkind)``; NaN if a channel does not
            have the feature.
        hover: Hover text of each cell.
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


def plot_feature_histograms(
    titles: Sequence[str],
    units: Sequence[str],
    real: Array,
    sim: Array,
    *,
    names: tuple[str, str] = ("real", "simulated"),
) -> Figure:
    """Plot histograms of a few features for real and simulated clips, a panel per feature.

    Args:
        titles: Titles of ``k`` features.
        units: Units of the features.
        real: Values of the real clips, shape ``(n, k)``.
        sim: Values of the simulated clips, shape ``(m, k)``.
        names: Names of the two sets of clips.
    """
    columns = min(2, len(titles))
    lines = -(-len(titles) // columns)
    named = [format_axis_title(title, unit) for title, unit in zip(titles, units, strict=True)]
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
