"""Render the images of a dataset's stored states, and write them into a new dataset with its provenance."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from twinloop.core.errors import MissingDependencyError, TwinloopError
from twinloop.core.files import sha256_json
from twinloop.core.pool import CrashedItem, map_crash_tolerant
from twinloop.core.progress import announce_duration, show_progress
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
from twinloop.render.light_meshes import count_triangles
from twinloop.render.protocol import check_channels
from twinloop.twin import Twin

# Largest number of episodes per file: few, so that every process has work and a crash costs little.
BLOCK = 8
_BLOCK_SECONDS = 240.0  # s; a block that would take longer gets fewer episodes
_WORTH_KEEPING = 0.25  # s; more expensive frames are cached on the disk, which takes 0.05 s
_PIXELS = 640 * 480  # size of the image for which a renderer's cost is given
_MOST_LOST = 3  # the rendering stops after this number of blocks that crash their process twice
_SUBFRAMES = 4  # mean number of subframes of an image with a sensor, because most of an episode is slow
IMAGES = "pictures"  # key, spelled as in stored files, in Provenance.extra: origin of each camera's images


def render_dataset(
    source: Path, output: Path, settings: RenderConfig, *, workers: int = 0, resume: bool = False
) -> dict[str, Any]:
    """Render stored episodes of a generated dataset into a new dataset, and return the result as a dictionary.

    The drawn appearance of each episode (lights, camera pose, textures) comes from its provenance. Existing cameras of
    the source are copied, unless they are rendered again.

    Args:
        source: a dataset with states, with or without images.
        output: a missing or empty folder. If ``resume`` is true, also one from an earlier run with the same settings.
        settings: cameras, sizes, renderer and episodes.
        workers: number of processes; the result does not depend on it. A process that a renderer crashes is replaced. 0
            renders in this process.
        resume: continue an interrupted rendering.

    Raises:
        UnknownNameError: If a camera, a renderer or a setting does not exist.
        InputError: If the source has no states or no episode, or its twin has changed.
        MissingDependencyError: If no renderer works on this machine.
        TwinloopError: If a renderer crashes its process twice on the same episodes. Finished blocks are kept.
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
    """Check render settings before a simulation, and return the name of the renderer.

    Raises:
        UnknownNameError: If a camera, a renderer or a setting does not exist.
        InputError: If a size is not possible for a video.
        MissingDependencyError: If the renderer does not work on this machine.
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
    """One rendering of a dataset: source, settings and renderer, and the values derived from them."""

    source: RenderSource
    settings: RenderConfig
    renderer: str

    @cached_property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras to render, with their image sizes."""
        return self.settings.specs(self.source.twin)

    @property
    def copied_cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras of the source whose videos are copied, because they are not rendered again."""
        rendered = {camera.name for camera in self.cameras}
        return tuple(camera for camera in self.source.reader.spec.cameras if camera.name not in rendered)

    @cached_property
    def sensor_choice(self) -> SensorChoice:
        """Sensor model (lens, exposure, noise) that is applied to each rendered camera's images, if any."""
        return choose_sensors(self.settings, self.source.twin, [camera.name for camera in self.cameras])

    @property
    def seconds(self) -> float:
        """Estimated time in s to render one control step with all cameras."""
        sensed = min(_SUBFRAMES, self.settings.subframes)
        pixels = sum(
            camera.height * camera.width * (sensed if camera.name in self.sensor_choice.sensors else 1)
            for camera in self.cameras
        )
        return renderer_entry(self.renderer).seconds * pixels / _PIXELS

    @cached_property
    def simplified_meshes(self) -> dict[str, Any]:
        """How the renderer simplifies the model's meshes: tolerance and triangles; empty if it does not."""
        model = visual_model(self.source.reader.path)
        return renderer_entry(self.renderer).describe_changes(model, self.settings.settings)

    def estimate_seconds(self, steps: int, workers: int) -> float:
        """Return the estimated time in s to render control steps with all cameras, without sensors and annotations."""
        model = visual_model(self.source.reader.path)
        triangles = self.simplified_meshes.get("triangles", count_triangles(model))
        drawing = len(self.cameras) * triangles * renderer_entry(self.renderer).triangle_seconds
        return steps * (self.seconds + drawing) / max(1, workers)

    @property
    def block_size(self) -> int:
        """Number of episodes per block, which one process renders into one file per camera; at most 8."""
        lengths = self.source.reader.lengths[list(self.source.chosen)]
        return min(BLOCK, max(1, math.floor(_BLOCK_SECONDS / (self.seconds * float(lengths.mean())))))

    @cached_property
    def renderer_text(self) -> str:
        """Name of the renderer and versions of its packages, as text."""
        versions = ", ".join(f"{name} {found}" for name, found in renderer_versions(self.renderer).items())
        return f"{self.renderer} ({versions})"

    @cached_property
    def spec(self) -> DatasetSpec:
        """Specification of the new dataset: that of the source, with the rendered cameras."""
        parent = self.source.reader.spec
        config = {
            "parent": dict(parent.config),
            "parent_content": self.source.content,
            "render": self.settings.model_dump(mode="json"),
            "renderer": self.renderer,
            "versions": renderer_versions(self.renderer),
            "quality": self.settings.settings,
            "found": renderer_entry(self.renderer).describe_environment(),
            **({"meshes": self.simplified_meshes} if self.simplified_meshes else {}),
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
        """Yield the blocks to render, from block number ``first`` on.

        A block is a group of episodes that share one video file per camera. Blocks with no chosen episode are skipped.

        Args:
            first: number of the first block that is not finished.
            folder: folder for temporary files.
        """
        reader = self.source.reader
        for number, indices in self.source.group_by_block(self.block_size).items():
            if number >= first:
                yield RenderBlock(
                    source=reader.path,
                    number=number,
                    indices=indices,
                    settings=self.settings,
                    copied_cameras=self.copied_cameras,
                    renderer=self.renderer,
                    fps=reader.spec.fps,
                    folder=folder / str(number),
                    seconds=self.seconds,
                    cache_frames=self.seconds / len(self.cameras) > _WORTH_KEEPING,
                )

    def record(self, index: int) -> SimEpisode:
        """Return the record of an episode for the new dataset; its provenance has the renderer and the source episode.

        Args:
            index: index of the episode in the source.
        """
        record = read_episode_record(self.source.reader, index)
        parent = record.provenance
        images = dict(parent.extra.get(IMAGES, {}))
        for camera in self.cameras:
            how = {"renderer": self.renderer_text, "width": camera.width, "height": camera.height}
            how |= self._describe_sensor(index, camera)
            how |= {"meshes": self.simplified_meshes} if self.simplified_meshes else {}
            images[camera.name] = {**how, "quality": self.settings.settings, "parent": parent.content_hash}
        provenance = replace(
            parent,
            versions={**parent.versions, "renderer": self.renderer_text},
            parents=(parent.content_hash,),
            content_hash="",
            extra={**parent.extra, IMAGES: images},
        )
        return replace(record, provenance=provenance)

    def _describe_sensor(self, index: int, camera: CameraSpec) -> dict[str, Any]:
        """Return the description of a camera's sensor model for the provenance; empty if the camera has none.

        Args:
            index: index of the episode in the source.
            camera: the camera.
        """
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
        """Content of the JSON files that describe the annotations (masks, depth, …), by file name."""
        wanted = self.settings.annotation_settings
        return {} if wanted is None else {DOCUMENT: annotations_document(self.source.twin, wanted)}

    def result(self, writer: DatasetWriter) -> dict[str, Any]:
        """Return the result of the rendering as a JSON-compatible dictionary."""
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
            "meshes": self.simplified_meshes,
            "parent": self.source.reader.spec.name,
            "parent_content": self.source.content,
        }


def _render_blocks(work: _RenderPass, writer: DatasetWriter, folder: Path, workers: int) -> None:
    jobs = list(work.blocks(writer.next_block, folder))
    lengths = work.source.reader.lengths
    total = int(sum(lengths[list(job.indices)].sum() for job in jobs))
    lost: list[tuple[RenderBlock, CrashedItem]] = []
    workers = min(workers, len(jobs))
    announce_duration("render", work.estimate_seconds(total, workers))
    with show_progress(label="render", total=total) as advance:

        def report_progress(reached: RenderProgress) -> None:
            advance(reached.steps)

        for job, made in map_crash_tolerant(render_block, jobs, workers=workers, progress=report_progress):
            if isinstance(made, CrashedItem):
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
    work: _RenderPass, writer: DatasetWriter, lost: list[tuple[RenderBlock, CrashedItem]]
) -> TwinloopError:
    """Return the error for blocks on which the renderer crashed its process in every attempt.

    Args:
        work: the rendering.
        writer: writer of the new dataset.
        lost: each crashed block, with the description of its last crash.
    """
    crashes = "; ".join(f"{one.reported or f'episode {job.indices[0]}'}: its process {one.crash}" for job, one in lost)
    return TwinloopError(
        f"The renderer {work.renderer} crashed its process twice at the same place ({crashes}). {writer.episodes} "
        "episodes are committed, and finished frames of other episodes are stored. Continue with the same command and "
        "--resume, with more memory or fewer --workers, or exclude the episodes at this place with --episodes."
    )


@contextmanager
def _open_scratch_folder(output: Path, config_hash: str, *, resume: bool) -> Iterator[Path]:
    """Context manager for a folder with temporary files next to the dataset.

    The folder is deleted at the end. It is kept if the block raises an error and files exist, so that a resumed run
    with the same settings can use them.

    Args:
        output: folder of the dataset.
        config_hash: hash of the settings.
        resume: whether to keep the files of an earlier run with the same settings.
    """
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
