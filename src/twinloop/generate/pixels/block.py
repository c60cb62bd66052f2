"""Render and encode one block, the episodes that share one video file per camera, in a rendering process."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.documents import read_json
from twinloop.core.errors import TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.files import write_json
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.video import EncodedEpisode, EncodedVideo, FrameChunk, encode_pieces
from twinloop.dataset.spec import CameraSpec
from twinloop.generate.pixels.reuse import CachingRenderer, copy_samples, copy_videos
from twinloop.generate.pixels.source import load_source_plan, read_stored_episode
from twinloop.generate.pixels.views import (
    CameraView,
    CleanView,
    EpisodeTables,
    OpenRenderer,
    SensedView,
    SensorChoice,
    TableFiles,
    choose_sensors,
)
from twinloop.generate.render_settings import RenderConfig
from twinloop.randomize import Plan
from twinloop.render import RENDERERS, Renderer, open_renderer
from twinloop.twin.places import Scenery

_DONE = "done.json"
# Size of a chunk of frames in memory, in addition to the encoders' memory: the cost of a call is then negligible.
_PIECE_BYTES = 24e6
_PIECE_FRAMES = 64
_PIECE_SECONDS = 2.0  # s between reports of progress to the user


@dataclass(frozen=True, kw_only=True)
class RenderBlock:
    """Input of a rendering process: one block of episodes, the settings, and the folder for the files.

    Attributes:
        source: folder of the dataset with the states.
        number: number of the block.
        indices: indices of the episodes in the source.
        settings: settings of the rendering.
        copied_cameras: cameras whose videos are copied from the source.
        renderer: name of the renderer.
        fps: frames per second of the videos.
        folder: folder for the encoded files.
        seconds: estimated time in s to render one control step with all cameras.
        cache_frames: whether each frame is cached on the disk, because it takes long to render.
    """

    source: Path
    number: int
    indices: tuple[int, ...]
    settings: RenderConfig
    copied_cameras: tuple[CameraSpec, ...]
    renderer: str
    fps: int
    folder: Path
    seconds: float
    cache_frames: bool

    @property
    def plan(self) -> Plan:
        """Randomization plan of the run that simulated the source dataset."""
        return load_source_plan(self.source)

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras to render, with their image sizes."""
        return self.settings.specs(self.plan.twin)


@dataclass(frozen=True, kw_only=True)
class RenderedBlock:
    """Files that a rendering process made for one block (the episodes that share one video file per camera).

    Attributes:
        videos: encoded video by camera.
        tables: path of each side table (Parquet file with additional data per episode), by the name of the table.
    """

    videos: dict[str, EncodedVideo]
    tables: dict[str, Path]


@dataclass(frozen=True, kw_only=True)
class RenderProgress:
    """Report of a rendering process on its progress.

    Attributes:
        steps: number of control steps that were rendered since the last report.
        episode: index of the episode that is rendered now.
        rows: control steps that are rendered now; empty if the block is finished.
    """

    steps: int
    episode: int
    rows: range

    def __str__(self) -> str:
        first, last = self.rows.start, self.rows.stop - 1
        frames = f"frame {first}" if first >= last else f"frames {first} to {last}"
        return f"episode {self.episode}, {frames}"


def render_block(job: RenderBlock, report: Callable[[Any], None]) -> RenderedBlock:
    """Render a block of episodes; return the stored result if an earlier run has finished the block.

    Args:
        job: the block.
        report: function that is called with a `RenderProgress`.

    Raises:
        TwinloopError: If the renderer raises an error.
    """
    done = job.folder / _DONE
    stored = _load_stored_block(done) if done.is_file() else None
    if stored is not None:
        steps = DatasetReader(job.source).lengths[list(job.indices)].sum()
        report(RenderProgress(steps=int(steps), episode=job.indices[-1], rows=range(0)))
        return stored
    videos = copy_videos(DatasetReader(job.source), job.indices, job.copied_cameras, job.folder)
    paths = {camera.name: job.folder / f"{camera.name}.mp4" for camera in job.cameras}
    files = TableFiles(job.folder)
    with _convert_renderer_errors(job.renderer):
        videos |= encode_pieces(_render_chunks(job, report, files), job.cameras, paths, fps=job.fps)
    made = RenderedBlock(videos=videos, tables=files.close())
    _store_result(done, made)
    shutil.rmtree(job.folder / "frames", ignore_errors=True)
    return made


@contextmanager
def _convert_renderer_errors(name: str) -> Iterator[None]:
    """Context manager that converts an exception of a user's renderer to a `TwinloopError` with its location.

    Exceptions of built-in renderers are not converted.
    """
    try:
        yield
    except TwinloopError:
        raise
    except Exception as error:
        if name in RENDERERS.builtin:
            raise
        raise TwinloopError(
            f"The renderer {name} failed: {describe_error(error)}. Correct it; --resume keeps finished blocks."
        ) from error


def _store_result(done: Path, made: RenderedBlock) -> None:
    rows = {
        name: {
            "path": str(video.path),
            "episodes": [
                {"frames": one.frames, "sampled": one.sampled, "histogram": one.histogram.tolist()}
                for one in video.episodes
            ],
        }
        for name, video in made.videos.items()
    }
    write_json(done, {"videos": rows, "tables": made.tables})


def _load_stored_block(description: Path) -> RenderedBlock | None:
    """Return the result of a block that an earlier run has stored; None if a file is missing.

    Args:
        description: JSON file that describes the finished block.
    """

    def episode(row: Mapping[str, Any]) -> EncodedEpisode:
        histogram = np.array(row["histogram"], dtype=np.int64)
        return EncodedEpisode(frames=row["frames"], sampled=row["sampled"], histogram=histogram)

    rows, folder = read_json(description), description.parent
    videos = {
        name: EncodedVideo(
            path=folder / Path(video["path"]).name, episodes=tuple(episode(row) for row in video["episodes"])
        )
        for name, video in rows["videos"].items()
    }
    tables = {name: folder / Path(path).name for name, path in rows["tables"].items()}
    made = [*(video.path for video in videos.values()), *tables.values()]
    return RenderedBlock(videos=videos, tables=tables) if all(path.is_file() for path in made) else None


def _render_chunks(job: RenderBlock, report: Callable[[Any], None], files: TableFiles) -> Iterator[FrameChunk]:
    reader, model, size = DatasetReader(job.source), visual_model(job.source), _chunk_size(job)
    chosen = choose_sensors(job.settings, job.plan.twin, [camera.name for camera in job.cameras])
    finished = 0
    with ExitStack() as stack:
        opened = functools.partial(_open_renderer, job, model, stack)
        views = _make_views(job, chosen, opened)
        tables = EpisodeTables(opened, job.settings.annotation_settings, chosen.ranging)
        for index in job.indices:
            episode = read_stored_episode(reader, index, chosen.twin, model, replaced=chosen.replaced)
            for view in views:
                view.begin(episode)
            length = len(episode.record)
            for start in range(0, length, size):
                rows = range(start, min(start + size, length))
                report(RenderProgress(steps=finished, episode=index, rows=rows))
                frames = {name: taken for view in views for name, taken in view.frames(rows).items()}
                finished = len(rows)
                yield FrameChunk(frames=frames, start=start, length=length)
            files.add(copy_samples(reader, index) | tables.make_tables(episode, views))
    report(RenderProgress(steps=finished, episode=job.indices[-1], rows=range(0)))


def _chunk_size(job: RenderBlock) -> int:
    """Return the number of frames that are rendered in one call, limited by memory and by the time between reports."""
    size = sum(3 * camera.height * camera.width for camera in job.cameras)
    limits = (_PIECE_FRAMES, _PIECE_BYTES / size, _PIECE_SECONDS / job.seconds)
    return max(1, int(min(limits)))


def _make_views(job: RenderBlock, sensor_choice: SensorChoice, open_renderer: OpenRenderer) -> list[CameraView]:
    """Return the sources of images: one renderer per image size, and one per camera with a sensor model.

    Args:
        job: the block.
        sensor_choice: sensor of each camera.
        open_renderer: function that opens a renderer from height, width and cameras.
    """
    views: list[CameraView] = []
    sizes: dict[tuple[int, int], list[str]] = {}
    for camera in job.cameras:
        if camera.name in sensor_choice.sensors:
            sensor, most = sensor_choice.sensors[camera.name], job.settings.subframes
            views.append(SensedView(_single_camera_renderer(open_renderer, camera.name), sensor, camera, most=most))
        else:
            sizes.setdefault((camera.height, camera.width), []).append(camera.name)
    return [CleanView(open_renderer(height, width, names)) for (height, width), names in sizes.items()] + views


def _single_camera_renderer(open_renderer: OpenRenderer, camera: str) -> Callable[[int, int], Renderer]:
    """Return a function that opens a renderer of one camera from height and width.

    Args:
        open_renderer: function that opens a renderer from height, width and cameras.
        camera: name of the camera.
    """
    return lambda height, width: open_renderer(height, width, [camera])


def _open_renderer(
    job: RenderBlock, model: mujoco.MjModel, stack: ExitStack, height: int, width: int, cameras: list[str]
) -> Renderer:
    quality = job.settings.settings
    renderer = open_renderer(job.renderer, model, height=height, width=width, cameras=cameras, quality=quality)
    if job.cache_frames:
        scenery = job.plan.scenery
        textures = [scenery.texture_pool, scenery.rooms, scenery.seed, *(file.sha256 for file in scenery.panoramas)]
        how = {"renderer": job.renderer, "quality": quality}
        context = {"twin": job.plan.twin.hash, "textures": textures, **how}
        renderer = CachingRenderer(renderer, model, job.folder / "frames", context)
    return stack.enter_context(renderer)


def visual_model(source: Path) -> mujoco.MjModel:
    """Return the MuJoCo model for a dataset's images, with its textures and rooms; the last compiled model is cached.

    Args:
        source: folder of the dataset with the simulated states.

    Raises:
        InputError: If the run's random textures cannot be added to the model, for example if it has a pool already.
    """
    plan = load_source_plan(source)
    return _visual_model(plan.twin.hash, plan.scenery, source)


@functools.lru_cache(maxsize=1)
def _visual_model(twin_hash: str, scenery: Scenery, source: Path) -> mujoco.MjModel:
    del twin_hash
    return load_source_plan(source).twin.visual_model(scenery)
