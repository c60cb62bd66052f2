"""A renderer that draws with arithmetic alone, and kills its process at a given frame, as broken drivers do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from twinloop.render.protocol import CHANNELS, new_channels
from twinloop.render.scene import PosedScene, camera_ids


class Fragile:
    """Each pixel encodes the frame's first position, the camera and its place.

    ``FRAGILE`` in the environment is ``FOLDER:QPOS:TIMES``: at a frame whose first position rounds to QPOS, a process
    is killed by a signal while FOLDER has fewer than TIMES files, one per death.
    """

    name = "fragile"
    channels = ("rgb",)
    seconds = 0.001

    def __init__(self, model, *, height=240, width=320, cameras=None, quality=None):
        self.height, self.width = height, width
        self._ids = camera_ids(model, cameras)
        self.cameras = tuple(self._ids)
        self._posed = PosedScene(model)

    def render(self, states, fields=None):
        return {name: seen["rgb"] for name, seen in self.observe(states, fields).items()}

    def observe(self, states, fields=None, *, channels=("rgb",)):
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        row = np.arange(self.height)[:, None, None]
        for i, qpos in enumerate(states.qpos):
            self._perhaps_die(qpos[0])
            self._posed.pose(states, i)
            light = 100.0 * self._posed.model.light_diffuse[0, 0] if self._posed.model.nlight else 0.0
            for name, images in seen.items():
                value = [30.0 * self._ids[name] + 0.2 * light + row, 160.0 + 50.0 * qpos[0] + 0.0 * row, 0.0 * row]
                value = np.concatenate(value, axis=-1) * np.ones((1, self.width, 1))
                images["rgb"][i] = np.clip(value, 0, 255)
        return seen

    def _perhaps_die(self, position):
        log = os.environ.get("FRAGILE_LOG")
        if log:
            with Path(log).open("a") as file:
                file.write(f"{float(position)!r}\n")
        if "FRAGILE" not in os.environ:
            return
        folder, where, times = os.environ["FRAGILE"].rsplit(":", 2)
        if round(float(position), 4) == float(where) and len(list(Path(folder).iterdir())) < int(times):
            (Path(folder) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGSEGV)

    def close(self):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Slow(Fragile):
    """The same, with a reported cost of two seconds for an image of 24×16."""

    seconds = 1600.0


assert set(Fragile.channels) <= set(CHANNELS)
