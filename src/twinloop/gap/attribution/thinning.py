"""A part of a log for replays by the hundred: so much of it that a budget of physics steps is kept, evenly spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twinloop.core.records import Episode
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin

_LEAST = 4  # episodes that are kept however little may be replayed: fewer have no interval


@dataclass(frozen=True, kw_only=True)
class ThinnedLog:
    """What of a log is replayed, and with which options; ``why`` says what was left out, "" where nothing was."""

    episodes: Sequence[Episode]
    options: ReplayOptions
    why: str


def part_within(
    twin: Twin, episodes: Sequence[Episode], options: ReplayOptions, *, worlds: int, steps: float
) -> ThinnedLog:
    """The part of a log that so many worlds can replay within a budget.

    Windows are set further apart first, so that every episode, the unit of all intervals, still counts; then episodes
    are left out, evenly spread. Four episodes stay whatever they cost.

    Args:
        twin: on the physics that is replayed.
        episodes: the whole log.
        options: how it is cut.
        worlds: that replay it.
        steps: physics steps of all of them together.
    """
    part = steps / (worlds * physics_steps(twin, episodes, options))
    if part >= 1:
        return ThinnedLog(episodes=episodes, options=options, why="")
    kept, told = options, list[str]()
    if options.window is not None:
        stride = options.stride or options.window
        usual = float(np.median([episode.time[-1] - episode.time[0] for episode in episodes]))
        widest = max(stride, (usual - options.window) / 2)  # an episode's beginning, middle and end: not one alone
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


def physics_steps(twin: Twin, episodes: Sequence[Episode], options: ReplayOptions) -> float:
    """Physics steps of one world."""
    seconds = sum(float(episode.time[-1] - episode.time[0]) for episode in episodes)
    overlap = 1.0 if options.window is None else options.window / (options.stride or options.window)
    return max(seconds * overlap / twin.dt, 1.0)
