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
    """The part of a log that is replayed.

    Attributes:
        episodes: Episodes of the part.
        options: Division of the episodes into windows.
        description: Text that describes the part and the reason; "" for the whole log.
    """

    episodes: Sequence[Episode]
    options: ReplayOptions
    description: str


def thin_log(
    twin: Twin, episodes: Sequence[Episode], options: ReplayOptions, *, worlds: int, steps: float
) -> ThinnedLog:
    """Return the part of a log that a number of worlds can replay within a budget of physics steps.

    First the distance between windows is increased. This keeps all episodes, because confidence intervals are computed
    by resampling episodes. Then episodes are left out, evenly spread. At least four episodes are always kept.

    Args:
        twin: The twin at the rate of the replay's physics.
        episodes: Episodes of the whole log.
        options: Division of the episodes into windows.
        worlds: Number of worlds that replay the log.
        steps: Limit of the physics steps of all worlds together.
    """
    part = steps / (worlds * count_physics_steps(twin, episodes, options))
    if part >= 1:
        return ThinnedLog(episodes=episodes, options=options, description="")
    kept, reductions = options, list[str]()
    if options.window is not None:
        stride = options.stride or options.window
        usual = float(np.median([episode.time[-1] - episode.time[0] for episode in episodes]))
        widest = max(stride, (usual - options.window) / 2)  # windows at an episode's beginning, middle and end
        kept = replace(options, stride=min(stride / part, widest))
        part *= (kept.stride or stride) / stride
        if kept.stride != stride:
            reductions.append(f"a window every {kept.stride:.3g} s")
    count = min(len(episodes), max(_LEAST, round(part * len(episodes))))
    rows = np.unique(np.linspace(0, len(episodes) - 1, count).round().astype(int))
    if len(rows) < len(episodes):
        reductions.append(f"{len(rows)} of {len(episodes)} episodes")
    description = (
        f"{' of '.join(reductions)}, so that {worlds} worlds take {steps / 1e6:.3g} million physics steps"
        if reductions
        else ""
    )
    return ThinnedLog(episodes=[episodes[row] for row in rows], options=kept, description=description)


def count_physics_steps(twin: Twin, episodes: Sequence[Episode], options: ReplayOptions) -> float:
    """Return the number of physics steps that one world needs to replay all windows of a log."""
    seconds = sum(float(episode.time[-1] - episode.time[0]) for episode in episodes)
    overlap = 1.0 if options.window is None else options.window / (options.stride or options.window)
    return max(seconds * overlap / twin.dt, 1.0)
