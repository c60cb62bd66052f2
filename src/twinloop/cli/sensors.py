"""The command ``twinloop sensors``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class SensorsShow:
    """One moment as a sensor makes it, stage by stage beside the clean picture, on a sheet."""

    twin: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TWIN")]]
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    camera: str | None = None
    """The camera to look from, the twin's first by default."""
    sensor: str | None = None
    """One of the twin's sensors by name instead: a camera or a depth camera."""
    device: str | None = None
    """What to put before the camera, instead of the twin's own sensor: see twinloop sensors list."""
    size: str = "320x240"
    """Width x height of each picture in pixels."""
    renderer: str = "auto"
    """Who draws."""
    output: Path | None = None
    """The PNG; by default TWIN-SENSOR-DEVICE.png here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.generate.render_settings import picture_size
        from twinloop.workflows.twin.sensors import show_sensor

        figures = show_sensor(
            self.twin,
            camera=self.camera,
            sensor=self.sensor,
            device=self.device,
            size=picture_size(self.size),
            renderer=self.renderer,
            output=self.output,
            console=console(json=self.json),
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class SensorsList:
    """Every built-in sensing device: kind and description; with --json its settings, values and their sources."""

    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.workflows.twin.sensors import list_devices

        return list_devices(console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """Look through a sensor."""

    action: (
        Annotated[SensorsShow, tyro.conf.subcommand("show", prefix_name=False)]
        | Annotated[SensorsList, tyro.conf.subcommand("list", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()
