"""What a planted defect is: a mistake, how large it is made, and which checks should find it."""

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
    """A mistake that can be made on purpose.

    ``sizes`` are how large it is made, smallest first, in ``unit``. ``finds`` are the checks that name it; others may
    notice it besides. ``plant`` takes a recording, a size and a generator, and returns None where it cannot be made.
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
    """Enter a function into a table of defects; ``finds`` name checks of the family of the first of them."""

    def register(plant: Plant) -> Plant:
        family = finds[0].partition("/")[0]
        table[name] = Defect(name=name, family=family, sizes=sizes, unit=unit, finds=frozenset(finds), plant=plant)
        return plant

    return register


def moving_joint(recording: RecordedEpisode, random: np.random.Generator) -> int | None:
    """A joint that moves well, both measured and by command."""
    raw = recording.raw
    if raw.command != "position" or raw.action.shape != raw.state.shape:
        return None
    reach = np.minimum(np.ptp(raw.state, axis=0), np.ptp(raw.action, axis=0))
    found = np.flatnonzero(reach > 0.3 * reach.max())
    return int(random.choice(found)) if len(found) else None


def moving_frame(recording: RecordedEpisode, random: np.random.Generator, *, frames: int = 1) -> int | None:
    """A frame from which on most joints move briskly for so many frames."""
    motion = compute_motion(recording)
    brisk = motion.speed > np.median(motion.speed[motion.moving]) if motion.moving.any() else motion.moving
    share = np.convolve(brisk, np.ones(frames) / frames, mode="valid")
    found = np.flatnonzero(share >= min(0.7, share.max(initial=0.0)))
    found = found[(found > 5) & (found + frames < len(motion.speed) - 5)]
    return int(random.choice(found)) if len(found) else None


def reach(recording: RecordedEpisode) -> NDArray[np.float64]:
    """Ranges of the joints' columns in this episode, ``(n,)``."""
    return np.ptp(recording.raw.state, axis=0)
