"""Estimate the rate of rare failures of a policy by importance sampling, and archive different failures.

A plan of randomization draws some numbers for each world. Each number is transformed to a standard normal number, so
that a world is a point z and the plan's distribution is the standard normal distribution. Coordinates (axes) on which
no failure depends keep this distribution and cancel out of the importance weights. The estimate is therefore as
accurate with a hundred axes as with the few that matter.

The cross-entropy method (Rubinstein and Kroese, 2004; de Boer et al., Annals of Operations Research 134, 2005) adapts a
proposal distribution in rounds towards the worst worlds, until most of its draws are failures. The estimate uses new
draws of the final proposal, on which nothing was adapted.
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
    """Proposal distribution of importance sampling: a mixture of normal distributions and the plan's distribution.

    The plan is that of the randomization. Points have d coordinates, in which the plan's distribution is standard
    normal. A draw is weighted by the density of the plan's distribution divided by the density of the mixture. This
    weight is at most 1 / ``nominal``, because the mixture contains the plan's distribution (Hesterberg, "Weighted
    average importance sampling and defensive mixture distributions", Technometrics 37, 1995). For the same reason,
    failures that the search has not found are also drawn and counted.

    Attributes:
        mean: Means of the k normal components, shape ``(k, d)``.
        std: Standard deviations of the components along each axis, shape ``(k, d)``.
        share: Share of each component among all components, shape ``(k,)``.
        nominal: Share of draws from the plan's distribution, from 0 to 1.
    """

    mean: Array
    std: Array
    share: Array
    nominal: float

    @classmethod
    def plain(cls, axes: int) -> ProposalMixture:
        """Return the mixture that consists only of the plan's distribution.

        Args:
            axes: Number of coordinates of a point.
        """
        return cls(mean=np.zeros((0, axes)), std=np.ones((0, axes)), share=np.zeros(0), nominal=1.0)

    @property
    def axes(self) -> int:
        """Number d of coordinates of a point (random numbers of a world)."""
        return self.mean.shape[1]

    @property
    def modes(self) -> int:
        """Number of normal components, excluding the plan's distribution."""
        return len(self.share)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw independent points from the mixture, shape ``(count, d)``."""
        weights = np.append((1.0 - self.nominal) * self.share, self.nominal)
        which = rng.choice(self.modes + 1, size=count, p=weights / weights.sum())
        z = rng.standard_normal((count, self.axes))
        moved = which < self.modes
        chosen = which[moved]
        z[moved] = self.mean[chosen] + self.std[chosen] * z[moved]
        return z

    def most_probable_mode(self, z: Array) -> NDArray[np.intp]:
        """Return the index of the normal component that most probably generated each point, shape ``(n,)``.

        The index is −1 if the point most probably comes from the mixture's part with the original distribution of the
        plan.

        Args:
            z: Points in standard normal coordinates, shape ``(n, d)``.
        """
        return np.stack(self._log_ratios(z)).argmax(axis=0) - 1 if self.modes else np.full(len(z), -1)

    def log_weight(self, z: Array) -> Array:
        """Return the logarithm of the importance weight of points, shape ``(n,)``.

        The weight is the density of the plan's distribution divided by the density of this mixture. Its logarithm is at
        most −ln ``nominal``, where ``nominal`` is the share of the plan's distribution in the mixture.

        Args:
            z: Points in standard normal coordinates, shape ``(n, d)``.
        """
        return -logsumexp(np.stack(self._log_ratios(z)), axis=0)

    def _log_ratios(self, z: Array) -> list[Array]:
        """Return the log density ratio of each part of the mixture to the plan's distribution, each of shape ``(n,)``.

        The first entry belongs to the plan's distribution, the others to the normal components. Each entry includes the
        logarithm of the part's weight in the mixture.

        Args:
            z: Points in standard normal coordinates, shape ``(n, d)``.
        """
        parts = [np.full(len(z), _log_or_minus_inf(self.nominal))]
        for mean, std, share in zip(self.mean, self.std, self.share, strict=True):
            ratio = 0.5 * (z**2 - ((z - mean) / std) ** 2) - np.log(std)
            parts.append(_log_or_minus_inf((1.0 - self.nominal) * share) + ratio.sum(axis=1))
        return parts


def log_density(z: Array) -> Array:
    """Return the logarithm of the standard normal density at points, shape ``(n,)``.

    Args:
        z: Points, shape ``(n, d)``.
    """
    return -0.5 * (z**2).sum(axis=-1) - 0.5 * z.shape[-1] * _LOG_2PI


def _log_or_minus_inf(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


CELLS = 8  # cells per axis of the map, equally probable; our choice
_STEP = 0.4  # standard deviation of a step from an archived world, along the axes that failures depend on; our choice


@dataclass(kw_only=True)
class FailureMap:
    """Map of different failures: a grid over two coordinates (axes) of a world, with one world per cell.

    Each axis is divided into 8 (`CELLS`) intervals with equal probability in the plan's distribution.

    Attributes:
        axes: Indices of the two axes.
        points: All simulated worlds.
        rows: Index in ``points`` of the world that represents each cell, by the cell's two indices. It is the most
            probable failure in the cell, or the world with the lowest score if the cell has no failure.
    """

    axes: tuple[int, int]
    points: ScoredPoints
    rows: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    @classmethod
    def of(cls, axes: tuple[int, int], points: ScoredPoints) -> FailureMap:
        """Create the map from simulated worlds.

        Args:
            axes: Indices of the two axes.
            points: Simulated worlds.
        """
        archive = cls(axes=axes, points=points)
        archive._update_cells(np.arange(len(points)))
        return archive

    def add(self, points: ScoredPoints) -> None:
        """Add further simulated worlds to the map, in place."""
        first = len(self.points)
        self.points = ScoredPoints.concatenate_points([self.points, points])
        self._update_cells(np.arange(first, len(self.points)))

    @property
    def failures(self) -> list[int]:
        """Indices in ``points`` of the most probable failure of every map cell with a failure, most probable first."""
        rows = [row for row in self.rows.values() if self.points.failed[row]]
        return sorted(rows, key=lambda row: -float(log_density(self.points.z[row])))

    @property
    def log_density_drop(self) -> Array:
        """Log density of the most probable world minus that of each map cell's most probable failure, shape ``(8, 8)``.

        The plan's distribution is standard normal and the most probable world is 0, so this is ½ |z|² for a failure z;
        NaN for a cell without a failure.
        """
        table = np.full((CELLS, CELLS), np.nan)
        for cell, row in self.rows.items():
            if self.points.failed[row]:
                table[cell] = 0.5 * float((self.points.z[row] ** 2).sum())
        return table

    def _update_cells(self, rows: NDArray[np.intp]) -> None:
        chosen = self.points.z[np.ix_(rows, np.array(self.axes))]
        cells = np.minimum((ndtr(chosen) * CELLS).astype(np.intp), CELLS - 1)
        for row, cell in zip(rows.tolist(), map(tuple, cells.tolist()), strict=True):
            if not self.points.invalid[row] and (cell not in self.rows or self._is_better(row, self.rows[cell])):
                self.rows[cell] = row

    def _is_better(self, row: int, other: int) -> bool:
        points = self.points
        if points.failed[row] != points.failed[other]:
            return bool(points.failed[row])
        if points.failed[row]:
            return bool(log_density(points.z[row]) > log_density(points.z[other]))
        return bool(points.score[row] < points.score[other])


def extend_failure_map(
    archive: FailureMap,
    simulate: SimulatePoints,
    active: NDArray[np.bool_],
    *,
    worlds: int,
    rounds: int,
    rng: np.random.Generator,
) -> None:
    """Search for failures in cells without one, and for more probable failures in all cells, by random steps.

    Each round starts from random worlds of the archive, simulates worlds near them, and adds these to the archive.

    Args:
        archive: Archive of failures, changed in place.
        simulate: Function that simulates worlds.
        active: Which axes failures depend on, shape ``(d,)``. Along all other axes a world moves towards 0, which makes
            it more probable.
        worlds: Number of worlds per round.
        rounds: Number of rounds.
        rng: Random generator.
    """
    for _ in range(rounds):
        parents = np.array([row for _, row in sorted(archive.rows.items())])
        chosen = archive.points.z[rng.choice(parents, size=worlds)]
        step = _STEP * rng.standard_normal(chosen.shape)
        archive.add(
            simulate(np.where(active, chosen + step, chosen * rng.uniform(0.5, 1.0, (worlds, 1)) + 0.25 * step))
        )


def active_axes(proposal: ProposalMixture) -> NDArray[np.bool_]:
    """Return a mask of the axes on which the search has shifted the proposal from the plan's distribution, ``(d,)``.

    Axes are the d random numbers of a world (coordinates of a point). If the search has shifted none, all are True.
    """
    moved = (proposal.mean != 0.0).any(axis=0) if proposal.modes else np.zeros(proposal.axes, dtype=bool)
    return moved if moved.any() else np.ones(proposal.axes, dtype=bool)


def choose_map_axes(
    names: Sequence[str], requested: Sequence[str], proposal: ProposalMixture, points: ScoredPoints
) -> tuple[int, int]:
    """Return the indices of the two axes of the failure map (grid of failures over two random numbers of a world).

    The axes in ``requested`` are first. Further axes are those on which the mean of the failures is farthest from 0,
    the centre of the plan's distribution.

    Args:
        names: Names of all axes.
        requested: Names of up to two axes that the user requests.
        proposal: Proposal distribution after the search.
        points: Simulated worlds.

    Raises:
        UnknownNameError: If a requested axis does not exist in the plan.
    """
    for name in requested:
        if name not in names:
            raise UnknownNameError("axis", name, names)
    failures = points.z[points.failed & ~points.invalid]
    off = np.abs(failures.mean(axis=0)) if len(failures) else np.zeros(len(names))
    ranked = np.argsort(-np.where(active_axes(proposal), off, -1.0), kind="stable").tolist()
    chosen = [list(names).index(name) for name in requested[:2]]
    chosen += [axis for axis in ranked if axis not in chosen]
    return chosen[0], chosen[min(1, len(chosen) - 1)]


_ELITE = 0.15  # share of the worlds of a round that are the elite; 0.01 to 0.2 in the literature
_SMOOTHING = 0.8  # fraction of the step to the new mean; 0.6 to 0.9 in the literature
_NOMINAL = 0.1  # share of draws from the plan's distribution; Hesterberg uses 0.1 to 0.5
_SPREAD = (1.0, 1.3)  # limits of the standard deviations of a component
_ENOUGH = 0.4  # share of failures in a round at which the search stops; our choice
_ALPHA = 0.01  # probability that any axis is moved on which no failure depends; our choice
_LEAST = 0.5  # smallest share of a component, relative to equal shares, so that no component is lost; our choice
_FEWEST = 4  # smallest number of draws of a component


@dataclass(frozen=True, kw_only=True)
class ScoredPoints:
    """Results of simulated worlds; a world is a point of d standard normal coordinates.

    Attributes:
        z: Points of the n worlds, shape ``(n, d)``.
        score: Score of each world, shape ``(n,)``; a lower score is worse.
        failed: Whether the policy failed in each world, shape ``(n,)``.
        invalid: Whether the simulation of each world diverged, shape ``(n,)``. Such a world does not count as a
            failure, and the number of such worlds is reported with a rate.
    """

    z: Array
    score: Array
    failed: NDArray[np.bool_]
    invalid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.z)

    @classmethod
    def concatenate_points(cls, parts: list[ScoredPoints]) -> ScoredPoints:
        """Concatenate the results of several sets of worlds."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


# Settings of a search: their names in messages, and their minima.
_NEEDED = {"round_size": ("worlds per round", 4 * _FEWEST), "rounds": ("rounds", 0), "modes": ("modes", 1)}
_NEEDED |= {"draws": ("draws", 2)}

SimulatePoints = Callable[[Array], ScoredPoints]
"""Function that simulates the worlds of points, shape ``(n, d)``, and returns their scores and outcomes."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search for rare failures.

    Attributes:
        round_size: Number of worlds per round.
        rounds: Largest number of rounds.
        modes: Largest number of normal components of the proposal distribution.
        draws: Number of worlds with which the rate is estimated after the search.
        seed: Seed of the search.
    """

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
    """Result of a search for rare failures with the cross-entropy method.

    In each round, the method adapts the proposal distribution to the worlds nearest to failure (the elite).

    Attributes:
        rate: Estimated failure rate with its interval.
        proposal: Final proposal distribution.
        points: All simulated worlds.
        estimate_draws: Number of worlds of the estimate; they are last in ``points``.
        levels: For each round, the score threshold up to which worlds belonged to the elite, and the share of worlds
            that failed.
    """

    rate: WeightedRate
    proposal: ProposalMixture
    points: ScoredPoints
    estimate_draws: int
    levels: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


def estimate_failure_rate(
    simulate: SimulatePoints, axes: int, search: SearchOptions, *, level: float = 0.95
) -> SearchResult:
    """Search for failures with the cross-entropy method, and estimate their rate under the plan's distribution.

    Args:
        simulate: Function from points ``(n, d)`` to the scores and outcomes of their worlds, see `SimulatePoints`.
        axes: Number of coordinates of a world.
        search: Options of the search.
        level: Confidence level of the interval.
    """
    rng = np.random.default_rng([search.seed, axes])
    proposal, parts, levels = ProposalMixture.plain(axes), list[ScoredPoints](), list[tuple[float, float]]()
    for _ in range(search.rounds):
        points = simulate(proposal.draw(search.round_size, rng))
        parts.append(points)
        elite, threshold = _select_elite(points, proposal)
        share = float(points.failed.mean())
        levels.append((threshold, share))
        if proposal.modes and share >= _ENOUGH:
            break
        proposal = _fit_proposal(proposal, points, elite, search.modes, rng)
    final = simulate(proposal.draw(search.draws, rng))
    rate = weighted_rate(final.failed & ~final.invalid, proposal.log_weight(final.z), level=level)
    points = ScoredPoints.concatenate_points([*parts, final])
    return SearchResult(rate=rate, proposal=proposal, points=points, estimate_draws=len(final), levels=levels)


def _select_elite(points: ScoredPoints, proposal: ProposalMixture) -> tuple[NDArray[np.bool_], float]:
    """Select the elite of a round of the cross-entropy method, which are the worlds to which the proposal is adapted.

    The elite are the failures; if failures are few, it also has the worlds with the lowest scores (nearest to failure).
    Some worlds of every normal component are always selected. Otherwise a component would be lost if another component
    reaches failures earlier.

    Args:
        points: Worlds of the round.
        proposal: Proposal distribution of the round.

    Returns:
        Which worlds belong to the elite, shape ``(n,)``, and the score threshold.
    """
    valid = ~points.invalid
    if not valid.any():
        return valid, np.inf
    score, elite = np.where(valid, points.score, np.inf), points.failed & valid
    threshold = float(np.quantile(score[valid], _ELITE))
    if elite.sum() < _ELITE * valid.sum():
        elite |= valid & (score <= threshold)
    origin = proposal.most_probable_mode(points.z)
    for part in range(proposal.modes):
        members = np.flatnonzero(valid & (origin == part))
        if elite[members].sum() < _FEWEST:
            elite[members[np.argsort(score[members], kind="stable")[:_FEWEST]]] = True
    return elite, threshold


def _fit_proposal(
    proposal: ProposalMixture, points: ScoredPoints, elite: NDArray[np.bool_], modes: int, rng: np.random.Generator
) -> ProposalMixture:
    """Return a proposal distribution that is fitted to the elite (the worlds nearest to failure in this round).

    Points are weighted by the square roots of their importance weights, because with the full weights a few points
    would determine the result.

    Args:
        proposal: Proposal distribution from which the worlds were drawn.
        points: Worlds of the round.
        elite: Which worlds belong to the elite, shape ``(n,)``.
        modes: Largest number of normal components.
        rng: Random generator.
    """
    z, logs = points.z[elite], proposal.log_weight(points.z[elite])
    if len(z) < 2 * _FEWEST:
        return proposal
    weights = np.exp(np.minimum(logs - logs.max(), 0.0))
    # Tempered weights: otherwise the few heaviest points would determine the component (Koblents and Míguez, 2015).
    flat = np.sqrt(weights)
    moving = _find_moving_axes(z, flat)
    groups = _group_points(z[:, moving], flat, modes, rng) if moving.any() else np.zeros(len(z), dtype=np.intp)
    means, stds, shares = [], [], []
    for group in np.unique(groups):
        members = groups == group
        w = flat[members] / flat[members].sum()
        mean = w @ z[members]
        std = np.sqrt(np.maximum(w @ (z[members] - mean) ** 2, 1e-12))
        means.append(np.where(moving, _SMOOTHING * mean, 0.0))
        stds.append(np.where(moving, np.clip(std, *_SPREAD), 1.0))
        shares.append(float(flat[members].sum()))
    share = np.maximum(np.array(shares) / sum(shares), _LEAST / len(shares))
    return ProposalMixture(mean=np.stack(means), std=np.stack(stds), share=share / share.sum(), nominal=_NOMINAL)


def _find_moving_axes(z: Array, weights: Array) -> NDArray[np.bool_]:
    """Return on which of the d axes (random numbers of a world) failures depend, shape ``(d,)``.

    On these axes the elite (worlds nearest to failure in the cross-entropy method) is significantly shifted from the
    plan's distribution or wider than it.

    Args:
        z: Points of the elite, shape ``(n, d)``.
        weights: Weights of the points, shape ``(n,)``.
    """
    w = weights / weights.sum()
    effective = 1.0 / (w**2).sum()
    mean, square = w @ z, w @ z**2
    limit = float(ndtri(1.0 - _ALPHA / (4.0 * z.shape[1])))
    off = np.abs(mean) * np.sqrt(effective)
    wide = (square - 1.0) * np.sqrt(effective / 2.0)  # the variance of a squared normal is 2
    return (off > limit) | (wide > limit)


def _group_points(z: Array, weights: Array, modes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Assign each point to a group by weighted k-means with k-means++ initialization (Arthur and Vassilvitskii, 2007).

    Args:
        z: Points, shape ``(n, d)``.
        weights: Weights of the points, shape ``(n,)``.
        modes: Largest number of groups. Points of groups that are too small join the nearest remaining group.
        rng: Random generator.

    Returns:
        Index of each point's group, shape ``(n,)``.
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
