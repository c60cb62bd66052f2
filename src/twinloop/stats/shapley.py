"""Shapley values: a total shared out among players, each by its mean contribution over all orders of joining.

φ_i = Σ_{S ∌ i} |S|! (n − |S| − 1)! / n! · [v(S ∪ i) − v(S)] (Shapley, "A value for n-person games", Contributions to
the Theory of Games II, 1953). They add up to v(all) − v(none), treat equal players equally, give nothing to one that
changes nothing, and are linear in v. Few players are valued exactly from all 2ⁿ coalitions; many from random orders,
each walked forwards and backwards (Mitchell et al., "Sampling permutations for Shapley value estimation", JMLR 23,
2022), which is exact where players interact in pairs at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator

Array = NDArray[np.float64]
Coalitions = NDArray[np.bool_]
_MOST_PLAYERS = 16  # 65,536 coalitions: what their weights fit in


def every_coalition(nplayer: int) -> Coalitions:
    """All coalitions ``(2ⁿ, n)``: row b holds the players whose bits are set in b, the first player's the lowest.

    Raises:
        InputError: more players than anybody can evaluate all coalitions of.
    """
    if not 1 <= nplayer <= _MOST_PLAYERS:
        raise InputError(
            f"{nplayer} players have 2^{nplayer} coalitions; exact Shapley values take 1 to {_MOST_PLAYERS}. Put "
            "several into one, or sample orders."
        )
    return (np.arange(2**nplayer)[:, None] >> np.arange(nplayer)) & 1 == 1


def shapley(values: ArrayLike) -> Array:
    """Exact Shapley values ``(n, …)`` of the values ``(2ⁿ, …)`` of all coalitions, in the order of `every_coalition`.

    Raises:
        InputError: not one value for each coalition.
    """
    worth = np.asarray(values, dtype=np.float64)
    nplayer = max(len(worth).bit_length() - 1, 1)
    if len(worth) != 2**nplayer:
        raise InputError(f"{len(worth)} values are given; n players have 2^n coalitions, the empty one included.")
    return np.tensordot(_weights(nplayer), worth, axes=1)


def _weights(nplayer: int) -> Array:
    """What each coalition's value counts in each player's share, ``(n, 2ⁿ)``."""
    member = every_coalition(nplayer)
    size = member.sum(axis=1)
    chance = np.array([1.0 / (nplayer * math.comb(nplayer - 1, s)) for s in range(nplayer)])
    joined = chance[np.maximum(size - 1, 0)]  # of being the coalition that forms when this player comes last
    left = chance[np.minimum(size, nplayer - 1)]
    return np.where(member, joined[:, None], -left[:, None]).T


@dataclass(frozen=True, kw_only=True)
class Walks:
    """Orders of joining, ``(nwalk, n)``, the second half of them the first half reversed.

    ``coalitions`` ``(k, n)`` are those that the walks pass, each once, the empty one first and the full one last;
    ``steps`` ``(nwalk, n + 1)`` are the rows of each walk among them.
    """

    orders: NDArray[np.intp]
    coalitions: Coalitions
    steps: NDArray[np.intp]


def antithetic_walks(nplayer: int, pairs: int, *, seed: int = 0, stream: str = "stats/shapley") -> Walks:
    """Random orders, each of ``pairs`` and its reverse.

    Raises:
        InputError: no player or no pair.
    """
    if nplayer < 1 or pairs < 1:
        raise InputError(f"{pairs} pairs of orders of {nplayer} players: both are at least 1.")
    rng = generator(seed, stream)
    forwards = np.stack([rng.permutation(nplayer) for _ in range(pairs)])
    orders = np.concatenate([forwards, forwards[:, ::-1]])
    passed = np.zeros((len(orders), nplayer + 1, nplayer), dtype=bool)
    rank = np.argsort(orders, axis=1)  # when each player joins
    passed[:] = rank[:, None, :] < np.arange(nplayer + 1)[:, None]
    flat = passed.reshape(-1, nplayer)
    size_first = np.lexsort((*flat.T, flat.sum(axis=1)))
    fresh = np.append(True, (flat[size_first][1:] != flat[size_first][:-1]).any(axis=1))
    number = np.empty(len(flat), dtype=np.intp)
    number[size_first] = np.cumsum(fresh) - 1
    return Walks(orders=orders, coalitions=flat[size_first][fresh], steps=number.reshape(len(orders), nplayer + 1))


def shapley_of_walks(values: ArrayLike, walks: Walks) -> Array:
    """Contributions ``(pair, n, …)`` by pair of walks, from values ``(k, …)`` of `Walks.coalitions`.

    The mean over pairs estimates the Shapley values without bias; each pair alone adds up to v(all) − v(none).
    """
    worth = np.asarray(values, dtype=np.float64)
    gains = np.diff(worth[walks.steps], axis=1)  # (nwalk, n, …) by place in the order
    place = np.argsort(walks.orders, axis=1)
    own = np.take_along_axis(gains, place.reshape(*place.shape, *(1,) * (gains.ndim - 2)), axis=1)
    forwards, backwards = np.split(own, 2)
    return (forwards + backwards) / 2
