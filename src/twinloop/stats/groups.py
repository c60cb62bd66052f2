"""Whether values of clusters (episodes) differ between groups of them, or drift with their order: by permutation.

If the groups tell nothing the values are exchangeable, and a permuted statistic is as large as the observed one with a
known chance, whatever their distribution (Pitman, "Significance tests which may be applied to samples from any
populations", Suppl. J. R. Stat. Soc. 4, 1937). p = (1 + number as large) / (1 + draws).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GroupTest:
    """Change between groups and trend along the order, for every column of values.

    ``q`` ``(p,)`` is Cochran's Q: the groups' means about their common one, over their errors. ``correlation`` ``(p,)``
    is that of values and order.
    """

    means: Array
    errors: Array
    q: Array
    p_change: Array
    correlation: Array
    p_trend: Array


def group_test(
    values: ArrayLike, groups: ArrayLike, order: ArrayLike, *, draws: int = 4999, seed: int = 0
) -> GroupTest:
    """Permutation tests of values ``(ncluster, p)`` between groups and along an order, ``(ncluster,)`` each.

    Q = Σ_g n_g (m_g − m)² / s², s² being the variance within groups (Cochran, "The combination of estimates from
    different experiments", Biometrics 10, 1954); ``errors`` ``(ngroup, p)`` are s / √n_g.

    Raises:
        InputError: fewer than two groups, or no group with two clusters.
    """
    table = np.asarray(values, dtype=np.float64)
    names, label = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(label)
    if len(names) < 2 or sizes.max() < 2:
        raise InputError(
            f"{len(table)} episodes in {len(names)} groups cannot tell a change: give at least two groups, one of them "
            "with at least two episodes."
        )
    at = np.asarray(order, dtype=np.float64)
    member = (label[None] == np.arange(len(names))[:, None]).astype(np.float64) / sizes[:, None]
    spread = np.maximum(table.std(axis=0), np.finfo(float).tiny)
    scaled, position = (table - table.mean(axis=0)) / spread, (at - at.mean()) / max(at.std(), np.finfo(float).tiny)
    q, means, within = _cochran(scaled, member, sizes)
    correlation = position @ scaled / len(scaled)
    rng = generator(seed, "stats/groups")
    larger, steeper = np.ones(table.shape[1]), np.ones(table.shape[1])
    for _ in range(draws):
        mixed = scaled[rng.permutation(len(scaled))]
        larger += _cochran(mixed, member, sizes)[0] >= q * (1 - 1e-9)
        steeper += np.abs(position @ mixed / len(mixed)) >= np.abs(correlation) * (1 - 1e-9)
    return GroupTest(
        means=means * spread + table.mean(axis=0),
        errors=within * spread / np.sqrt(sizes)[:, None],
        q=q,
        p_change=larger / (1 + draws),
        correlation=correlation,
        p_trend=steeper / (1 + draws),
    )


def _cochran(values: Array, member: Array, sizes: NDArray[np.intp]) -> tuple[Array, Array, Array]:
    """Q ``(p,)``, means ``(ngroup, p)`` and standard deviation within groups ``(p,)`` of values of mean zero."""
    means = member @ values
    between = sizes @ means**2
    inside = np.maximum(np.sum(values**2, axis=0) - between, 1e-12)
    variance = inside / max(len(values) - len(sizes), 1)
    return between / variance, means, np.sqrt(variance)
