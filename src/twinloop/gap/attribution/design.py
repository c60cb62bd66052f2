"""Choose the worlds of an attribution: coalitions of groups at their identified values, all others nominal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.gap.attribution.groups import ParameterGroup
from twinloop.stats import JoiningOrders, draw_joining_orders, every_coalition, shapley, shapley_from_orders
from twinloop.twin import Twin

Array = NDArray[np.float64]
Coalitions = NDArray[np.bool_]
_FEW = 16  # coalitions of four groups: two pairs of orders have nearly as many


@dataclass(frozen=True, kw_only=True)
class GroupEffects:
    """Effects of groups on a value, each ``(ngroup, …)``.

    ``share`` is the Shapley value. ``alone`` is the gain when one group changes from nominal to identified and all
    others stay nominal. ``back`` is the gain that is lost when one group changes from identified to nominal and all
    others stay identified.
    """

    share: Array
    alone: Array
    back: Array


@dataclass(frozen=True, kw_only=True)
class CoalitionDesign:
    """Coalitions ``(nworld, ngroup)``, the empty one first and the full one last.

    ``walks`` are the sampled orders of the coalitions; None if these are all coalitions.
    """

    coalitions: Coalitions
    walks: JoiningOrders | None

    @property
    def nworld(self) -> int:
        """Number of worlds to replay."""
        return len(self.coalitions)

    def text(self) -> str:
        """Return a phrase with the number and kind of the coalitions."""
        if self.walks is None:
            return f"all {self.nworld} coalitions"
        return f"{self.nworld} coalitions on {len(self.walks.orders)} orders, each order and its reverse"

    def effects(self, gains: Array) -> tuple[GroupEffects, Array | None]:
        """Return the effects from gains ``(nworld, …)``, and the shares per pair of orders if orders were sampled."""
        rows = {row.tobytes(): number for number, row in enumerate(self.coalitions)}
        one = np.eye(self.coalitions.shape[1], dtype=bool)
        alone = gains[[rows[row.tobytes()] for row in one]]
        back = gains[-1] - gains[[rows[row.tobytes()] for row in ~one]]
        if self.walks is None:
            return GroupEffects(share=shapley(gains), alone=alone, back=back), None
        steps = [rows[row.tobytes()] for row in self.walks.coalitions]
        pairs = shapley_from_orders(gains[steps], self.walks)
        return GroupEffects(share=pairs.mean(axis=0), alone=alone, back=back), pairs

    def names(self, groups: Sequence[ParameterGroup]) -> list[str]:
        """Return the name of each world for messages."""
        return [
            _format_world_name([g.name for g, there in zip(groups, row, strict=True) if there], len(groups))
            for row in self.coalitions
        ]

    def table(self, twin: Twin, groups: Sequence[ParameterGroup], values: Mapping[str, float]) -> ParamTable:
        """Return a world for each coalition: its parameters at their identified ``values``, all others nominal."""
        columns = {
            name: np.where(self.coalitions[:, number], values[name], twin.params[name].nominal)
            for number, group in enumerate(groups)
            for name in group.params
        }
        return twin.table(self.nworld, columns)


def design(ngroup: int, *, exact: int, worlds: float, least_pairs: int, seed: int = 0) -> CoalitionDesign:
    """Return all coalitions of up to ``exact`` groups if these are at most ``worlds``, else those of random orders.

    Each group alone and all groups but one are always included. At least ``least_pairs`` pairs of an order and its
    reverse are used. A single group has no orders.
    """
    if ngroup == 1 or (ngroup <= exact and 2**ngroup <= max(worlds, _FEW)):
        return CoalitionDesign(coalitions=every_coalition(ngroup), walks=None)
    pairs = max(least_pairs, int((worlds - 2 * ngroup - 2) // (2 * ngroup - 2)))
    walks = draw_joining_orders(ngroup, pairs, seed=seed, stream="gap/attribution/orders")
    one = np.eye(ngroup, dtype=bool)
    found = np.unique(np.concatenate([walks.coalitions, one, ~one]), axis=0)
    order = np.argsort(found.sum(axis=1), kind="stable")
    return CoalitionDesign(coalitions=found[order], walks=walks)


@dataclass(frozen=True, kw_only=True)
class DrawDesign:
    """Worlds of parameter draws: a nominal one; then, per draw, every group alone, all but each, and all groups."""

    ngroup: int
    ndraw: int

    @property
    def nworld(self) -> int:
        """Number of worlds to replay."""
        return 1 + self.ndraw * (2 * self.ngroup + 1)

    def table(self, twin: Twin, groups: Sequence[ParameterGroup], draws: Mapping[str, Array]) -> ParamTable:
        """Return the table of worlds from drawn values ``(ndraw,)`` by parameter name."""
        one = np.eye(self.ngroup, dtype=bool)
        each = np.concatenate([one, ~one, np.ones((1, self.ngroup), dtype=bool)])
        columns = {}
        for number, group in enumerate(groups):
            for name in group.params:
                nominal = twin.params[name].nominal
                drawn = np.where(each[:, number], draws[name][:, None], nominal)
                columns[name] = np.append(nominal, drawn.ravel())
        return twin.table(self.nworld, columns)

    def effects(self, gains: Array) -> tuple[GroupEffects, Array]:
        """Return effects ``(ndraw, ngroup, …)`` and the whole gain ``(ndraw, …)`` from gains ``(nworld, …)``.

        The share is the mean of joining first and joining last, which is the Shapley value if groups interact at most
        in pairs.
        """
        n = self.ngroup
        table = gains[1:].reshape(self.ndraw, 2 * n + 1, *gains.shape[1:])
        alone, back = table[:, :n], table[:, -1:] - table[:, n : 2 * n]
        return GroupEffects(share=(alone + back) / 2, alone=alone, back=back), table[:, -1]

    def names(self) -> list[str]:
        """Return the name of each world for messages."""
        drawn = [f"drawn (number {draw})" for draw in range(self.ndraw) for _ in range(2 * self.ngroup + 1)]
        return ["nominal", *drawn]


def draw_values(
    distribution: ParamDistribution, names: Sequence[str], ndraw: int, *, seed: int = 0
) -> dict[str, Array]:
    """Draw values ``(ndraw,)`` by name from the identified distribution, within their bounds.

    Undetermined parameters stay at their estimates: draws from their prior would show the prior's uncertainty.
    """
    known = np.flatnonzero(distribution.determined).tolist()
    normal = generator(seed, "gap/attribution/draws").standard_normal((ndraw, len(known)))
    drawn = convert_normal_to_values(distribution, known, normal)
    return {name: drawn[name] if name in drawn else np.full(ndraw, distribution.estimate[name]) for name in names}


def convert_normal_to_values(distribution: ParamDistribution, rows: Sequence[int], normal: Array) -> dict[str, Array]:
    """Return values ``(n,)`` by name of some parameters at normal numbers ``(n, nrow)``, within their bounds."""
    eigenvalues, axes = np.linalg.eigh(distribution.covariance[np.ix_(rows, rows)])
    moved = distribution.mean[rows] + normal * np.sqrt(np.maximum(eigenvalues, 0.0)) @ axes.T
    values = {}
    for row, value in zip(rows, moved.T, strict=True):
        value = np.exp(value) if distribution.transforms[row] == "log" else value
        values[distribution.names[row]] = np.clip(value, distribution.low[row], distribution.high[row])
    return values


def _format_world_name(names: Sequence[str], ngroup: int) -> str:
    if not names:
        return "nominal"
    return "identified" if len(names) == ngroup else f"partly identified ({', '.join(names)})"
