"""Plots of an identification: bands, priors, correlations, coverage, residuals, structures, drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError
from twinloop.report.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VIOLET,
    interval_bars,
    new_figure,
    new_panels,
    require_length,
    set_layout,
    with_unit,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW = 24  # pixels per row of dots
_BAND, _EDGE = "rgba(221,122,38,0.30)", "rgba(221,122,38,0.75)"


def predicted_band(
    time: ArrayLike,
    channels: Sequence[str],
    measured: ArrayLike,
    predicted: ArrayLike,
    half_width: ArrayLike,
    *,
    units: Sequence[str],
) -> Figure:
    """Plot a held-out clip, a panel per channel: measured, predicted, and the prediction band.

    Args:
        time: times ``(T,)`` in s.
        channels: names of ``n`` channels.
        measured: measured values, ``(T, n)``.
        predicted: predicted values, ``(T, n)``.
        half_width: half width of the band, ``(T, n)``.
        units: unit of each channel.

    Raises:
        InputError: an array has another shape.
    """
    at, n = np.asarray(time, dtype=float), len(channels)
    arrays = [np.asarray(values, dtype=float) for values in (measured, predicted, half_width)]
    for values in arrays:
        if values.shape != (len(at), n):
            raise InputError(f"A plot of {n} channels and {len(at)} frames was given values in shape {values.shape}.")
    columns = min(2, n)
    lines = -(-n // columns)
    titles = [with_unit(name, unit) for name, unit in zip(channels, units, strict=True)]
    figure = new_panels(lines, columns, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.24 / lines)
    for i in range(n):
        seen, centre, half = (values[:, i] for values in arrays)
        place = {"row": i // columns + 1, "col": i % columns + 1}
        style = {"mode": "lines", "showlegend": i == 0}
        edge = {
            **style,
            "line": {"width": 1, "color": _EDGE},
            "hoverinfo": "skip",
            "name": "range",
            "legendgroup": "range",
        }
        figure.add_scatter(x=at, y=centre + half, **{**edge, "showlegend": False}, **place)
        figure.add_scatter(x=at, y=centre - half, fill="tonexty", fillcolor=_BAND, **edge, **place)
        for name, values, line in (
            ("measured", seen, {"color": INK, "width": 1.1}),
            ("simulated", centre, {"color": BLUE, "width": 1.1, "dash": "dash"}),
        ):
            figure.add_scatter(x=at, y=values, name=name, legendgroup=name, line=line, **style, **place)
    for column in range(columns):
        figure.update_xaxes(title="time / s", row=lines, col=column + 1)
    set_layout(figure, height=110 + 165 * lines)
    return figure


def prior_and_posterior(
    names: Sequence[str], shift: ArrayLike, spread: ArrayLike, determined: Sequence[bool]
) -> Figure:
    """Plot prior and estimate of each parameter, a row each, in standard deviations of its prior.

    Args:
        names: names of ``n`` parameters.
        shift: (estimate − prior mean) / standard deviation of the prior, ``(n,)``.
        spread: standard error / standard deviation of the prior, ``(n,)``.
        determined: False for an unidentifiable parameter, which is drawn without an interval.
    """
    n = len(names)
    moved, width = require_length(shift, n, "the shifts"), require_length(spread, n, "the spreads")
    known, rows = np.asarray(determined, dtype=bool), np.arange(n, dtype=float)
    figure = new_figure()
    figure.add_scatter(
        x=np.zeros(n),
        y=rows,
        mode="markers",
        name="prior, ±1 and ±2",
        marker={"color": GREY, "size": 5},
        error_x={"type": "constant", "value": 2.0, "color": GREY, "thickness": 1.0, "width": 0},
        hoverinfo="skip",
    )
    figure.add_vrect(x0=-1, x1=1, fillcolor=GREY, opacity=0.12, line_width=0)
    for name, chosen, colour, symbol in (
        ("estimate", known, BLUE, "circle"),
        ("not determined by the data", ~known, ORANGE, "x-thin-open"),
    ):
        if not chosen.any():
            continue
        half = 1.96 * width[chosen]
        limits = (moved[chosen] - half, moved[chosen] + half) if name == "estimate" else None
        figure.add_scatter(
            x=moved[chosen],
            y=rows[chosen],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 8, "symbol": symbol, "line": {"width": 1.6, "color": colour}},
            error_x=interval_bars(moved[chosen], limits, colour),
            customdata=[name for name, shown in zip(names, chosen, strict=True) if shown],
            hovertemplate="%{customdata}: %{x:.3g} prior standard deviations<extra></extra>",
        )
    figure.update_xaxes(title="standard deviations of the prior")
    figure.update_yaxes(tickvals=rows, ticktext=list(names), range=[n - 0.4, -0.6], showgrid=False, zeroline=False)
    set_layout(figure, height=90 + _ROW * n)
    return figure


def correlation_map(names: Sequence[str], correlation: ArrayLike) -> Figure:
    """Plot correlations ``(n, n)`` of the estimates."""
    n, matrix = len(names), np.asarray(correlation, dtype=float)
    if matrix.shape != (n, n):
        raise InputError(f"A map of {n} parameters was given correlations in shape {matrix.shape}.")
    figure = new_figure()
    figure.add_heatmap(
        z=matrix,
        x=list(names),
        y=list(names),
        zmin=-1,
        zmax=1,
        colorscale=[[0, ORANGE], [0.5, "rgba(127,127,127,0.06)"], [1, BLUE]],
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate="%{y}, %{x}: %{z:.2f}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(tickangle=-60, showgrid=False)
    set_layout(figure, height=220 + 17 * n)
    return figure


def profile_curves(
    names: Sequence[str],
    units: Sequence[str],
    values: Sequence[ArrayLike],
    rises: Sequence[ArrayLike],
    limits: Sequence[float],
) -> Figure:
    """Plot the rise of the loss with one parameter fixed at other values: a panel per profile, its limit a dotted line.

    Args:
        names: names of ``n`` parameters.
        units: unit of each parameter.
        values: values at which the parameter was fixed, ``(k,)`` each, ascending.
        rises: rise of the loss there in units of t², ``(k,)`` each.
        limits: the rise that bounds the interval, one per parameter.
    """
    n, columns = len(names), min(2, len(names))
    lines = -(-n // columns)
    figure = new_panels(lines, columns, subplot_titles=list(names), vertical_spacing=0.4 / lines)
    for i, (held, rise, limit) in enumerate(zip(values, rises, limits, strict=True)):
        at = np.asarray(held, dtype=float)
        place = {"row": i // columns + 1, "col": i % columns + 1}
        style = {"showlegend": i == 0, "mode": "lines"}
        figure.add_scatter(
            x=at,
            y=require_length(rise, len(at), f"the profile of {names[i]}"),
            name="rise of the loss",
            **{**style, "mode": "lines+markers"},
            line={"color": BLUE, "width": 1.8},
            marker={"size": 6},
            hovertemplate=f"%{{x:.4g}} {units[i]}: %{{y:.3g}}<extra></extra>",
            **place,
        )
        line = {"color": INK, "width": 1, "dash": "dot"}
        figure.add_scatter(x=at[[0, -1]], y=[limit, limit], name="limit of the interval", line=line, **style, **place)
        figure.update_xaxes(title=units[i], row=place["row"], col=place["col"])
        figure.update_yaxes(
            title="rise / t²", title_font_size=12, rangemode="tozero", row=place["row"], col=place["col"]
        )
    set_layout(figure, height=100 + 220 * lines)
    return figure


def coverage_curve(
    levels: ArrayLike, plain: ArrayLike, calibrated: ArrayLike, low: ArrayLike, high: ArrayLike
) -> Figure:
    """Plot the observed over the nominal coverage of test clips, ``(k,)`` each, with the 95 % band for their number."""
    at = np.asarray(levels, dtype=float)
    k = len(at)
    figure = new_figure()
    edge = {"mode": "lines", "line": {"width": 0, "shape": "hvh"}, "hoverinfo": "skip"}
    figure.add_scatter(x=at, y=require_length(high, k, "the upper ends"), showlegend=False, **edge)
    figure.add_scatter(
        x=at,
        y=require_length(low, k, "the lower ends"),
        fill="tonexty",
        fillcolor="rgba(138,144,153,0.22)",
        name="95 % of such tests, if calibrated",
        **edge,
    )
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="nominal", line={"color": INK, "dash": "dot", "width": 1})
    for name, values, colour in (("as fitted", plain, GREY), ("calibrated", calibrated, BLUE)):
        figure.add_scatter(
            x=at,
            y=require_length(values, k, name),
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 1.8},
            marker={"size": 6},
            hovertemplate=f"{name}: %{{y:.0%}} at nominal %{{x:.0%}}<extra></extra>",
        )
    figure.update_xaxes(title="nominal", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title="test clips inside", title_font_size=12, range=[0, 1.03], tickformat=".0%")
    set_layout(figure, height=380)
    return figure


def residual_correlation(lags_s: ArrayLike, correlation: ArrayLike, channels: Sequence[str], white: float) -> Figure:
    """Plot the autocorrelation of the residual, by channel.

    Args:
        lags_s: lags ``(k,)`` in s.
        correlation: autocorrelations, ``(k, n)``.
        channels: names of ``n`` channels.
        white: half width of the 95 % band of white noise.
    """
    table, n = np.asarray(correlation, dtype=float), len(channels)
    lags = require_length(lags_s, len(table), "the lags")
    figure = new_figure()
    figure.add_hrect(y0=-white, y1=white, fillcolor=GREY, opacity=0.2, line_width=0)
    colours = [BLUE, ORANGE, GREEN, GREY, VIOLET, INK]
    for i in range(n):
        figure.add_scatter(
            x=lags,
            y=table[:, i],
            mode="lines",
            name=channels[i],
            line={"color": colours[i % len(colours)], "width": 1.6, "dash": "solid" if i < len(colours) else "dot"},
        )
    figure.update_xaxes(title="lag / s", rangemode="tozero")
    figure.update_yaxes(title="autocorrelation", title_font_size=12, range=[-1.02, 1.02])
    figure.update_layout(showlegend=True)
    set_layout(figure, height=340)
    return figure


def structure_gains(
    names: Sequence[str], gain: ArrayLike, low: ArrayLike, high: ArrayLike, missing: Sequence[bool]
) -> Figure:
    """Plot the held-out improvement ``(n,)`` of every structure with its interval; missing physics in full colour."""
    n = len(names)
    values, lows, highs = (require_length(v, n, "the improvements") for v in (gain, low, high))
    said, rows, figure = np.asarray(missing, dtype=bool), np.arange(n, dtype=float), new_figure()
    for name, chosen, colour in (("missing, or needed", said, BLUE), ("buys nothing or unclear", ~said, GREY)):
        if not chosen.any():
            continue
        figure.add_scatter(
            x=values[chosen],
            y=rows[chosen],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 10},
            error_x=interval_bars(values[chosen], (lows[chosen], highs[chosen]), colour),
            customdata=[name for name, shown in zip(names, chosen, strict=True) if shown],
            hovertemplate="%{customdata}: %{x:+.1%}<extra></extra>",
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="held-out improvement", tickformat="+.0%")
    figure.update_yaxes(tickvals=rows, ticktext=list(names), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=90 + 34 * n)
    return figure


def drift_panels(
    groups: Sequence[str], names: Sequence[str], estimates: ArrayLike, errors: ArrayLike, units: Sequence[str]
) -> Figure:
    """Plot estimates ``(n, ngroup)`` over groups of episodes with 95 % intervals from ``errors``, a panel each."""
    values, spread = np.asarray(estimates, dtype=float), np.asarray(errors, dtype=float)
    n, columns = len(names), min(2, len(names))
    if values.shape != (n, len(groups)) or spread.shape != values.shape:
        raise InputError(f"A plot of {n} parameters over {len(groups)} groups was given shape {values.shape}.")
    lines = -(-n // columns)
    titles = [with_unit(name, unit) for name, unit in zip(names, units, strict=True)]
    figure = new_panels(lines, columns, subplot_titles=titles, vertical_spacing=0.4 / lines)
    for i in range(n):
        figure.add_scatter(
            x=list(groups),
            y=values[i],
            mode="lines+markers",
            showlegend=False,
            line={"color": BLUE, "width": 1.6},
            marker={"size": 8},
            error_y={"type": "data", "array": 1.96 * spread[i], "color": BLUE, "thickness": 1.4, "width": 0},
            row=i // columns + 1,
            col=i % columns + 1,
        )
    figure.update_xaxes(type="category")
    set_layout(figure, height=100 + 190 * lines)
    return figure
