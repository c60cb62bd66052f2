"""The command ``twinloop render``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Render:
    """Render stored episodes again from their states into a new dataset: another renderer, camera, size, or sensor."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of a generated dataset, with or without pictures."""
    renderer: str = "auto"
    """mitsuba, gl, warp, one of your own as FILE.py:CLASS, or auto: the fastest that works here."""
    camera: tuple[str, ...] = ()
    """Cameras to render, all by default. Pictures of other cameras that the dataset has are carried over."""
    size: tuple[str, ...] = ("320x240",)
    """Width x height in pixels; of one camera alone as front=640x480."""
    episodes: str | None = None
    """How many (30), ranges (0:30, 40:), or indices with commas (3,5,8); all by default."""
    output: Path | None = None
    """Folder of the new dataset; by default beside the source, with the renderer's name added."""
    workers: int = 0
    """Processes; 0 takes every core. The bytes written do not depend on it."""
    resume: bool = False
    """Go on from a run that was stopped, or whose renderer died."""
    samples: int | None = None
    """Samples per pixel, where the renderer has such a setting."""
    quality: tuple[str, ...] = ()
    """More settings of the renderer, as KEY=VALUE."""
    annotations: str = ""
    """The truth beside the pictures, with commas: see docs/annotations.md; or all."""
    sensors: tuple[str, ...] = ("clean",)
    """clean: as rendered; device: as the twin's own cameras see; or CAMERA=DEVICE for each."""
    subframes: int = 16
    """Drawings at most for one picture that a sensor takes of something that moves; 1: no blur, no rolling shutter."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Render."""
        from twinloop.workflows.generate.render import run_render, settings_from_words

        settings = settings_from_words(
            renderer=self.renderer,
            cameras=self.camera,
            sizes=self.size,
            episodes=self.episodes,
            samples=self.samples,
            quality=self.quality,
            annotations=self.annotations,
            sensors=self.sensors,
            subframes=self.subframes,
        )
        out = console(json=self.json)
        figures = run_render(
            self.dataset, settings, output=self.output, workers=self.workers, resume=self.resume, console=out
        )
        return figures, 0
