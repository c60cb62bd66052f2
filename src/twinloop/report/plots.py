"""Plot errors by joint, the channels of an episode, and estimated and drawn parameters, as plotly figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
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
    plot_range_rows,
    require_length,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CYCLE = (GREY, VIOLET, GREEN)
_SYMBOLS = ("circle-open", "diamond-open", "square-open", "triangle-up-open")
_ROW = 19  # pixels per row of dots
_BETWEEN = 58  # pixels between panels above each other: ticks and a title
_AROUND = 114  # pixels of legend, first title and last ticks, as in `set_layout`


def plot_error_by_joint(
    joints: Sequence[str],
    errors: Mapping[str, ArrayLike],
    *,
    intervals: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    target: ArrayLike | None = None,
    unit: str = "",
) -> Figure:
    """Plot the held-out error of every method at every joint as a dot, with its interval if given.

    Args:
        joints: Names of ``n`` joints, from the top.
        errors: Mean absolute errors by name of the method, shape ``(n,)``, in the order of the legend; the last method
            is blue.
        intervals: Lower and upper limits by name of the method, shape ``(n,)`` each.
        target: Target error, shape ``(n,)``, drawn as a tick across the row.
        unit: Unit of the errors.

    Raises:
        InputError: If a method has another number of values than there are joints.
    """
    n = len(joints)
    figure, rows = new_figure(), np.arange(n, dtype=float)
    gap = 0.72 / max(len(errors), 1)
    for number, (method, values) in enumerate(errors.items()):
        colour, symbol = _choose_style(number, len(errors))
        values = require_length(values, n, f"the errors of {method}")
        offset = (number - (len(errors) - 1) / 2) * gap
        figure.add_scatter(
            x=values,
            y=rows + offset,
            mode="markers",
            name=method,
            marker={"color": colour, "size": 9, "symbol": symbol, "line": {"width": 1.6, "color": colour}},
            error_x=make_error_bars(values, (intervals or {}).get(method), colour),
            customdata=list(joints),
            hovertemplate=f"%{{customdata}}, {method}: %{{x:.3g}} {unit}<extra></extra>",
        )
    if target is not None:
        figure.add_scatter(
            x=require_length(target, n, "the target"),
            y=rows,
            mode="markers",
            name="target",
            marker={
                "symbol": "line-ns",
                "size": 0.8 * _ROW * max(len(errors), 2),
                "line": {"width": 1.5, "color": INK},
            },
            hovertemplate=f"target: %{{x:.3g}} {unit}<extra></extra>",
        )
    figure.update_xaxes(title=format_axis_title("mean absolute error", unit), rangemode="tozero")
    figure.update_yaxes(tickvals=rows, ticktext=list(joints), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=90 + n * (_ROW * max(len(errors), 2) + 8))
    return figure


def plot_episode_series(
    time: ArrayLike, joints: Sequence[str], series: Mapping[str, ArrayLike], *, units: Sequence[str] | str = ""
) -> Figure:
    """Plot one episode over time, a panel per joint: commanded, measured and simulated values.

    Args:
        time: Times in s, shape ``(nframe,)``.
        joints: Names of ``n`` joints.
        series: Values by name of the line, shape ``(nframe, n)``; ``commanded`` and ``measured`` have fixed colours.
        units: One unit for all joints, or one for each.

    Raises:
        InputError: If a series has another shape.
    """
    time, n = np.asarray(time, dtype=float), len(joints)
    units = [units] * n if isinstance(units, str) else list(units)
    titles = [format_axis_title(joint, unit) for joint, unit in zip(joints, units, strict=True)]
    columns = min(2, n)
    lines = -(-n // columns)
    figure = new_panels(lines, columns, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.24 / lines)
    fixed = {"commanded": (GREY, "dot", 1.4), "measured": (INK, "solid", 1.6)}
    others = iter([ORANGE, BLUE, GREEN, VIOLET])
    for name, values in series.items():
        values = np.asarray(values, dtype=float)
        if values.shape != (len(time), n):
            raise InputError(f"Series {name} has shape {values.shape}, expected {(len(time), n)} (frames, joints).")
        colour, dash, width = fixed.get(name) or (next(others), "solid", 1.6)
        for joint in range(n):
            figure.add_scatter(
                x=time,
                y=values[:, joint],
                name=name,
                legendgroup=name,
                showlegend=joint == 0,
                mode="lines",
                line={"color": colour, "dash": dash, "width": width},
                hovertemplate=f"{name}: %{{y:.4g}} {units[joint]} at %{{x:.2f}} s<extra></extra>",
                row=joint // columns + 1,
                col=joint % columns + 1,
            )
    for column in range(columns):
        figure.update_xaxes(title="time / s", row=lines, col=column + 1)
    set_layout(figure, height=110 + 165 * lines)
    return figure


def plot_parameter_forest(
    names: Sequence[str],
    estimate: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    nominal: ArrayLike | None = None,
    units: Sequence[str] | None = None,
    determined: Sequence[bool] | None = None,
) -> Figure:
    """Plot parameter estimates with intervals and nominal values, a panel per quantity and a row per joint or object.

    Args:
        names: Parameter names such as ``joint/elbow_flex/damping``; the last part is the quantity, the rest the row.
        estimate: Estimates in each parameter's unit, shape ``(n,)``.
        low: Lower limits of the intervals, shape ``(n,)``.
        high: Upper limits of the intervals, shape ``(n,)``.
        nominal: Nominal values, shape ``(n,)``, drawn as open diamonds.
        units: Unit of each parameter.
        determined: False for an unidentifiable parameter, which is drawn faint and without an interval.
    """
    n = len(names)
    values = [require_length(item, n, "the parameters") for item in (estimate, low, high)]
    known = np.ones(n, dtype=bool) if determined is None else np.asarray(determined, dtype=bool)
    before = None if nominal is None else require_length(nominal, n, "the nominal values")
    panels = _group_by_panel(names, units)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    groups = list(panels.values())
    depths = [max(map(len, groups[line * columns : (line + 1) * columns])) * _ROW + _ROW // 2 for line in range(lines)]
    plotted = sum(depths) + (lines - 1) * _BETWEEN
    figure = new_panels(
        lines,
        columns,
        subplot_titles=list(panels),
        row_heights=depths,
        horizontal_spacing=0.24,
        vertical_spacing=_BETWEEN / plotted if lines > 1 else 0.0,
    )
    shown: set[str] = set()
    for number, rows in enumerate(panels.values()):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        labels = [_parameter_owner(names[row]) for row in rows]
        for group, members in _group_forest_rows(rows, known):
            _add_forest_dots(figure, group, members, [labels[rows.index(row)] for row in members], values, shown, place)
        if before is not None:
            marker = {"color": GREY, "symbol": "diamond-open", "size": 8, "line": {"width": 1.5}}
            _add_dots(figure, "nominal", before[rows], labels, shown, place, marker=marker)
        axis = {"autorange": "reversed", "showgrid": False, "categoryarray": labels, "categoryorder": "array"}
        figure.update_yaxes(axis, row=place["row"], col=place["col"])
    set_layout(figure, height=_AROUND + plotted)
    return figure


def plot_parameter_draws(
    names: Sequence[str],
    draws: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    units: Sequence[str] | None = None,
    bins: int = 24,
) -> Figure:
    """Plot the distribution of drawn values over each parameter's range: a row of bins, darker for more worlds.

    Args:
        names: Names of ``n`` parameters.
        draws: Drawn values, shape ``(nworld, n)``.
        low: Lower limits of the ranges, shape ``(n,)``.
        high: Upper limits of the ranges, shape ``(n,)``.
        units: Unit of each parameter.
        bins: Number of bins per range.

    Raises:
        InputError: If an array has another number of parameters than ``names``.
    """
    n = len(names)
    table = np.atleast_2d(np.asarray(draws, dtype=float))
    if table.shape[1] != n:
        raise InputError(f"The draws have {table.shape[1]} columns for {n} parameter names.")
    lows, highs = require_length(low, n, "the lower ends"), require_length(high, n, "the upper ends")
    counts = np.stack([_count_draws(table[:, i], lows[i], highs[i], bins) for i in range(n)])
    units = units or [""] * n
    ends = [f"{a:.3g} … {b:.3g} {unit}".rstrip() for a, b, unit in zip(lows, highs, units, strict=True)]
    figure = plot_range_rows(
        names,
        ends,
        counts,
        bar="worlds",
        customdata=np.repeat(
            np.array([f"{name}, {end}" for name, end in zip(names, ends, strict=True)])[:, None], bins, 1
        ),
        hovertemplate="%{customdata}: %{z} worlds<extra></extra>",
        colorscale=[[0, "rgba(63,127,214,0.04)"], [1, "rgba(63,127,214,1)"]],
    )
    figure.update_xaxes(ticktext=["low", "middle", "high"], showgrid=False)
    set_layout(figure, height=60 + 22 * n)
    return figure


def _count_draws(values: NDArray[np.float64], low: float, high: float, bins: int) -> NDArray[np.int64]:
    """Return the number of values in each bin of the range from ``low`` to ``high``, shape ``(bins,)``.

    If the range has no width, all values are in the middle bin.
    """
    if high > low:
        return np.histogram(values, bins=bins, range=(low, high))[0]
    counts = np.zeros(bins, dtype=np.int64)
    counts[bins // 2] = np.sum(values == low)
    return counts


def _group_by_panel(names: Sequence[str], units: Sequence[str] | None) -> dict[str, list[int]]:
    """Return the indices of the parameters in each panel, by title of the panel: the quantity with its unit."""
    panels: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        panels.setdefault(format_axis_title(name.rpartition("/")[2], units[i] if units else ""), []).append(i)
    return panels


def _parameter_owner(name: str) -> str:
    """Return the joint or object of a parameter, such as ``elbow_flex`` for ``joint/elbow_flex/damping``."""
    parts = name.split("/")
    return "/".join(parts[1:-1]) or parts[0]


def _group_forest_rows(rows: list[int], known: NDArray[np.bool_]) -> list[tuple[str, list[int]]]:
    groups = [("estimate", [row for row in rows if known[row]])]
    groups.append(("not determined by the data", [row for row in rows if not known[row]]))
    return [(name, members) for name, members in groups if members]


def _add_forest_dots(
    figure: Figure,
    group: str,
    members: list[int],
    labels: list[str],
    values: list[NDArray[np.float64]],
    shown: set[str],
    place: dict[str, int],
) -> None:
    estimate, low, high = (value[members] for value in values)
    known = group == "estimate"
    marker = (
        {"color": BLUE, "size": 9} if known else {"color": GREY, "size": 7, "opacity": 0.6, "symbol": "x-thin-open"}
    )
    error = make_error_bars(estimate, (low, high) if known else None, BLUE)
    _add_dots(figure, group, estimate, labels, shown, place, marker=marker, error_x=error)


def _add_dots(
    figure: Figure,
    name: str,
    values: NDArray[np.float64],
    labels: list[str],
    shown: set[str],
    place: dict[str, int],
    **style: Any,
) -> None:
    figure.add_scatter(
        x=values,
        y=labels,
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=name not in shown,
        hovertemplate=f"%{{y}}, {name}: %{{x:.4g}}<extra></extra>",
        **style,
        **place,
    )
    shown.add(name)


def _choose_style(number: int, total: int) -> tuple[str, str]:
    """Return the colour and symbol of method ``number`` (from 0) of ``total`` methods.

    The last method is a filled blue circle. If there are at least three methods, the second-to-last is an orange
    circle. All other methods have open symbols.
    """
    if number == total - 1:
        return BLUE, "circle"
    if number == total - 2 and total > 2:
        return ORANGE, "circle"
    return _CYCLE[number % 3], _SYMBOLS[number % 4]
