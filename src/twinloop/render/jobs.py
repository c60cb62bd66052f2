"""Rendering many episodes with several processes, each with a context of its own, in order."""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TypeVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.render.catalog import AUTO, open_renderer, renderer_entry
from twinloop.render.probe import choose_renderer
from twinloop.render.protocol import Frames, Renderer, SceneStates

R = TypeVar("R")
Finish = Callable[["RenderJob", Frames], R]


@dataclass(frozen=True, kw_only=True)
class RenderJob:
    """One episode to render: ``key`` names it in messages, ``model`` is what `model_to_bytes` gave.

    ``fields`` are this world's model fields, without the world axis. Jobs that share ``model``, cameras and size
    share a renderer.
    """

    key: int | str
    model: bytes = field(repr=False)
    states: SceneStates = field(repr=False)
    cameras: tuple[str, ...]
    height: int = 240
    width: int = 320
    fields: Mapping[str, NDArray] = field(default_factory=dict, repr=False)


def model_to_bytes(model: mujoco.MjModel) -> bytes:
    """A compiled model as MuJoCo's binary form, which another process with the same MuJoCo reads."""
    buffer = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def frames_of(_job: RenderJob, frames: Frames) -> Frames:
    """The pictures themselves: what `render_episodes` yields when it is not told to do more with them."""
    return frames


def render_episodes(
    jobs: Iterable[RenderJob],
    *,
    workers: int = 1,
    renderer: str = AUTO,
    finish: Finish[R] = frames_of,
) -> Iterator[tuple[RenderJob, R]]:
    """Render every job and yield it with its result, in the order of the jobs whichever worker was faster.

    Args:
        jobs: read as needed, at most ``workers + 1`` ahead of what was yielded.
        workers: processes; with 1 the work is done in this process.
        renderer: a name or ``auto``.
        finish: runs in the worker on ``(job, frames)`` and makes what is yielded. Pictures are large (138 MB for 300
            frames of two cameras at 240×320), so encode them there when several workers are used. Must be picklable.

    Raises:
        InputError: a job does not fit its model; names the job.
        TwinloopError: a worker process died; names the job. What was yielded before is whole.
        MissingDependencyError: the renderer does not work here.
    """
    name = choose_renderer() if renderer == AUTO else renderer
    renderer_entry(name)
    if workers <= 1:
        for job in jobs:
            yield job, _render(name, job, finish)
        _opened.cache_clear()
        return
    context = multiprocessing.get_context("spawn")
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_share_cores, initargs=(threads,)) as pool:
        yield from _in_order(pool, jobs, functools.partial(_render, name, finish=finish), ahead=workers + 1)


def _in_order(
    pool: ProcessPoolExecutor, jobs: Iterable[RenderJob], work: Callable[[RenderJob], R], *, ahead: int
) -> Iterator[tuple[RenderJob, R]]:
    pending: collections.deque[tuple[RenderJob, Future[R]]] = collections.deque()
    try:
        for job in jobs:
            pending.append((job, pool.submit(work, job)))
            if len(pending) >= ahead:
                yield _result(pending)
        while pending:
            yield _result(pending)
    finally:
        for _, future in pending:
            future.cancel()


def _result(pending: collections.deque[tuple[RenderJob, Future[R]]]) -> tuple[RenderJob, R]:
    job, future = pending.popleft()
    try:
        return job, future.result()
    except BrokenProcessPool as error:
        raise TwinloopError(
            f"A renderer process ended while episode {job.key} was rendered. The episodes before it are whole; "
            "run again to go on from there, with --workers 1 to see what the process says."
        ) from error


def _share_cores(threads: str) -> None:
    # Mesa's software rasterizer starts a thread per core in every process unless told otherwise.
    os.environ.setdefault("LP_NUM_THREADS", threads)


def _render(name: str, job: RenderJob, finish: Finish[R]) -> R:
    try:
        renderer = _opened(name, job.model, job.cameras, job.height, job.width)
        frames = renderer.render(job.states, job.fields)
    except InputError as error:
        raise InputError(f"Episode {job.key}: {error}") from None
    return finish(job, frames)


@functools.lru_cache(maxsize=4)
def _opened(name: str, model: bytes, cameras: tuple[str, ...], height: int, width: int) -> Renderer:
    compiled = mujoco.MjModel.from_binary_path("job.mjb", {"job.mjb": model})
    return open_renderer(name, compiled, height=height, width=width, cameras=cameras)
