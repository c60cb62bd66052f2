"""What an attribution found: shares of the error by group of parameters, and groups that the data cannot tell apart.

A stiffer servo with more damping lags as before: where a fit moves both, one Shapley value may read +227 % and the
other −198 %, with intervals as wide, though together they are well known. The sum of Shapley values is still a share of
the whole, so that such groups are joined, one channel at a time, until no two of what remains are known badly apart and
twice as well together.
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
_APART = 0.5  # spread of a sum over that of its less known part, below which the two are told of together
_BADLY = 0.05  # standard error of a share from which its interval is wider than a tenth of the error on either side


@dataclass(frozen=True, kw_only=True)
class ErrorCause:
    """One group, or several that are told of together, and their ``share`` of a channel's squared error.

    ``claimed``: the share differs from 0 significantly (see `stats.shares.ShapleyShares.claimed`). ``needed`` is True
    where the error grows when the one group goes back to nominal: a negative share of such a group makes up for others.
    """

    groups: tuple[str, ...]
    share: Interval
    p_value: float
    claimed: bool
    needed: bool

    @property
    def name(self) -> str:
        """Of all groups: ``servo gain with damping``."""
        return " with ".join(self.groups)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "groups": list(self.groups),
            **self.share.to_json(),
            "p_value": self.p_value,
            "claimed": self.claimed,
            "needed": self.needed,
        }


def joined_groups(replicates: Array) -> list[list[int]]:
    """Which rows of shares ``(ndraw, m)`` are to be told of together, each row once, in order of their first one.

    The two that gain most by it are joined first. Without replicates none are.
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


def ranked(causes: Sequence[ErrorCause]) -> tuple[ErrorCause, ...]:
    """Claimed ones first, the largest share first; then those that are not told apart from 0."""
    return tuple(sorted(causes, key=lambda cause: (not cause.claimed, -np.nan_to_num(float(cause.share.estimate)))))


OVERALL = "all channels"


@dataclass(frozen=True, kw_only=True)
class ChannelExplanation(JsonRecord):
    """What parameters explain of one channel's error, as shares of its mean squared error with nominal parameters.

    Attributes:
        channel: its name, or `OVERALL`, in which every channel counts alike.
        unit: of ``nominal`` and ``identified``; "" for `OVERALL`.
        nominal: root mean square error with nominal parameters; NaN for `OVERALL`.
        identified: the same with identified ones.
        causes: claimed ones first, the largest share first; then those not told apart from 0.
        left: share that stays with all parameters identified: nothing in the twin explains it.
        floor: share that is noise; NaN where nobody says.
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
    def about(self) -> str:
        """What the channel is called in a sentence."""
        return self.channel.removeprefix("position/")

    @property
    def whose(self) -> str:
        """The same before what it has: ``elbow_flex's``."""
        return f"{self.about}'" if self.about.endswith("s") else f"{self.about}'s"

    @property
    def claimed(self) -> tuple[ErrorCause, ...]:
        """Causes that may be said to explain error, or to add it."""
        return tuple(cause for cause in self.causes if cause.claimed)

    def sentence(self, place: str = "") -> str:
        """In words and numbers; nothing is claimed of a group whose interval holds 0, and those are named.

        Args:
            place: completes "12 % is explained by no parameter of the twin and …".
        """
        if np.isnan(float(self.left.estimate)):
            return f"There is no error of {self.about} to attribute."
        if np.isnan(float(self.left.low)):
            listed = ", ".join(f"{percent(cause.share)} {cause.name}" for cause in self.causes)
            return (
                f"Of {self.whose} squared error: {listed}; {percent(self.left)} by no parameter. "
                f"No share may be claimed ({self.left.method})."
            )
        return f"{self._told()}{self._untold()} {self._rest(place)}"

    def _told(self) -> str:
        gains = [cause for cause in self.claimed if cause.share.estimate > 0]
        harms = [cause for cause in self.claimed if cause.share.estimate < 0]
        if not self.claimed:
            return f"No group of parameters can be said to explain {self.whose} error"
        parts = []
        if gains:
            first, *others = gains
            parts.append(f"{percent(first.share)} of {self.whose} squared error is {first.name}")
            parts += [f"{percent(cause.share)} {cause.name}" for cause in others]
        whose = "" if gains else f" of {self.whose} squared error,"
        parts += [f"{percent(cause.share)}{whose} {_harm(cause)}" for cause in harms]
        return ", ".join(parts)

    def _untold(self) -> str:
        names = [cause.name for cause in self.causes if not cause.claimed]
        if not names:
            return "."
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"; {listed} {'is' if len(names) == 1 else 'are'} not told apart from 0."

    def _rest(self, place: str) -> str:
        own = f" ({percent_of(self.floor)} is noise)" if np.isfinite(self.floor) else ""
        more = f" and {place}" if place else ""
        return f"{percent(self.left)} is explained by no parameter of the twin{own}{more}."

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return super().to_json() | {"sentence": self.sentence()}


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Shares of the error of a twin with nominal parameters.

    Columns are the channels and, last, `OVERALL`: the mean of the channels' shares. A share is of the mean squared
    error over all frames of all windows. Those of a column in ``share`` and ``left`` add up to 1. A channel without
    error has no shares (NaN).

    Attributes:
        groups: of parameters, in rows.
        channels: what is measured.
        episodes: numbers of the episodes that were replayed.
        nominal: root mean square error with nominal parameters, ``(nchannel,)``.
        identified: the same with identified ones.
        share: Shapley values, ``(ngroup, nchannel + 1)``.
        alone: one group goes from nominal to identified, all others stay nominal.
        back: one group goes from identified to nominal, all others stay identified: error that comes back.
        left: what stays with all parameters identified, ``(1, nchannel + 1)``.
        causes: by column, groups that cannot be told apart together, ranked.
        floor: share that is the sensor's own, ``(nchannel + 1,)``, NaN where nobody says.
        interactions: how far a column is from a game in which groups interact in pairs at most: the largest difference
            between a share and the mean of joining first and joining last, ``(nchannel + 1,)``.
        worlds: replayed.
        coalitions: in words, which of them were.
        ndraw: draws of the parameters.
        held: parameters that the data do not tell: they were not drawn, and their shares are given their estimates.
        replayed: the part of the log that was; None where nobody says.
        note: what a reader must know of the episodes.
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
        """What of the log was replayed, in words; "" for all of it."""
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
        """What parameters explain of one channel."""
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
        """Of all channels together, then of each."""
        return (self.explanation(), *(self.explanation(channel.name) for channel in self.channels))

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
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


def percent(share: Interval) -> str:
    """A share in per cent with half the width of its interval: ``62 % ± 7``; a dash where there is none."""
    if np.isnan(float(share.estimate)):
        return "–"
    half = 50 * float(share.high - share.low)
    value = percent_of(float(share.estimate), 100 * abs(float(share.estimate)))
    return value if np.isnan(half) else f"{value} ± {_digits(half)}"


def percent_of(share: float, size: float | None = None) -> str:
    """A share in per cent: whole ones, or one digit where there is less than one."""
    return f"{'−' if share < 0 else ''}{_digits(abs(100 * share if size is None else size))} %"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 or value < 0.05 else f"{value:.1f}"


def _harm(cause: ErrorCause) -> str:
    if cause.needed:
        return f"{cause.name} (it makes up for others: the error grows without it)"
    return f"{cause.name} (its identified value adds error here)"
