"""Replace content, images, outcome or source of a recording, without changing the dataset folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from twinloop.core.records import Episode, Provenance, Source
from twinloop.curate.recording import Images, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode

Camera = Callable[[Sequence[int]], Images]


class Replaced(RecordedEpisode):
    """A recorded episode of which some properties are replaced; all others are those of the original.

    Args:
        of: The original recording.
        name: New ``episode_id``.
        episode: New content.
        success: New stated outcome.
        source: New source, real or simulated.
        cameras: New cameras, each a function from frame numbers to images ``(n, h, w, 3)``.
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
        self.of, self._episode, self._side, self._images = of, episode, source, cameras

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
        return self.of.cameras if self._images is None else tuple(self._images)

    def read_images(self, camera: str, frames: Sequence[int] | None = None) -> Images:
        """See `RecordedEpisode`."""
        if self._images is None:
            return self.of.read_images(camera, frames)
        return self._images[camera](range(self.frame_count) if frames is None else frames)
