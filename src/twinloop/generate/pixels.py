"""Pass two: pixels from stored states, by any renderer, as a dataset of its own that names its parents."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_json
from twinloop.core.pool import ordered_map
from twinloop.core.progress import track
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot_v3 import DatasetWriter
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.spec import CameraSpec, DatasetSpec
from twinloop.dataset.video import EncodedVideo, encode_block
from twinloop.generate.config import GenerateConfig, RenderConfig, load_plan
from twinloop.generate.coverage import rendered_documents
from twinloop.generate.replay import root_config
from twinloop.randomize import Plan
from twinloop.render import SceneStates, choose_renderer, open_renderer, probe_renderer
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin

# Episode numbers per file: a few, so that every process has work and a crash costs little.
BLOCK = 8


@dataclass(frozen=True, kw_only=True)
class _Block:
    """What a rendering process needs: where the states are, which episodes, and where the encoded files go."""

    source: Path
    indices: tuple[int, ...]
    cameras: tuple[CameraSpec, ...]
    renderer: str
    fps: int
    folder: Path

    def __str__(self) -> str:
        return f"the pictures of episodes {self.indices[0]} to {self.indices[-1]}" if self.indices else "no pictures"


def render_dataset(
    source: Path, output: Path, settings: RenderConfig, *, workers: int = 1, resume: bool = False
) -> dict[str, Any]:
    """Render stored episodes of a generated dataset into a new dataset; returns its figures.

    The drawn appearance of each episode (lights, camera pose, textures) comes from its provenance.

    Raises:
        UnknownNameError: a camera that the twin does not have.
        InputError: the source holds no states, or no episode.
        MissingDependencyError: no renderer works here.
    """
    reader = DatasetReader(source)
    check_render(settings, _plan(str(source)).twin)
    count = min(len(reader), settings.episodes or len(reader))
    if not count:
        raise InputError(f"{source} holds no episode to render.")
    renderer = choose_renderer() if settings.renderer == "auto" else settings.renderer
    spec = _spec(reader, settings, renderer)
    with DatasetWriter.open(output, spec, resume=resume) as writer:
        _render_blocks(reader, writer, count, renderer, workers)
        result = {
            "schema": 1,
            "verb": "render",
            "episodes": writer.episodes,
            "frames": writer.frames,
            "cameras": list(settings.cameras),
            "height": settings.height,
            "width": settings.width,
            "renderer": renderer,
            "parent": reader.spec.name,
        }
        writer.finish(result, documents=rendered_documents(source, writer.path))
    return result


def check_render(settings: RenderConfig, twin: Twin) -> None:
    """Refuse what could not be rendered, before anything is simulated for it.

    Raises:
        UnknownNameError: a camera or a renderer that does not exist.
        MissingDependencyError: the renderer does not work here.
    """
    for camera in settings.cameras:
        if camera not in twin.spec.cameras:
            raise UnknownNameError("camera", camera, twin.spec.cameras, where=f"twin {twin.name}")
    if settings.renderer == "auto":
        choose_renderer()
        return
    found = probe_renderer(settings.renderer)
    if not found.available:
        raise MissingDependencyError(f"The renderer {found.name} does not work here.", remedy=found.remedy)


def _render_blocks(reader: DatasetReader, writer: DatasetWriter, count: int, renderer: str, workers: int) -> None:
    numbers = reader.numbers[:count]
    if (numbers < 0).any():
        raise InputError(
            f"Episode {int(np.argmax(numbers < 0))} of {reader.path} was appended by another program and has no states "
            "to render. Render fewer episodes, or the dataset as it was generated."
        )
    blocks = range(writer.next_block, int(numbers[-1]) // BLOCK + 1)
    with _scratch(writer.path) as folder:
        jobs = [
            _Block(
                source=reader.path,
                indices=tuple(int(i) for i in np.flatnonzero(numbers // BLOCK == block)),
                cameras=writer.spec.cameras,
                renderer=renderer,
                fps=writer.spec.fps,
                folder=folder / str(block),
            )
            for block in blocks
        ]
        done = ordered_map(_render_block, jobs, workers=workers)
        for block, (job, videos) in zip(blocks, track(done, label="render", total=len(jobs)), strict=True):
            episodes = [_episode(reader, index, renderer) for index in job.indices]
            writer.commit_block(block, episodes, videos=videos, outcome={"rendered": len(episodes)})


@contextmanager
def _scratch(output: Path) -> Generator[Path]:
    """A folder beside the dataset for files on their way; what a killed run left there is cleared first."""
    folder = output.with_name(f".{output.name}.render")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _spec(reader: DatasetReader, settings: RenderConfig, renderer: str) -> DatasetSpec:
    cameras = tuple(
        CameraSpec(name=camera, height=settings.height, width=settings.width) for camera in settings.cameras
    )
    config = {"parent": dict(reader.spec.config), "render": settings.model_dump(mode="json"), "renderer": renderer}
    return replace(
        reader.spec,
        name=f"{reader.spec.name} images",
        cameras=cameras,
        config=config,
        config_hash=sha256_json(config),
        block_size=BLOCK,
    )


def _episode(reader: DatasetReader, index: int, renderer: str) -> SimEpisode:
    parent = reader.provenance(index)
    frames = reader.frames_table(index, ["next.success"]) if reader.spec.success else None
    versions = {**parent.versions, "renderer": f"{renderer} (mujoco {mujoco.__version__})"}
    return SimEpisode(
        number=int(reader.numbers[index]),
        commands=reader.commands(index),
        states=reader.states(index),
        action=reader.array(index, "action"),
        observation=reader.array(index, "observation.state"),
        next_success=np.zeros(0, bool) if frames is None else frames["next.success"].to_numpy().astype(bool),
        provenance=replace(parent, versions=versions, parents=(parent.content_hash,), content_hash=""),
    )


def _render_block(job: _Block) -> dict[str, EncodedVideo]:
    paths = {camera.name: job.folder / f"{camera.name}.mp4" for camera in job.cameras}
    if not job.indices:
        return {}
    return encode_block(_frames(job), job.cameras, paths, fps=job.fps)


def _frames(job: _Block) -> Iterator[Mapping[str, Any]]:
    reader, plan = DatasetReader(job.source), _plan(str(job.source))
    twin, model = plan.twin, _visual_model(str(job.source))
    size = job.cameras[0]
    names = [camera.name for camera in job.cameras]
    with open_renderer(job.renderer, model, height=size.height, width=size.width, cameras=names) as renderer:
        for index in job.indices:
            table = twin.table(1, reader.provenance(index).params)
            fields = twin.fields(table, model=model, visual=True)
            states = SceneStates(**state_poses(twin.model, reader.states(index)[:-1]))
            yield renderer.render(states, {name: values[0] for name, values in fields.arrays.items()})


@functools.lru_cache(maxsize=2)
def _plan(source: str) -> Plan:
    return load_plan(GenerateConfig.model_validate(root_config(DatasetReader(source))["generate"]))


@functools.lru_cache(maxsize=1)
def _visual_model(source: str) -> mujoco.MjModel:
    plan = _plan(source)
    return plan.twin.visual_model(texture_pool=plan.texture_pool, seed=plan.run_seed)
