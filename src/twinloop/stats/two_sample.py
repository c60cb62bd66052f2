"""Prepare comparisons of real and simulated samples: group rows by episode, relabel episodes, resample episodes.

If real and simulated episodes come from one source, the labels real and simulated can be exchanged *between episodes*.
After a random exchange, a statistic is then at least as large as the observed one with a known chance (Pitman,
"Significance tests which may be applied to samples from any populations", Suppl. J. R. Stat. Soc. 4, 1937). All tests
of two samples in this package use it.
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
MAX_BUNDLES = 1000
_TWO = 2
_ASKED = 200  # largest number of episodes per side in the search for the required number


@dataclass(frozen=True, kw_only=True)
class TwoSampleRows:
    """Rows (feature vectors) of a real and a simulated sample, grouped by episode, with the real episodes first.

    Attributes:
        rows: All rows, shape ``(n, d)``.
        episode: Episode of each row, ascending, shape ``(n,)``. The C episodes are numbered from 0, and the first
            ``nreal`` of them are real.
        sizes: Number of rows of each episode, shape ``(C,)``.
        order: Original index of each row, shape ``(n,)``: the real rows were numbered first, then the simulated rows,
            in the order in which they were given.
        nreal: Number of real episodes.
        paired: Whether episodes ``i`` and ``nreal + i`` are the same trial, once real and once simulated.
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
        """Index of the first row of each episode, shape ``(nepisode,)``."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    @property
    def real_rows(self) -> int:
        """Number of real rows; they come first."""
        return int(self.sizes[: self.nreal].sum())

    @property
    def comparable_pairs(self) -> Array:
        """Mask (1 or 0) of the pairs of episodes whose rows are compared, shape ``(nepisode, nepisode)``.

        It excludes pairs of an episode with itself, and in paired samples also with the other episode of the same
        trial, because their rows are not independent. The mean over the other pairs is a U-statistic (an unbiased
        estimate).
        """
        pairs = 1.0 - np.eye(self.nepisode)
        if self.paired:
            trial = np.arange(self.nreal)
            pairs[trial, trial + self.nreal] = pairs[trial + self.nreal, trial] = 0.0
        return pairs

    def count_pairs(self, left: Array, right: Array) -> Array:
        """Return the weighted number of pairs of different episodes whose rows are compared, shape ``(k,)``.

        The two episodes of a paired trial are not compared (see `comparable_pairs`). A pair counts with the product of
        the weights of its two episodes. There are k sets of weights, one per assignment of the labels real and
        simulated, or one per bootstrap resample.

        Args:
            left: Weight of each of the C episodes as first member of a pair, shape ``(k, C)``.
            right: Weight of each episode as second member, shape ``(k, C)``.
        """
        count = left.sum(axis=1) * right.sum(axis=1) - np.einsum("kc,kc->k", left, right)
        if self.paired:
            partner = np.roll(np.arange(self.nepisode), self.nreal)
            count -= np.einsum("kc,kc->k", left, right[:, partner])
        return count

    def bundle_episodes(self, *, seed: int = 0) -> TwoSampleRows:
        """Combine episodes at random into bundles of equal size, so that at most about 1000 remain (`MAX_BUNDLES`).

        It limits time and memory. Permutation tests of the bundles remain valid, because bundles of exchangeable
        episodes are exchangeable, too. The last few episodes, too few for a further bundle, are omitted. Paired samples
        stay paired.
        """
        size = math.ceil(self.nepisode / MAX_BUNDLES)
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
        in_bundle = np.flatnonzero(label >= 0)
        in_bundle = in_bundle[np.argsort(label[in_bundle], kind="stable")]
        return replace(
            self,
            rows=self.rows[in_bundle],
            episode=label[in_bundle],
            sizes=np.bincount(label[in_bundle], minlength=first),
            order=self.order[in_bundle],
            nreal=self.nreal // size,
        )


def two_samples(
    real: ArrayLike, sim: ArrayLike, *, real_clusters: ArrayLike, sim_clusters: ArrayLike, paired: bool = False
) -> TwoSampleRows:
    """Check a real and a simulated sample, and group their rows by episode.

    Args:
        real: Real rows (feature vectors), shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``; ``arange(n)`` for independent rows.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.
        paired: If true, equal episode numbers denote the same trial: the simulated episode is a replay of the real one.

    Raises:
        InputError: If shapes are wrong, the numbers of columns differ, a value is not finite, a side has fewer than two
            episodes, or a paired episode has no partner.
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
    """Return the names of columns; if ``columns`` is None, numbers from 0 as text.

    Raises:
        InputError: If the number of names differs from the number ``count`` of columns.
    """
    names = tuple(map(str, range(count))) if columns is None else tuple(columns)
    if len(names) != count:
        raise InputError(f"{len(names)} names for {count} columns. Give one for each, or none.")
    return names


def min_p_value(nreal: int, nsim: int, *, paired: bool = False) -> float:
    """Return the smallest p-value that a permutation test of episodes can reach with these numbers of episodes.

    It is one divided by the number of possible relabellings, or two divided by it if exchanging all labels gives the
    same statistic.

    Args:
        nreal: Number of real episodes.
        nsim: Number of simulated episodes.
        paired: Whether labels are only exchanged within pairs of a real and a simulated episode.
    """
    if paired:
        return 2.0 ** (1 - nreal)
    return (2 if nreal == nsim else 1) / math.comb(nreal + nsim, nreal)


def require_episodes(samples: TwoSampleRows, level: float) -> None:
    """Check that there are enough episodes for a permutation test to be significant at 1 − ``level``.

    Raises:
        InputError: If there are too few; the message has the smallest possible p-value and the required number of
            episodes.
    """
    check_level(level)
    n, m, alpha = samples.nreal, samples.nsim, 1 - level
    least = min_p_value(n, m, paired=samples.paired)
    if least <= alpha * (1 + 1e-9):
        return
    needed = next(k for k in range(_TWO, _ASKED) if min_p_value(k, k, paired=samples.paired) <= alpha)
    kind = f"{n} pairs of episodes" if samples.paired else f"{n} real and {m} simulated episodes"
    want = f"{needed} pairs" if samples.paired else f"{needed} of each, or {_describe_required_episodes(n, m, alpha)}"
    raise InputError(
        f"{kind} are too few for a test at {alpha:.3g}: relabelling cannot give a p-value below {least:.2g}. It "
        f"needs {want}. Without a test (0 draws) the distance is still computed."
    )


def _describe_required_episodes(n: int, m: int, alpha: float) -> str:
    """Return as text how many episodes the larger side would need, if the smaller side stays as it is.

    Args:
        n: Number of real episodes.
        m: Number of simulated episodes.
        alpha: Level of the test.
    """
    few, many = min(n, m), max(n, m)
    while min_p_value(few, many) > alpha:
        many += 1
    side = "simulated" if m >= n else "real"
    return f"{many} {side} ones with these {few}"


Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class EpisodeRelabellings:
    """Assignments of the labels real and simulated to C episodes, for a permutation test.

    Attributes:
        real: Whether each episode counts as real in each relabelling, shape ``(ndraw, C)``.
        exact: Whether these are all possible relabellings, including the original one, instead of random ones.
    """

    real: Mask
    exact: bool

    def p_value(self, observed: ArrayLike, relabelled: ArrayLike, *, rounding: float = 0.0) -> Array:
        """Return the share of relabellings whose statistic is at least as large as the observed one.

        The original labelling counts as one relabelling.

        Args:
            observed: Statistics with the original labels, shape ``(…)``.
            relabelled: Statistics under relabelling, shape ``(ndraw, …)``.
            rounding: Rounding error of the statistic; values that differ by less count as equal.
        """
        original, drawn = np.asarray(observed, dtype=np.float64), np.asarray(relabelled, dtype=np.float64)
        slack = np.maximum(rounding, 1e-9 * np.maximum(np.abs(original), np.abs(drawn).max(axis=0)))
        return self._p_value_of_count(np.sum(drawn >= original - slack, axis=0), len(drawn))

    def adjust_p_values(self, observed: ArrayLike, relabelled: ArrayLike) -> Array:
        """Return p-values of several statistics that are tested together, adjusted for the chance of any false alarm.

        Each statistic is divided by its standard deviation under relabelling. From the largest to the smallest, each is
        then compared with the maximum of itself and all smaller statistics under relabelling (step-down maxT method;
        Westfall & Young, "Resampling-Based Multiple Testing", 1993, algorithm 4.1). It controls the same error as
        Holm's method, but accounts for the dependence of the statistics. With few episodes, Holm's factors can make
        every p-value too large for a rejection; this method has no such factors.

        Args:
            observed: Statistics with the original labels, shape ``(p,)`` for p statistics.
            relabelled: Statistics under relabelling, shape ``(ndraw, p)``.

        Returns:
            Adjusted p-values, shape ``(p,)``.
        """
        drawn = np.asarray(relabelled, dtype=np.float64)
        together = drawn if self.exact else np.concatenate([np.asarray(observed, dtype=np.float64)[None], drawn])
        middle, spread = together.mean(axis=0), together.std(axis=0)
        constant = spread <= 1e-12 * np.abs(middle)
        scale = np.where(constant, 1.0, spread)
        scaled = np.where(constant, 0.0, (np.asarray(observed, dtype=np.float64) - middle) / scale)
        table = np.where(constant, 0.0, (drawn - middle) / scale)
        order = np.argsort(-scaled, kind="stable")
        most = np.maximum.accumulate(table[:, order[::-1]], axis=1)[:, ::-1]
        p = self._p_value_of_count(np.sum(most >= scaled[order] - 1e-9, axis=0), len(drawn))
        adjusted = np.empty_like(scaled)
        adjusted[order] = np.maximum.accumulate(p)
        return np.where(constant, 1.0, adjusted)

    def _p_value_of_count(self, larger: NDArray[np.intp], ndraw: int) -> Array:
        return larger / ndraw if self.exact else (1 + larger) / (1 + ndraw)


def relabel_episodes(
    samples: TwoSampleRows, draws: int, *, groups: NDArray[np.intp] | None = None, seed: int = 0
) -> EpisodeRelabellings:
    """Exchange the labels real and simulated between episodes, keeping the number of real episodes.

    If there are at most ``draws`` possible relabellings, all are returned, otherwise ``draws`` random ones. In paired
    samples the labels of the two episodes of a pair are swapped or not.

    Args:
        samples: Rows of both samples.
        draws: Largest number of relabellings.
        groups: Group of each episode, shape ``(nepisode,)``; labels are only exchanged within a group.
        seed: Seed of random relabellings.

    Raises:
        InputError: If ``draws`` is below one.
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
    """Return how often each episode is drawn in each bootstrap resample of the real and of the simulated episodes.

    Each side is drawn with replacement; paired episodes are drawn together. A resample in which one side consists of
    copies of a single episode has no variance and is omitted, so there may be fewer than ``draws``.

    Args:
        samples: Rows of both samples.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        Counts of real episodes and counts of simulated episodes, shape ``(ndraw, nepisode)`` each; episodes of the
        other side have 0.
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
    """Return the original labels as two arrays of episode weights.

    Returns:
        Two arrays of shape ``(1, nepisode)``: the first is 1 for real and 0 for simulated episodes, the second is 0 for
        real and 1 for simulated episodes.
    """
    real = (np.arange(samples.nepisode) < samples.nreal).astype(np.float64)[None]
    return real, 1.0 - real
