"""Prepare comparisons of two samples: rows by episode, required numbers of episodes, relabelling, resampling.

If real and simulated episodes come from one source, labels are exchangeable *between episodes*. A statistic of
relabelled episodes is then at least as large as the observed one with a known chance (Pitman, "Significance tests which
may be applied to samples from any populations", Suppl. J. R. Stat. Soc. 4, 1937).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.interval import check_level

Array = NDArray[np.float64]
# With more episodes in total, they are bundled: the matrix of episodes then takes 8 MB, and relabelling is cheap.
MOST_EPISODES = 1000
_TWO = 2
_ASKED = 200  # largest number of episodes per side in the search for the required number


@dataclass(frozen=True, kw_only=True)
class TwoSampleRows:
    """Rows of both samples, grouped by episode, real episodes first.

    ``rows`` are ``(n, d)``. ``episode`` ``(n,)`` numbers the episodes 0 … C − 1 in that order; the first ``nreal`` are
    real. ``sizes`` ``(C,)`` are their numbers of rows. ``order`` ``(n,)`` is each row's index in real followed by sim.
    With ``paired``, episodes ``i`` and ``nreal + i`` are the same trial, once real and once simulated.
    """

    rows: Array
    episode: NDArray[np.intp]
    sizes: NDArray[np.intp]
    order: NDArray[np.intp]
    nreal: int
    paired: bool

    @property
    def nepisode(self) -> int:
        """Number C of episodes, real and simulated."""
        return len(self.sizes)

    @property
    def nsim(self) -> int:
        """Number of simulated episodes."""
        return self.nepisode - self.nreal

    @property
    def starts(self) -> NDArray[np.intp]:
        """First row of each episode ``(C,)``."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    @property
    def real_rows(self) -> int:
        """Number of real rows; they come first."""
        return int(self.sizes[: self.nreal].sum())

    @property
    def comparable_pairs(self) -> Array:
        """Mask ``(C, C)``, 1 for pairs of episodes in a U-statistic: no episode with itself or its paired one."""
        pairs = 1.0 - np.eye(self.nepisode)
        if self.paired:
            trial = np.arange(self.nreal)
            pairs[trial, trial + self.nreal] = pairs[trial + self.nreal, trial] = 0.0
        return pairs

    def count_pairs(self, left: Array, right: Array) -> Array:
        """Return the number of `comparable` pairs of episodes between weights ``(k, C)`` and ``(k, C)``: ``(k,)``."""
        count = left.sum(axis=1) * right.sum(axis=1) - np.einsum("kc,kc->k", left, right)
        if self.paired:
            partner = np.roll(np.arange(self.nepisode), self.nreal)
            count -= np.einsum("kc,kc->k", left, right[:, partner])
        return count

    def bundle_episodes(self, *, seed: int = 0) -> TwoSampleRows:
        """Bundle episodes at random, in bundles of equal size, so that at most about `MOST_EPISODES` remain.

        Bundles of exchangeable episodes are exchangeable, so tests keep their level. The few episodes that fill no
        bundle are omitted. Paired samples stay paired.
        """
        size = math.ceil(self.nepisode / MOST_EPISODES)
        if size == 1:
            return self
        rng = generator(seed, "stats/two-sample/bundles")
        real = rng.permutation(self.nreal)
        sim = self.nreal + (real if self.paired else rng.permutation(self.nsim))
        bundle = np.full(self.nepisode, -1, dtype=np.intp)
        first = 0
        for members in (real, sim):
            count = len(members) // size
            bundle[members[: count * size]] = first + np.repeat(np.arange(count), size)
            first += count
        label = bundle[self.episode]
        kept = np.flatnonzero(label >= 0)
        kept = kept[np.argsort(label[kept], kind="stable")]
        return replace(
            self,
            rows=self.rows[kept],
            episode=label[kept],
            sizes=np.bincount(label[kept], minlength=first),
            order=self.order[kept],
            nreal=self.nreal // size,
        )


def two_samples(
    real: ArrayLike, sim: ArrayLike, *, real_clusters: ArrayLike, sim_clusters: ArrayLike, paired: bool = False
) -> TwoSampleRows:
    """Check two samples and group their rows by episode.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row ``(n,)``; ``arange(n)`` for independent rows.
        sim_clusters: episode number of each simulated row ``(m,)``.
        paired: equal episode numbers denote the same trial: the simulated one is a replay of the real one.

    Raises:
        InputError: wrong shapes, different numbers of columns, a value that is not finite, fewer than two episodes per
            side, or an episode without a partner.
    """
    real_rows, real_label, real_names = _check_side("real", real, real_clusters)
    sim_rows, sim_label, sim_names = _check_side("simulated", sim, sim_clusters)
    if real_rows.shape[1] != sim_rows.shape[1]:
        raise InputError(
            f"Real rows have {real_rows.shape[1]} columns, simulated ones {sim_rows.shape[1]}. Compare the same "
            "columns, or embeddings of the same encoder."
        )
    if paired and not np.array_equal(real_names, sim_names):
        lone = sorted(set(real_names.tolist()) ^ set(sim_names.tolist()))
        raise InputError(f"Episodes {', '.join(map(str, lone[:8]))} have no partner. Give pairs, or compare unpaired.")
    label = np.concatenate([real_label, len(real_names) + sim_label])
    order = np.argsort(label, kind="stable")
    return TwoSampleRows(
        rows=np.concatenate([real_rows, sim_rows])[order],
        episode=label[order],
        sizes=np.bincount(label),
        order=order,
        nreal=len(real_names),
        paired=paired,
    )


def _check_side(name: str, rows: ArrayLike, clusters: ArrayLike) -> tuple[Array, NDArray[np.intp], NDArray[np.int64]]:
    values, labels = np.asarray(rows, dtype=np.float64), np.asarray(clusters)
    if values.ndim != _TWO or not values.size:
        raise InputError(f"The {name} sample has shape {values.shape}; expected (rows, columns), at least one of each.")
    if labels.shape != (len(values),):
        raise InputError(
            f"The {name} sample has {len(values)} rows and episode numbers of shape {labels.shape}. Give one for each."
        )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise InputError(
            f"Row {row} of the {name} sample, of episode {labels[row]}, has {values[row, column]} in column {column} "
            f"({len(bad)} such values). Leave those rows out."
        )
    names, label = np.unique(labels, return_inverse=True)
    if len(names) < _TWO:
        raise InputError(
            f"The {name} sample is one episode, which does not show how episodes differ. Give at least {_TWO}; the "
            "rows of one episode are not independent."
        )
    return values, label, names


def column_names(columns: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return the names of columns; numbers if there are none.

    Raises:
        InputError: the number of names differs from that of the columns.
    """
    names = tuple(map(str, range(count))) if columns is None else tuple(columns)
    if len(names) != count:
        raise InputError(f"{len(names)} names for {count} columns. Give one for each, or none.")
    return names


def least_p_value(nreal: int, nsim: int, *, paired: bool = False) -> float:
    """Return the smallest p-value that relabelling this many episodes can reach.

    One divided by the number of relabellings; two divided by it if exchanging all labels gives the same statistic.
    """
    if paired:
        return 2.0 ** (1 - nreal)
    return (2 if nreal == nsim else 1) / math.comb(nreal + nsim, nreal)


def require_episodes(samples: TwoSampleRows, level: float) -> None:
    """Check that a test with these episodes can be significant at all.

    Raises:
        InputError: no test can be; the message has the smallest possible p-value and the required number of episodes.
    """
    check_level(level)
    n, m, alpha = samples.nreal, samples.nsim, 1 - level
    least = least_p_value(n, m, paired=samples.paired)
    if least <= alpha * (1 + 1e-9):
        return
    needed = next(k for k in range(_TWO, _ASKED) if least_p_value(k, k, paired=samples.paired) <= alpha)
    kind = f"{n} pairs of episodes" if samples.paired else f"{n} real and {m} simulated episodes"
    want = f"{needed} pairs" if samples.paired else f"{needed} of each, or {_describe_required_episodes(n, m, alpha)}"
    raise InputError(
        f"{kind} are too few for a test at {alpha:.3g}: relabelling cannot give a p-value below {least:.2g}. It "
        f"needs {want}. Without a test (0 draws) the distance is still computed."
    )


def _describe_required_episodes(n: int, m: int, alpha: float) -> str:
    """Return how many episodes of the larger side would suffice, as text."""
    few, many = min(n, m), max(n, m)
    while least_p_value(few, many) > alpha:
        many += 1
    side = "simulated" if m >= n else "real"
    return f"{many} {side} ones with these {few}"


Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class EpisodeRelabellings:
    """Masks of the episodes that count as real, ``(ndraw, C)``; all possible ones, with the identity, if ``exact``."""

    real: Mask
    exact: bool

    def p_value(self, observed: ArrayLike, relabelled: ArrayLike, *, rounding: float = 0.0) -> Array:
        """Return the share of statistics ``(ndraw, …)`` at least as large as the observed one ``(…)``, itself included.

        Statistics that differ by less than ``rounding`` count as equal.
        """
        seen, drawn = np.asarray(observed, dtype=np.float64), np.asarray(relabelled, dtype=np.float64)
        slack = np.maximum(rounding, 1e-9 * np.maximum(np.abs(seen), np.abs(drawn).max(axis=0)))
        return self._p_value_of_count(np.sum(drawn >= seen - slack, axis=0), len(drawn))

    def adjust_p_values(self, observed: ArrayLike, relabelled: ArrayLike) -> Array:
        """Return p-values ``(p,)`` of statistics ``(p,)`` tested together, adjusted for the chance of any false alarm.

        Each statistic is scaled by the standard deviation of its relabelled values ``(ndraw, p)``; then the step-down
        maximum is taken (Westfall & Young, "Resampling-Based Multiple Testing", 1993, algorithm 4.1). It is as safe as
        Holm's method, but accounts for the dependence of the columns, and can reject where few episodes limit the
        single p-values.
        """
        drawn = np.asarray(relabelled, dtype=np.float64)
        known = drawn if self.exact else np.concatenate([np.asarray(observed, dtype=np.float64)[None], drawn])
        middle, spread = known.mean(axis=0), known.std(axis=0)
        still = spread <= 1e-12 * np.abs(middle)
        scale = np.where(still, 1.0, spread)
        seen = np.where(still, 0.0, (np.asarray(observed, dtype=np.float64) - middle) / scale)
        table = np.where(still, 0.0, (drawn - middle) / scale)
        order = np.argsort(-seen, kind="stable")
        most = np.maximum.accumulate(table[:, order[::-1]], axis=1)[:, ::-1]
        p = self._p_value_of_count(np.sum(most >= seen[order] - 1e-9, axis=0), len(drawn))
        adjusted = np.empty_like(seen)
        adjusted[order] = np.maximum.accumulate(p)
        return np.where(still, 1.0, adjusted)

    def _p_value_of_count(self, larger: NDArray[np.intp], ndraw: int) -> Array:
        return larger / ndraw if self.exact else (1 + larger) / (1 + ndraw)


def relabel_episodes(
    samples: TwoSampleRows, draws: int, *, groups: NDArray[np.intp] | None = None, seed: int = 0
) -> EpisodeRelabellings:
    """Relabel episodes, keeping the number of real ones: all ways if there are at most ``draws``, else random ones.

    With ``groups`` ``(C,)`` labels are exchanged within each group only. For pairs, both labels are swapped.

    Raises:
        InputError: fewer than one relabelling.
    """
    if draws < 1:
        raise InputError(f"{draws} relabellings are too few. Use 19 or more; 999 are usual.")
    c, r = samples.nepisode, samples.nreal
    if samples.paired:
        swapped, exact = _draw_swaps(r, draws, seed)
        return EpisodeRelabellings(real=np.concatenate([~swapped, swapped], axis=1), exact=exact)
    if groups is None and math.comb(c, r) <= draws:
        chosen = np.array(list(itertools.combinations(range(c), r)))
        real = np.zeros((len(chosen), c), dtype=bool)
        np.put_along_axis(real, chosen, values=True, axis=1)
        return EpisodeRelabellings(real=real, exact=True)
    group = np.zeros(c, dtype=np.intp) if groups is None else groups
    rng = generator(seed, "stats/two-sample/relabel")
    real = np.zeros((draws, c), dtype=bool)
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        count = int(np.sum(members < r))
        real[:, members] = np.argsort(rng.random((draws, len(members))), axis=1) < count
    return EpisodeRelabellings(real=real, exact=False)


def _draw_swaps(npair: int, draws: int, seed: int) -> tuple[Mask, bool]:
    if 2**npair <= draws:
        return np.array(list(itertools.product([False, True], repeat=npair))), True
    return generator(seed, "stats/two-sample/swap").random((draws, npair)) < 0.5, False


def resample_episodes(samples: TwoSampleRows, draws: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Return how often each episode is drawn in each bootstrap resample: real and simulated, ``(draws, C)`` each.

    Each side is drawn with replacement, pairs together; episodes of the other side have 0. Resamples with a single
    episode on a side have no spread and are omitted, so there may be fewer than ``draws``.
    """
    weights = []
    for name, count in (("real", samples.nreal), ("sim", samples.nsim)):
        stream = "stats/two-sample/pairs" if samples.paired else f"stats/two-sample/{name}"
        weights.append(generator(seed, stream).multinomial(count, np.full(count, 1 / count), size=draws))
    real, sim = np.zeros((draws, samples.nepisode)), np.zeros((draws, samples.nepisode))
    real[:, : samples.nreal], sim[:, samples.nreal :] = weights
    several = (np.count_nonzero(real, axis=1) > 1) & (np.count_nonzero(sim, axis=1) > 1)
    return real[several], sim[several]


def observed_labels(samples: TwoSampleRows) -> tuple[Array, Array]:
    """Return the weights of the original samples: real ``(1, C)`` and simulated ``(1, C)``."""
    real = (np.arange(samples.nepisode) < samples.nreal).astype(np.float64)[None]
    return real, 1.0 - real
