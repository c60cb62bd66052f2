"""Compare real with simulated images (`twinloop gap vision`): metrics, result.json and report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.image_sources import open_images
from twinloop.dataset.media.images import Images, Size
from twinloop.encoders.images import open_encoder
from twinloop.gap.trajectories.match import require_enough_draws
from twinloop.gap.vision.camera_remedy import CameraRemedy, apply_remedies, compute_statistics, redevelop_episodes
from twinloop.gap.vision.develop import CameraResponse
from twinloop.gap.vision.difference import MEANINGS, StatisticDifference
from twinloop.gap.vision.image_statistics import QUANTILES
from twinloop.gap.vision.image_summary import ImageSide, RegionScores, summarize_images
from twinloop.gap.vision.measure import VisionGap, measure_vision
from twinloop.generate.pixels.dataset import IMAGES
from twinloop.generate.render_settings import parse_image_size
from twinloop.render.sheet import contact_sheet
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.gap_sensors import (
    plot_episode_scores,
    plot_permutation_histogram,
    plot_region_maps,
    plot_tone_quantiles,
)
from twinloop.report.page import Tone
from twinloop.rollout.camera import camera_sensors
from twinloop.rollout.depth import sensor_settings
from twinloop.sensors.camera import CameraModel
from twinloop.sensors.camera.model import make_lens
from twinloop.stats import Interval
from twinloop.twin import load_twin
from twinloop.twin.devices import find_device
from twinloop.workflows.gap.requests import GapVisionRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome

_SHEET = 4  # images of each side on the contact sheet
ALPHA = 0.05


def vision_section(
    page: ReportPage, gap: VisionGap, tones: Mapping[str, NDArray[np.float64]], remedied_images: Sequence[Images]
) -> None:
    """Add to a report the real and simulated images, their feature distance, differing regions and recommended changes.

    Args:
        page: the report.
        gap: the measured gap.
        tones: mean quantiles of display values by ``real``, ``sim`` and, if camera parameters should change,
            ``remedied`` (simulated images after these changes); shape ``(3, q)`` for 3 colour channels and q quantiles.
        remedied_images: the stored simulated images, processed with all recommended changes.
    """
    _summary(page, gap)
    _remedies(page, gap, tones)
    _regions(page, gap, remedied_images)
    _distances(page, gap)


def verdict(gap: VisionGap) -> str:
    """Return the result as a sentence: can the images be distinguished, and which parameter to change first."""
    p, auc = gap.classifier.p_value, gap.classifier.auc
    share = f"A classifier separates held-out images with an AUC of {_format_interval(auc)} (½ is chance)"
    share += ", without a test" if np.isnan(p) else f", p = {p:.2g}"
    if p > ALPHA:
        return f"{share}: no significant gap with this number of episodes, which does not exclude a gap."
    named = f"; first to change: {remedy_text(gap.remedies[0])}" if gap.remedies else "; no camera parameter closes it"
    return f"{share}{named}."


def remedy_text(row: CameraRemedy) -> str:
    """Return a camera parameter with its present and its recommended value, with interval, as a text."""
    unit = f" {row.unit}" if row.unit else ""
    return f"{row.parameter}: {row.now:.4g} → {row.value:.4g} [{row.low:.4g}, {row.high:.4g}]{unit}"


def difference_row(row: StatisticDifference) -> list[str]:
    """Return the cells of one image statistic for a table with the columns `HEAD`.

    They are name, unit, real and simulated mean, their difference with interval, Holm's p-value, and the difference
    that is left after all remedies.
    """
    left = "" if math.isnan(row.remedied) else f"{row.remedied:+.3g}"
    return [
        row.name,
        row.unit,
        f"{row.real:.4g}",
        f"{row.sim:.4g}",
        _format_interval(row.difference),
        f"{row.p_value:.2g}",
        left,
    ]


HEAD = ("statistic", "unit", "real", "simulated", "real − simulated, 95 %", "p (Holm)", "left with remedies")


def _summary(page: ReportPage, gap: VisionGap) -> None:
    page.section(
        "Distance between simulated and real images",
        f"{len(gap.real.embedding)} images of {len(gap.real.names)} real episodes and {len(gap.sim.embedding)} of "
        f"{len(gap.sim.names)} simulated ones, encoded by {gap.encoder} ({gap.encoder_hash[:12]}, "
        f"{gap.dimension} features per image). The episode is the unit, not the image: labels are permuted and "
        f"samples drawn by whole episodes. {verdict(gap)}",
    )
    differ = sum(row.p_value <= ALPHA for row in gap.differences)
    page.key_metrics(
        [
            _interval_metric("AUC, held out", gap.classifier.auc),
            _interval_metric("MMD²", gap.mmd.distance),
            _interval_metric("KID", gap.kid.distance),
            KeyMetric(label="statistics that differ", value=f"{differ} of {len(gap.differences)}"),
            KeyMetric(
                label="regions that differ", value=f"{gap.regions.significant_regions} of {gap.regions.auc.size}"
            ),
        ]
    )
    real, sim = _sample_images(gap.real.sampled_images), _sample_images(gap.sim.sampled_images)
    labels = ["real"] * len(real) + ["simulated"] * len(sim)
    page.image(contact_sheet([*real, *sim], labels, columns=_SHEET), "Some of the compared images.")


def _remedies(page: ReportPage, gap: VisionGap, tones: Mapping[str, NDArray[np.float64]]) -> None:
    page.section(
        "Camera parameters to change",
        "Simulated images are processed again by the sensor's formulas with other values of the twin's camera, "
        "until colours, edges and noise equal those of the real images. A parameter is listed if its change is "
        "significant and reduces the gap; the one that closes most of MMD² comes first. Both sides must show the same "
        "scenes on average: differences of the scenes are attributed to the camera too.",
    )
    if gap.remedies:
        rows = [
            [row.parameter, row.unit, f"{row.now:.4g}", f"{row.value:.4g}", f"{row.low:.4g} to {row.high:.4g}",
             "–" if math.isnan(row.share) else f"{row.share:.0%}", ", ".join(row.closes) or "–"]
            for row in gap.remedies
        ]  # fmt: skip
        page.table(["parameter", "unit", "now", "value", "95 %", "of MMD² closed", "statistics that it closes"], rows)
        if math.isfinite(gap.remaining):
            page.text(
                f"With all of them together {max(gap.remaining, 0.0):.0%} of MMD² remain, for images processed again."
            )
    else:
        page.text("None: no parameter of the camera reduces the gap of the simulated images significantly.")
    page.plot(
        plot_tone_quantiles(QUANTILES, tones["real"], tones["sim"], tones.get("remedied")),
        "Tone by quantile matching: on the dotted line both sides are equally bright. A line through the origin of "
        "another slope is exposure or white balance, a bent one gamma or contrast, a shifted one brightness.",
    )
    marked: dict[tuple[int, int], Tone] = {
        (i, 5): "bad" for i, row in enumerate(gap.differences) if row.p_value <= ALPHA
    }
    page.table(HEAD, [difference_row(row) for row in gap.differences], tones=marked)
    page.text(" ".join(f"{name}: {meaning}." for name, meaning in MEANINGS.items()))


def _regions(page: ReportPage, gap: VisionGap, remedied_images: Sequence[Images]) -> None:
    page.section(
        "Regions that differ",
        "Each region is tested alone: a classifier of that region is trained on some episodes and scored on "
        "others. Transparent regions do not differ, red ones distinguish the simulation; the same map is drawn over "
        "both images.",
    )
    for regions, sim, when in (
        (gap.regions, gap.sim.sampled_images, ""),
        (gap.regions_left, remedied_images, " once all remedies are applied"),
    ):
        if regions is not None:
            middle = [some[len(some) // 2] for some in (_sample_images(gap.real.sampled_images), _sample_images(sim))]
            page.plot(
                plot_region_maps(middle, ["real", "simulated" + when], regions.separation, _hover_texts(regions)),
                f"{regions.significant_regions} of {regions.auc.size} regions are significant{when} (permuted "
                "episodes, Holm). "
                "Colour is the distance of scores in standard deviations, on a separate scale.",
            )


def _distances(page: ReportPage, gap: VisionGap) -> None:
    page.section(
        "Distances in the embedding",
        "MMD² and KID are zero on average if both sides come from one source, and may be negative by chance. "
        "Precision and density test whether simulated images look like real ones, recall and coverage whether they "
        "include all of the real ones.",
    )
    distance = gap.mmd.distance
    page.plot(
        plot_permutation_histogram(
            float(distance.estimate), float(distance.low), float(distance.high), gap.mmd.relabelled, name="MMD²"
        ),
        f"p = {gap.mmd.p_value:.2g}.",
    )
    rows = [
        ["MMD²", _format_interval(distance), gap.mmd.p_value],
        ["KID", _format_interval(gap.kid.distance), gap.kid.p_value],
    ]
    rows += [["AUC of the classifier", _format_interval(gap.classifier.auc), gap.classifier.p_value]]
    rows += [["accuracy of the classifier", _format_interval(gap.classifier.accuracy), math.nan]]
    rows += [
        [name, _format_interval(getattr(gap.neighbours, name)), math.nan]
        for name in ("precision", "recall", "density", "coverage")
    ]
    page.table(["metric", "estimate, 95 %", "p"], rows)
    count = len(gap.real.embedding)
    real = _mean_episode_scores(gap.classifier.scores[:count], gap.real)
    sim = _mean_episode_scores(gap.classifier.scores[count:], gap.sim)
    page.plot(
        plot_episode_scores(real, sim, gap.real.names, gap.sim.names),
        "Mean score of each episode by a classifier that has not seen it.",
    )


def _mean_episode_scores(scores: NDArray[np.float64], side: ImageSide) -> NDArray[np.float64]:
    """Return the mean classifier score of each episode over its held-out images, ``(nepisode,)``; 0 if it has none.

    Args:
        scores: score of each image, ``(nimage,)``; NaN if no classifier scored it.
        side: the images of one side.
    """
    _, number = np.unique(side.embedding.clusters, return_inverse=True)
    there = np.isfinite(scores)
    counts = np.bincount(number[there], minlength=number.max() + 1)
    return np.bincount(number[there], weights=scores[there], minlength=number.max() + 1) / np.maximum(counts, 1)


def _hover_texts(regions: RegionScores) -> NDArray[np.str_]:
    words = [
        [
            f"AUC {regions.auc[y, x]:.2f} [{regions.low[y, x]:.2f}, {regions.high[y, x]:.2f}], "
            f"{regions.separation[y, x]:.1f} standard deviations apart, p {regions.p_value[y, x]:.2g}; most by "
            f"{regions.by[y][x]}"
            for x in range(regions.auc.shape[1])
        ]
        for y in range(regions.auc.shape[0])
    ]
    return np.array(words)


def _sample_images(kept: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    chosen = np.unique(np.linspace(0, len(kept) - 1, min(len(kept), _SHEET)).astype(int))
    return [kept[i][0] for i in chosen]


def _format_interval(interval: Interval) -> str:
    estimate, low, high = (float(getattr(interval, end)) for end in ("estimate", "low", "high"))
    return "–" if math.isnan(estimate) else f"{estimate:.4g} [{low:.4g}, {high:.4g}]"


def _interval_metric(label: str, interval: Interval) -> KeyMetric:
    ends = f"95 %: {float(interval.low):.3g} to {float(interval.high):.3g}"
    return KeyMetric(label=label, value=float(interval.estimate), source=ends)


@dataclass(frozen=True, kw_only=True)
class SimulatedCamera:
    """The camera of simulated images.

    Attributes:
        sensor: name of its sensor in the twin.
        response: how light becomes display values.
        source: sentence for the user on where sensor and response come from.
    """

    sensor: str
    response: CameraResponse
    source: str


def run_gap_vision(request: GapVisionRequest, console: Console) -> Outcome:
    """Measure the distance between simulated and real images; print and store it.

    Distances are MMD² and KID of image embeddings, and the AUC of a classifier; 0.5 is no difference.

    Raises:
        InputError: If both folders are the same, or an option is invalid.
    """  # fmt: skip
    run = MeasuredRun.begin("gap", "vision", request.output, request.fail_if, console)
    require_enough_draws(request.draws, 0.95)
    real, sim, camera, seed = request.real, request.sim, request.camera, request.seed
    if Path(real).resolve() == Path(sim).resolve():
        raise InputError(f"--real and --sim are the same folder, {real}, so they cannot differ. Give simulated images.")
    encoder = open_encoder(request.embedding)
    images = open_images(real, camera), open_images(sim, request.sim_camera or _find_same_camera(sim, camera))
    for one in images:
        one.require_episodes()
    scaled: Size | None = None
    if request.size is not None:
        width, height = parse_image_size(request.size)
        scaled = (height, width)
    simulated_camera = load_simulated_camera(Path(sim), images[1].camera, request.twin)
    chosen = {"frames": request.frames, "size": scaled}
    real_side = summarize_images(images[0], encoder, **chosen, seed=seed)
    sim_side = summarize_images(images[1], encoder, **chosen, seed=seed + 1)
    how = {"draws": request.draws, "seed": seed}
    gap = measure_vision(
        real_side, sim_side, encoder, camera=simulated_camera.response, sensor=simulated_camera.sensor, **how
    )
    console.print(f"real: {gap.real.label}\nsimulated: {gap.sim.label}; {simulated_camera.source}", soft_wrap=True)
    _print_gap(console, gap)
    remedied_images = redevelop_episodes(
        gap.sim.sampled_images, simulated_camera.response, apply_remedies(simulated_camera.response, gap.remedies)
    )
    tones = _compute_tones(gap, remedied_images)
    return run.end(
        gap.to_json()
        | {
            "camera": {"sensor": simulated_camera.sensor, "known": simulated_camera.source},
            "seed": seed,
            "frames": request.frames,
        },
        gap.headline(),
        title="Real and simulated images",
        subtitle=f"{gap.real.label}; {gap.sim.label}; {simulated_camera.source}",
        fill=lambda page: vision_section(page, gap, tones, remedied_images),
    )


def load_simulated_camera(path: Path, camera: str, twin: str | None) -> SimulatedCamera:
    """Return the camera of simulated images, as far as their dataset and the twin describe it.

    Datasets of twinloop record the sensor of their images, its device, and its parameter values in each episode; means
    over episodes are used. A twin, if given, provides the settings of its sensor and their nominal values.

    Args:
        path: folder of the simulated images.
        camera: name of the camera.
        twin: reference of the twin as `load_twin` accepts it; None to use only the dataset.

    Raises:
        InputError: If the twin cannot be read, or its sensor is not a camera.
        UnknownNameError: If the twin has no sensor for this camera.
    """
    made, drawn = _read_camera_record(path, camera)
    if made is not None and "sensor" not in made:
        return SimulatedCamera(
            sensor=camera, response=CameraResponse(), source="rendered without a sensor, as by an ideal camera"
        )
    settings: dict[str, Any] = {}
    values: dict[str, float] = {}
    name, source = camera, "the camera is unknown, so an ideal one is assumed (--twin TWIN sets it)"
    if twin is not None:
        built = load_twin(twin)
        sensors = camera_sensors(built)
        if camera not in sensors:
            raise UnknownNameError("camera with a sensor", camera, sensors, where=f"twin {built.name}")
        name = sensors[camera]
        settings = sensor_settings(built, name, "camera")
        values = {key: float(column[0]) for key, column in built.sensor_values(built.table(1), name).items()}
        source = f"images of the sensor {name} of {built.name} with nominal values"
    elif made is not None:
        name = str(made["sensor"])
        device = find_device(str(made["device"]), where=f"{path}: images of {camera}")
        settings = {key: setting.value for key, setting in device.settings.items()}
        values = {key: rated.value for key, rated in device.values.items()}
        source = f"images of the sensor {name}, a {device.name}"
    means = {key.rpartition("/")[2]: value for key, value in drawn.items() if key.startswith(f"sensor/{name}/")}
    if means:
        source += f", with the means of {len(means)} randomized values over episodes"
    values |= means
    model = CameraModel.from_values(values, settings) if values or settings else CameraModel()
    return SimulatedCamera(
        sensor=name,
        response=CameraResponse(model=model, blur=make_lens(values, settings).blur if values else 0.0),
        source=source,
    )


def _read_camera_record(path: Path, camera: str) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Return the metadata that a twinloop dataset stores on a camera, and its mean randomized sensor parameters.

    The means are over the episodes.

    Args:
        path: folder of the images; for a folder that is not a twinloop dataset, the result is ``(None, {})``.
        camera: name of the camera.
    """
    if not (path / layout.SPEC).is_file():
        return None, {}
    reader = DatasetReader(path)
    records = [reader.provenance(i) for i in range(len(reader)) if not reader.is_appended(i)]
    made = next((r.extra[IMAGES][camera] for r in records if camera in r.extra.get(IMAGES, {})), None)
    names = {name for record in records for name in record.params if name.startswith("sensor/")}
    return made, {n: float(np.mean([r.params[n] for r in records if n in r.params])) for n in sorted(names)}


def _find_same_camera(sim: str, camera: str | None) -> str | None:
    """Return the name of the simulated camera that has the name of the real one, or None if there is none.

    Args:
        sim: folder of the simulated images.
        camera: name of the real camera; None if the user gave none.
    """
    try:
        return None if camera is None else open_images(sim, camera).camera
    except UnknownNameError:
        return None


def _compute_tones(gap: VisionGap, remedied_images: Sequence[Images]) -> dict[str, NDArray[np.float64]]:
    """Return mean quantiles of display values of real and simulated images, and of ``remedied_images``.

    Args:
        gap: the measured gap.
        remedied_images: simulated images processed with all recommended changes; used only if there are any.

    Returns:
        Arrays ``(3, q)`` for 3 colour channels and q quantiles, by ``real``, ``sim`` and ``remedied``.
    """
    tones = {"real": gap.real.statistics.levels.mean(axis=0), "sim": gap.sim.statistics.levels.mean(axis=0)}
    if gap.remedies:
        tones["remedied"] = compute_statistics(remedied_images).levels.mean(axis=0)
    return tones


def _print_gap(console: Console, gap: VisionGap) -> None:
    console.print(verdict(gap), soft_wrap=True)
    table = Table(*HEAD)
    for row in gap.differences:
        table.add_row(*difference_row(row))
    console.print(table)
    for row in gap.remedies:
        closed = "" if math.isnan(row.share) else f", closes {row.share:.0%} of MMD²"
        console.print(f"{remedy_text(row)}{closed}; closes {', '.join(row.closes) or 'no statistic'}", soft_wrap=True)
    if math.isfinite(gap.remaining):
        console.print(f"With all of them {max(gap.remaining, 0.0):.0%} of MMD² remain.")
    for side in (gap.real, gap.sim):
        if side.plain:
            console.print(f"{side.plain} images of {side.label} are of one colour and were left out.", soft_wrap=True)
