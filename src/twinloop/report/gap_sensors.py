"""Spectra and Allan deviations of real and simulated readings, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import BLUE, INK, ORANGE, new_figure, set_layout, with_unit
from twinloop.stats import AllanCurve, Spectrum

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]
_SIDES = (("real", INK), ("simulated", ORANGE))
_BAND = 0.25  # of the colour, where the middle half of the episodes lies


def spectra_pair(real: Sequence[Spectrum | None], sim: Sequence[Spectrum | None], unit: str) -> Figure:
    """Median spectrum over episodes and the middle half of them, real and simulated.

    Args:
        real: of each episode; None where one is too short.
        sim: likewise.
        unit: of the readings.
    """
    figure = new_figure()
    for (name, colour), spectra in zip(_SIDES, (real, sim), strict=True):
        known = [found for found in spectra if found is not None]
        if not known:
            continue
        grid = max((found.frequency for found in known), key=len)
        table = np.array([np.interp(grid, found.frequency, found.density) for found in known])
        low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], axis=0)
        _band(figure, grid, low, high, colour)
        figure.add_scatter(
            x=grid, y=middle, mode="lines", name=name, line={"color": colour, "width": 1.6},
            hovertemplate=f"{name}<br>%{{x:.3g}} Hz<br>%{{y:.3g}} {_squared(unit)}/Hz<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="frequency / Hz")
    figure.update_yaxes(type="log", title_text=f"density / ({_squared(unit)}/Hz)", exponentformat="power")
    set_layout(figure, height=320)
    return figure


def allan_pair(real: AllanCurve | None, sim: AllanCurve | None, unit: str) -> Figure:
    """Allan deviations at rest with their intervals; None where a log has no stretch at rest that is long enough."""
    figure = new_figure()
    for (name, colour), curve in zip(_SIDES, (real, sim), strict=True):
        if curve is None:
            continue
        _band(figure, curve.time, curve.deviation.low, curve.deviation.high, colour)
        figure.add_scatter(
            x=curve.time, y=curve.deviation.estimate, mode="lines", name=name, line={"color": colour, "width": 1.6},
            customdata=np.stack([curve.deviation.low, curve.deviation.high], axis=-1),
            hovertemplate=f"{name}<br>%{{x:.3g}} s<br>%{{y:.3g}} [%{{customdata[0]:.3g}}, %{{customdata[1]:.3g}}] "
            f"{unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="averaging time / s")
    figure.update_yaxes(type="log", title_text=with_unit("Allan deviation", unit), exponentformat="power")
    set_layout(figure, height=320)
    return figure


def _squared(unit: str) -> str:
    """A unit's square, in brackets where it is made of several."""
    return f"{unit}²" if unit.isalpha() else f"({unit})²"


def _band(figure: Figure, x: Array, low: Array, high: Array, colour: str) -> None:
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
