"""Plot comparisons of policies: sequential tests, confidence sequences, power, and real against simulated scores."""

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
    make_error_bars,
    new_figure,
    require_length,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_CYCLE = (BLUE, ORANGE, GREEN, VIOLET)
_ROW = 30  # pixels per interval


def plot_wealth_curves(curves: Mapping[str, ArrayLike], *, alpha: float) -> Figure:
    """Plot the e-values of a sequential test after each pair of trials, with the line at which the test stops.

    Args:
        curves: Natural logarithms of the e-values, shape ``(npair,)``, by name of the null hypothesis.
        alpha: Significance level α; the line is at 1/α.
    """
    figure = new_figure()
    longest = 1
    for colour, (name, values) in zip(_CYCLE, curves.items(), strict=False):
        log_e = np.asarray(values, dtype=float)
        longest = max(longest, len(log_e))
        figure.add_scatter(
            x=np.arange(1, len(log_e) + 1),
            y=log_e / np.log(10),
            customdata=np.exp(np.clip(log_e, -300, 300)),
            mode="lines+markers" if len(log_e) < 80 else "lines",
            marker={"size": 4},
            line={"color": colour, "width": 2, "shape": "hv"},
            name=name,
            hovertemplate="pair %{x}: e-value %{customdata:.3g}<extra>" + name + "</extra>",
        )
    line = -np.log10(alpha)
    figure.add_scatter(
        x=[1, longest],
        y=[line, line],
        mode="lines",
        line={"color": INK, "dash": "dash", "width": 1.2},
        name=f"decision at 1/α = {1 / alpha:.3g}",
        hoverinfo="skip",
    )
    top = max(line, *(float(np.max(np.asarray(v))) / np.log(10) for v in curves.values()))
    low = min(-1.0, *(float(np.min(np.asarray(v))) / np.log(10) for v in curves.values()))
    ticks = np.arange(int(np.floor(max(low, -6))), int(np.ceil(top)) + 1)
    figure.update_yaxes(title="e-value", tickvals=ticks, ticktext=[_power_of_ten(int(t)) for t in ticks])
    figure.update_yaxes(range=[max(low, -6) - 0.2, top + 0.3])
    figure.update_xaxes(title="pairs of trials")
    set_layout(figure, height=330)
    return figure


def plot_confidence_sequence(
    low: ArrayLike, high: ArrayLike, observed: ArrayLike, *, margin: float | None = None
) -> Figure:
    """Plot the observed difference of two policies and its interval after each pair of trials.

    Args:
        low: Lower limits, shape ``(npair,)``.
        high: Upper limits, shape ``(npair,)``.
        observed: Differences of the means after each pair, shape ``(npair,)``.
        margin: Margin of equivalence, drawn as lines; None for no margin.
    """
    ends = [np.asarray(values, dtype=float) for values in (low, high, observed)]
    at = np.arange(1, len(ends[0]) + 1)
    figure = new_figure()
    figure.add_scatter(x=at, y=ends[1], mode="lines", line={"width": 0}, showlegend=False, hoverinfo="skip")
    figure.add_scatter(
        x=at,
        y=ends[0],
        mode="lines",
        line={"width": 0},
        fill="tonexty",
        fillcolor="rgba(63,127,214,0.25)",
        name="confidence sequence",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=at,
        y=ends[2],
        customdata=np.stack(ends[:2], axis=1),
        mode="lines",
        line={"color": BLUE, "width": 2},
        name="observed difference",
        hovertemplate="pair %{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
    )
    for value in (0.0,) if margin is None else (-margin, 0.0, margin):
        figure.add_hline(y=value, line={"color": INK, "width": 1, "dash": "dot" if value else "solid"})
    figure.update_yaxes(title="difference", range=[-1.02, 1.02])
    figure.update_xaxes(title="pairs of trials")
    set_layout(figure, height=330)
    return figure


def plot_interval_rows(
    names: Sequence[str],
    estimates: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    title: str,
    groups: Sequence[str] | None = None,
    margin: float | None = None,
    zero: bool = False,
) -> Figure:
    """Plot estimates with intervals as rows, for example differences of policies or scores.

    Args:
        names: Names of ``n`` rows, from the top.
        estimates: Estimates, shape ``(n,)``.
        low: Lower limits, shape ``(n,)``.
        high: Upper limits, shape ``(n,)``.
        title: Title of the axis.
        groups: Group of each row, which determines its colour.
        margin: Margin of equivalence, drawn as lines.
        zero: Whether there is a line at zero.

    Raises:
        InputError: If an array has another length than ``names``.
    """
    values = [np.asarray(x, dtype=float) for x in (estimates, low, high)]
    if any(x.shape != (len(names),) for x in values) or (groups is not None and len(groups) != len(names)):
        raise InputError(f"A plot of {len(names)} intervals was given {[x.shape for x in values]} values.")
    words = list(groups) if groups is not None else [""] * len(names)
    figure = new_figure()
    place = np.arange(len(names), dtype=float)
    for colour, word in zip(_CYCLE * len(names), dict.fromkeys(words), strict=False):
        rows = np.array([w == word for w in words])
        figure.add_scatter(
            x=values[0][rows],
            y=place[rows],
            customdata=np.stack([values[1][rows], values[2][rows]], axis=1),
            mode="markers",
            marker={"color": colour, "size": 9},
            error_x=make_error_bars(values[0][rows], (values[1][rows], values[2][rows]), colour),
            name=word,
            showlegend=bool(word),
            hovertemplate="%{x:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
    lines = ([0.0] if zero else []) + ([] if margin is None else [-margin, margin])
    for value in lines:
        figure.add_vline(x=value, line={"color": INK if value == 0 else GREY, "width": 1, "dash": "dot"})
    figure.update_yaxes(tickvals=place, ticktext=list(names), autorange="reversed", zeroline=False)
    figure.update_xaxes(title=title)
    set_layout(figure, height=120 + _ROW * len(names))
    return figure


def plot_power_curve(
    trials: ArrayLike, power: ArrayLike, *, required_power: float, required_trials: int, name: str
) -> Figure:
    """Plot the power of a test over the number of trials.

    Args:
        trials: Numbers of trials of each policy, shape ``(k,)``.
        power: Power with these numbers, shape ``(k,)``.
        required_power: Required power, marked by a line.
        required_trials: Number of trials that reaches the required power, marked by a line.
        name: Name of the curve.
    """
    at, values = np.asarray(trials, dtype=float), np.asarray(power, dtype=float)
    figure = new_figure()
    figure.add_scatter(
        x=at,
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        name=name,
        hovertemplate="%{x} trials: power %{y:.3f}<extra></extra>",
    )
    figure.add_hline(y=required_power, line={"color": GREY, "width": 1, "dash": "dash"})
    figure.add_vline(x=required_trials, line={"color": ORANGE, "width": 1.5})
    figure.update_yaxes(title="power", range=[0, 1.02])
    figure.update_xaxes(title="trials of each policy")
    set_layout(figure, height=330)
    return figure


def _power_of_ten(exponent: int) -> str:
    """Format 10 to the power of an exponent as text, also if the number is too large for a float."""
    return f"{10.0**exponent:g}" if abs(exponent) < 6 else f"1e{exponent:+03d}"


Ends = tuple[ArrayLike, ArrayLike]


def plot_score_scatter(
    policies: Sequence[str],
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_ends: Ends,
    sim_ends: Ends,
    violations: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Plot real scores (vertical) against simulated scores (horizontal), a dot per policy with both intervals.

    Args:
        policies: Names of ``n`` policies.
        real: Real scores of the policies, shape ``(n,)``.
        sim: Simulated scores of the policies, shape ``(n,)``.
        real_ends: Lower and upper limits of the intervals of the real scores; NaN if there is no interval.
        sim_ends: Lower and upper limits of the intervals of the simulated scores; NaN if there is no interval.
        violations: Pairs of policies that simulation puts in the wrong order, the better policy in reality first. A
            line joins them.
    """
    n, figure = len(policies), new_figure()
    real, sim = require_length(real, n, "real scores"), require_length(sim, n, "simulated scores")
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="simulation equals reality",
        line={"color": GREY, "dash": "dot", "width": 1.4},
        hoverinfo="skip",
    )
    at = {policy: number for number, policy in enumerate(policies)}
    for number, (better, worse) in enumerate(violations):
        i, j = at[better], at[worse]
        figure.add_scatter(
            x=[sim[i], sim[j]],
            y=[real[i], real[j]],
            mode="lines",
            name="wrong order",
            legendgroup="wrong order",
            showlegend=number == 0,
            line={"color": ORANGE, "width": 1.8},
            hovertemplate=f"{better} is better in reality, {worse} or neither in simulation<extra></extra>",
        )
    figure.add_scatter(
        x=sim,
        y=real,
        mode="markers+text",
        name="policies with their intervals",
        text=list(policies),
        textposition=[_choose_label_position(number, sim, real) for number in range(n)],
        textfont={"color": INK, "size": 12},
        marker={"color": BLUE, "size": 10},
        error_x=make_error_bars(sim, _fill_limits(sim, sim_ends), BLUE),
        error_y=make_error_bars(real, _fill_limits(real, real_ends), BLUE),
        hovertemplate="%{text}: simulated %{x:.3f}, real %{y:.3f}<extra></extra>",
    )
    figure.update_xaxes(title="simulated score", range=[-0.04, 1.04])
    figure.update_yaxes(title="real score", range=[-0.08, 1.08])
    set_layout(figure, height=560)
    return figure


def plot_gap_rows(
    labels: Sequence[str], values: ArrayLike, ends: Ends, *, significant: Sequence[bool], unit: str
) -> Figure:
    """Plot simulated − real differences with intervals, a row each; significant differences are marked.

    Args:
        labels: Names of ``n`` rows, from the top.
        values: Differences, shape ``(n,)``.
        ends: Lower and upper limits, shape ``(n,)`` each; NaN if there is no interval.
        significant: Whether each row is significant.
        unit: Name of the compared metric, such as ``success rate``.
    """
    n, figure = len(labels), new_figure()
    values = require_length(values, n, "differences")
    low, high = _fill_limits(values, ends)
    rows = np.arange(n)
    for chosen, colour, name in (
        (~np.asarray(significant, dtype=np.bool_), GREY, "not significant"),
        (np.asarray(significant, dtype=np.bool_), ORANGE, "significant, all rows tested together"),
    ):
        if chosen.any():
            figure.add_scatter(
                x=values[chosen],
                y=rows[chosen],
                mode="markers",
                name=name,
                marker={"color": colour, "size": 10},
                error_x=make_error_bars(values[chosen], (low[chosen], high[chosen]), colour),
                customdata=[text for text, kept in zip(labels, chosen, strict=True) if kept],
                hovertemplate="%{customdata}: %{x:+.3f}<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_xaxes(title=f"simulated − real {unit}", range=[-1.04, 1.04])
    figure.update_yaxes(tickvals=rows, ticktext=list(labels), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=120 + 30 * n)
    return figure


def _fill_limits(values: NDArray[np.float64], ends: Ends) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper limits of intervals; a missing limit (NaN) is replaced by the value itself."""
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), values.shape) for end in ends)
    return np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)


def _choose_label_position(number: int, sim: NDArray[np.float64], real: NDArray[np.float64]) -> Any:
    """Return the position of a policy's name, such as ``top left``: away from the nearest dot, and inside the frame.

    ``number`` is the index of the policy in the scores ``sim`` and ``real``.
    """
    across = "left" if sim[number] > 0.75 else "right"
    others = np.hypot(sim - sim[number], real - real[number])
    others[number] = np.inf
    nearest = int(np.argmin(others)) if len(sim) > 1 else number
    return f"{'top' if real[number] >= real[nearest] else 'bottom'} {across}"
