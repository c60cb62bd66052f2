"""Where failures are looked for: a mixture of normals beside the distribution that is asked about.

Worlds are points ``z`` of independent standard normals, one per number that a plan draws, so that a plan's own
distribution is the standard normal whatever its shapes. Axes that no failure depends on keep it, and then cancel out of
every weight: 149 axes cost no more than the few that matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Normals with means and standard deviations ``(k, d)`` and shares ``(k,)``, and ``nominal`` of the plain draws.

    The plain share bounds every weight by 1 / ``nominal`` (Hesterberg, "Weighted average importance sampling and
    defensive mixture distributions", Technometrics 37, 1995): what the search has not found is not lost.
    """

    mean: Array
    std: Array
    share: Array
    nominal: float

    @classmethod
    def plain(cls, axes: int) -> Proposal:
        """The distribution that is asked about, alone."""
        return cls(mean=np.zeros((0, axes)), std=np.ones((0, axes)), share=np.zeros(0), nominal=1.0)

    @property
    def axes(self) -> int:
        """How many numbers a world is."""
        return self.mean.shape[1]

    @property
    def modes(self) -> int:
        """How many normals there are beside the plain draws."""
        return len(self.share)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Independent points ``(count, d)``."""
        weights = np.append((1.0 - self.nominal) * self.share, self.nominal)
        which = rng.choice(self.modes + 1, size=count, p=weights / weights.sum())
        z = rng.standard_normal((count, self.axes))
        moved = which < self.modes
        chosen = which[moved]
        z[moved] = self.mean[chosen] + self.std[chosen] * z[moved]
        return z

    def origin(self, z: Array) -> NDArray[np.intp]:
        """Which normal most probably drew each point ``(n, d)``, −1 for the plain draws."""
        return np.stack(self._log_ratios(z)).argmax(axis=0) - 1 if self.modes else np.full(len(z), -1)

    def log_weight(self, z: Array) -> Array:
        """Logarithm of the plain density over this one's at points ``(n, d)``, at most −ln ``nominal``."""
        return -logsumexp(np.stack(self._log_ratios(z)), axis=0)

    def _log_ratios(self, z: Array) -> list[Array]:
        """Logarithm of each part's density over the plain one's, the plain draws' first."""
        parts = [np.full(len(z), _log(self.nominal))]
        for mean, std, share in zip(self.mean, self.std, self.share, strict=True):
            ratio = 0.5 * (z**2 - ((z - mean) / std) ** 2) - np.log(std)
            parts.append(_log((1.0 - self.nominal) * share) + ratio.sum(axis=1))
        return parts


def log_density(z: Array) -> Array:
    """Logarithm of the standard normal density at points ``(n, d)``."""
    return -0.5 * (z**2).sum(axis=-1) - 0.5 * z.shape[-1] * _LOG_2PI


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
