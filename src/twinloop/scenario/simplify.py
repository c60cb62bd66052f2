"""What a failure needs, and nothing else: parameters go back to the middle of what is drawn while it still fails."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.scenario.rare import Seen, Try

Array = NDArray[np.float64]
_TRIES = 8  # changes of each failure that are tried at once; our choice
_SHRINK = 0.7  # what is left of an axis that cannot go back to the middle altogether; our choice


def simplified(try_: Try, z: Array, *, rounds: int, rng: np.random.Generator) -> tuple[Array, Seen]:
    """Failures ``z`` ``(k, d)`` as probable as they can be made: few axes off the middle, and those as little.

    Every round tries for each failure to set parts of its axes back, larger parts while that works and smaller ones
    after (delta debugging; Zeller and Hildebrandt, IEEE Transactions on Software Engineering 28, 2002), and keeps the
    most probable that still fails. Late rounds shrink what is left.

    Returns:
        The failures, and every world that was tried.
    """
    best, part, seen = z.copy(), np.full(len(z), 0.5), list[Seen]()
    for number in range(rounds):
        shrink = number >= rounds - max(1, rounds // 4)
        candidates = np.stack([_changed(best[i], part[i], shrink, rng) for i in range(len(best))])
        tried = try_(candidates.reshape(-1, z.shape[1]))
        seen.append(tried)
        failed = (tried.failed & ~tried.lost).reshape(len(best), _TRIES)
        size = np.where(failed, (candidates**2).sum(axis=2), np.inf)
        chosen = size.argmin(axis=1)
        better = np.isfinite(size.min(axis=1))
        best[better] = candidates[np.flatnonzero(better), chosen[better]]
        part = np.where(better, np.minimum(part * 1.2, 0.9), part * 0.6)
    return best, Seen.joined(seen)


def _changed(z: Array, part: float, shrink: bool, rng: np.random.Generator) -> Array:
    """Changes of one failure ``(_TRIES, d)``: about that part of the axes that are off the middle set back."""
    off = z != 0.0
    back = off & (rng.random((_TRIES, len(z))) < part)
    lone = ~back.any(axis=1) & off.any()
    back[np.flatnonzero(lone), rng.choice(np.flatnonzero(off), size=int(lone.sum())) if off.any() else []] = True
    return np.where(back, z * (_SHRINK if shrink else 0.0), z)
