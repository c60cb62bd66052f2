"""Define planted defects of episodes: the change, its sizes, and the checks that should detect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.quality.planted.edited import Edited
from twinloop.curate.motion import compute_motion
from twinloop.curate.recording import RecordedEpisode

Plant = Callable[[RecordedEpisode, float, np.random.Generator], Edited | None]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect that can be planted into an episode.

    Attributes:
        name: Name, as printed.
        family: Family of the checks in ``finds``.
        sizes: Sizes of the defect in ``unit``, smallest first.
        unit: Unit of ``sizes``.
        finds: Checks that should detect it; other checks may detect it too.
        plant: Function from a recording, a size and a generator to the changed recording; None if the recording cannot
            have the defect.
    """

    name: str
    family: str
    sizes: tuple[float, ...]
    unit: str
    finds: frozenset[str]
    plant: Plant


def defect(
    table: dict[str, Defect], name: str, sizes: tuple[float, ...], unit: str, *finds: str
) -> Callable[[Plant], Plant]:
    """Register the decorated function in ``table``; ``finds`` are checks that should detect it (``family/name``)."""

    def register(plant: Plant) -> Plant:
        family = finds[0].partition("/")[0]
        table[name] = Defect(name=name, family=family, sizes=sizes, unit=unit, finds=frozenset(finds), plant=plant)
        return plant

    return register


def moving_joint(recording: RecordedEpisode, random: np.random.Generator) -> int | None:
    """Choose a random joint that moves clearly, both as measured and as commanded; None if there is none."""
    raw = recording.raw
    if raw.command != "position" or raw.action.shape != raw.state.shape:
        return None
    reach = np.minimum(np.ptp(raw.state, axis=0), np.ptp(raw.action, axis=0))
    found = np.flatnonzero(reach > 0.3 * reach.max())
    return int(random.choice(found)) if len(found) else None


def moving_frame(recording: RecordedEpisode, random: np.random.Generator, *, frames: int = 1) -> int | None:
    """Choose a random frame from which most joints move fast for ``frames`` frames; None if there is none."""
    motion = compute_motion(recording)
    brisk = motion.speed > np.median(motion.speed[motion.moving]) if motion.moving.any() else motion.moving
    share = np.convolve(brisk, np.ones(frames) / frames, mode="valid")
    found = np.flatnonzero(share >= min(0.7, share.max(initial=0.0)))
    found = found[(found > 5) & (found + frames < len(motion.speed) - 5)]
    return int(random.choice(found)) if len(found) else None


def reach(recording: RecordedEpisode) -> NDArray[np.float64]:
    """Return the range of each of n joints in this episode, ``(n,)`` in the log's units."""
    return np.ptp(recording.raw.state, axis=0)
