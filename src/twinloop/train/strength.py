"""How strongly each episode is randomized: how far its drawn parameters lie from the twin's nominal ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.train.sources import Listed
from twinloop.twin import load_twin


def strengths(episodes: Sequence[Listed]) -> NDArray[np.float64]:
    """Of each episode ``(E,)``, from 0 (nominal) to 1: the root mean square over the parameters that vary.

    Each parameter counts by its distance from nominal as a share of the largest such distance among the episodes of the
    same twin. Where the twin is not at hand, the median of what was drawn stands for nominal. An episode of which
    nothing was drawn, such as a recorded one, has strength 0.
    """
    made = np.zeros(len(episodes))
    groups: dict[tuple[str, frozenset[str]], list[int]] = {}
    for place, episode in enumerate(episodes):
        if episode.params:
            groups.setdefault((episode.twin, frozenset(episode.params)), []).append(place)
    for (twin, names), places in groups.items():
        order = sorted(names)
        values = np.array([[episodes[place].params[name] for name in order] for place in places])
        away = np.abs(values - _nominal(twin, order, values))
        most = away.max(axis=0)
        varied = most > 0
        if varied.any():
            made[places] = np.sqrt(np.mean((away[:, varied] / most[varied]) ** 2, axis=1))
    return made


def _nominal(twin: str, names: Sequence[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    nominal = np.median(values, axis=0)
    try:
        params = load_twin(twin).params
    except (TwinloopError, OSError):
        return nominal
    return np.array([params[n].nominal if n in params else m for n, m in zip(names, nominal, strict=True)])
