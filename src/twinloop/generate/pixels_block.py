"""One block of episodes on a rendering process: taken frame by frame, encoded as they come."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.files import read_json, write_json
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.spec import CameraSpec
from twinloop.dataset.video import EncodedEpisode, EncodedVideo, Piece, encode_pieces
from twinloop.generate.pixels_carry import carry_videos
from twinloop.generate.pixels_memory import RememberingRenderer
from twinloop.generate.pixels_source import source_plan, stored_episode
from twinloop.generate.pixels_views import CleanView, View
from twinloop.render import Renderer, open_renderer
from twinloop.twin import Twin

_DONE = "done.json"
# Frames held at a time beside those that the encoders work on: enough that a call costs nothing beside its frames.
_PIECE_BYTES = 24e6
_PIECE_FRAMES = 64
_PIECE_SECONDS = 2.0  # after so long a person wants to see that it goes on


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a rendering process needs: where the states are, which episodes, how, and where the encoded files go.

    ``carried`` are cameras whose videos are taken over from the source. ``seconds`` is what a step of all cameras costs
    by estimate; ``remember`` says that this is worth keeping each frame on the disk.
    """

    source: Path
    number: int
    indices: tuple[int, ...]
    cameras: tuple[CameraSpec, ...]
    carried: tuple[CameraSpec, ...]
    renderer: str
    quality: Mapping[str, Any]
    fps: int
    folder: Path
    seconds: float
    remember: bool


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a rendering process is: the steps that it finished since it said so last, and what it works on now."""

    steps: int
    episode: int
    rows: range

    def __str__(self) -> str:
        first, last = self.rows.start, self.rows.stop - 1
        frames = f"frame {first}" if first >= last else f"frames {first} to {last}"
        return f"episode {self.episode}, {frames}"


def render_block(job: Block, report: Callable[[Any], None]) -> dict[str, EncodedVideo]:
    """The videos of a block, made, or found where an earlier run has made them."""
    done = job.folder / _DONE
    if done.is_file():
        report(Reached(steps=_steps(job), episode=job.indices[-1], rows=range(0)))
        return _stored(done)
    videos = carry_videos(DatasetReader(job.source), job.indices, job.carried, job.folder)
    if job.cameras:
        paths = {camera.name: job.folder / f"{camera.name}.mp4" for camera in job.cameras}
        videos |= encode_pieces(_pieces(job, report), job.cameras, paths, fps=job.fps)
    _store(done, videos)
    shutil.rmtree(job.folder / "frames", ignore_errors=True)
    return videos


def _steps(job: Block) -> int:
    lengths = DatasetReader(job.source).lengths
    return int(lengths[list(job.indices)].sum())


def _store(done: Path, videos: Mapping[str, EncodedVideo]) -> None:
    rows = {
        name: {
            "path": str(video.path),
            "episodes": [
                {"frames": one.frames, "sampled": one.sampled, "histogram": one.histogram.tolist()}
                for one in video.episodes
            ],
        }
        for name, video in videos.items()
    }
    write_json(done, rows)


def _stored(done: Path) -> dict[str, EncodedVideo]:
    def episode(row: Mapping[str, Any]) -> EncodedEpisode:
        histogram = np.array(row["histogram"], dtype=np.int64)
        return EncodedEpisode(frames=row["frames"], sampled=row["sampled"], histogram=histogram)

    return {
        name: EncodedVideo(path=Path(video["path"]), episodes=tuple(episode(row) for row in video["episodes"]))
        for name, video in read_json(done).items()
    }


def _pieces(job: Block, report: Callable[[Any], None]) -> Iterator[Piece]:
    reader, plan, model = DatasetReader(job.source), source_plan(job.source), visual_model(job.source)
    finished = 0
    with ExitStack() as stack:
        views = _views(job, plan.twin, model, stack)
        for index in job.indices:
            episode = stored_episode(reader, index, plan.twin, model)
            for view in views:
                view.begin(episode)
            length = len(episode.record)
            for start in range(0, length, _piece(job)):
                rows = range(start, min(start + _piece(job), length))
                report(Reached(steps=finished, episode=index, rows=rows))
                frames = {name: taken for view in views for name, taken in view.frames(rows).items()}
                finished = len(rows)
                yield Piece(frames=frames, start=start, length=length)
    report(Reached(steps=finished, episode=job.indices[-1], rows=range(0)))


def _piece(job: Block) -> int:
    """Frames taken in one call."""
    size = sum(3 * camera.height * camera.width for camera in job.cameras)
    limits = (_PIECE_FRAMES, _PIECE_BYTES / size, _PIECE_SECONDS / job.seconds)
    return max(1, int(min(limits)))


def _views(job: Block, twin: Twin, model: mujoco.MjModel, stack: ExitStack) -> list[View]:
    """What takes the pictures: one renderer for the cameras of each size."""
    sizes: dict[tuple[int, int], list[str]] = {}
    for camera in job.cameras:
        sizes.setdefault((camera.height, camera.width), []).append(camera.name)
    opened = functools.partial(_opened, job, twin, model, stack)
    return [CleanView(opened(height, width, names)) for (height, width), names in sizes.items()]


def _opened(
    job: Block, twin: Twin, model: mujoco.MjModel, stack: ExitStack, height: int, width: int, cameras: list[str]
) -> Renderer:
    renderer = open_renderer(job.renderer, model, height=height, width=width, cameras=cameras, quality=job.quality)
    if job.remember:
        plan = source_plan(job.source)
        context = {
            "twin": twin.hash,
            "textures": [plan.texture_pool, plan.run_seed],
            "renderer": job.renderer,
            "quality": dict(job.quality),
        }
        renderer = RememberingRenderer(renderer, model, job.folder / "frames", context)
    return stack.enter_context(renderer)


def visual_model(source: Path) -> mujoco.MjModel:
    """The model that pictures of a dataset are made of, compiled once per process.

    Raises:
        InputError: a texture cannot be read.
    """
    plan = source_plan(source)
    return _visual_model(plan.twin.hash, plan.texture_pool, plan.run_seed, source)


@functools.lru_cache(maxsize=1)
def _visual_model(twin_hash: str, pool: int, seed: int, source: Path) -> mujoco.MjModel:
    del twin_hash
    return source_plan(source).twin.visual_model(texture_pool=pool, seed=seed)
