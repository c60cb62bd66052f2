"""Define the flags of ``twinloop twin`` and ``twinloop sensors``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import Request, request


@request
class TwinRequest(Request):
    """Options of all commands on one twin."""

    twin: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TWIN")]]
    """The twin: a built-in name, a twin YAML file, an MJCF or URDF file, package:NAME/PATH, or
    menagerie:NAME.
    """


@request
class TwinCheckRequest(TwinRequest):
    """Check the physics of a twin: penetration, grasp, delay, stability, energy, and convergence in the time step."""


@request
class TwinNewRequest(Request):
    """Write a commented YAML file of a twin for a robot's model, which you can edit and use everywhere as TWIN."""

    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]
    """The model: an MJCF or URDF file, package:NAME/PATH for one in an installed Python package, or menagerie:NAME."""
    output: Path | None = None
    """The file to write; by default NAME.yaml here."""


@request
class TwinShowRequest(TwinRequest):
    """Show every parameter of a twin: unit, nominal value, bounds, default range and its source."""

    image: Path | None = None
    """PNG file for a picture of the twin in its home pose, seen from the side."""


@request
class SensorsShowRequest(TwinRequest):
    """Write an image of the processing stages of a sensor model (noise, optics, exposure), and the clean image.

    All stages show the same time, at which the robot moves.
    """

    camera: str | None = None
    """Camera whose sensor is shown; by default the first camera of the twin."""
    sensor: str | None = None
    """Instead of --camera: name of one of the twin's sensors, a camera or a depth camera."""
    device: str | None = None
    """Device model to use at the camera instead of the twin's own sensor: see twinloop sensors list."""
    size: str = "320x240"
    """Size of each image as WIDTHxHEIGHT in pixels."""
    renderer: str = "auto"
    """Renderer of the images, such as gl, or auto: the fastest one that works here."""
    output: Path | None = None
    """PNG file to write; by default TWIN-SENSOR-DEVICE.png here."""


@request
class SensorsListRequest(Request):
    """List every built-in sensing device with kind and description; with --json also settings, values and sources."""
