"""The gap as a record: figures with intervals, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.stats import Interval, skill

_LEAST_WIDTH = 18


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """Mean absolute error per joint, in the log's units, open loop from the first frame of each episode.

    ``twins`` holds the twin at its nominal parameters and, where parameters were given, ``identified``; ``baselines``
    the guesses. ``improvement`` is identified − nominal, paired by episode: negative is better. ``episode_errors``
    holds the errors ``(nepisode, n)`` behind every figure, ``lengths`` the frames of each episode.
    """

    joints: tuple[str, ...]
    log_units: tuple[str, ...]
    episodes: tuple[int, ...]
    twins: Mapping[str, Interval]
    baselines: Mapping[str, Interval]
    meanings: Mapping[str, str]
    improvement: Interval | None
    episode_errors: Mapping[str, NDArray[np.float64]]
    lengths: NDArray[np.float64]
    source: str

    @property
    def best(self) -> Interval:
        """The error of the identified twin where there is one, else of the nominal one."""
        return self.twins.get("identified", self.twins["nominal"])

    def skill(self, baseline: str) -> NDArray[np.float64]:
        """1 − error / error of a baseline, per joint: 1 is perfect, 0 no better than it."""
        return skill(self.best.estimate, self.baselines[baseline].estimate)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "joints": list(self.joints),
            "log_units": list(self.log_units),
            "episodes": list(self.episodes),
            "frames": int(self.lengths.sum()),
            "source": self.source,
            "twins": {name: interval.to_json() for name, interval in self.twins.items()},
            "baselines": {name: interval.to_json() for name, interval in self.baselines.items()},
            "meanings": dict(self.meanings),
            "improvement": None if self.improvement is None else self.improvement.to_json(),
            "skill": {name: self.skill(name).tolist() for name in self.baselines},
            "episode_errors": {name: errors.tolist() for name, errors in self.episode_errors.items()},
        }

    def text(self) -> str:
        """The report as a table for a terminal."""
        title = (
            f"Mean absolute error over {len(self.episodes)} episodes ({self.source}), open loop from the first frame"
        )
        width = max(_LEAST_WIDTH, *(len(joint) + 2 for joint in self.joints))
        lines = [title, "", " " * 26 + "".join(f"{joint:>{width}}" for joint in self.joints)]
        lines.append(f"{'unit':<26}" + "".join(f"{unit:>{width}}" for unit in self.log_units))
        for name, interval in {**self.baselines, **self.twins}.items():
            label = f"twin, {name}" if name in self.twins else name
            lines.append(f"{label:<26}" + "".join(f"{value:>{width}.3f}" for value in interval.estimate))
        lines += _interval_lines("", self.best, width)[1:]
        rows = ((name, self.skill(name)) for name in self.baselines)
        lines += [f"{'skill against ' + name:<26}" + "".join(f"{v:>{width}.2f}" for v in row) for name, row in rows]
        if self.improvement is not None:
            lines += _interval_lines("identified − nominal", self.improvement, width)
        lines += ["", *(f"{name}: {meaning}" for name, meaning in self.meanings.items())]
        return "\n".join(lines)


def _interval_lines(label: str, interval: Interval, width: int) -> list[str]:
    """Two rows of a table: the estimates, and the interval of each below it."""
    estimates = f"{label:<26}" + "".join(f"{value:>{width}.3f}" for value in interval.estimate)
    if np.isnan(interval.low).all():
        return [estimates, "  one episode, no interval"]
    bounds = [f"[{low:.3f}, {high:.3f}]" for low, high in zip(interval.low, interval.high, strict=True)]
    return [
        estimates,
        f"{f'  {interval.level:.0%} interval':<26}" + "".join(f"{bound:>{width}}" for bound in bounds),
    ]
