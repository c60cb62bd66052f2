"""A recording with something changed on its way to a check; the folder stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Provenance
from twinloop.curate.recording import Array, Pictures, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode

Made = TypeVar("Made")
_LOOKS = "looks/"


class Edited(RecordedEpisode):
    """An episode that is another one but for what is changed.

    Args:
        of: the good one.
        raw: makes another episode of the raw one; given copies that it may write to.
        states: makes other simulator states ``(T + 1, nstate)``, of a copy.
        pictures: makes other pictures of a camera's ``(T, h, w, 3)``, of a copy.
        cameras: by camera, the one whose pictures stand in its place.
        rows: of each frame, the frame that stands in its place; frames may be left out or repeated. Times stay those
            of an even clock.
        provenance: makes another record of the provenance.
    """

    def __init__(
        self,
        of: RecordedEpisode,
        *,
        raw: Callable[[RawEpisode], RawEpisode] | None = None,
        states: Callable[[Array], Array] | None = None,
        pictures: Callable[[str, Pictures], Pictures] | None = None,
        cameras: dict[str, str] | None = None,
        rows: NDArray[np.intp] | None = None,
        provenance: Callable[[Provenance], Provenance] | None = None,
    ) -> None:
        super().__init__(of.reader, of.index, batch=of.batch, episode_id=of.episode_id, success=of.success)
        self._of, self._raw, self._states, self._pictures = of, raw, states, pictures
        self._camera, self._rows, self._provenance = cameras or {}, rows, provenance

    @property
    def touched(self) -> frozenset[str]:
        """What differs: some of ``raw``, ``states`` and ``pictures``."""
        found = {
            "raw": self._raw is not None or self._rows is not None,
            "states": self._states is not None or self._provenance is not None,
            "pictures": self._pictures is not None or self._rows is not None or bool(self._camera),
        }
        return frozenset(name for name, changed in found.items() if changed)

    @property
    def frames(self) -> int:
        """See `RecordedEpisode`."""
        return self._of.frames if self._rows is None else len(self._rows)

    @functools.cached_property
    def raw(self) -> RawEpisode:
        """See `RecordedEpisode`."""
        made = writable(self._of.raw)
        if self._rows is not None:
            made = taken(made, self._rows)
        return made if self._raw is None else self._raw(made)

    @functools.cached_property
    def states(self) -> Array | None:
        """See `RecordedEpisode`."""
        kept = self._of.states
        return kept if kept is None or self._states is None else self._states(kept.copy())

    @functools.cached_property
    def provenance(self) -> Provenance | None:
        """See `RecordedEpisode`."""
        kept = self._of.provenance
        return kept if kept is None or self._provenance is None else self._provenance(kept)

    def read_images(self, camera: str, frames: Sequence[int] | None = None) -> Pictures:
        """See `RecordedEpisode`."""
        chosen = list(range(self.frames)) if frames is None else list(frames)
        if "pictures" not in self.touched:
            return self._of.read_images(camera, chosen)
        return self._whole(camera)[chosen]

    def compute_once(self, name: str, make: Callable[[RecordedEpisode], Made]) -> Made:
        """See `RecordedEpisode`; what pictures look like is known where they are the same."""
        if name.startswith(_LOOKS) and "pictures" not in self.touched:
            return self._of.compute_once(name, make)
        return super().compute_once(name, make)

    def _whole(self, camera: str) -> Pictures:
        if self._facts.get("camera") != camera:  # one at a time is kept
            made = self._of.read_images(self._camera.get(camera, camera))
            made = made if self._rows is None else made[self._rows]
            self._facts["camera"] = camera
            self._facts["pictures"] = made if self._pictures is None else self._pictures(camera, made.copy())
        return self._facts["pictures"]  # pyright: ignore[reportReturnType]


def writable(raw: RawEpisode) -> RawEpisode:
    """A raw episode whose arrays are copies that may be written to."""
    copies = {name: np.array(getattr(raw, name), dtype=np.float64) for name in ("time", "state", "action")}
    return RawEpisode(**{**raw.__dict__, **copies})


def taken(raw: RawEpisode, rows: NDArray[np.intp]) -> RawEpisode:
    """Frames of an episode under an even clock."""
    dt = float(np.median(np.diff(raw.time)))
    time = raw.time[0] + dt * np.arange(len(rows))
    return RawEpisode(**{**raw.__dict__, "time": time, "state": raw.state[rows], "action": raw.action[rows]})
