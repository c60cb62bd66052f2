"""Groups that the data cannot tell apart are told of together.

A stiffer servo with more damping lags as before: where a fit moves both, one Shapley value may read +227 % and the
other −198 %, with intervals as wide, though together they are well known. The sum of Shapley values is still a share of
the whole, so that such groups are joined, one channel at a time, until no two of what remains are known badly apart and
twice as well together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.stats import Interval

Array = NDArray[np.float64]
_APART = 0.5  # spread of a sum over that of its less known part, below which the two are told of together
_BADLY = 0.05  # standard error of a share from which its interval is wider than a tenth of the error on either side


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One group, or several that are told of together, and their ``share`` of a channel's squared error.

    ``claimed`` says that the share may be said to differ from 0 (see `stats.shares.Shares.claimed`). ``needed`` is True
    where the error grows when the one group goes back to nominal: a negative share of such a group makes up for others.
    """

    groups: tuple[str, ...]
    share: Interval
    p_value: float
    claimed: bool
    needed: bool

    @property
    def name(self) -> str:
        """Of all groups: ``servo gain with damping``."""
        return " with ".join(self.groups)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "groups": list(self.groups),
            **self.share.to_json(),
            "p_value": self.p_value,
            "claimed": self.claimed,
            "needed": self.needed,
        }


def joined_groups(replicates: Array) -> list[list[int]]:
    """Which rows of shares ``(ndraw, m)`` are to be told of together, each row once, in order of their first one.

    The two that gain most by it are joined first. Without replicates none are.
    """
    clusters = [[row] for row in range(replicates.shape[1])]
    values = list(replicates.T)
    while len(values) > 1 and len(replicates):
        spread = np.array([value.std() for value in values])
        ratio = np.full((len(values), len(values)), np.inf)
        badly = np.flatnonzero(spread > _BADLY)
        for i in badly:
            for j in badly[badly < i]:
                ratio[i, j] = (values[i] + values[j]).std() / max(spread[i], spread[j])
        i, j = np.unravel_index(int(np.argmin(ratio)), ratio.shape)
        if ratio[i, j] >= _APART:
            break
        clusters[j] += clusters.pop(i)
        values[j] = values[j] + values.pop(i)
    return sorted((sorted(cluster) for cluster in clusters), key=lambda cluster: cluster[0])


def ranked(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Claimed ones first, the largest share first; then those that are not told apart from 0."""
    return tuple(sorted(causes, key=lambda cause: (not cause.claimed, -np.nan_to_num(float(cause.share.estimate)))))
