"""Change what a check reads of a recording, without changing the dataset folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Provenance
from twinloop.curate.recording import Array, Images, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode

Made = TypeVar("Made")
_LOOKS = "looks/"


class Edited(RecordedEpisode):
    """A recorded episode with some of its data changed.

    Args:
        of: The original episode.
        raw: Function that returns the changed raw episode; it gets copies and may write to them.
        states: Function that returns changed simulator states ``(T + 1, nstate)``, given a copy.
        images: Function that returns changed images ``(T, h, w, 3)``, given a camera's name and a copy of its images.
        cameras: For a camera's name, the camera whose images replace its own.
        rows: For each frame, the index of the frame that replaces it; may omit or repeat frames. Times are evenly
            spaced.
        provenance: Function that returns the changed provenance.
    """

    def __init__(
        self,
        of: RecordedEpisode,
        *,
        raw: Callable[[RawEpisode], RawEpisode] | None = None,
        states: Callable[[Array], Array] | None = None,
        images: Callable[[str, Images], Images] | None = None,
        cameras: dict[str, str] | None = None,
        rows: NDArray[np.intp] | None = None,
        provenance: Callable[[Provenance], Provenance] | None = None,
    ) -> None:
        super().__init__(of.reader, of.index, batch=of.batch, episode_id=of.episode_id, success=of.success)
        self._of, self._raw, self._states, self._images = of, raw, states, images
        self._camera, self._rows, self._provenance = cameras or {}, rows, provenance

    @property
    def touched(self) -> frozenset[str]:
        """Changed kinds of data: some of ``raw``, ``states`` and ``images``."""
        found = {
            "raw": self._raw is not None or self._rows is not None,
            "states": self._states is not None or self._provenance is not None,
            "images": self._images is not None or self._rows is not None or bool(self._camera),
        }
        return frozenset(name for name, changed in found.items() if changed)

    @property
    def frame_count(self) -> int:
        """See `RecordedEpisode`."""
        return self._of.frame_count if self._rows is None else len(self._rows)

    @functools.cached_property
    def raw(self) -> RawEpisode:
        """See `RecordedEpisode`."""
        made = copy_raw(self._of.raw)
        if self._rows is not None:
            made = select_rows(made, self._rows)
        return made if self._raw is None else self._raw(made)

    @functools.cached_property
    def states(self) -> Array | None:
        """See `RecordedEpisode`."""
        original = self._of.states
        return original if original is None or self._states is None else self._states(original.copy())

    @functools.cached_property
    def provenance(self) -> Provenance | None:
        """See `RecordedEpisode`."""
        original = self._of.provenance
        return original if original is None or self._provenance is None else self._provenance(original)

    def read_images(self, camera: str, frames: Sequence[int] | None = None) -> Images:
        """See `RecordedEpisode`."""
        chosen = list(range(self.frame_count)) if frames is None else list(frames)
        if "images" not in self.touched:
            return self._of.read_images(camera, chosen)
        return self._whole(camera)[chosen]

    def compute_once(self, name: str, make: Callable[[RecordedEpisode], Made]) -> Made:
        """See `RecordedEpisode`; results about images are taken from the original if the images are unchanged."""
        if name.startswith(_LOOKS) and "images" not in self.touched:
            return self._of.compute_once(name, make)
        return super().compute_once(name, make)

    def _whole(self, camera: str) -> Images:
        if self._facts.get("camera") != camera:  # only one camera is cached
            made = self._of.read_images(self._camera.get(camera, camera))
            made = made if self._rows is None else made[self._rows]
            self._facts["camera"] = camera
            self._facts["images"] = made if self._images is None else self._images(camera, made.copy())
        return self._facts["images"]  # pyright: ignore[reportReturnType]


def copy_raw(raw: RawEpisode) -> RawEpisode:
    """Return a raw episode with copied arrays, which can be changed."""
    copies = {name: np.array(getattr(raw, name), dtype=np.float64) for name in ("time", "state", "action")}
    return RawEpisode(**{**raw.__dict__, **copies})


def select_rows(raw: RawEpisode, rows: NDArray[np.intp]) -> RawEpisode:
    """Select frames of an episode by index, with evenly spaced times."""
    dt = float(np.median(np.diff(raw.time)))
    time = raw.time[0] + dt * np.arange(len(rows))
    return RawEpisode(**{**raw.__dict__, "time": time, "state": raw.state[rows], "action": raw.action[rows]})
