"""Define the flags of ``twinloop generate``, ``render`` and ``replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, WorkersOption, request


@request
class GenerateRequest(WorkersOption, Request):
    """Generate a dataset in randomized worlds from a YAML file; by default the task expert's successes are kept."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The generate file, with the sections scene, randomization, rollout, and optionally render."""
    output: str
    """Folder of the dataset, or an address such as s3://bucket/prefix; images, if requested, go to OUTPUT-images."""
    episodes: int | None = None
    """Number of attempts, instead of the file's parallel_envs × episodes_per_env. Only successful attempts are kept,
    unless --keep all is given.
    """
    seed: int | None = None
    """Run seed, instead of the file's."""
    randomize_from: Path | None = None
    """Folder of an identify run: draw from its distribution instead of the file's randomization. See
    docs/concepts/uncertainty.md."""
    resume: bool = False
    """Continue an interrupted run."""
    keep: Literal["success", "all"] = "success"
    """Keep only the successful episodes, or all episodes with their outcome."""
    engine: str = "local"
    """Engine that runs the worlds: local, ray (this machine, or the cluster of RAY_ADDRESS) or ray:HOST:PORT."""
    backend: str | None = None
    """Backend that steps the worlds, instead of the file's rollout.backend."""
    profile: bool = False
    """Print the time that each step of the run takes."""


@request
class RenderRequest(WorkersOption, Request):
    """Render stored episodes again from their states, with another renderer, camera, image size or sensor model."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of a generated dataset, with or without images."""
    renderer: str = "auto"
    """mitsuba, filament, gl, warp, your own renderer as FILE.py:CLASS, or auto: the fastest one that works here."""
    camera: tuple[str, ...] = ()
    """Cameras to render; by default all. Existing images of other cameras are copied."""
    size: tuple[str, ...] = ("320x240",)
    """Image size as WIDTHxHEIGHT in pixels; for one camera alone as front=640x480."""
    episodes: str | None = None
    """Episodes to render: a number of them (30), ranges (0:30, 40:), or indices (3,5,8); by default all."""
    output: Path | None = None
    """Folder of the new dataset; by default next to the source, with the renderer's name added."""
    resume: bool = False
    """Continue a run that was interrupted, or whose renderer crashed."""
    samples: int | None = None
    """Samples per pixel, if the renderer has this setting."""
    quality: tuple[str, ...] = ()
    """Other settings of the renderer, as KEY=VALUE."""
    annotations: str = ""
    """Annotations, separated by commas, or all: see docs/guides/annotations.md."""
    sensors: tuple[str, ...] = ("clean",)
    """clean: no sensor model; device: the sensor models of the twin; or CAMERA=DEVICE for each camera."""
    subframes: int = 16
    """Maximum number of renderings for one sensor image with motion; 1 gives no motion blur and no rolling shutter."""


@request
class ReplayRequest(Request):
    """Simulate a stored episode again from its provenance and recorded commands, and compare the states."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of a generated dataset."""
    episode: tyro.conf.Positional[Annotated[int, tyro.conf.arg(metavar="EPISODE")]]
    """Index of the episode in the dataset (episode_index)."""
    invalid: bool = False
    """EPISODE is the number of an attempt whose world became invalid."""
    verify: bool = False
    """Exit with 1 unless the states are equal bit for bit."""
