"""Requests of ``twinloop twin`` and ``sensors``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import Request, request


@request
class OfTwin(Request):
    """Common to commands about one twin."""

    twin: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TWIN")]]
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""


@request
class TwinCheckRequest(OfTwin):
    """Does the twin hold up: penetration, grasp, delay, stability, energy, convergence."""


@request
class TwinShowRequest(OfTwin):
    """Every parameter of a twin: unit, nominal value, bounds, default range and its source."""


@request
class SensorsShowRequest(OfTwin):
    """Write an image of a sensor's stages at one time, with the clean image."""

    camera: str | None = None
    """The camera to look from, the twin's first by default."""
    sensor: str | None = None
    """One of the twin's sensors by name instead: a camera or a depth camera."""
    device: str | None = None
    """What to put before the camera, instead of the twin's own sensor: see twinloop sensors list."""
    size: str = "320x240"
    """Width x height of each image in pixels."""
    renderer: str = "auto"
    """Who draws."""
    output: Path | None = None
    """The PNG; by default TWIN-SENSOR-DEVICE.png here."""


@request
class SensorsListRequest(Request):
    """Every built-in sensing device: kind and description; with --json its settings, values and their sources."""
