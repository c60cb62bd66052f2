"""Compare real with simulated pictures: figures, result.json, report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset import layout
from twinloop.dataset.picture_sources import open_pictures
from twinloop.dataset.pictures import Pictures, Size
from twinloop.dataset.reader import DatasetReader
from twinloop.encoders.pictures import open_encoder
from twinloop.gap.camera_remedy import developed_again, remedied, statistics_of
from twinloop.gap.camera_remedy_develop import Look
from twinloop.gap.states_match import refuse_draws
from twinloop.gap.vision import VisionGap, measure_vision
from twinloop.gap.vision_side import gather
from twinloop.generate.pixels.dataset import PICTURES
from twinloop.generate.render_settings import picture_size
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_gap_vision import HEAD, difference_row, remedy_text, verdict, vision_section
from twinloop.rollout.camera import camera_sensors
from twinloop.rollout.depth import sensor_settings
from twinloop.sensors.camera import CameraModel
from twinloop.sensors.camera.optics import lens_of
from twinloop.twin import load_twin
from twinloop.twin.devices import find_device


@dataclass(frozen=True, kw_only=True)
class SimulatedCamera:
    """The camera that simulated pictures were seen through: its sensor's name, its look, and how that is known."""

    sensor: str
    look: Look
    known: str


def run_gap_vision(
    real: str,
    sim: str,
    output: Path | None,
    *,
    camera: str | None,
    sim_camera: str | None,
    embedding: str,
    frames: int,
    size: str | None,
    twin: str | None,
    seed: int,
    draws: int,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store how far simulated pictures are from real ones.

    Args:
        real: a LeRobot dataset, or a folder with pictures of each episode.
        sim: the simulated one.
        output: folder for result.json and report.html; None stores nothing.
        camera: of the real pictures, and of the simulated ones where they have one of that name.
        sim_camera: of the simulated ones.
        embedding: what turns pictures into numbers, see `open_encoder`.
        frames: pictures of each episode, at most.
        size: ``320x240``, to which all pictures are scaled.
        twin: what the simulated pictures were made with, where the dataset does not say it.
        seed: of what is sampled, relabelled and resampled.
        draws: relabellings of episodes for each test.
        fail_if: conditions on which to exit with 1.
        console: for people.
    """  # fmt: skip
    run = MeasuredRun.begin("gap", "vision", output, fail_if, console)
    refuse_draws(draws, 0.95)
    if Path(real).resolve() == Path(sim).resolve():
        raise InputError(f"--real and --sim are the same folder, {real}: nothing can differ. Give simulated pictures.")
    encoder = open_encoder(embedding)
    pictures = open_pictures(real, camera), open_pictures(sim, sim_camera or _same_camera(sim, camera))
    for one in pictures:
        one.require()
    scaled: Size | None = None
    if size is not None:
        width, height = picture_size(size)
        scaled = (height, width)
    seen = simulated_camera(Path(sim), pictures[1].camera, twin)
    chosen = {"frames": frames, "size": scaled}
    seen_real = gather(pictures[0], encoder, **chosen, seed=seed)
    seen_sim = gather(pictures[1], encoder, **chosen, seed=seed + 1)
    gap = measure_vision(seen_real, seen_sim, encoder, look=seen.look, sensor=seen.sensor, draws=draws, seed=seed)
    console.print(f"real: {gap.real.label}\nsimulated: {gap.sim.label}; {seen.known}", soft_wrap=True)
    _print(console, gap)
    again = developed_again(gap.sim.kept, seen.look, remedied(seen.look, gap.remedies))
    tones = _tones(gap, again)
    return run.end(
        {**gap.to_json(), "camera": {"sensor": seen.sensor, "known": seen.known}, "seed": seed, "frames": frames},
        gap.headline(),
        title="Real and simulated pictures",
        subtitle=f"{gap.real.label}; {gap.sim.label}; {seen.known}",
        fill=lambda page: vision_section(page, gap, tones, again),
    )


def simulated_camera(path: Path, camera: str, twin: str | None) -> SimulatedCamera:
    """The camera of simulated pictures, as far as dataset and twin say.

    A dataset of ours says whether its pictures were seen through a sensor, of which device, and what each episode drew;
    means over episodes count. A twin gives settings and nominal values of its own sensor.

    Raises:
        InputError: the twin cannot be read, or its sensor is no camera.
    """
    made, drawn = _recorded(path, camera)
    if made is not None and "sensor" not in made:
        return SimulatedCamera(sensor=camera, look=Look(), known="rendered clean: light as an ideal camera shows it")
    settings: dict[str, Any] = {}
    values: dict[str, float] = {}
    name, known = camera, "nothing says through which camera, so an ideal one is assumed (--twin TWIN says)"
    if twin is not None:
        built = load_twin(twin)
        sensors = camera_sensors(built)
        if camera not in sensors:
            raise UnknownNameError("camera with a sensor", camera, sensors, where=f"twin {built.name}")
        name = sensors[camera]
        settings = sensor_settings(built, name, "camera")
        values = {key: float(column[0]) for key, column in built.sensor_values(built.table(1), name).items()}
        known = f"seen through the sensor {name} of {built.name}, at nominal values"
    elif made is not None:
        name = str(made["sensor"])
        device = find_device(str(made["device"]), where=f"{path}: pictures of {camera}")
        settings = {key: setting.value for key, setting in device.settings.items()}
        values = {key: rated.value for key, rated in device.values.items()}
        known = f"seen through the sensor {name}, a {device.name}"
    means = {key.rpartition("/")[2]: value for key, value in drawn.items() if key.startswith(f"sensor/{name}/")}
    if means:
        known += f", with means of the {len(means)} values that episodes drew"
    values |= means
    model = CameraModel.from_values(values, settings) if values or settings else CameraModel()
    return SimulatedCamera(
        sensor=name, look=Look(model=model, blur=lens_of(values, settings).blur if values else 0.0), known=known
    )


def _recorded(path: Path, camera: str) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """How a dataset of ours says that pictures of a camera were made, and means of what episodes drew."""
    if not (path / layout.SPEC).is_file():
        return None, {}
    reader = DatasetReader(path)
    records = [reader.provenance(i) for i in range(len(reader)) if not reader.appended(i)]
    made = next((r.extra[PICTURES][camera] for r in records if camera in r.extra.get(PICTURES, {})), None)
    names = {name for record in records for name in record.params if name.startswith("sensor/")}
    return made, {n: float(np.mean([r.params[n] for r in records if n in r.params])) for n in sorted(names)}


def _same_camera(sim: str, camera: str | None) -> str | None:
    """The simulated camera of the same name, or none where there is no such."""
    try:
        return None if camera is None else open_pictures(sim, camera).camera
    except UnknownNameError:
        return None


def _tones(gap: VisionGap, again: Sequence[Pictures]) -> dict[str, NDArray[np.float64]]:
    """Mean quantiles of display values of both sides, and of simulated pictures with all remedies."""
    tones = {"real": gap.real.statistics.levels.mean(axis=0), "sim": gap.sim.statistics.levels.mean(axis=0)}
    if gap.remedies:
        tones["remedied"] = statistics_of(again).levels.mean(axis=0)
    return tones


def _print(console: Console, gap: VisionGap) -> None:
    console.print(verdict(gap), soft_wrap=True)
    table = Table(*HEAD)
    for row in gap.differences:
        table.add_row(*difference_row(row))
    console.print(table)
    for row in gap.remedies:
        closed = "" if math.isnan(row.share) else f", closes {row.share:.0%} of MMD²"
        console.print(f"{remedy_text(row)}{closed}; closes {', '.join(row.closes) or 'no statistic'}", soft_wrap=True)
    if math.isfinite(gap.left):
        console.print(f"With all of them {max(gap.left, 0.0):.0%} of MMD² remain.")
    for side in (gap.real, gap.sim):
        if side.plain:
            console.print(f"{side.plain} pictures of {side.label} are of one colour and were left out.", soft_wrap=True)
