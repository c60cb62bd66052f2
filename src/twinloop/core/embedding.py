"""What an encoder makes of pictures or clips, with the encoder's name on it: only like may be compared with like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Rows of numbers that an encoder gave.

    ``values`` is ``(n, d)``; ``clusters`` ``(n,)`` the number of the episode that each row comes from. ``encoder``
    names what made them and ``encoder_hash`` its weights and settings: rows of equal hash lie in one space.
    ``source`` says what was encoded, for messages and pages.

    Raises:
        InputError: no rows, rows that are not finite, or clusters that do not fit; names the source and the row.
    """

    values: NDArray[np.float64]
    clusters: NDArray[np.int64]
    encoder: str
    encoder_hash: str
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen(self.values))
        clusters = np.array(self.clusters, dtype=np.int64)
        clusters.setflags(write=False)
        object.__setattr__(self, "clusters", clusters)
        self._check()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def episodes(self) -> int:
        """How many episodes the rows come from."""
        return len(np.unique(self.clusters))

    def _check(self) -> None:
        what = f"The embedding of {self.source} by {self.encoder}"
        if self.values.ndim != 2 or not self.values.size:
            raise InputError(f"{what} has shape {self.values.shape}; expected (rows, numbers), at least one of each.")
        if self.clusters.shape != (len(self.values),):
            raise InputError(
                f"{what} has {len(self.values)} rows and episode numbers of shape {self.clusters.shape}. "
                "Give the number of its episode for every row."
            )
        bad = np.flatnonzero(~np.isfinite(self.values).all(axis=1))
        if len(bad):
            raise InputError(
                f"{what}: row {bad[0]}, of episode {self.clusters[bad[0]]}, is not finite ({len(bad)} such rows). "
                "Look at that picture, and at the encoder's input range."
            )


def require_same_encoder(real: Embedding, sim: Embedding) -> None:
    """Refuse to compare embeddings of different encoders: their numbers mean different things.

    Raises:
        InputError: names both encoders.
    """
    if real.encoder_hash == sim.encoder_hash and real.values.shape[1] == sim.values.shape[1]:
        return
    one, other = (
        f"{e.source} was encoded by {e.encoder} ({e.encoder_hash[:12]}, {e.values.shape[1]} numbers)"
        for e in (real, sim)
    )
    raise InputError(
        f"{one}, {other}: embeddings of different encoders cannot be compared. Encode both with the same one."
    )
