"""Render stored states with any renderer into a new dataset that records its source."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from twinloop.core.console import show_progress
from twinloop.core.errors import MissingDependencyError, TwinloopError
from twinloop.core.files import sha256_json
from twinloop.core.pool import LostItem, map_crash_tolerant
from twinloop.core.records import SimEpisode
from twinloop.dataset.annotations import DOCUMENT
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.side_tables import side_table_names
from twinloop.dataset.spec import CameraSpec, DatasetSpec
from twinloop.generate.coverage import rendered_documents
from twinloop.generate.pixels.block import RenderBlock, RenderProgress, render_block, visual_model
from twinloop.generate.pixels.source import RenderSource, open_source, read_episode_record, read_stored_episode
from twinloop.generate.pixels.views import SensorChoice, choose_sensors
from twinloop.generate.render_settings import RenderConfig
from twinloop.render import choose_renderer, probe_renderer
from twinloop.render.annotate import annotations_document
from twinloop.render.catalog import renderer_entry, renderer_versions
from twinloop.render.protocol import check_channels
from twinloop.twin import Twin

# Largest number of episodes per file: few, so that every process has work and a crash costs little.
BLOCK = 8
_BLOCK_SECONDS = 240.0  # s; a block that would take longer gets fewer episodes
_WORTH_KEEPING = 0.25  # s; more expensive frames are cached on the disk, which takes 0.05 s
_PIXELS = 640 * 480  # size of the image for which a renderer's cost is given
_MOST_LOST = 3  # blocks that end their process twice before the run is stopped
_SUBFRAMES = 4  # mean number per image with a sensor: most of an episode is slow
PICTURES = "pictures"  # key in Provenance.extra: origin of each camera's images


def render_dataset(
    source: Path, output: Path, settings: RenderConfig, *, workers: int = 0, resume: bool = False
) -> dict[str, Any]:
    """Render stored episodes of a generated dataset into a new dataset; return the result.

    The drawn appearance of each episode (lights, camera pose, textures) comes from its provenance. Existing cameras of
    the source are copied, unless they are rendered again.

    Args:
        source: a dataset with states, with or without images.
        output: a missing or empty folder, or with ``resume`` one from an earlier run with the same settings.
        workers: number of processes; the result does not depend on it. A process that a renderer ends is replaced.
            0 renders in this process.

    Raises:
        UnknownNameError: a camera, a renderer or a setting does not exist.
        InputError: the source has no states or no episode, or its twin has changed.
        MissingDependencyError: no renderer works on this machine.
        TwinloopError: a renderer ended its process twice on the same episodes; finished blocks are kept.
    """
    start = open_source(source, settings)
    renderer = check_render(settings, start.twin)
    visual_model(source)
    work = _RenderPass(source=start, settings=settings, renderer=renderer)
    with DatasetWriter.open(output, work.spec, resume=resume) as writer:
        with _open_scratch_folder(writer.path, work.spec.config_hash, resume=resume) as folder:
            _render_blocks(work, writer, folder, workers)
        result = work.result(writer)
        writer.finish(result, documents=rendered_documents(source, writer.path))
    return result


def check_render(settings: RenderConfig, twin: Twin) -> str:
    """Check render settings before a simulation; return the renderer's name.

    Raises:
        UnknownNameError: a camera, a renderer or a setting does not exist.
        InputError: a size is not possible for a video.
        MissingDependencyError: the renderer does not work on this machine.
    """
    cameras = [camera.name for camera in settings.specs(twin)]
    choose_sensors(settings, twin, cameras)
    wanted = settings.annotation_settings
    name = choose_renderer() if settings.renderer == "auto" else settings.renderer
    renderer_entry(name).make_settings(settings.settings)
    found = probe_renderer(name)
    if not found.available:
        raise MissingDependencyError(
            f"The renderer {found.name} does not work here ({found.detail}).", remedy=found.remedy
        )
    if wanted is not None and wanted.per_frame:
        made = getattr(renderer_entry(name).load(), "channels", ())
        check_channels(wanted.channels, made, renderer=name)
    return name


@dataclass(frozen=True, kw_only=True)
class _RenderPass:
    """One rendering pass: source, settings, renderer, and values derived from them."""

    source: RenderSource
    settings: RenderConfig
    renderer: str

    @cached_property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras to render."""
        return self.settings.specs(self.source.twin)

    @property
    def copied_cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras of the source that are copied because they are not rendered again."""
        anew = {camera.name for camera in self.cameras}
        return tuple(camera for camera in self.source.reader.spec.cameras if camera.name not in anew)

    @cached_property
    def sensor_choice(self) -> SensorChoice:
        """Sensor of each rendered camera."""
        return choose_sensors(self.settings, self.source.twin, [camera.name for camera in self.cameras])

    @property
    def seconds(self) -> float:
        """Estimated time in s for one step of all cameras."""
        sensed = min(_SUBFRAMES, self.settings.subframes)
        pixels = sum(
            camera.height * camera.width * (sensed if camera.name in self.sensor_choice.sensors else 1)
            for camera in self.cameras
        )
        return renderer_entry(self.renderer).seconds * pixels / _PIXELS

    @property
    def block_size(self) -> int:
        """Number of episodes per file."""
        lengths = self.source.reader.lengths[list(self.source.chosen)]
        return min(BLOCK, max(1, math.floor(_BLOCK_SECONDS / (self.seconds * float(lengths.mean())))))

    @cached_property
    def renderer_text(self) -> str:
        """Renderer and versions, as text."""
        versions = ", ".join(f"{name} {found}" for name, found in renderer_versions(self.renderer).items())
        return f"{self.renderer} ({versions})"

    @cached_property
    def spec(self) -> DatasetSpec:
        """Specification of the new dataset."""
        parent = self.source.reader.spec
        config = {
            "parent": dict(parent.config),
            "parent_content": self.source.content,
            "render": self.settings.model_dump(mode="json"),
            "renderer": self.renderer,
            "versions": renderer_versions(self.renderer),
            "quality": self.settings.settings,
            "found": renderer_entry(self.renderer).describe_environment(),
        }
        order = {camera.name: camera for camera in (*parent.cameras, *self.cameras)}  # replaced in their position
        return replace(
            parent,
            name=f"{parent.name.removesuffix(' images')} images",
            cameras=tuple(order.values()),
            config=config,
            config_hash=sha256_json(config),
            block_size=self.block_size,
        )

    def blocks(self, first: int, folder: Path) -> Iterator[RenderBlock]:
        """Yield the blocks that contain episodes, from block ``first`` on."""
        reader = self.source.reader
        for number, indices in self.source.group_by_block(self.block_size).items():
            if number >= first:
                yield RenderBlock(
                    source=reader.path,
                    number=number,
                    indices=indices,
                    settings=self.settings,
                    carried=self.copied_cameras,
                    renderer=self.renderer,
                    fps=reader.spec.fps,
                    folder=folder / str(number),
                    seconds=self.seconds,
                    remember=self.seconds / len(self.cameras) > _WORTH_KEEPING,
                )

    def record(self, index: int) -> SimEpisode:
        """Return an episode's record for the new dataset."""
        record = read_episode_record(self.source.reader, index)
        parent = record.provenance
        pictures = dict(parent.extra.get(PICTURES, {}))
        for camera in self.cameras:
            how = {"renderer": self.renderer_text, "width": camera.width, "height": camera.height}
            how |= self._describe_sensor(index, camera)
            pictures[camera.name] = {**how, "quality": self.settings.settings, "parent": parent.content_hash}
        provenance = replace(
            parent,
            versions={**parent.versions, "renderer": self.renderer_text},
            parents=(parent.content_hash,),
            content_hash="",
            extra={**parent.extra, PICTURES: pictures},
        )
        return replace(record, provenance=provenance)

    def _describe_sensor(self, index: int, camera: CameraSpec) -> dict[str, Any]:
        """Return the description of a camera's sensor for the provenance; empty without one."""
        name = self.sensor_choice.sensors.get(camera.name)
        if name is None:
            return {}
        model, reader = visual_model(self.source.reader.path), self.source.reader
        episode = read_stored_episode(
            reader, index, self.sensor_choice.twin, model, replaced=self.sensor_choice.replaced
        )
        device = self.sensor_choice.twin.devices[name].name
        return {"device": device, **episode.camera(name, camera).to_json()}

    @cached_property
    def documents(self) -> dict[str, dict[str, Any]]:
        """Documents that describe the side tables, by name."""
        wanted = self.settings.annotation_settings
        return {} if wanted is None else {DOCUMENT: annotations_document(self.source.twin, wanted)}

    def result(self, writer: DatasetWriter) -> dict[str, Any]:
        """Return the result of the pass as a JSON-compatible dictionary."""
        return {
            "schema": 1,
            "verb": "render",
            "episodes": writer.episodes,
            "frames": writer.frames,
            "cameras": [camera.name for camera in self.cameras],
            "carried": [camera.name for camera in self.copied_cameras],
            "height": self.settings.height,
            "width": self.settings.width,
            "sizes": {camera.name: f"{camera.width}x{camera.height}" for camera in self.cameras},
            "renderer": self.renderer,
            "sensors": dict(self.sensor_choice.sensors),
            "tables": sorted(side_table_names(writer.path)),
            "parent": self.source.reader.spec.name,
            "parent_content": self.source.content,
        }


def _render_blocks(work: _RenderPass, writer: DatasetWriter, folder: Path, workers: int) -> None:
    jobs = list(work.blocks(writer.next_block, folder))
    lengths = work.source.reader.lengths
    total = int(sum(lengths[list(job.indices)].sum() for job in jobs))
    lost: list[tuple[RenderBlock, LostItem]] = []
    with show_progress(label="render", total=total) as advance:

        def heard(reached: RenderProgress) -> None:
            advance(reached.steps)

        for job, made in map_crash_tolerant(render_block, jobs, workers=min(workers, len(jobs)), progress=heard):
            if isinstance(made, LostItem):
                lost.append((job, made))
                if len(lost) == _MOST_LOST:
                    break
            elif not lost:  # blocks are committed in order; those after a lost one wait in the folder
                writer.skip_blocks(job.number, outcome={"rendered": 0})
                episodes = [work.record(index) for index in job.indices]
                writer.commit_block(
                    job.number,
                    episodes,
                    videos=made.videos,
                    outcome={"rendered": len(episodes)},
                    tables=made.tables,
                    documents=work.documents,
                )
                shutil.rmtree(job.folder, ignore_errors=True)
    if lost:
        raise _make_lost_error(work, writer, lost)
    last = int(work.source.reader.numbers[work.source.chosen[-1]]) // work.block_size
    writer.skip_blocks(last + 1, outcome={"rendered": 0})


def _make_lost_error(
    work: _RenderPass, writer: DatasetWriter, lost: list[tuple[RenderBlock, LostItem]]
) -> TwinloopError:
    """Return the error for blocks that ended their processes each time."""
    told = "; ".join(f"{one.reported or f'episode {job.indices[0]}'}: its process {one.how}" for job, one in lost)
    return TwinloopError(
        f"The renderer {work.renderer} ended its process twice at the same place ({told}). {writer.episodes} episodes "
        "are committed and further finished frames are stored: the same command with --resume continues from "
        "there, with more memory or fewer --workers. Or leave these episodes out with --episodes."
    )


@contextmanager
def _open_scratch_folder(output: Path, config_hash: str, *, resume: bool) -> Iterator[Path]:
    """Yield a folder next to the dataset for temporary files, which a resumed run with the same settings uses."""
    around = output.with_name(f".{output.name}.render")
    folder = around / config_hash[:16]
    for other in around.glob("*"):
        if not (resume and other == folder):
            shutil.rmtree(other, ignore_errors=True)
    try:
        yield folder
    except BaseException:
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(around, ignore_errors=True)
        raise
    shutil.rmtree(around, ignore_errors=True)
