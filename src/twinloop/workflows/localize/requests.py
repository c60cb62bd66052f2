"""Define the flags of ``twinloop localize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, TrackOption, request


@request
class LocalizeTrainRequest(TrackOption, Request):
    """Train a localizer: a network that estimates from images what a tracker would measure, with its uncertainty.

    Images are taken in the randomized worlds of a generate file, through the twin's camera models, while the task's
    expert acts. With --control the result is a policy from images. See docs/guides/localize.md.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The generate file, whose twin, task and randomization are used."""
    output: Path
    """Folder for the localizer."""
    control: Path | None = None
    """Folder of a policy that reads a tracker, such as `twinloop distill` makes; it acts on the estimates."""
    base: Path | None = None
    """Folder of a policy from images whose localizer is trained on, with images of worlds in which it acts itself."""
    tracked: tuple[str, ...] = ()
    """Tracked bodies that are estimated, such as cube, or '*'; by default all but the tool."""
    cameras: tuple[str, ...] = ()
    """Names of the cameras; by default all of the twin."""
    height: int | None = None
    """Rows of an image in pixels; by default 96."""
    width: int | None = None
    """Columns of an image in pixels; by default 128."""
    images: Literal["device", "clean"] | None = None
    """device for images of the twin's camera models (the default if there are models), clean for images without."""
    renderer: str | None = None
    """Name of the renderer; by default the fastest one that is installed."""
    worlds: int | None = None
    """Number of worlds; by default 4500."""
    frames: int | None = None
    """Images of each camera per world; by default 10."""
    steps: int | None = None
    """Optimizer steps; by default 10000."""
    batch: int | None = None
    """Number of samples per step."""
    lr: float | None = None
    """Maximum learning rate."""
    set: tuple[str, ...] = ()
    """Settings of the localizer as NAME=VALUE, such as look_every=6 (control steps from one image to the next)."""
    seed: int | None = None
    """Run seed; by default that of the file for the worlds, and 0 for the weights."""
    workers: int | None = None
    """Number of processes that take images; by default one per core."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from --output."""
    resume: bool = False
    """Continue an interrupted run; images that exist are kept."""


@request
class LocalizeAttachRequest(Request):
    """Give a localizer a policy that acts on its estimates; the result is a policy from images."""

    localizer: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="LOCALIZER")]]
    """Folder of the localizer, which is not changed."""
    control: Path
    """Folder of the policy, which reads joints and a tracker."""
    output: Path
    """Folder for the policy from images."""


@request
class LocalizeScoreRequest(Request):
    """Measure the errors of localizers on your own photos, rank them, and report whether the photos decide.

    The folder has a file photos.yaml with the images, the readings of the joints and the positions of bodies.
    The twin is that of the localizer. See docs/guides/localize.md.
    """

    localizers: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="LOCALIZER")]]
    """Folders of localizers, such as of several looks, ranges of camera poses, or devices."""
    photos: Path
    """Folder with photos.yaml, or the file."""
    output: Path | None = None
    """Folder for result.json; by default nothing is written."""
    twin: str | None = None
    """Name or file of the twin, whose geometry and cameras label the photos; by default the localizer's."""


@request
class LocalizeAdaptRequest(Request):
    """Correct a localizer, or a policy from images that was made of one, for the robot of labelled photos."""

    localizer: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="LOCALIZER")]]
    """Folder of the localizer, which is not changed."""
    photos: Path
    """Folder with photos.yaml, or the file; 10 to 20 photos in which the bodies are in different places."""
    output: Path
    """Folder for the corrected localizer."""
    twin: str | None = None
    """Name or file of the twin, whose geometry and cameras label the photos; by default the localizer's."""
