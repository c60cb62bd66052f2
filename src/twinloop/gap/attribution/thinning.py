"""Choose an evenly spread part of a log, so that hundreds of replays stay within a budget of physics steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twinloop.core.records import Episode
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin

_LEAST = 4  # least number of episodes for any budget: fewer have no interval


@dataclass(frozen=True, kw_only=True)
class ThinnedLog:
    """The replayed part of a log with its options; ``why`` describes the part and the reason, "" for the whole log."""

    episodes: Sequence[Episode]
    options: ReplayOptions
    why: str


def thin_log(
    twin: Twin, episodes: Sequence[Episode], options: ReplayOptions, *, worlds: int, steps: float
) -> ThinnedLog:
    """Return the part of a log that a number of worlds can replay within a budget.

    First the distance between windows is increased, so that every episode, the unit of all intervals, still counts.
    Then episodes are left out, evenly spread. At least four episodes are always kept.

    Args:
        twin: the twin at the rate of the replay's physics.
        episodes: the whole log.
        options: how it is divided into windows.
        worlds: number of worlds that replay it.
        steps: limit of the physics steps of all of them together.
    """
    part = steps / (worlds * count_physics_steps(twin, episodes, options))
    if part >= 1:
        return ThinnedLog(episodes=episodes, options=options, why="")
    kept, told = options, list[str]()
    if options.window is not None:
        stride = options.stride or options.window
        usual = float(np.median([episode.time[-1] - episode.time[0] for episode in episodes]))
        widest = max(stride, (usual - options.window) / 2)  # windows at an episode's beginning, middle and end
        kept = replace(options, stride=min(stride / part, widest))
        part *= (kept.stride or stride) / stride
        if kept.stride != stride:
            told.append(f"a window every {kept.stride:.3g} s")
    count = min(len(episodes), max(_LEAST, round(part * len(episodes))))
    rows = np.unique(np.linspace(0, len(episodes) - 1, count).round().astype(int))
    if len(rows) < len(episodes):
        told.append(f"{len(rows)} of {len(episodes)} episodes")
    why = f"{' of '.join(told)}, so that {worlds} worlds take {steps / 1e6:.3g} million physics steps" if told else ""
    return ThinnedLog(episodes=[episodes[row] for row in rows], options=kept, why=why)


def count_physics_steps(twin: Twin, episodes: Sequence[Episode], options: ReplayOptions) -> float:
    """Return the number of physics steps of one world."""
    seconds = sum(float(episode.time[-1] - episode.time[0]) for episode in episodes)
    overlap = 1.0 if options.window is None else options.window / (options.stride or options.window)
    return max(seconds * overlap / twin.dt, 1.0)
