"""Requests of ``twinloop generate``, ``render`` and ``replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, WorkersOption, request


@request
class GenerateRequest(WorkersOption, Request):
    """Generate a randomized dataset of an expert's successful episodes from a YAML file."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """What to generate: scene, randomization, rollout, and optionally render."""
    output: str
    """Folder of the dataset, or an address such as s3://bucket/prefix; images, if requested, go to OUTPUT-images."""
    episodes: int | None = None
    """Attempts, instead of parallel_envs × episodes_per_env; the successes among them are kept."""
    seed: int | None = None
    """Run seed, instead of the file's."""
    randomize_from: Path | None = None
    """Folder of an identify run: draw from its distribution instead of the file's randomization. See
    docs/concepts/uncertainty.md."""
    resume: bool = False
    """Go on from a run that was stopped."""
    keep: Literal["success", "all"] = "success"
    """Keep successful episodes only, or all of them, marked."""
    engine: str = "local"
    """Where worlds run: local, ray (this machine, or the cluster of RAY_ADDRESS) or ray:HOST:PORT."""
    backend: str | None = None
    """How the worlds run, instead of the file's rollout.backend."""
    profile: bool = False
    """Show where the time goes, step by step."""


@request
class RenderRequest(WorkersOption, Request):
    """Render stored episodes again from their states into a new dataset: another renderer, camera, size, or sensor."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of a generated dataset, with or without images."""
    renderer: str = "auto"
    """mitsuba, gl, warp, one of your own as FILE.py:CLASS, or auto: the fastest that works here."""
    camera: tuple[str, ...] = ()
    """Cameras to render, all by default. Existing images of other cameras are copied."""
    size: tuple[str, ...] = ("320x240",)
    """Width x height in pixels; of one camera alone as front=640x480."""
    episodes: str | None = None
    """How many (30), ranges (0:30, 40:), or indices with commas (3,5,8); all by default."""
    output: Path | None = None
    """Folder of the new dataset; by default next to the source, with the renderer's name added."""
    resume: bool = False
    """Go on from a run that was stopped, or whose renderer died."""
    samples: int | None = None
    """Samples per pixel, where the renderer has such a setting."""
    quality: tuple[str, ...] = ()
    """More settings of the renderer, as KEY=VALUE."""
    annotations: str = ""
    """Annotations, separated by commas, or all: see docs/guides/annotations.md."""
    sensors: tuple[str, ...] = ("clean",)
    """clean: as rendered; device: as the twin's own cameras see; or CAMERA=DEVICE for each."""
    subframes: int = 16
    """Largest number of renderings for one image of a sensor with motion in view; 1: no blur, no rolling shutter."""


@request
class ReplayRequest(Request):
    """Simulate a stored episode again from its provenance and recorded commands, and compare the states."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of a generated dataset."""
    episode: tyro.conf.Positional[Annotated[int, tyro.conf.arg(metavar="EPISODE")]]
    """Its episode_index."""
    aside: bool = False
    """EPISODE is the number of an attempt whose world became invalid."""
    verify: bool = False
    """Exit with 1 unless the states are equal bit for bit."""
