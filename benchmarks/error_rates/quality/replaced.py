"""A recording with another content, picture source, outcome or side; the folder stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from twinloop.core.records import Episode, Provenance, Source
from twinloop.curate.recording import Pictures, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode

Camera = Callable[[Sequence[int]], Pictures]


class Replaced(RecordedEpisode):
    """An episode that is read as another one.

    Args:
        of: the recording whose place it takes.
        name: its ``episode_id``; by default that of the other.
        episode: its content; by default that of the other.
        success: its stated outcome; by default that of the other.
        source: which side it is on; by default that of the other.
        cameras: its cameras, each a function from frames to pictures ``(n, h, w, 3)``; by default those of the other.
    """

    def __init__(
        self,
        of: RecordedEpisode,
        *,
        name: str = "",
        episode: Episode | None = None,
        success: bool | None = None,
        source: Source | None = None,
        cameras: dict[str, Camera] | None = None,
    ) -> None:
        stated = of.success if success is None else success
        super().__init__(of.reader, of.index, batch=of.batch, episode_id=name or of.episode_id, success=stated)
        self.of, self._episode, self._side, self._pictures = of, episode, source, cameras

    @functools.cached_property
    def raw(self) -> RawEpisode:
        """See `RecordedEpisode`."""
        return self.of.raw if self._episode is None else RawEpisode.of(self._episode)

    @functools.cached_property
    def provenance(self) -> Provenance | None:
        """See `RecordedEpisode`."""
        known = self.of.provenance
        return known if known is None or self._side is None else replace(known, source=self._side)

    @functools.cached_property
    def cameras(self) -> tuple[str, ...]:
        """See `RecordedEpisode`."""
        return self.of.cameras if self._pictures is None else tuple(self._pictures)

    def read_images(self, camera: str, frames: Sequence[int] | None = None) -> Pictures:
        """See `RecordedEpisode`."""
        if self._pictures is None:
            return self.of.read_images(camera, frames)
        return self._pictures[camera](range(self.frames) if frames is None else frames)
