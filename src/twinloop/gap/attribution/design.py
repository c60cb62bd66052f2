"""Choose the worlds of an attribution: sets of groups (coalitions) at identified values, all other groups nominal."""

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
    """Effects of groups of parameters on the gain (the reduction of the squared error), shape ``(ngroup, …)`` each.

    Attributes:
        share: Shapley value of each group.
        join_first_gain: Gain when one group changes from nominal to identified and all other groups stay nominal.
        join_last_gain: Gain that is lost when one group changes from identified to nominal and all other groups stay
            identified.
    """

    share: Array
    join_first_gain: Array
    join_last_gain: Array


@dataclass(frozen=True, kw_only=True)
class CoalitionDesign:
    """Coalitions to replay, one world each.

    A coalition is a set of parameter groups that have identified values; all other groups are nominal.

    Attributes:
        coalitions: Mask of the groups in each coalition, shape ``(nworld, ngroup)``, the empty coalition first and the
            full one last.
        walks: Random orders in which groups change from nominal to identified values, from which the coalitions come;
            None if ``coalitions`` has all possible coalitions.
    """

    coalitions: Coalitions
    walks: JoiningOrders | None

    @property
    def nworld(self) -> int:
        """Number of worlds to replay."""
        return len(self.coalitions)

    def text(self) -> str:
        """Return a phrase with the number and kind of the coalitions (sets of identified groups), for reports."""
        if self.walks is None:
            return f"all {self.nworld} coalitions"
        return f"{self.nworld} coalitions on {len(self.walks.orders)} orders, each order and its reverse"

    def effects(self, gains: Array) -> tuple[GroupEffects, Array | None]:
        """Return the effect of each group of parameters on the gain (the reduction of the squared error).

        The effects are the group's Shapley value and its gains when it changes to identified values first and last, see
        `GroupEffects`. If coalitions (sets of groups with identified values) come from random orders in which groups
        change, the Shapley values are averages over pairs of an order and its reverse. The scatter over pairs shows the
        error of these averages.

        Args:
            gains: Gain of each world against the nominal world, shape ``(nworld, …)``.

        Returns:
            Effects of shape ``(ngroup, …)``, and the Shapley values from each pair of orders, shape ``(npair, ngroup,
                …)``; None instead of the Shapley values by pair if all coalitions are replayed.
        """
        rows = {row.tobytes(): number for number, row in enumerate(self.coalitions)}
        one = np.eye(self.coalitions.shape[1], dtype=bool)
        join_first_gain = gains[[rows[row.tobytes()] for row in one]]
        join_last_gain = gains[-1] - gains[[rows[row.tobytes()] for row in ~one]]
        if self.walks is None:
            return GroupEffects(
                share=shapley(gains), join_first_gain=join_first_gain, join_last_gain=join_last_gain
            ), None
        steps = [rows[row.tobytes()] for row in self.walks.coalitions]
        pairs = shapley_from_orders(gains[steps], self.walks)
        return GroupEffects(
            share=pairs.mean(axis=0), join_first_gain=join_first_gain, join_last_gain=join_last_gain
        ), pairs

    def names(self, groups: Sequence[ParameterGroup]) -> list[str]:
        """Return the name of each world for error messages, such as ``partly identified (friction, delay)``.

        The groups in brackets have identified values.
        """
        return [
            _format_world_name([g.name for g, there in zip(groups, row, strict=True) if there], len(groups))
            for row in self.coalitions
        ]

    def table(self, twin: Twin, groups: Sequence[ParameterGroup], values: Mapping[str, float]) -> ParamTable:
        """Return a parameter table with one world for each coalition.

        A coalition is a set of groups that have their identified ``values``; all other parameters are nominal.
        """
        columns = {
            name: np.where(self.coalitions[:, number], values[name], twin.params[name].nominal)
            for number, group in enumerate(groups)
            for name in group.params
        }
        return twin.table(self.nworld, columns)


def design(ngroup: int, *, exact: int, worlds: float, least_pairs: int, seed: int = 0) -> CoalitionDesign:
    """Choose the coalitions to replay: all of them, or those of random orders if all are too many.

    A coalition is a set of parameter groups that have identified values. In an order, groups change one by one from
    nominal to identified values. The coalitions with one group, and with all groups but one, are always included. A
    single group has no orders.

    Args:
        ngroup: Number of groups.
        exact: Largest number of groups for which all coalitions are chosen.
        worlds: Number of worlds that the budget allows.
        least_pairs: Least number of pairs of an order and its reverse, even if the budget allows fewer.
        seed: Seed of the orders.
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
    """Worlds with drawn parameters: one nominal world, then 2 ngroup + 1 worlds for each draw.

    In the worlds of a draw, first one group at a time has drawn values, then all groups except one, then all groups.

    Attributes:
        ngroup: Number of groups.
        ndraw: Number of draws.
    """

    ngroup: int
    ndraw: int

    @property
    def nworld(self) -> int:
        """Number of worlds to replay."""
        return 1 + self.ndraw * (2 * self.ngroup + 1)

    def table(self, twin: Twin, groups: Sequence[ParameterGroup], draws: Mapping[str, Array]) -> ParamTable:
        """Return a parameter table with one row for each world of the design.

        Args:
            twin: The twin with the nominal values.
            groups: Groups of parameters.
            draws: Drawn values of each parameter, shape ``(ndraw,)``, by name.
        """
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
        """Return the effects of the groups in each draw, and the gain of all groups together.

        Gain is the reduction of the squared error against the nominal twin. The first gain of a group results if it
        alone has drawn values, its last gain if all other groups already have drawn values. The share of a group is the
        mean of both gains, which is its Shapley value if groups interact at most in pairs.

        Args:
            gains: Gain of each world, shape ``(nworld, …)``.

        Returns:
            Effects of shape ``(ndraw, ngroup, …)``, and the gain of all groups together, shape ``(ndraw, …)``.
        """
        n = self.ngroup
        table = gains[1:].reshape(self.ndraw, 2 * n + 1, *gains.shape[1:])
        join_first_gain, join_last_gain = table[:, :n], table[:, -1:] - table[:, n : 2 * n]
        return GroupEffects(
            share=(join_first_gain + join_last_gain) / 2, join_first_gain=join_first_gain, join_last_gain=join_last_gain
        ), table[:, -1]

    def names(self) -> list[str]:
        """Return the name of each world for error messages."""
        drawn = [f"drawn (number {draw})" for draw in range(self.ndraw) for _ in range(2 * self.ngroup + 1)]
        return ["nominal", *drawn]


def draw_values(
    distribution: ParamDistribution, names: Sequence[str], ndraw: int, *, seed: int = 0
) -> dict[str, Array]:
    """Draw values of parameters from the identified distribution, shape ``(ndraw,)`` by name, within their bounds.

    Undetermined parameters stay at their estimates, because draws from their prior would show the prior's uncertainty.
    """
    known = np.flatnonzero(distribution.determined).tolist()
    normal = generator(seed, "gap/attribution/draws").standard_normal((ndraw, len(known)))
    drawn = convert_normal_to_values(distribution, known, normal)
    return {name: drawn[name] if name in drawn else np.full(ndraw, distribution.estimate[name]) for name in names}


def convert_normal_to_values(distribution: ParamDistribution, rows: Sequence[int], normal: Array) -> dict[str, Array]:
    """Convert independent standard normal numbers to values of parameters by name, shape ``(n,)``, within their bounds.

    Args:
        distribution: Identified distribution, whose covariance correlates the values.
        rows: Numbers of the parameters in the distribution.
        normal: Standard normal numbers, shape ``(n, nrow)``.
    """
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
