"""Estimate rare failure rates of a policy by importance sampling, and archive different failures.

Worlds are points ``z`` of independent standard normals, one per number that a plan draws. Thus the plan's distribution
is the standard normal, for any shapes of its draws. Axes that no failure depends on keep it and cancel out of
every weight: 149 axes cost no more than the few that matter.

The cross-entropy method (Rubinstein and Kroese, 2004; de Boer et al., Annals of Operations Research 134, 2005) moves a
proposal in rounds towards the worst worlds, until it draws mostly failures. The estimate uses fresh draws of the final
proposal, on which nothing was adapted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.stats.proportion import WeightedRate, weighted_rate

Array = NDArray[np.float64]
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, kw_only=True)
class ProposalMixture:
    """Mixture of normals with means and standard deviations ``(k, d)`` and shares ``(k,)``, and of plain draws.

    ``nominal`` is the share of the plain draws. It bounds every weight by 1 / ``nominal`` (Hesterberg, "Weighted
    average importance sampling and defensive mixture distributions", Technometrics 37, 1995), so that failures which
    the search has not found still count.
    """

    mean: Array
    std: Array
    share: Array
    nominal: float

    @classmethod
    def plain(cls, axes: int) -> ProposalMixture:
        """Return the plain distribution alone."""
        return cls(mean=np.zeros((0, axes)), std=np.ones((0, axes)), share=np.zeros(0), nominal=1.0)

    @property
    def axes(self) -> int:
        """Number of axes of a world."""
        return self.mean.shape[1]

    @property
    def modes(self) -> int:
        """Number of normals, without the plain draws."""
        return len(self.share)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw independent points ``(count, d)``."""
        weights = np.append((1.0 - self.nominal) * self.share, self.nominal)
        which = rng.choice(self.modes + 1, size=count, p=weights / weights.sum())
        z = rng.standard_normal((count, self.axes))
        moved = which < self.modes
        chosen = which[moved]
        z[moved] = self.mean[chosen] + self.std[chosen] * z[moved]
        return z

    def most_probable_mode(self, z: Array) -> NDArray[np.intp]:
        """Return the normal that most probably drew each point ``(n, d)``, −1 for the plain draws."""
        return np.stack(self._log_ratios(z)).argmax(axis=0) - 1 if self.modes else np.full(len(z), -1)

    def log_weight(self, z: Array) -> Array:
        """Return log(plain density / density of this mixture) at points ``(n, d)``, at most −ln ``nominal``."""
        return -logsumexp(np.stack(self._log_ratios(z)), axis=0)

    def _log_ratios(self, z: Array) -> list[Array]:
        """Return log(density of each part / plain density), the plain draws first."""
        parts = [np.full(len(z), _log_or_minus_inf(self.nominal))]
        for mean, std, share in zip(self.mean, self.std, self.share, strict=True):
            ratio = 0.5 * (z**2 - ((z - mean) / std) ** 2) - np.log(std)
            parts.append(_log_or_minus_inf((1.0 - self.nominal) * share) + ratio.sum(axis=1))
        return parts


def log_density(z: Array) -> Array:
    """Return the logarithm of the standard normal density at points ``(n, d)``."""
    return -0.5 * (z**2).sum(axis=-1) - 0.5 * z.shape[-1] * _LOG_2PI


def _log_or_minus_inf(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


CELLS = 8  # per axis of the map: equally probable parts of each parameter; our choice
_STEP = 0.4  # standard deviation of a step from an archived world, along the axes that failures depend on; our choice


@dataclass(kw_only=True)
class FailureMap:
    """A map of two axes in `CELLS` × `CELLS` equally probable cells.

    ``rows`` is, by cell, the row of ``seen`` that represents it: its most probable failure or, without a failure, its
    lowest score. ``seen`` contains every simulated world.
    """

    axes: tuple[int, int]
    seen: ScoredPoints
    rows: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    @classmethod
    def of(cls, axes: tuple[int, int], seen: ScoredPoints) -> FailureMap:
        """Create the map of simulated worlds."""
        archive = cls(axes=axes, seen=seen)
        archive._update_cells(np.arange(len(seen)))
        return archive

    def add(self, seen: ScoredPoints) -> None:
        """Add further worlds."""
        first = len(self.seen)
        self.seen = ScoredPoints.concatenate_points([self.seen, seen])
        self._update_cells(np.arange(first, len(self.seen)))

    @property
    def failures(self) -> list[int]:
        """Rows of ``seen``: the most probable failure of each cell that has one, most probable first."""
        rows = [row for row in self.rows.values() if self.seen.failed[row]]
        return sorted(rows, key=lambda row: -float(log_density(self.seen.z[row])))

    @property
    def log_density_drop(self) -> Array:
        """Decrease ½ |z|² of log density from the centre to the most probable failure, by cell; NaN without failure."""
        table = np.full((CELLS, CELLS), np.nan)
        for cell, row in self.rows.items():
            if self.seen.failed[row]:
                table[cell] = 0.5 * float((self.seen.z[row] ** 2).sum())
        return table

    def _update_cells(self, rows: NDArray[np.intp]) -> None:
        chosen = self.seen.z[np.ix_(rows, np.array(self.axes))]
        cells = np.minimum((ndtr(chosen) * CELLS).astype(np.intp), CELLS - 1)
        for row, cell in zip(rows.tolist(), map(tuple, cells.tolist()), strict=True):
            if not self.seen.lost[row] and (cell not in self.rows or self._is_better(row, self.rows[cell])):
                self.rows[cell] = row

    def _is_better(self, row: int, other: int) -> bool:
        seen = self.seen
        if seen.failed[row] != seen.failed[other]:
            return bool(seen.failed[row])
        if seen.failed[row]:
            return bool(log_density(seen.z[row]) > log_density(seen.z[other]))
        return bool(seen.score[row] < seen.score[other])


def extend_failure_map(
    archive: FailureMap, try_: Try, active: NDArray[np.bool_], *, worlds: int, rounds: int, rng: np.random.Generator
) -> None:
    """Search failures in cells without one, and more probable ones in the others, by random steps from the archive.

    Args:
        active: axes ``(d,)`` that failures depend on; the other axes of a parent move towards the centre, which makes
            failures that do not need them more probable.
        worlds: number of worlds per round.
    """
    for _ in range(rounds):
        parents = np.array([row for _, row in sorted(archive.rows.items())])
        chosen = archive.seen.z[rng.choice(parents, size=worlds)]
        step = _STEP * rng.standard_normal(chosen.shape)
        archive.add(try_(np.where(active, chosen + step, chosen * rng.uniform(0.5, 1.0, (worlds, 1)) + 0.25 * step)))


def active_axes(proposal: ProposalMixture) -> NDArray[np.bool_]:
    """Return the axes along which the search has moved, ``(d,)``; all of them if it has not moved."""
    moved = (proposal.mean != 0.0).any(axis=0) if proposal.modes else np.zeros(proposal.axes, dtype=bool)
    return moved if moved.any() else np.ones(proposal.axes, dtype=bool)


def choose_map_axes(
    names: Sequence[str], asked: Sequence[str], proposal: ProposalMixture, seen: ScoredPoints
) -> tuple[int, int]:
    """Return the two axes of the map: those in ``asked``, then those with the failures farthest from the centre.

    Raises:
        UnknownNameError: the plan draws no axis of that name.
    """
    for name in asked:
        if name not in names:
            raise UnknownNameError("axis", name, names)
    failures = seen.z[seen.failed & ~seen.lost]
    off = np.abs(failures.mean(axis=0)) if len(failures) else np.zeros(len(names))
    ranked = np.argsort(-np.where(active_axes(proposal), off, -1.0), kind="stable").tolist()
    chosen = [list(names).index(name) for name in asked[:2]]
    chosen += [axis for axis in ranked if axis not in chosen]
    return chosen[0], chosen[min(1, len(chosen) - 1)]


_ELITE = 0.15  # share of a round that is the elite; 0.01 to 0.2 in the literature
_SMOOTHING = 0.8  # of the way to the new mean; 0.6 to 0.9 in the literature
_NOMINAL = 0.1  # share of plain draws; Hesterberg uses 0.1 to 0.5
_SPREAD = (1.0, 1.3)
_ENOUGH = 0.4  # share of failures in a round at which the search stops; our choice
_ALPHA = 0.01  # probability that any axis is moved on which no failure depends; our choice
_LEAST = 0.5  # of an equal share of the draws, the minimum of every mode, so that none is lost; our choice
_FEWEST = 4  # least draws of a mode


@dataclass(frozen=True, kw_only=True)
class ScoredPoints:
    """Results of worlds at points ``z`` ``(n, d)``: ``score`` ``(n,)``, lower is worse, and whether each ``failed``.

    ``lost`` worlds diverged: they do not count as failures, and their number is reported with a rate.
    """

    z: Array
    score: Array
    failed: NDArray[np.bool_]
    lost: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.z)

    @classmethod
    def concatenate_points(cls, parts: list[ScoredPoints]) -> ScoredPoints:
        """Concatenate results."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


# Settings of a search: their names in messages, and their minima.
_NEEDED = {"round_size": ("worlds per round", 4 * _FEWEST), "rounds": ("rounds", 0), "modes": ("modes", 1)}
_NEEDED |= {"draws": ("draws", 2)}

Try = Callable[[Array], ScoredPoints]
"""Function that runs the worlds of points ``(n, d)``."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search: worlds per round, maximum of rounds, modes of the proposal, worlds of the estimate."""

    round_size: int = 256
    rounds: int = 6
    modes: int = 4
    draws: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (word, least) in _NEEDED.items():
            if getattr(self, name) < least:
                raise InputError(f"A search needs {least} or more {word}, not {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search: the rate, the last proposal, and all simulated worlds (``seen``; the ``fresh`` ones last).

    ``levels`` has, per round, the score threshold of the elite and the share of the round that failed.
    """

    rate: WeightedRate
    proposal: ProposalMixture
    seen: ScoredPoints
    fresh: int
    levels: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


def estimate_failure_rate(try_: Try, axes: int, search: SearchOptions, *, level: float = 0.95) -> SearchResult:
    """Search for failures, and estimate their rate under the plain distribution.

    Args:
        try_: function that runs worlds.
        axes: number of axes of a world.
        search: options of the search.
        level: confidence level of the interval.
    """
    rng = np.random.default_rng([search.seed, axes])
    proposal, parts, levels = ProposalMixture.plain(axes), list[ScoredPoints](), list[tuple[float, float]]()
    for _ in range(search.rounds):
        seen = try_(proposal.draw(search.round_size, rng))
        parts.append(seen)
        elite, threshold = _select_elite(seen, proposal)
        share = float(seen.failed.mean())
        levels.append((threshold, share))
        if proposal.modes and share >= _ENOUGH:
            break
        proposal = _fit_proposal(proposal, seen, elite, search.modes, rng)
    fresh = try_(proposal.draw(search.draws, rng))
    rate = weighted_rate(fresh.failed & ~fresh.lost, proposal.log_weight(fresh.z), level=level)
    seen = ScoredPoints.concatenate_points([*parts, fresh])
    return SearchResult(rate=rate, proposal=proposal, seen=seen, fresh=len(fresh), levels=levels)


def _select_elite(seen: ScoredPoints, proposal: ProposalMixture) -> tuple[NDArray[np.bool_], float]:
    """Return the worst worlds of a round (failures, or the lowest scores if failures are few), some of every normal.

    The worlds of every normal keep a region of failures in the search when another region is reached first.
    """
    kept = ~seen.lost
    if not kept.any():
        return kept, np.inf
    score, elite = np.where(kept, seen.score, np.inf), seen.failed & kept
    threshold = float(np.quantile(score[kept], _ELITE))
    if elite.sum() < _ELITE * kept.sum():
        elite |= kept & (score <= threshold)
    origin = proposal.most_probable_mode(seen.z)
    for part in range(proposal.modes):
        mine = np.flatnonzero(kept & (origin == part))
        if elite[mine].sum() < _FEWEST:
            elite[mine[np.argsort(score[mine], kind="stable")[:_FEWEST]]] = True
    return elite, threshold


def _fit_proposal(
    proposal: ProposalMixture, seen: ScoredPoints, elite: NDArray[np.bool_], modes: int, rng: np.random.Generator
) -> ProposalMixture:
    """Fit the normals of the proposal to the elite, weighted by the plain distribution."""
    z, logs = seen.z[elite], proposal.log_weight(seen.z[elite])
    if len(z) < 2 * _FEWEST:
        return proposal
    weights = np.exp(np.minimum(logs - logs.max(), 0.0))
    # Tempered: otherwise the few heaviest points would determine the mode (Koblents and Míguez, 2015).
    flat = np.sqrt(weights)
    moving = _find_moving_axes(z, flat)
    groups = _group_points(z[:, moving], flat, modes, rng) if moving.any() else np.zeros(len(z), dtype=np.intp)
    means, stds, shares = [], [], []
    for group in np.unique(groups):
        mine = groups == group
        w = flat[mine] / flat[mine].sum()
        mean = w @ z[mine]
        std = np.sqrt(np.maximum(w @ (z[mine] - mean) ** 2, 1e-12))
        means.append(np.where(moving, _SMOOTHING * mean, 0.0))
        stds.append(np.where(moving, np.clip(std, *_SPREAD), 1.0))
        shares.append(float(flat[mine].sum()))
    share = np.maximum(np.array(shares) / sum(shares), _LEAST / len(shares))
    return ProposalMixture(mean=np.stack(means), std=np.stack(stds), share=share / share.sum(), nominal=_NOMINAL)


def _find_moving_axes(z: Array, weights: Array) -> NDArray[np.bool_]:
    """Return axes along which the elite is shifted or wider than the plain distribution: failures depend on them."""
    w = weights / weights.sum()
    effective = 1.0 / (w**2).sum()
    mean, square = w @ z, w @ z**2
    limit = float(ndtri(1.0 - _ALPHA / (4.0 * z.shape[1])))
    off = np.abs(mean) * np.sqrt(effective)
    wide = (square - 1.0) * np.sqrt(effective / 2.0)  # the variance of a squared normal is 2
    return (off > limit) | (wide > limit)


def _group_points(z: Array, weights: Array, modes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Assign each point to one of at most ``modes`` groups; no group is smaller than the minimum of a mode.

    Weighted k-means with distant initial points (Arthur and Vassilvitskii, k-means++, 2007).
    """
    modes = min(modes, len(z) // _FEWEST)
    centres = z[[int(rng.choice(len(z), p=weights / weights.sum()))]]
    while len(centres) < modes:
        away = weights * ((z[:, None] - centres[None]) ** 2).sum(axis=2).min(axis=1)
        centres = np.concatenate([centres, z[[int(rng.choice(len(z), p=away / away.sum()))]]])
    groups = np.zeros(len(z), dtype=np.intp)
    for _ in range(20):
        groups = ((z[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        sums = [(weights[groups == k].sum(), weights[groups == k] @ z[groups == k]) for k in range(len(centres))]
        centres = np.stack(
            [total / mass if mass > 0 else old for (mass, total), old in zip(sums, centres, strict=True)]
        )
    large = np.flatnonzero(np.bincount(groups, minlength=len(centres)) >= _FEWEST)
    return large[((z[:, None] - centres[None, large]) ** 2).sum(axis=2).argmin(axis=1)]
