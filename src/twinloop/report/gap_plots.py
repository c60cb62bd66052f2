"""Plots of how far a twin is from a log: error over the horizon, and one channel of one clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, new_figure, new_panels, set_layout, with_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]
_COLUMNS = 3
_ROW, _AROUND = 190, 110  # pixels of a row of panels, and of what stands around them
_BASELINES = (GREY, VIOLET, GREEN, GREY)
_DASHES = ("dot", "dash", "dashdot", "longdash")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Errors by horizon and channel, ``(nbin, nchannel)`` each; ``low`` and ``high`` may be NaN."""

    name: str
    estimate: Array
    low: Array
    high: Array


def error_over_horizon(
    channels: Sequence[str],
    units: Sequence[str],
    edges: Array,
    twins: Sequence[Curve],
    baselines: Sequence[Curve],
    floor: Curve | None,
) -> Figure:
    """Error against the time since a window's beginning: a panel per channel, in which bad guesses may not fit.

    Args:
        channels: ``n`` names.
        units: of each.
        edges: of the horizon's bins in s, ``(nbin + 1,)``.
        twins: drawn in colour with their intervals, the last one strongest.
        baselines: thin and broken.
        floor: how far reality is from itself; None where nothing was repeated.
    """
    columns = min(_COLUMNS, len(channels))
    rows = -(-len(channels) // columns)
    titles = [with_unit(name, unit) for name, unit in zip(channels, units, strict=True)]
    figure = new_panels(rows, columns, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=0.34 / rows)
    for number in range(len(channels)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for position, curve in enumerate(baselines):
            style = {"color": _BASELINES[position % 4], "width": 1.2, "dash": _DASHES[position % 4]}
            _line(figure, edges, curve, number, place, style, units[number])
        if floor is not None:
            _band(figure, edges, floor, number, place, INK)
            _line(figure, edges, floor, number, place, {"color": INK, "width": 1.4, "dash": "dash"}, units[number])
        for position, curve in enumerate(twins):
            colour = BLUE if position == len(twins) - 1 else ORANGE
            _band(figure, edges, curve, number, place, colour)
            _line(figure, edges, curve, number, place, {"color": colour, "width": 2.0}, units[number])
        top = _height(number, twins, baselines, floor)
        figure.update_yaxes(range=[0, top], row=place["row"], col=place["col"])
    figure.update_xaxes(rangemode="tozero")
    for column in range(1, columns + 1):
        figure.update_xaxes(title_text="time since the beginning / s", row=rows, col=column)
    set_layout(figure, height=_ROW * rows + _AROUND)
    return figure


def clip_series(times: Array, series: Mapping[str, Array], channel: str, unit: str) -> Figure:
    """One channel during one clip, measured and simulated.

    Args:
        times: ``(n,)`` in s of the episode.
        series: values ``(n,)`` by who tells them.
        channel: its name.
        unit: its unit.
    """
    figure = new_figure()
    for (name, values), colour in zip(series.items(), (INK, BLUE, ORANGE, GREEN), strict=False):
        figure.add_scatter(
            x=times, y=values, mode="lines", name=name, line={"color": colour, "width": 1.8},
            hovertemplate=f"{name}<br>%{{x:.3f}} s<br>%{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="time / s")
    figure.update_yaxes(title_text=with_unit(channel, unit))
    set_layout(figure, height=240)
    return figure


def _height(number: int, twins: Sequence[Curve], baselines: Sequence[Curve], floor: Curve | None) -> float:
    """Room for the twins, the floor and the best guess; worse guesses may leave the panel."""
    best = min(baselines, key=lambda curve: np.nanmean(curve.estimate[:, number]), default=None)
    shown = [curve for curve in (*twins, floor, best) if curve is not None]
    return 1.25 * max(float(np.nanmax([curve.estimate[:, number], curve.high[:, number]])) for curve in shown)


def _line(
    figure: Figure,
    edges: Array,
    curve: Curve,
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


def _band(figure: Figure, edges: Array, curve: Curve, number: int, place: Mapping[str, int], colour: str) -> None:
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
