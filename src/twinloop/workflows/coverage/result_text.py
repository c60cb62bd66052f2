"""Format the coverage of reality as sentences and as a JSON-compatible dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.cells import BOX_CELLS, CellBox, ParameterCell
from twinloop.curate.coverage import CoverageHole
from twinloop.curate.parameters import ParameterAxis
from twinloop.stats import Interval, wilson
from twinloop.workflows.coverage.measured import PARAMETERS, CoverageResult

_HOLES = 5  # printed holes; the page and result.json have all
FEW = 3  # a hole with fewer episodes may be due to chance


def text_lines(measured: CoverageResult) -> list[str]:
    """Return the result as lines for a terminal: inputs, findings, the five largest holes, and the parameter space."""
    lines = [*describe_inputs(measured), *measured.notes, "", *findings(measured)]
    if measured.holes:
        lines += ["", f"{'hole':<6}{'of reality':>11}{'episodes':>10}{'distance':>10}{'fails':>17}  clip in its middle"]
        lines += [_hole_line(measured, number, hole) for number, hole in enumerate(measured.holes[:_HOLES], start=1)]
        if len(measured.holes) > _HOLES:
            rest = measured.holes[_HOLES:]
            lines.append(f"{len(rest)} more, of {sum(hole.mass for hole in rest):.1%} of reality together.")
    if measured.space is not None:
        lines += ["", *parameter_lines(measured)]
    return lines


def describe_inputs(measured: CoverageResult) -> list[str]:
    """Return lines on the compared episodes and on the feature space in which they are compared."""
    unit = "episodes" if measured.options.embedding == PARAMETERS else f"clips of {measured.options.clip:g} s"
    lines = [
        f"{side.label}: {len(side.members)} episodes, {len(rows)} {unit} ({what})"
        for what, side, rows in (
            ("real", measured.real, measured.real_rows),
            ("simulated", measured.sim, measured.sim_rows),
        )
    ]
    if measured.whitening is None:
        axes = ", ".join(measured.encoder["axes"])
        return [
            *lines,
            f"Compared in the randomized parameters {axes}; source of the real values: {measured.encoder['source']}",
        ]
    white = measured.whitening
    again = f", {measured.encoder['known']} episodes of them already known" if measured.encoder["known"] else ""
    return [
        *lines,
        (
            f"Compared by {measured.encoder['name']} ({measured.encoder['hash'][:12]}{again}) in "
            f"{white.axes.shape[1]} whitened components, {white.share:.0%} of the variance of {white.fitted}"
        ),
    ]


def findings(measured: CoverageResult) -> list[str]:
    """Return the main results as sentences.

    Each share has its interval, and the value expected if real and simulated clips did not differ. That value is
    computed by random permutation of the labels real and simulated.
    """
    metrics = measured.coverage.metrics
    floor = metrics.floor
    return [
        (
            f"Simulation covers {metrics.coverage.percent(1)} of reality: this share of real clips has a simulated "
            "clip within the distance of its real neighbour number "
            f"{measured.coverage.k}{_format_floor(floor['coverage'])}."
        ),
        (
            f"Recall of reality {metrics.recall.percent(1)}{_format_floor(floor['recall'])}; precision of simulation "
            f"{metrics.precision.percent(1)}{_format_floor(floor['precision'])}; density "
            f"{_format_interval(metrics.density)}."
        ),
        _holes_sentence(measured),
    ]


def _holes_sentence(measured: CoverageResult) -> str:
    holes = measured.holes
    if not holes:
        return "There is no hole: every real clip has a simulated clip nearby."
    return (
        f"{int(measured.coverage.uncovered_mask.sum())} of {len(measured.real_rows)} real clips are uncovered, in "
        f"{len(holes)} holes; {sum(hole.episodes >= FEW for hole in holes)} of them have clips of {FEW} episodes or "
        f"more. The largest is {holes[0].mass:.1%} of reality, {holes[0].distance:.3g} times as far from simulation "
        "as from real neighbours."
    )


def parameter_lines(measured: CoverageResult) -> list[str]:
    """Return lines on parameter ranges with too few simulated episodes, with none, and with many failures."""
    space = measured.space
    assert space is not None  # noqa: S101 - called only if there is one
    lines = []
    if space.known:
        drawn = len(space.real) != len(measured.real.members)
        what = f"{len(space.real)} {'draws of the identified distribution' if drawn else 'real episodes'}"
        lines += [
            f"Of {what} {box.cases} and of {len(space.sim)} simulated ones {box.controls} have "
            f"{format_box(space.axes, box)} (p = {box.p_value:.2g})."
            for box in space.holes
        ]
        if not space.holes:
            lines.append("No box of parameters has significantly more real than simulated episodes.")
    else:
        lines.append("The parameters of the real episodes are not known (--real-params); cells show simulation only.")
    empty = [cell for cell in space.cells if not cell.sim]
    lines.append(
        f"{len(empty)} of {len(space.cells)} cells of single parameters and "
        f"{sum(not cell.sim for cell in space.pairs)} of {len(space.pairs)} cells of two have no simulated episode."
    )
    judged = space.sim[~np.isnan(measured.sim.success)]
    if len(judged):
        rate = wilson(int(np.nansum(measured.sim.success)), len(judged))
        worst = _format_worst_cell(space.cells, float(rate.estimate))
        lines.append(f"Of {len(judged)} simulated episodes {rate.percent(1)} succeed.{worst}")
        lines += [
            f"They fail more often where {format_box(space.axes, box)}: {box.cases} of {box.cases + box.controls} "
            f"(p = {box.p_value:.2g})."
            for box in space.failures
        ]
    return lines


def format_box(axes: Sequence[ParameterAxis], box: CellBox) -> str:
    """Return a box (ranges of one or two parameters) as text, in SI units.

    Args:
        axes: the parameters to which the indices of the box refer.
        box: the box.
    """
    spans = []
    for column, low, high, (first, last) in zip(box.axes, box.low, box.high, _box_bounds(axes, box), strict=True):
        axis = axes[column]
        unit = f" {axis.unit}" if axis.unit else ""
        if low == 0:
            spans.append(f"{axis.name} below {last:.4g}{unit}")
        elif high == BOX_CELLS:
            spans.append(f"{axis.name} above {first:.4g}{unit}")
        else:
            spans.append(f"{axis.name} from {first:.4g} to {last:.4g}{unit}")
    return " and ".join(spans)


def _box_bounds(axes: Sequence[ParameterAxis], box: CellBox) -> list[NDArray[np.float64]]:
    """Return lower and upper bound of a box along each of its axes, in SI units."""
    cells = zip(box.axes, box.low, box.high, strict=True)
    return [axes[column].to_si(np.array([low, high]) / BOX_CELLS) for column, low, high in cells]


def _format_worst_cell(cells: Sequence[ParameterCell], rate: float) -> str:
    """Return a sentence on the cell with the lowest success rate, or "" if none is certainly below the overall rate.

    Args:
        cells: the cells of single parameters.
        rate: overall success rate.
    """
    worse = [cell for cell in cells if cell.judged and cell.rate_high < rate]
    if not worse:
        return ""
    worst = min(worse, key=lambda cell: (cell.rate_high, cell.rate))
    return (
        f" The rate is lowest with {worst.name} from {worst.low:.4g} to {worst.high:.4g} {worst.unit}: "
        f"{worst.rate:.0%} [{worst.rate_low:.0%}, {worst.rate_high:.0%}], one of {len(cells)} cells."
    )


def describe_hole_center(measured: CoverageResult, hole: CoverageHole) -> str:
    """Return the clip in the middle of a hole as text; if parameters are compared, their values in SI units."""
    row = int(hole.clips[0])
    if measured.whitening is None:
        space = measured.space
        assert space is not None  # noqa: S101 - without whitening, parameters were compared
        point = zip((space.axes[c] for c in space.known), measured.real_rows.rows[row], strict=True)
        return ", ".join(f"{axis.name} {axis.to_si(np.array([u]))[0]:.4g}" for axis, u in point)
    member = measured.real.members[int(measured.real_rows.episode[row])]
    return f"{member.title}, from frame {int(measured.real_rows.first[row])}"


def _hole_line(measured: CoverageResult, number: int, hole: CoverageHole) -> str:
    failing = format_failure_rate(hole.failure, hole.judged)
    return (
        f"{number:<6}{hole.mass:>11.1%}{hole.episodes:>10}{hole.distance:>10.2f}{failing:>17}  "
        f"{describe_hole_center(measured, hole)}"
    )


def format_failure_rate(failure: float, judged: int) -> str:
    """Return a failure rate with its 95 % interval as text; a dash if no outcome is known.

    Args:
        failure: share of the episodes with a known outcome that failed.
        judged: number of episodes with a known outcome.
    """
    return wilson(round(failure * judged), judged).percent() if judged else "–"


def result_to_json(measured: CoverageResult) -> dict[str, Any]:
    """Return the result as a JSON-compatible dictionary for files (schema 1)."""
    space = measured.space
    clips, order = measured.real_rows, np.argsort(-measured.coverage.ratio, kind="stable")

    def place(row: int) -> dict[str, Any]:
        members, episode = measured.real.members, int(clips.episode[row])
        name = members[episode].episode_id if episode < len(members) else str(row)
        return {"episode": name, "first_frame": int(clips.first[row])}

    return {
        "schema": 1,
        "real": {"label": measured.real.label, "episodes": len(measured.real.members), "clips": len(clips)},
        "sim": {
            "label": measured.sim.label,
            "episodes": len(measured.sim.members),
            "clips": len(measured.sim_rows),
        },
        "encoder": measured.encoder,
        "whitening": None if measured.whitening is None else measured.whitening.to_json(),
        "metrics": measured.coverage.to_json(),
        "uncovered": [
            {**place(row), "distance": float(measured.coverage.ratio[row])}
            for row in map(int, order)
            if measured.coverage.uncovered_mask[row]
        ],
        "holes": [
            hole.to_json()
            | {"middle": describe_hole_center(measured, hole), "places": [place(int(row)) for row in hole.clips]}
            for hole in measured.holes
        ],
        "parameters": None
        if space is None
        else {
            "axes": [axis.name for axis in space.axes],
            "known": [space.axes[i].name for i in space.known],
            "source": space.source,
            "cells": [cell.to_json() for cell in space.cells],
            "pairs": [cell.to_json() for cell in space.pairs],
            "holes": [_box_json(space.axes, box) for box in space.holes],
            "failures": [_box_json(space.axes, box) for box in space.failures],
        },
        "notes": list(measured.notes),
        "findings": findings(measured),
    }


def _box_json(axes: Sequence[ParameterAxis], box: CellBox) -> dict[str, Any]:
    return {
        "box": {axes[c].name: pair.tolist() for c, pair in zip(box.axes, _box_bounds(axes, box), strict=True)},
        "inside": box.cases,
        "others_inside": box.controls,
        "p_value": box.p_value,
    }


def _format_interval(interval: Interval) -> str:
    return f"{float(interval.estimate):.2f} [{float(interval.low):.2f}, {float(interval.high):.2f}]"


def _format_floor(value: float) -> str:
    return "" if np.isnan(value) else f" ({value:.0%} without a gap)"
