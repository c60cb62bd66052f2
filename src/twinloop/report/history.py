"""A figure over runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from twinloop.core.headline import Headline
from twinloop.report.figure import BLUE, interval_bars, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def history_curves(labels: Sequence[str], figures: Sequence[Headline]) -> Figure:
    """One figure of several runs in order, with its interval in each; a run that lacks it leaves a gap.

    Args:
        labels: of the runs.
        figures: one per run, NaN where the run lacks it.
    """
    values = np.array([figure.estimate for figure in figures])
    low = np.array([figure.low for figure in figures])
    high = np.array([figure.high for figure in figures])
    curve = new_figure()
    curve.add_scatter(
        x=list(range(len(labels))),
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 1.6},
        marker={"size": 8},
        error_y=interval_bars(
            values, (np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)), BLUE
        ),
        text=list(labels),
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{text}<br>%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra></extra>",
        showlegend=False,
    )
    curve.update_xaxes(tickvals=list(range(len(labels))), ticktext=list(labels), range=[-0.5, len(labels) - 0.5])
    named = next((figure for figure in figures if np.isfinite(figure.estimate)), figures[0])
    curve.update_yaxes(title_text=named.unit)
    set_layout(curve, height=300)
    return curve
