"""Measure the gap between a twin and real logs (`twinloop gap dynamics`): metrics, result.json and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, LogError, MissingDependencyError
from twinloop.core.records import Episode
from twinloop.dataset.media.image_sources import open_images
from twinloop.gap import GapReport, measure_gap
from twinloop.gap.dynamics.film_strips import FilmStrip, film_strips
from twinloop.randomize import read_identified
from twinloop.render import contact_sheet
from twinloop.report import ReportPage
from twinloop.report.gap_plots import ErrorCurve, plot_clip_series, plot_error_over_horizon
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.stats import Interval
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import open_logs
from twinloop.workflows.gap.options import build_replay_options, held_out_split, name_and_hash
from twinloop.workflows.gap.requests import GapDynamicsRequest
from twinloop.workflows.gap.why import GapCauses, explain, why_section
from twinloop.workflows.run.results import MeasuredRun, Outcome
from twinloop.workflows.run.sections import gap_section, gap_tables_section

_MOMENTS = 6
# Maps the number of an episode and times in s to the images that a camera of the robot took then.
Camera = Callable[[int, NDArray[np.float64]], list[NDArray[np.uint8]]]


def horizon_section(page: ReportPage, gap: GapReport) -> None:
    """Add to a report the plot of the error over the time since a window began, with baselines and noise floor.

    A window is a part of an episode that is replayed from a measured state.
    """
    floor = "" if gap.floor is None else (
        " The dashed dark line is the noise floor from repeated motions: a prediction that is the same for "
        "all repeats cannot be closer on average."
    )  # fmt: skip
    page.section(
        "How the error grows",
        "Root mean square error against the time since a window began, at the measured state: an accurate twin "
        "stays low, a non-physics baseline does not, and the worse ones soon leave their panel. Bands are "
        "intervals. Move the pointer over a curve to see its values." + floor,
    )
    twins = [_curve(f"twin, {name}", gap.curves[name]) for name in gap.names]
    baselines = [_curve(name, gap.curves[name]) for name in gap.meanings]
    known = None if gap.floor is None else _curve("real against real", gap.floor.curve)
    page.plot(
        plot_error_over_horizon(gap.channel_labels, gap.log_units, gap.edges, twins, baselines, known),
        "; ".join(f"{name}: {meaning}" for name, meaning in gap.meanings.items()),
    )


def clips_section(
    page: ReportPage,
    gap: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    *,
    options: ReplayOptions | None = None,
    camera: Camera | None = None,
) -> None:
    """Add to a report the clips (parts of episodes) with the largest errors: images, and the channel that differs most.

    Args:
        page: the report.
        gap: the measured gap, with the worst clips.
        twin: the twin.
        episodes: the episodes of the clips.
        params: parameters of the evaluated twin; None for nominal values.
        options: replay options with which the gap was measured.
        camera: function that returns recorded images of the robot, shown in a row above the rendered images; None for
            no such row.
    """
    page.section(
        "The worst clips",
        "Each begins at the measured state and continues with the recorded commands alone. Top: the twin in the "
        "measured poses. Middle: the simulated motion. Bottom: both overlaid.",
    )
    try:
        strips = film_strips(
            twin,
            episodes,
            gap.worst,
            backend=open_backend(),
            values=None if params is None else params.estimate,
            options=options,
            moments=_MOMENTS,
        )
    except (InputError, MissingDependencyError) as error:
        page.text(f"No images: {error}")
        return
    for number, strip in enumerate(strips, start=1):
        _add_clip(page, number, strip, gap.evaluated_twin, camera)


def open_recorded_camera(episodes: Sequence[Episode], *, height: int = 180, width: int = 240) -> Camera | None:
    """Return a function that reads images of a dataset's first camera at given times.

    Args:
        episodes: the episodes; all must be from one dataset folder.
        height: height of the returned images, in pixels.
        width: width of the returned images, in pixels.

    Returns:
        A function that maps an episode number and times in s to the nearest images, one per time. It returns no images
        for an episode without any. None if the episodes are not from one folder, or the folder has no images.
    """
    folder = Path(episodes[0].origin)
    if not folder.is_dir() or any(episode.origin != episodes[0].origin for episode in episodes):
        return None
    try:
        images = {row.name: row for row in open_images(folder).episodes}
    except InputError:
        return None
    known = {episode.index: episode for episode in episodes if f"episode {episode.index}" in images}

    def taken(number: int, times: NDArray[np.float64]) -> list[NDArray[np.uint8]]:
        if number not in known:
            return []
        rows = np.abs(known[number].time[None] - times[:, None]).argmin(axis=1)
        chosen, back = np.unique(rows, return_inverse=True)
        frames = images[f"episode {number}"].read(chosen.tolist())
        small = [np.asarray(Image.fromarray(frame).resize((width, height))) for frame in frames]
        return [small[place] for place in back]

    return taken


def _add_clip(page: ReportPage, number: int, strip: FilmStrip, judged: str, camera: Camera | None) -> None:
    clip = strip.clip
    times = [f"{time:.2f} s" for time in strip.times]
    rows = {"measured": strip.measured, "simulated": strip.simulated, "both": strip.blended_images}
    recorded = [] if camera is None else camera(clip.episode, strip.times)
    if recorded:
        rows = {"camera": recorded, **rows}
    images = [image for row in rows.values() for image in row]
    labels = [f"{name}, {time}" for name in rows for time in times]
    end = clip.begin + clip.length
    page.image(
        contact_sheet(images, labels, columns=len(times)),
        f"{number}. Episode {clip.episode}, {clip.begin:.2f} to {end:.2f} s: {clip.channel} is off by {clip.error:.3g} "
        f"{clip.unit} (RMS) in the {judged} twin.",
    )
    at = clip.begin + np.arange(len(strip.series["measured"])) / strip.hz
    page.plot(plot_clip_series(at, strip.series, clip.channel, clip.unit))


def _curve(name: str, values: Interval) -> ErrorCurve:
    return ErrorCurve(name=name, estimate=values.estimate, low=values.low, high=values.high)


def run_gap(request: GapDynamicsRequest, console: Console) -> Outcome:
    """Print and store the gap between a twin and a log.

    If the option ``params`` names an identify run on the same log, only the episodes that were held out from that run
    are measured. If ``params`` is given and ``no_why`` is not set, the nominal twin's error is also attributed to
    groups of parameters.
    """
    log = open_logs(request.data, request.reading)
    started = MeasuredRun.begin("gap", "dynamics", request.output, request.fail_if, console)
    twin = load_twin(request.twin)
    run = None if request.params is None else read_identified(request.params)
    split = held_out_split(log, run)
    distribution = None if run is None else ParamDistribution.from_json(run["distribution"])
    options = build_replay_options(request.comparing, twin, split.measured)
    report = measure_gap(
        twin,
        split.measured,
        backend=open_backend(),
        params=distribution,
        options=options,
        training=split.training,
        repeats=request.repeats,
    )
    console.print(f"{log.label}; {split.note}", soft_wrap=True)
    console.print(report.text(), soft_wrap=True)
    causes, why_missing = None, ""
    if distribution is not None and not request.no_why:
        try:
            causes = explain(
                twin,
                split.measured,
                distribution,
                backend=open_backend(),
                options=options,
                note=split.note,
                names=(request.twin, log.name),
            )
        except (InputError, LogError) as error:  # the gap is reported without attribution
            why_missing = f"The attribution of the error is missing: {error}"
        console.print("\n" + (causes.text() if causes else why_missing), soft_wrap=True)
    return started.end(
        {**report.to_json(), "twin": name_and_hash(twin), "data": log.describe(), "note": split.note}
        | {"params": None if request.params is None else request.params.name}
        | {"why": None if causes is None else causes.to_json(), "why_not": why_missing or None},
        [*report.headline(), *(causes.headline() if causes else [])],
        title=f"Gap of {twin.name}",
        subtitle=f"{log.label}; {split.note}",
        fill=lambda page: _fill_report(page, report, twin, split.measured, distribution, options, causes, why_missing),
    )


def _fill_report(
    page: ReportPage,
    report: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    options: ReplayOptions,
    causes: GapCauses | None,
    why_missing: str,
) -> None:
    gap_section(page, report, twin, episodes, params, options=options)
    horizon_section(page, report)
    if causes is not None:
        why_section(page, causes.sentences(), causes.attribution, causes.unexplained, causes.sensitivity)
    elif why_missing:
        page.text(why_missing)
    camera = open_recorded_camera(episodes)
    clips_section(page, report, twin, episodes, params, options=options, camera=camera)
    gap_tables_section(page, report)
