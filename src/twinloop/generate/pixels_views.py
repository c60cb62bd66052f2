"""How the pictures of an episode are taken: as they are rendered, or as a sensor sees them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.generate.pixels_source import StoredEpisode
from twinloop.render import Renderer, SceneStates
from twinloop.simulate.protocol import state_poses


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
        self._renderer = renderer
        self._episode: StoredEpisode | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """See `View`."""
        self._episode = episode
        self._states = SceneStates(**state_poses(episode.twin.model, episode.record.states[:-1]))

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """See `View`."""
        assert self._episode is not None  # noqa: S101 - our own invariant: begun first
        states = self._states.take(slice(rows.start, rows.stop))
        return self._renderer.render(states, self._episode.looks(rows))
