"""Render and encode one block of episodes in a rendering process, frame by frame."""

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
    Opened,
    SensedView,
    SensorChoice,
    TableFiles,
    choose_sensors,
)
from twinloop.generate.render_settings import RenderConfig
from twinloop.randomize import Plan
from twinloop.render import RENDERERS, Renderer, open_renderer

_DONE = "done.json"
# Frames in memory at a time in addition to the encoders': enough to make the cost of a call negligible.
_PIECE_BYTES = 24e6
_PIECE_FRAMES = 64
_PIECE_SECONDS = 2.0  # s between reports of progress to the user


@dataclass(frozen=True, kw_only=True)
class RenderBlock:
    """Input of a rendering process: the states, the episodes, the settings, and the folder of the encoded files.

    ``carried`` are cameras whose videos are copied from the source. ``seconds`` is the estimated time of a step of all
    cameras. With ``remember`` each frame is cached on the disk, because it is expensive.
    """

    source: Path
    number: int
    indices: tuple[int, ...]
    settings: RenderConfig
    carried: tuple[CameraSpec, ...]
    renderer: str
    fps: int
    folder: Path
    seconds: float
    remember: bool

    @property
    def plan(self) -> Plan:
        """Plan of the run that simulated the source."""
        return load_source_plan(self.source)

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """Cameras to render."""
        return self.settings.specs(self.plan.twin)


@dataclass(frozen=True, kw_only=True)
class RenderedBlock:
    """Result of a block: videos by camera, and the files of its side tables by name."""

    videos: dict[str, EncodedVideo]
    tables: dict[str, Path]


@dataclass(frozen=True, kw_only=True)
class RenderProgress:
    """Progress of a rendering process: the steps since its last report, and its current work."""

    steps: int
    episode: int
    rows: range

    def __str__(self) -> str:
        first, last = self.rows.start, self.rows.stop - 1
        frames = f"frame {first}" if first >= last else f"frames {first} to {last}"
        return f"episode {self.episode}, {frames}"


def render_block(job: RenderBlock, report: Callable[[Any], None]) -> RenderedBlock:
    """Render a block, or return the result that an earlier run has stored."""
    done = job.folder / _DONE
    stored = _load_stored_block(done) if done.is_file() else None
    if stored is not None:
        steps = DatasetReader(job.source).lengths[list(job.indices)].sum()
        report(RenderProgress(steps=int(steps), episode=job.indices[-1], rows=range(0)))
        return stored
    videos = copy_videos(DatasetReader(job.source), job.indices, job.carried, job.folder)
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
    """Report the exception of a user's renderer with its place; built-in renderers are not expected to raise."""
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


def _load_stored_block(done: Path) -> RenderedBlock | None:
    """Return the block that an earlier run stored, or None if a file is missing."""

    def episode(row: Mapping[str, Any]) -> EncodedEpisode:
        histogram = np.array(row["histogram"], dtype=np.int64)
        return EncodedEpisode(frames=row["frames"], sampled=row["sampled"], histogram=histogram)

    rows, folder = read_json(done), done.parent
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
    """Return the number of frames rendered in one call."""
    size = sum(3 * camera.height * camera.width for camera in job.cameras)
    limits = (_PIECE_FRAMES, _PIECE_BYTES / size, _PIECE_SECONDS / job.seconds)
    return max(1, int(min(limits)))


def _make_views(job: RenderBlock, chosen: SensorChoice, opened: Opened) -> list[CameraView]:
    """Return the views: one renderer for the clean cameras of each size, one for each sensor."""
    views: list[CameraView] = []
    sizes: dict[tuple[int, int], list[str]] = {}
    for camera in job.cameras:
        if camera.name in chosen.sensors:
            sensor, most = chosen.sensors[camera.name], job.settings.subframes
            views.append(SensedView(_single_camera_renderer(opened, camera.name), sensor, camera, most=most))
        else:
            sizes.setdefault((camera.height, camera.width), []).append(camera.name)
    return [CleanView(opened(height, width, names)) for (height, width), names in sizes.items()] + views


def _single_camera_renderer(opened: Opened, camera: str) -> Callable[[int, int], Renderer]:
    """Return a function that opens a renderer of one camera by height and width."""
    return lambda height, width: opened(height, width, [camera])


def _open_renderer(
    job: RenderBlock, model: mujoco.MjModel, stack: ExitStack, height: int, width: int, cameras: list[str]
) -> Renderer:
    quality = job.settings.settings
    renderer = open_renderer(job.renderer, model, height=height, width=width, cameras=cameras, quality=quality)
    if job.remember:
        textures = [job.plan.texture_pool, job.plan.run_seed]
        how = {"renderer": job.renderer, "quality": quality}
        context = {"twin": job.plan.twin.hash, "textures": textures, **how}
        renderer = CachingRenderer(renderer, model, job.folder / "frames", context)
    return stack.enter_context(renderer)


def visual_model(source: Path) -> mujoco.MjModel:
    """Return the model for a dataset's images, compiled once per process.

    Raises:
        InputError: a texture cannot be read.
    """
    plan = load_source_plan(source)
    return _visual_model(plan.twin.hash, plan.texture_pool, plan.run_seed, source)


@functools.lru_cache(maxsize=1)
def _visual_model(twin_hash: str, pool: int, seed: int, source: Path) -> mujoco.MjModel:
    del twin_hash
    return load_source_plan(source).twin.visual_model(texture_pool=pool, seed=seed)
