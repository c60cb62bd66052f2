"""Write the report sections on the coverage of reality by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.curate.cells import PAIR_CELLS, ParameterCell, ParameterPairCell
from twinloop.curate.coverage import CoverageHole
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.coverage import plot_clip_map, plot_clip_traces, plot_success_rows
from twinloop.stats import Interval
from twinloop.workflows.coverage.axes import ParameterSpace
from twinloop.workflows.coverage.measured import CoverageResult, project_clips
from twinloop.workflows.coverage.result_text import (
    FEW,
    describe_hole_center,
    describe_inputs,
    findings,
    format_box,
    format_failure_rate,
    parameter_lines,
)
from twinloop.workflows.coverage.sides import ClipSettings, cut_episode_clips

_HOLES = 5  # holes with plots (our choice)
_CLIPS = 6  # clips of a hole in the plot
_IMAGES = 6  # clips of a hole with images
_CELL_ROWS = 10  # cells of two parameters in the table
_CELL_PLOTS = 6  # parameters with plots: those in which the sides or the success rate differ most


def coverage_sections(page: ReportPage, measured: CoverageResult) -> None:
    """Add to a report the summary, a map of the clips, the largest holes one by one, and the parameter space.

    A hole is a region of real clips without similar simulated clips.
    """
    _summary(page, measured)
    _map(page, measured)
    for number, hole in enumerate(measured.holes[:_HOLES], start=1):
        if number == 1 or hole.episodes >= FEW:
            _hole(page, measured, number, hole)
    if measured.space is not None:
        _parameters(page, measured)


def _summary(page: ReportPage, measured: CoverageResult) -> None:
    metrics = measured.coverage.metrics
    page.section("How much of reality does simulation cover?", " ".join(findings(measured)))
    page.key_metrics(
        [
            _percent_metric("of reality covered", metrics.coverage),
            _percent_metric("recall of reality", metrics.recall),
            _percent_metric("precision of simulation", metrics.precision),
            KeyMetric(
                label="holes",
                value=len(measured.holes),
                source=f"{int(measured.coverage.uncovered_mask.sum())} real clips",
            ),
        ]
    )
    for line in (*(f"{line}." for line in describe_inputs(measured)), *measured.notes):
        page.text(line)


def _percent_metric(label: str, interval: Interval) -> KeyMetric:
    ends = f"{100 * float(interval.low):.1f} to {100 * float(interval.high):.1f} %, over episodes"
    return KeyMetric(label=label, value=round(100 * float(interval.estimate), 1), unit="%", source=ends)


def _map(page: ReportPage, measured: CoverageResult) -> None:
    real, sim, axes = project_clips(measured)
    rows = measured.real_rows
    hover = [
        f"{_title(measured, int(e))}, frame {int(f)}<br>{r:.2f} × the distance to its real neighbours"
        for e, f, r in zip(rows.episode, rows.first, measured.coverage.ratio, strict=True)
    ]
    page.section(
        "Real and simulated clips on one map",
        "Clips that are close on this projection can be far from each other in the full space, which coverage uses.",
    )
    holes = [hole.clips.tolist() for hole in measured.holes]
    page.plot(plot_clip_map(real, sim, axes, holes, measured.coverage.uncovered_mask, hover))
    page.table(
        ["hole", "% of reality", "episodes", "distance", "failing", "clip in its middle"],
        [
            [
                number,
                100 * hole.mass,
                hole.episodes,
                hole.distance,
                format_failure_rate(hole.failure, hole.judged),
                describe_hole_center(measured, hole),
            ]
            for number, hole in enumerate(measured.holes[:20], start=1)
        ],
        caption="Holes by mass and failure; distance in units of the distance to real neighbours.",
    )


def _title(measured: CoverageResult, episode: int) -> str:
    members = measured.real.members
    return members[episode].title if episode < len(members) else f"draw {episode}"


def _hole(page: ReportPage, measured: CoverageResult, number: int, hole: CoverageHole) -> None:
    failed = format_failure_rate(hole.failure, hole.judged)
    failing = f" Of its {hole.judged} judged episodes {failed} failed." if hole.judged else ""
    page.section(
        f"Hole {number}",
        f"{hole.mass:.1%} of reality, {len(hole.clips)} clips of {hole.episodes} episodes, {hole.distance:.3g} times "
        f"as far from the nearest simulated clip as from real neighbours.{failing} In its middle: "
        f"{describe_hole_center(measured, hole)}.",
    )
    if measured.whitening is None:
        return
    strip = _build_image_strip(measured, hole.clips[:_IMAGES], real=True)
    if strip is not None:
        page.image(strip, "The middle image of clips of this hole, the most typical first, from the robot's camera.")
        nearest_strip = _build_image_strip(measured, measured.coverage.nearest_sim[hole.clips[:_IMAGES]], real=False)
        if nearest_strip is not None:
            page.image(nearest_strip, "The middle image of the simulated clip nearest to each of them.")
        return
    settings = measured.settings
    assert settings is not None  # noqa: S101 - clips were cut by them
    chosen = hole.clips[:_CLIPS]
    real = [_clip(measured, row, settings, real=True) for row in chosen]
    nearest = dict.fromkeys(int(row) for row in measured.coverage.nearest_sim[chosen])
    sim = [_clip(measured, row, settings, real=False) for row in nearest]
    time = np.arange(len(real[0])) / settings.rate_hz
    unit = settings.units[0] if len(set(settings.units)) == 1 else "unit of the channel"
    page.plot(
        plot_clip_traces(time, settings.channels, unit, real, sim),
        "Positions in clips of this hole and in the nearest simulated clips.",
    )


def _clip(measured: CoverageResult, row: int, settings: ClipSettings, *, real: bool) -> NDArray[np.float64]:
    """Read one clip again and return its joint positions ``(nframe, njoint)``.

    Args:
        measured: the coverage.
        row: index of the clip among the clips of its side.
        settings: how clips were cut.
        real: True for a real clip, False for a simulated one.
    """
    side, rows = (measured.real, measured.real_rows) if real else (measured.sim, measured.sim_rows)
    clips = cut_episode_clips(side.members[int(rows.episode[row])], settings)
    assert clips is not None  # noqa: S101 - the clip was cut from it
    place = int(np.flatnonzero(clips.first == rows.first[row])[0])
    return clips.motion.position[place]


def _build_image_strip(measured: CoverageResult, clips: NDArray[np.int64], *, real: bool) -> NDArray[np.uint8] | None:
    """Return the middle images of some clips next to each other; None if an image is missing.

    Args:
        measured: the coverage.
        clips: indices of the clips among the clips of their side.
        real: True for real clips, False for simulated ones.
    """
    side, rows = (measured.real, measured.real_rows) if real else (measured.sim, measured.sim_rows)
    made = []
    frames = round(measured.options.clip / 2 * measured.encoder["rate_hz"])
    for row in clips:
        recording = side.members[int(rows.episode[row])].recording
        if recording is None or not recording.cameras:
            return None
        camera = measured.options.camera or recording.cameras[0]
        frame = min(int(rows.first[row]) + frames, recording.frame_count - 1)
        try:
            made.append(recording.read_images(camera, [frame])[0])
        except TwinloopError:  # if images are missing, the page shows plots instead
            return None
    size = made[0].shape
    return np.hstack([image for image in made if image.shape == size])


def _parameters(page: ReportPage, measured: CoverageResult) -> None:
    space = measured.space
    assert space is not None  # noqa: S101 - called only if there is one
    page.section("The parameter space", "\n\n".join(parameter_lines(measured)))
    rows = [
        [what, format_box(space.axes, box), box.cases, box.controls, box.p_value]
        for what, boxes in (("real, not simulated", space.holes), ("failures", space.failures))
        for box in boxes
    ]
    if rows:
        page.table(["kind", "box", "inside", "others inside", "p"], rows)
    if space.pairs:
        _pairs(page, space)
    by_name: dict[str, list[ParameterCell]] = {}
    for cell in space.cells:
        by_name.setdefault(cell.name, []).append(cell)
    held = {space.axes[i].name for box in (*space.holes, *space.failures) for i in box.axes}
    order = sorted(
        by_name, key=lambda name: (name not in held, -_difference_score(by_name[name], len(space.real), len(space.sim)))
    )
    for name in order[:_CELL_PLOTS]:
        page.plot(_cell_plot(by_name[name], len(space.real) if space.known else 0, len(space.sim)))


def _pairs(page: ReportPage, space: ParameterSpace) -> None:
    """Add a table of the rectangles in two parameters' ranges with the fewest episodes, and their success rates."""

    def span(cell: ParameterPairCell, axis: int) -> str:
        unit = f" {cell.units[axis]}" if cell.units[axis] else ""
        return f"{cell.names[axis]} {cell.low[axis]:.4g} to {cell.high[axis]:.4g}{unit}"

    page.table(
        ["one parameter", "the other", "real", "simulated", "% succeeding", "95 % interval"],
        [
            [
                span(cell, 0),
                span(cell, 1),
                cell.real if space.known else None,
                cell.sim,
                100 * cell.rate if cell.judged else None,
                f"{100 * cell.rate_low:.0f} to {100 * cell.rate_high:.0f}" if cell.judged else "–",
            ]
            for cell in space.pairs[:_CELL_ROWS]
        ],
        caption=f"The emptiest of {len(space.pairs)} cells of two parameters, {PAIR_CELLS} × {PAIR_CELLS} per pair; "
        "success of the simulated episodes there with Wilson's interval.",
    )


def _difference_score(cells: list[ParameterCell], nreal: int, nsim: int) -> float:
    """Return how much real and simulated episodes, or success rates, differ over a parameter's cells (intervals).

    The score ranks parameters. It is the sum over cells of the difference between the share of real episodes and the
    share of simulated episodes, plus the range of success rates.

    Args:
        cells: the cells of one parameter.
        nreal: number of real episodes.
        nsim: number of simulated episodes.
    """
    shares = sum(abs(cell.real / max(nreal, 1) - cell.sim / max(nsim, 1)) for cell in cells) if nreal else 0.0
    rates = [cell.rate for cell in cells if cell.judged]
    return shares + (max(rates) - min(rates) if rates else 0.0)


def _cell_plot(cells: list[ParameterCell], nreal: int, nsim: int) -> Any:
    rate, low, high = (np.array([getattr(cell, key) for cell in cells]) for key in ("rate", "rate_low", "rate_high"))
    return plot_success_rows(
        cells[0].name,
        cells[0].unit,
        np.array([cells[0].low, *(cell.high for cell in cells)]),
        rate,
        low,
        high,
        np.array([cell.real / nreal if nreal else np.nan for cell in cells]),
        np.array([cell.sim / max(nsim, 1) for cell in cells]),
    )
