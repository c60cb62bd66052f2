"""Plot real against simulated readings: spectra, Allan deviations, and differences between camera images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, format_axis_title, new_figure, new_panels, set_layout
from twinloop.stats import AllanCurve, Spectrum

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


Array = NDArray[np.float64]
_SIDES = (("real", INK), ("simulated", ORANGE))
_BAND = 0.25  # opacity of the band that contains the middle half of the episodes


def plot_spectra_pair(real: Sequence[Spectrum | None], sim: Sequence[Spectrum | None], unit: str) -> Figure:
    """Plot the power spectral densities of real and simulated readings.

    The line is the median over episodes, and the band contains the middle half of the episodes.

    Args:
        real: Spectrum of each real episode; None if an episode is too short.
        sim: Spectrum of each simulated episode; None if an episode is too short.
        unit: Unit of the readings.
    """
    figure = new_figure()
    for (name, colour), spectra in zip(_SIDES, (real, sim), strict=True):
        known = [found for found in spectra if found is not None]
        if not known:
            continue
        grid = max((found.frequency for found in known), key=len)
        table = np.array([np.interp(grid, found.frequency, found.density) for found in known])
        low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], axis=0)
        _add_band(figure, grid, low, high, colour)
        figure.add_scatter(
            x=grid, y=middle, mode="lines", name=name, line={"color": colour, "width": 1.6},
            hovertemplate=f"{name}<br>%{{x:.3g}} Hz<br>%{{y:.3g}} {_square_unit(unit)}/Hz<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="frequency / Hz")
    figure.update_yaxes(type="log", title_text=f"density / ({_square_unit(unit)}/Hz)", exponentformat="power")
    set_layout(figure, height=320)
    return figure


def plot_allan_pair(real: AllanCurve | None, sim: AllanCurve | None, unit: str) -> Figure:
    """Plot the Allan deviations of real and simulated readings at rest, with intervals.

    Args:
        real: Curve of the real log; None if it has no sufficiently long interval at rest.
        sim: Curve of the simulated log; None if it has no sufficiently long interval at rest.
        unit: Unit of the readings.
    """
    figure = new_figure()
    for (name, colour), curve in zip(_SIDES, (real, sim), strict=True):
        if curve is None:
            continue
        _add_band(figure, curve.time, curve.deviation.low, curve.deviation.high, colour)
        figure.add_scatter(
            x=curve.time, y=curve.deviation.estimate, mode="lines", name=name, line={"color": colour, "width": 1.6},
            customdata=np.stack([curve.deviation.low, curve.deviation.high], axis=-1),
            hovertemplate=f"{name}<br>%{{x:.3g}} s<br>%{{y:.3g}} [%{{customdata[0]:.3g}}, %{{customdata[1]:.3g}}] "
            f"{unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="averaging time / s")
    figure.update_yaxes(type="log", title_text=format_axis_title("Allan deviation", unit), exponentformat="power")
    set_layout(figure, height=320)
    return figure


def _square_unit(unit: str) -> str:
    """Return a unit's square, in brackets for a compound unit."""
    return f"{unit}²" if unit.isalpha() else f"({unit})²"


def _add_band(figure: Figure, x: Array, low: Array, high: Array, colour: str) -> None:
    figure.add_scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=BLUE if colour == INK else colour,
        opacity=_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )


_RED = "#d0473f"
_SHADE = [[0.0, "rgba(255,255,255,0)"], [0.35, "rgba(255,210,60,0.30)"], [1.0, "rgba(215,30,30,0.65)"]]


def plot_region_maps(
    images: Sequence[NDArray[np.uint8]], titles: Sequence[str], separation: Array, hover: NDArray[np.str_]
) -> Figure:
    """Plot heat maps over camera images: how well each region alone distinguishes real from simulated images.

    Args:
        images: Image of each panel, shape ``(height, width, 3)``.
        titles: Titles of the panels.
        separation: Distance between the scores of real and simulated images in standard deviations, shape ``(rows,
            columns)`` for a grid of regions, first row at the top; 0 is transparent.
        hover: Hover text of each region.
    """
    figure = new_panels(1, len(images), subplot_titles=list(titles), horizontal_spacing=0.02)
    rows, columns = separation.shape
    most = max(2.0, float(np.quantile(separation, 0.98)))
    for number, image in enumerate(images, start=1):
        height, width = image.shape[:2]
        figure.add_image(source=_encode_data_uri(image), row=1, col=number, hoverinfo="skip")
        figure.add_heatmap(
            z=separation,
            x=(np.arange(columns) + 0.5) * width / columns,
            y=(np.arange(rows) + 0.5) * height / rows,
            zmin=0.0,
            zmax=most,
            colorscale=_SHADE,
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            showscale=number == len(images),
            colorbar={"title": "distance / sd", "thickness": 10, "outlinewidth": 0},
            row=1,
            col=number,
        )
        figure.update_xaxes(visible=False, range=[0, width], row=1, col=number)
        figure.update_yaxes(
            visible=False, range=[height, 0], scaleanchor=f"x{number if number > 1 else ''}", row=1, col=number
        )
    set_layout(figure, height=330)
    return figure


def plot_tone_quantiles(quantiles: Array, real: Array, sim: Array, corrected: Array | None = None) -> Figure:
    """Plot pixel values of real images (vertical) against those of simulated images at equal quantiles, by colour.

    Args:
        quantiles: Probabilities from 0 to 1, shape ``(q,)``.
        real: Pixel values of real images from 0 to 1, shape ``(3, q)`` for red, green and blue.
        sim: Pixel values of simulated images, same shape.
        corrected: Pixel values of simulated images with all corrections applied, same shape; None for none.
    """
    figure = new_figure()
    figure.add_scatter(
        x=[0, 255], y=[0, 255], mode="lines", line={"color": GREY, "dash": "dot"}, name="equal", hoverinfo="skip"
    )
    for colour, shade, row in zip(("red", "green", "blue"), (_RED, GREEN, BLUE), range(3), strict=True):
        for name, values, dash in (("", sim, "solid"), (" with all remedies", corrected, "dash")):
            if values is None:
                continue
            figure.add_scatter(
                x=255 * values[row],
                y=255 * real[row],
                mode="lines+markers",
                line={"color": shade, "dash": dash},
                marker={"size": 5, "symbol": "circle" if dash == "solid" else "circle-open"},
                name=colour + name,
                text=[f"quantile {q:.2f}" for q in quantiles],
                hovertemplate="%{text}: simulated %{x:.1f}, real %{y:.1f}<extra>" + colour + name + "</extra>",
            )
    figure.update_xaxes(title="simulated value, of 255", range=[0, 260])
    figure.update_yaxes(title="real value, of 255", range=[0, 260])
    set_layout(figure, height=420)
    return figure


def plot_permutation_histogram(observed: float, low: float, high: float, permuted: Array, *, name: str) -> Figure:
    """Plot an observed distance with its interval over its distribution under the null hypothesis (a permutation test).

    Args:
        observed: The distance between real and simulated data.
        low: Lower limit of its interval.
        high: Upper limit of its interval.
        permuted: Distances after the labels real and simulated are permuted between episodes, shape
            ``(npermutation,)``.
        name: Name of the distance, the title of the axis.
    """
    figure = new_figure()
    figure.add_histogram(
        x=permuted,
        nbinsx=40,
        marker={"color": GREY},
        name="permuted labels",
        hovertemplate="%{x}: %{y}<extra></extra>",
    )
    top = float(np.histogram(permuted, bins=40)[0].max())
    figure.add_scatter(
        x=[observed],
        y=[top / 2],
        mode="markers",
        marker={"color": ORANGE, "size": 11, "symbol": "diamond"},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(high - observed, 0)],
            "arrayminus": [max(observed - low, 0)],
            "color": ORANGE,
            "thickness": 2,
        },
        name="observed, with its interval",
        hovertemplate=f"{observed:.4g} [{low:.4g}, {high:.4g}]<extra>observed</extra>",
    )
    figure.update_xaxes(title=name)
    figure.update_yaxes(title="permutations")
    set_layout(figure, height=300)
    return figure


def plot_episode_scores(real: Array, sim: Array, real_names: Sequence[str], sim_names: Sequence[str]) -> Figure:
    """Plot the mean held-out score of every episode from a classifier that distinguishes real from simulated data.

    An episode with a score above 0 is classified as real.

    Args:
        real: Scores of the real episodes in standard deviations.
        sim: Scores of the simulated episodes.
        real_names: Names of the real episodes, for hover texts.
        sim_names: Names of the simulated episodes.
    """
    figure = new_figure()
    for label, values, names, colour in (("real", real, real_names, BLUE), ("simulated", sim, sim_names, ORANGE)):
        figure.add_scatter(
            x=values,
            y=[label] * len(values),
            mode="markers",
            marker={"color": colour, "size": 9, "opacity": 0.65},
            name=label,
            text=list(names),
            hovertemplate="%{text}: %{x:.2f}<extra>" + label + "</extra>",
            showlegend=False,
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="score in standard deviations; above 0 it is classified as real")
    set_layout(figure, height=190)
    return figure


def _encode_data_uri(image: NDArray[np.uint8]) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
