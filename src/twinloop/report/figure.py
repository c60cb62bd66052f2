"""Provide the common parts of all plots of a report: plotly, colours, layout, axis titles, error bars.

Colours are readable on white and on near-black. `INK` is replaced by the page's text colour when it is displayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

INK = "#010203"
BLUE, ORANGE, GREEN, GREY, VIOLET = "#3f7fd6", "#dd7a26", "#3a9d6e", "#8a9099", "#8f6fc0"


def plotly_bundle() -> str:
    """Return the JavaScript code of plotly, which a page with plots needs once.

    Raises:
        MissingDependencyError: If plotly is not installed.
    """
    _graph_objects()
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def new_figure() -> Figure:
    """Create an empty plotly figure.

    Raises:
        MissingDependencyError: If plotly is not installed.
    """
    return _graph_objects().Figure()


def new_panels(rows: int, columns: int, **options: Any) -> Figure:
    """Create a plotly figure of ``rows`` × ``columns`` panels; ``options`` are passed to plotly's ``make_subplots``.

    Raises:
        MissingDependencyError: If plotly is not installed.
    """
    _graph_objects()
    from plotly.subplots import make_subplots

    return make_subplots(rows=rows, cols=columns, **options)


def set_layout(figure: Figure, *, height: int) -> None:
    """Set the common layout of all plots with a ``height`` in pixels, in place.

    Call it after all axes are created, because it changes every axis.
    """
    titled = len(figure.layout.annotations) > 0
    legend = any(trace.name for trace in figure.data)
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 10, "t": 10 + 34 * legend + 26 * titled, "b": 44},
        font={"size": 13},
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"},
        hovermode="closest",
    )
    figure.update_xaxes(automargin=True, title_standoff=8, title_font_size=12, zeroline=False)
    figure.update_yaxes(automargin=True)
    figure.update_annotations(font_size=13)


def plot_range_rows(names: Sequence[str], ends: Sequence[str], cells: ArrayLike, *, bar: str, **style: Any) -> Figure:
    """Plot a row of coloured cells for each parameter, from the low to the high end of its range.

    Args:
        names: Names of ``n`` parameters.
        ends: Ranges of the parameters as text.
        cells: Values of the cells, which determine their colours, shape ``(n, bins)``.
        bar: Title of the colour bar.
        style: Other options of plotly's heat map.
    """
    n, bins = len(names), np.shape(cells)[-1]
    figure = new_figure()
    figure.add_heatmap(
        z=cells,
        x=(np.arange(bins) + 0.5) / bins,
        y=list(range(n)),
        zmin=0,
        ygap=3,
        xgap=1,
        colorbar={"title": bar, "thickness": 10, "outlinewidth": 0, "len": min(1.0, 200 / (30 + 22 * n))},
        **style,
    )
    text = [f"{name}   {end}" for name, end in zip(names, ends, strict=True)]
    figure.update_yaxes(tickvals=list(range(n)), ticktext=text, autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(tickvals=[0, 0.5, 1], range=[0, 1])
    return figure


def make_error_bars(
    values: NDArray[np.float64], interval: tuple[ArrayLike, ArrayLike] | None, colour: str
) -> dict[str, Any]:
    """Return plotly's options of error bars from ``values`` to both limits of an interval.

    Args:
        values: Estimates, shape ``(n,)``.
        interval: Lower and upper limits, shape ``(n,)`` each; None for invisible bars.
        colour: Colour of the bars.
    """
    if interval is None:
        return {"visible": False}
    low, high = (require_length(end, len(values), "an interval") for end in interval)
    return {
        "type": "data",
        "symmetric": False,
        "array": np.maximum(high - values, 0),
        "arrayminus": np.maximum(values - low, 0),
        "color": colour,
        "thickness": 1.6,
        "width": 0,
    }


def require_length(values: ArrayLike, count: int, what: str) -> NDArray[np.float64]:
    """Convert values to an array of ``count`` numbers.

    Raises:
        InputError: If the array has another shape; the message names it ``what``.
    """
    array = np.asarray(values, dtype=float)
    if array.shape != (count,):
        raise InputError(f"A plot of {count} rows was given {what} in shape {array.shape}.")
    return array


def format_axis_title(name: str, unit: str) -> str:
    """Return ``name / unit`` as the title of an axis, or the name alone if the quantity has no unit."""
    return f"{name} / {unit}" if unit and unit != "1" else name


def _graph_objects() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        what = f"The plots of a report need plotly ({error})."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[report]'") from error
    return go
