"""Result of an attribution: shares of the error by group of parameters; inseparable groups are joined.

A stiffer servo with more damping has the same lag as before. If a fit changes both, one Shapley value may be +227 % and
the other −198 %, with intervals as wide, although their sum is accurate. A sum of Shapley values is still a share of
the whole. Therefore such groups are joined, separately for each channel, until no two groups are left that are
inaccurate alone and at least twice as accurate together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.gap.attribution.groups import ParameterGroup
from twinloop.gap.attribution.thinning import ThinnedLog
from twinloop.simulate.channels import MeasuredChannel
from twinloop.stats import Interval
from twinloop.stats.shares import ShapleyShares

Array = NDArray[np.float64]
_APART = 0.5  # two groups are joined if the spread of their sum is below this part of the larger spread of the two
_BADLY = 0.05  # standard error of an inaccurate share: its interval extends by more than a tenth of the error


@dataclass(frozen=True, kw_only=True)
class ErrorCause:
    """One group, or several joined groups, and their ``share`` of a channel's squared error.

    ``claimed``: the share differs significantly from 0 (see `stats.shares.ShapleyShares.significant_mask`). ``needed``:
    the error grows when the group returns to nominal (always True for joined groups); a negative share of such a group
    compensates others.
    """

    groups: tuple[str, ...]
    share: Interval
    p_value: float
    claimed: bool
    needed: bool

    @property
    def name(self) -> str:
        """Names of all groups: ``servo gain with damping``."""
        return " with ".join(self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "groups": list(self.groups),
            **self.share.to_json(),
            "p_value": self.p_value,
            "claimed": self.claimed,
            "needed": self.needed,
        }


def join_groups(replicates: Array) -> list[list[int]]:
    """Return the rows of shares ``(ndraw, m)`` to report together, each row once, in order of their first row.

    The two rows that gain most accuracy are joined first. Without replicates no rows are joined.
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


def rank_causes(causes: Sequence[ErrorCause]) -> tuple[ErrorCause, ...]:
    """Sort causes: claimed ones first, the largest share first; then the insignificant ones."""
    return tuple(sorted(causes, key=lambda cause: (not cause.claimed, -np.nan_to_num(float(cause.share.estimate)))))


OVERALL = "all channels"


@dataclass(frozen=True, kw_only=True)
class ChannelExplanation(JsonRecord):
    """Shares of one channel's error by parameters, relative to its mean squared error with nominal parameters.

    Attributes:
        channel: its name, or `OVERALL`, in which every channel has the same weight.
        unit: unit of ``nominal`` and ``identified``; "" for `OVERALL`.
        nominal: root mean square error with nominal parameters; NaN for `OVERALL`.
        identified: root mean square error with identified parameters; NaN for `OVERALL`.
        causes: claimed ones first, the largest share first; then the insignificant ones.
        left: share that remains with all parameters identified: no parameter of the twin explains it.
        floor: share of the sensor noise; NaN if unknown.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"nominal": "nominal_rmse", "identified": "identified_rmse"}

    channel: str
    unit: str
    nominal: float
    identified: float
    causes: tuple[ErrorCause, ...]
    left: Interval
    floor: float

    @property
    def short_name(self) -> str:
        """Name of the channel in a sentence."""
        return self.channel.removeprefix("position/")

    @property
    def possessive_name(self) -> str:
        """Possessive form of the name: ``elbow_flex's``."""
        return f"{self.short_name}'" if self.short_name.endswith("s") else f"{self.short_name}'s"

    @property
    def significant_causes(self) -> tuple[ErrorCause, ...]:
        """Causes with a share that differs significantly from 0."""
        return tuple(cause for cause in self.causes if cause.claimed)

    def sentence(self, place: str = "") -> str:
        """Return the explanation as text; groups whose interval contains 0 are only named.

        Args:
            place: completes "12 % is explained by no parameter of the twin and …".
        """
        if np.isnan(float(self.left.estimate)):
            return f"There is no error of {self.short_name} to attribute."
        if np.isnan(float(self.left.low)):
            listed = ", ".join(f"{format_share(cause.share)} {cause.name}" for cause in self.causes)
            return (
                f"Of {self.possessive_name} squared error: {listed}; {format_share(self.left)} by no parameter. "
                f"No share is significant ({self.left.method})."
            )
        causes = f"{self._format_significant_causes()}{self._format_insignificant_causes()}"
        return f"{causes} {self._format_unexplained_share(place)}"

    def _format_significant_causes(self) -> str:
        gains = [cause for cause in self.significant_causes if cause.share.estimate > 0]
        harms = [cause for cause in self.significant_causes if cause.share.estimate < 0]
        if not self.significant_causes:
            return f"No group of parameters explains {self.possessive_name} error significantly"
        parts = []
        if gains:
            first, *others = gains
            parts.append(f"{format_share(first.share)} of {self.possessive_name} squared error is {first.name}")
            parts += [f"{format_share(cause.share)} {cause.name}" for cause in others]
        whose = "" if gains else f" of {self.possessive_name} squared error,"
        parts += [f"{format_share(cause.share)}{whose} {_format_harmful_cause(cause)}" for cause in harms]
        return ", ".join(parts)

    def _format_insignificant_causes(self) -> str:
        names = [cause.name for cause in self.causes if not cause.claimed]
        if not names:
            return "."
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"; {listed} {'is' if len(names) == 1 else 'are'} not significant."

    def _format_unexplained_share(self, place: str) -> str:
        own = f" ({format_percent(self.floor)} is noise)" if np.isfinite(self.floor) else ""
        more = f" and {place}" if place else ""
        return f"{format_share(self.left)} is explained by no parameter of the twin{own}{more}."

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return super().to_json() | {"sentence": self.sentence()}


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Shares of the error of a twin with nominal parameters.

    Columns are the channels and, last, `OVERALL`: the mean of the channels' shares. A share is of the mean squared
    error over all frames of all windows. The shares of a column in ``share`` and ``left`` sum to 1. A channel without
    error has no shares (NaN).

    Attributes:
        groups: groups of parameters, the rows.
        channels: the compared channels.
        episodes: numbers of the replayed episodes.
        nominal: root mean square error with nominal parameters, ``(nchannel,)``.
        identified: root mean square error with identified parameters, ``(nchannel,)``.
        share: Shapley values, ``(ngroup, nchannel + 1)``.
        alone: gain when one group changes from nominal to identified and all others stay nominal.
        back: error that returns when one group changes from identified to nominal and all others stay identified.
        left: share that remains with all parameters identified, ``(1, nchannel + 1)``.
        causes: ranked groups by column; inseparable groups are joined.
        floor: share of the sensor noise, ``(nchannel + 1,)``, NaN if unknown.
        interactions: measure of interactions of more than two groups: the largest difference between a share and the
            mean of joining first and joining last, ``(nchannel + 1,)``.
        worlds: number of replayed worlds.
        coalitions: number and kind of the replayed coalitions, as text.
        ndraw: number of draws of the parameters.
        held: undetermined parameters: they were not drawn, and their shares assume their estimates.
        replayed: the replayed part of the log; None if unknown.
        note: a remark on the episodes for the reader.
    """

    groups: tuple[ParameterGroup, ...]
    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]
    nominal: Array
    identified: Array
    share: ShapleyShares
    alone: ShapleyShares
    back: ShapleyShares
    left: ShapleyShares
    causes: tuple[tuple[ErrorCause, ...], ...]
    floor: Array
    interactions: Array
    worlds: int
    coalitions: str
    ndraw: int
    held: tuple[str, ...] = ()
    replayed: ThinnedLog | None = None
    note: str = ""

    @property
    def part(self) -> str:
        """The replayed part of the log, as text; "" for all of it."""
        return "" if self.replayed is None else self.replayed.why

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*(channel.name for channel in self.channels), OVERALL)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(group.name for group in self.groups)

    def explanation(self, channel: str = OVERALL) -> ChannelExplanation:
        """Return the shares of one channel's error by parameters."""
        column = self.columns.index(channel)
        single = column < len(self.channels)
        return ChannelExplanation(
            channel=channel,
            unit=self.channels[column].unit if single else "",
            nominal=float(self.nominal[column]) if single else np.nan,
            identified=float(self.identified[column]) if single else np.nan,
            causes=self.causes[column],
            left=self.left.interval.at(0, column),
            floor=float(self.floor[column]),
        )

    def explanations(self) -> tuple[ChannelExplanation, ...]:
        """Return the explanation of all channels together, then of each."""
        return (self.explanation(), *(self.explanation(channel.name) for channel in self.channels))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        tables = {"share": self.share, "alone": self.alone, "back": self.back, "left": self.left}
        return {
            "schema": 1,
            "groups": [{"name": group.name, "parameters": list(group.params)} for group in self.groups],
            "channels": [channel.name for channel in self.channels],
            "units": [channel.unit for channel in self.channels],
            "columns": list(self.columns),
            "episodes": list(self.episodes),
            "nominal_rmse": self.nominal.tolist(),
            "identified_rmse": self.identified.tolist(),
            **{name: {**t.interval.to_json(), "p_values": t.p_values.tolist()} for name, t in tables.items()},
            "explanations": [explanation.to_json() for explanation in self.explanations()],
            "floor": self.floor.tolist(),
            "interactions": self.interactions.tolist(),
            "worlds": self.worlds,
            "coalitions": self.coalitions,
            "draws": self.ndraw,
            "held_at_estimate": list(self.held),
            "part": self.part,
            "note": self.note,
        }


def format_share(share: Interval) -> str:
    """Format a share in per cent with half the width of its interval: ``62 % ± 7``; a dash without a value."""
    if np.isnan(float(share.estimate)):
        return "–"
    half = 50 * float(share.high - share.low)
    value = format_percent(float(share.estimate), 100 * abs(float(share.estimate)))
    return value if np.isnan(half) else f"{value} ± {_format_digits(half)}"


def format_percent(share: float, size: float | None = None) -> str:
    """Format a share in per cent, with one decimal if it is below 1 %."""
    return f"{'−' if share < 0 else ''}{_format_digits(abs(100 * share if size is None else size))} %"


def _format_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 or value < 0.05 else f"{value:.1f}"


def _format_harmful_cause(cause: ErrorCause) -> str:
    if cause.needed:
        return f"{cause.name} (it compensates others: the error grows without it)"
    return f"{cause.name} (its identified value adds error here)"
