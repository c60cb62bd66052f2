"""How the pictures of an episode are taken: as they are rendered, or as a sensor sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.spec import CameraSpec
from twinloop.generate.pixels.source import StoredEpisode
from twinloop.render import Fields, Renderer, SceneStates
from twinloop.rollout.camera_shots import CameraShots


class View(Protocol):
    """Takes the pictures of some cameras, episode after episode, in each from the first frame to the last."""

    def begin(self, episode: StoredEpisode) -> None:
        """Another episode."""
        ...

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Pictures ``(n, height, width, 3)`` by camera at the control steps that follow."""
        ...


class CleanView:
    """Pictures as they are rendered, of the world at the moment of each command."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._episode: StoredEpisode | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """See `View`."""
        self._episode = episode

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """See `View`."""
        assert self._episode is not None  # noqa: S101 - our own invariant: begun first
        states = self._episode.states.take(slice(rows.start, rows.stop))
        return self.renderer.render(states, self._episode.fields(rows))


class SensedView:
    """Pictures as a sensor of the twin delivers them, each camera by itself.

    Args:
        opened: a renderer of the camera's view, by height and width; the lens of another world may want another.
        sensor: the name of the sensor.
        camera: size of the delivered pictures.
        most: subframes of a picture, at most.
    """

    def __init__(self, opened: Callable[[int, int], Renderer], sensor: str, camera: CameraSpec, *, most: int) -> None:
        self._opened = functools.cache(opened)
        self._sensor, self.camera, self._most = sensor, camera, most
        self.shots: CameraShots | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """See `View`."""
        camera = episode.camera(self._sensor, self.camera)
        renderer = self._opened(camera.view.height, camera.view.width)

        def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
            return renderer.observe(states, fields, channels=("linear",))[camera.camera]["linear"]

        self.shots = CameraShots(camera, episode.world, draw, most=self._most)

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """See `View`."""
        assert self.shots is not None  # noqa: S101 - our own invariant: begun first
        return {self.camera.name: self.shots.pictures(rows)}
