"""Scores of episodes: how far each check's figures lie from their limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import BLUE, GREY, INK, ORANGE, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = {"good": BLUE, "suspect": ORANGE, "bad": "#c8382f", "unknown": GREY, "unreadable": "#c8382f"}
_WIDTH = 0.3  # of a row, over which points are scattered
_LEAST, _MOST = 1e-2, 1e2  # times the limit: what lies beyond stands at the edge


def score_strips(rows: Mapping[str, Sequence[tuple[float, str, str]]]) -> Figure:
    """A row of points for each check: one figure each, in parts of its limit, which is a line at 1.

    Args:
        rows: by check, figures over their limits, their verdicts, and what a pointer shows.
    """
    figure = new_figure()
    names = list(rows)
    for verdict, colour in _COLOURS.items():
        points = [(ratio, place, text) for place, name in enumerate(names) for ratio, kind, text in rows[name]
                  if kind == verdict]  # fmt: skip
        if points:
            figure.add_scatter(
                x=np.clip([ratio for ratio, *_ in points], _LEAST, _MOST),
                y=np.array([place for _, place, _ in points]) + _scatter(len(points)),
                mode="markers",
                name=verdict,
                marker={"color": colour, "size": 5 if verdict == "good" else 7, "opacity": 0.75},
                text=[text for *_, text in points],
                hovertemplate="%{text}<extra></extra>",
            )
    figure.add_vline(x=1.0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(type="log", title_text="figure / limit", range=[np.log10(_LEAST) - 0.1, np.log10(_MOST) + 0.1])
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, autorange="reversed", zeroline=False)
    set_layout(figure, height=110 + 26 * len(names))
    return figure


def _scatter(count: int) -> NDArray[np.float64]:
    """Offsets that spread points evenly, the same every time."""
    return np.asarray(_WIDTH * (2 * ((np.arange(count) * 0.6180339887) % 1) - 1), dtype=np.float64)
