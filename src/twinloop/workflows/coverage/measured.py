"""Measure how much of reality simulation covers: load both sides, compare their clips, find holes.

The sides are the real and the simulated episodes. Their clips (parts of fixed length) are compared as feature vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.curate.coverage import (
    ClipRows,
    CoverageHole,
    RealCoverage,
    find_holes,
    list_headlines,
    measure_real_coverage,
)
from twinloop.curate.parameters import MOST_AXES
from twinloop.curate.projection import Projection, Whitening, fit_whitening, hash_space, project
from twinloop.encoders.clips import WaypointEncoder, open_clip_encoder
from twinloop.workflows.coverage.axes import (
    GenerationSource,
    ParameterSpace,
    find_generation_source,
    measure_parameter_space,
)
from twinloop.workflows.coverage.requests import ComparedSides
from twinloop.workflows.coverage.sides import (
    ClipSettings,
    EpisodeSide,
    UnreadableEpisodesError,
    encode_sides,
    find_substitute_twin,
    folder_side,
    make_episode_rows,
    match_clip_settings,
    workspace_side,
)

PARAMETERS = "parameters"


def resolve_sides(sides: ComparedSides) -> ComparedSides:
    """Return the options, with the nearest workspace upwards if they give neither real nor simulated episodes.

    Raises:
        InputError: If they give neither, and there is no workspace.
    """
    if sides.real or sides.sim or sides.workspace:
        return sides
    workspace = Workspace.find(Path.cwd())
    if workspace is None:
        raise InputError(
            "No episodes are given, and there is no workspace here. Give --real LOG --sim DATASET, or --workspace "
            "DIR. For the parameter space of one generated dataset, give its folder alone."
        )
    return replace(sides, workspace=workspace)


@dataclass(frozen=True, kw_only=True)
class CoverageResult:
    """Result of a coverage measurement.

    Attributes:
        options: the options of the user.
        real: the real episodes.
        sim: the simulated episodes.
        real_rows: feature vectors of the real clips, or if parameters are compared, one point per real episode.
        sim_rows: feature vectors of the simulated clips or episodes.
        coverage: shares of covered clips, with intervals.
        holes: regions of real clips without simulated clips nearby, the most important first.
        whitening: transformation of the feature vectors; None if parameters are compared.
        settings: how clips were cut; None if parameters are compared.
        encoder: name, hash and settings of the encoder, for result.json.
        generated: generate run of the simulated episodes; None if unknown.
        space: analysis of the parameter space; None if ``generated`` is None.
        notes: remarks for the user.
        projection: projection of the clips for the plot.
    """

    options: ComparedSides
    real: EpisodeSide
    sim: EpisodeSide
    real_rows: ClipRows
    sim_rows: ClipRows
    coverage: RealCoverage
    holes: tuple[CoverageHole, ...]
    whitening: Whitening | None
    settings: ClipSettings | None
    encoder: dict[str, Any]
    generated: GenerationSource | None
    space: ParameterSpace | None
    notes: tuple[str, ...]
    projection: Projection = "pca"


def measure(options: ComparedSides, projection: Projection = "pca") -> CoverageResult:
    """Measure the coverage of reality by clips, and by randomized parameters if the generate run is known.

    Args:
        options: the sides and how to compare them.
        projection: projection of the clips for the plot.

    Raises:
        TwinloopError: If the sides cannot be read or compared; the message states why.
    """
    if options.workspace is None:
        return _measure(options, projection, None)
    with Workspace.open(options.workspace) as workspace:
        return _measure(options, projection, workspace)


def _measure(options: ComparedSides, projection: Projection, workspace: Workspace | None) -> CoverageResult:
    real, sim = _load_sides(options, workspace)
    _require_disjoint_sides(real, sim)
    while True:
        try:
            return _measure_sides(options, projection, workspace, real, sim)
        except UnreadableEpisodesError as error:
            real, sim = (side.exclude(error.reasons) for side in (real, sim))


def _measure_sides(
    options: ComparedSides, projection: Projection, workspace: Workspace | None, real: EpisodeSide, sim: EpisodeSide
) -> CoverageResult:
    """Measure the coverage of one side by the other.

    Raises:
        UnreadableEpisodesError: If episodes cannot be read.
    """
    generated, why = find_generation_source(sim)
    notes = [*real.notes, *sim.notes]
    space = None
    if generated is None:
        notes.append(f"The parameter space is not analysed: {why}.")
    else:
        space = measure_parameter_space(
            real, sim, generated, real_params=options.real_params, patterns=options.axes, seed=options.seed
        )
    if options.embedding == PARAMETERS:
        real_rows, sim_rows, encoder = _parameter_rows(real, sim, space, why)
        whitening = settings = None
    else:
        real_rows, sim_rows, whitening, settings, encoder, clip_notes = _embed_clips(options, real, sim, workspace)
        notes += clip_notes
    if len(real.members) <= options.k:
        notes.append(
            f"There are only {len(real.members)} real episodes, so the neighbour number {options.k} of a clip may be "
            "another part of the motion, and coverage is overstated. Add real episodes, or give a smaller --k."
        )
    coverage = measure_real_coverage(real_rows, sim_rows, k=options.k, level=options.level, seed=options.seed)
    return CoverageResult(
        options=options,
        projection=projection,
        real=real,
        sim=sim,
        real_rows=real_rows,
        sim_rows=sim_rows,
        coverage=coverage,
        holes=find_holes(real_rows, coverage, failure_weight=options.failure_weight),
        whitening=whitening,
        settings=settings,
        encoder=encoder,
        generated=generated,
        space=space,
        notes=tuple(notes),
    )


def headlines(measured: CoverageResult) -> list[HeadlineMetric]:
    """Return the metrics that ``--fail-if`` conditions can use."""
    largest = max((hole.mass for hole in measured.holes), default=0.0)
    hole = HeadlineMetric(name="largest_hole", estimate=largest, meaning="share of reality in the largest hole")
    return [*list_headlines(measured.coverage), hole]


def project_clips(measured: CoverageResult) -> tuple[Any, Any, tuple[str, str]]:
    """Return real and simulated clips in two dimensions, ``(nreal, 2)`` and ``(nsim, 2)``, and labels of both axes."""
    both = np.vstack([measured.real_rows.rows, measured.sim_rows.rows])
    names = None
    if measured.whitening is None and measured.space is not None:
        names = {i: measured.space.axes[column].name for i, column in enumerate(measured.space.known)}
    drawn = project(both, measured.projection, seed=measured.options.seed, names=names)
    count = len(measured.real_rows)
    return drawn.points[:count], drawn.points[count:], drawn.axes


def _load_sides(options: ComparedSides, workspace: Workspace | None) -> tuple[EpisodeSide, EpisodeSide]:
    seed = options.seed
    if workspace is None:
        return folder_side(options.real, what="real", seed=seed), folder_side(options.sim, what="sim", seed=seed)
    if options.real or options.sim:
        raise InputError(
            "With --workspace, episodes are selected by --real-where and --sim-where. Leave out --real and --sim."
        )
    return (
        workspace_side(workspace, options.real_where, what="real", seed=seed),
        workspace_side(workspace, options.sim_where, what="sim", seed=seed),
    )


def _require_disjoint_sides(real: EpisodeSide, sim: EpisodeSide) -> None:
    """Raise `InputError` if an episode is on both sides, because it would cover itself."""
    both = {member.episode_id for member in real.members} & {member.episode_id for member in sim.members}
    if both:
        shown = next(member.title for member in real.members if member.episode_id in both)
        raise InputError(
            f"{len(both)} episodes are on both sides, such as {shown}, and would cover themselves. Remove them from "
            "one side."
        )


def _parameter_rows(
    real: EpisodeSide, sim: EpisodeSide, space: ParameterSpace | None, why: str
) -> tuple[ClipRows, ClipRows, dict[str, Any]]:
    """Return real and simulated episodes as points of the parameters that are known for the real episodes.

    Args:
        real: the real episodes.
        sim: the simulated episodes.
        space: analysis of the parameter space.
        why: if ``space`` is None, why the generate run of the simulated episodes is unknown, for the error message.

    Returns:
        The points of the real episodes, those of the simulated ones, and a description for result.json.

    Raises:
        InputError: If no parameter is known for the real episodes, or too many are.
    """
    if space is None:
        raise InputError(f"--embedding parameters needs simulated episodes with a randomization plan, but {why}.")
    if not space.known:
        raise InputError(
            "No parameter that was randomized in simulation is known for the real episodes. Give known values with "
            "--real-params: a CSV file (a column episode and one per parameter, in SI units) or the folder of "
            "an identify run. Or compare motion with --embedding waypoints."
        )
    if len(space.known) > MOST_AXES:
        names = ", ".join(space.axes[i].name for i in space.known[:4])
        raise InputError(
            f"{len(space.known)} randomized parameters are known ({names}, …), but nearest neighbours are meaningless "
            f"in more than {MOST_AXES} dimensions. Select the important ones: --axes 'object/*/position/*'."
        )
    columns = list(space.known)
    success = real.success if len(space.real) == len(real.members) else np.full(len(space.real), np.nan)
    kept = np.isfinite(space.sim[:, columns]).all(axis=1)
    names = [space.axes[i].name for i in columns]
    encoder = {"name": PARAMETERS, "axes": names, "source": space.source}
    return (
        make_episode_rows(space.real[:, columns], success),
        make_episode_rows(space.sim[kept][:, columns], sim.success[kept]),
        encoder,
    )


def _embed_clips(
    options: ComparedSides, real: EpisodeSide, sim: EpisodeSide, workspace: Workspace | None
) -> tuple[ClipRows, ClipRows, Whitening, ClipSettings, dict[str, Any], list[str]]:
    encoder = open_clip_encoder(options.embedding)
    ranges, calibrated = find_substitute_twin(options.ranges, workspace, [*real.examples, *sim.examples])
    settings, conversions = match_clip_settings(real, sim, clip_s=options.clip, ranges=ranges, camera=options.camera)
    raw_real, raw_sim, result = encode_sides(real, sim, encoder, settings, workspace)
    fitted, rows_of = "the real clips", raw_real.rows
    if options.fit == "union":
        fitted = "the real and simulated clips together"
        rows_of = np.vstack([raw_real.rows, raw_sim.rows])
    resolution = encoder.get_noise_levels(settings.units) if isinstance(encoder, WaypointEncoder) else None
    whitening = fit_whitening(rows_of, fitted=fitted, resolution=resolution)
    rows = [replace(side, rows=whitening(side.rows)) for side in (raw_real, raw_sim)]
    info = {
        "name": encoder.name,
        **result,
        "settings": settings.to_json(),
        "rate_hz": settings.rate_hz,
        "space_hash": hash_space(result["hash"], whitening),
    }
    return rows[0], rows[1], whitening, settings, info, [*conversions, *calibrated]
