"""Record and describe the result of an attribution: shares of the error by group; inseparable groups are joined.

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
_JOIN_BELOW = 0.5  # groups are joined if the spread of their sum is below this part of the larger of their spreads
_INACCURATE = 0.05  # standard error of an inaccurate share: its interval extends by more than a tenth of the error


@dataclass(frozen=True, kw_only=True)
class ErrorCause:
    """One group of parameters, or several joined groups, with the share of a channel's squared error that it explains.

    Attributes:
        groups: Names of the groups.
        share: Share of the squared error, a fraction of 1. It is negative if the identified values add error, on
            average over the orders in which groups can change.
        p_value: P-value of the hypothesis that the share is 0.
        significant: Whether the share differs significantly from 0 (see `stats.shares.ShapleyShares.significant_mask`).
        needed: Whether the error grows when only this group returns to nominal values (always true for joined groups).
            A needed group with a negative share compensates errors of other groups.
    """

    groups: tuple[str, ...]
    share: Interval
    p_value: float
    significant: bool
    needed: bool

    @property
    def name(self) -> str:
        """Names of all groups, such as ``servo gain with damping``."""
        return " with ".join(self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "groups": list(self.groups),
            **self.share.to_json(),
            "p_value": self.p_value,
            "significant": self.significant,
            "needed": self.needed,
        }


def join_groups(replicates: Array) -> list[list[int]]:
    """Find groups of parameters whose shares of the error are inaccurate alone but accurate as a sum.

    Two groups are joined if the standard error of their sum is less than half of the larger of their own standard
    errors. The pair with the smallest ratio is joined first.

    Args:
        replicates: Bootstrap replicates of the shares of m groups, shape ``(nreplicate, m)``. If there are none, no
            groups are joined.

    Returns:
        Lists of the indices of the groups to report together. Every index from 0 to m − 1 occurs once, and the lists
            are ordered by their first index.
    """
    clusters = [[row] for row in range(replicates.shape[1])]
    values = list(replicates.T)
    while len(values) > 1 and len(replicates):
        spread = np.array([value.std() for value in values])
        ratio = np.full((len(values), len(values)), np.inf)
        inaccurate = np.flatnonzero(spread > _INACCURATE)
        for i in inaccurate:
            for j in inaccurate[inaccurate < i]:
                ratio[i, j] = (values[i] + values[j]).std() / max(spread[i], spread[j])
        i, j = np.unravel_index(int(np.argmin(ratio)), ratio.shape)
        if ratio[i, j] >= _JOIN_BELOW:
            break
        clusters[j] += clusters.pop(i)
        values[j] = values[j] + values.pop(i)
    return sorted((sorted(cluster) for cluster in clusters), key=lambda cluster: cluster[0])


def rank_causes(causes: Sequence[ErrorCause]) -> tuple[ErrorCause, ...]:
    """Sort causes by share, the largest first; causes that are not significant come last."""
    return tuple(sorted(causes, key=lambda cause: (not cause.significant, -np.nan_to_num(float(cause.share.estimate)))))


OVERALL = "all channels"


@dataclass(frozen=True, kw_only=True)
class ChannelExplanation(JsonRecord):
    """Shares of one channel's squared error that parameters explain.

    Shares are fractions of the mean squared error with nominal parameters.

    Attributes:
        channel: Name of the channel, or `OVERALL`, the mean of all channels with equal weights.
        unit: Unit of ``nominal`` and ``identified``; "" for `OVERALL`.
        nominal: Root mean square error with nominal parameters; NaN for `OVERALL`.
        identified: Root mean square error with identified parameters; NaN for `OVERALL`.
        causes: Groups of parameters by share, the largest first; those that are not significant come last.
        remaining: Share that remains with all parameters identified: no parameter of the twin explains it.
        floor: Share of the sensor noise; NaN if unknown.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {
        "nominal": "nominal_rmse",
        "identified": "identified_rmse",
        "remaining": "left",
    }

    channel: str
    unit: str
    nominal: float
    identified: float
    causes: tuple[ErrorCause, ...]
    remaining: Interval
    floor: float

    @property
    def short_name(self) -> str:
        """Name of the channel in a sentence: joint positions have the joint's name."""
        return self.channel.removeprefix("position/")

    @property
    def possessive_name(self) -> str:
        """Possessive form of the short name, such as ``elbow_flex's``."""
        return f"{self.short_name}'" if self.short_name.endswith("s") else f"{self.short_name}'s"

    @property
    def significant_causes(self) -> tuple[ErrorCause, ...]:
        """Causes whose share differs significantly from 0."""
        return tuple(cause for cause in self.causes if cause.significant)

    def sentence(self, place: str = "") -> str:
        """Return the explanation as text; groups with an insignificant share are listed by name, without numbers.

        Args:
            place: Text to append to the last sentence, "12 % is explained by no parameter of the twin and …", such as
                "occurs at reversals: backlash is the first model term to try". If it is empty, the sentence ends before
                "and".
        """
        if np.isnan(float(self.remaining.estimate)):
            return f"There is no error of {self.short_name} to attribute."
        if np.isnan(float(self.remaining.low)):
            listed = ", ".join(f"{format_share(cause.share)} {cause.name}" for cause in self.causes)
            return (
                f"Of {self.possessive_name} squared error: {listed}; {format_share(self.remaining)} by no parameter. "
                f"No share is significant ({self.remaining.method})."
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
        names = [cause.name for cause in self.causes if not cause.significant]
        if not names:
            return "."
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"; {listed} {'is' if len(names) == 1 else 'are'} not significant."

    def _format_unexplained_share(self, place: str) -> str:
        own = f" ({format_percent(self.floor)} is noise)" if np.isfinite(self.floor) else ""
        more = f" and {place}" if place else ""
        return f"{format_share(self.remaining)} is explained by no parameter of the twin{own}{more}."

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return super().to_json() | {"sentence": self.sentence()}


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Shares of the error of a twin with nominal parameters that groups of parameters explain.

    Columns are the channels and, last, `OVERALL`: the mean of the channels' shares. A share is a fraction of the mean
    squared error over all frames of all windows. The shares of a column in ``share`` and ``remaining`` sum to 1. A
    channel without error has no shares (NaN).

    Attributes:
        groups: Groups of parameters, the rows.
        channels: The compared channels.
        episodes: Numbers of the replayed episodes.
        nominal: Root mean square error with nominal parameters, shape ``(nchannel,)``.
        identified: Root mean square error with identified parameters, shape ``(nchannel,)``.
        share: Shapley values, shape ``(ngroup, nchannel + 1)``.
        join_first_gain: Gain when one group changes from nominal to identified and all other groups stay nominal, same
            shape.
        join_last_gain: Error that returns when one group changes from identified to nominal and all other groups stay
            identified, same shape.
        remaining: Share that remains with all parameters identified, shape ``(1, nchannel + 1)``.
        causes: Ranked groups by column; inseparable groups are joined.
        floor: Share of the sensor noise, shape ``(nchannel + 1,)``, NaN if unknown.
        interactions: Measure of interactions of more than two groups: the largest difference between a share and the
            mean of the gains when a group joins first and last, shape ``(nchannel + 1,)``.
        worlds: Number of replayed worlds.
        coalitions: Text with the number and kind of the replayed coalitions. A coalition is a set of groups with
            identified values; all other groups are nominal.
        ndraw: Number of draws of the parameters.
        undetermined: Parameters that identification could not determine. They were not drawn, so the intervals of
            shares assume that their estimates are exact.
        replayed_log: The replayed part of the log; None if unknown.
        note: A remark on the episodes for the reader.
    """

    groups: tuple[ParameterGroup, ...]
    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]
    nominal: Array
    identified: Array
    share: ShapleyShares
    join_first_gain: ShapleyShares
    join_last_gain: ShapleyShares
    remaining: ShapleyShares
    causes: tuple[tuple[ErrorCause, ...], ...]
    floor: Array
    interactions: Array
    worlds: int
    coalitions: str
    ndraw: int
    undetermined: tuple[str, ...] = ()
    replayed_log: ThinnedLog | None = None
    note: str = ""

    @property
    def replayed_part(self) -> str:
        """Text with the replayed part of the log; "" for the whole log."""
        return "" if self.replayed_log is None else self.replayed_log.description

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: the channels, then `OVERALL`."""
        return (*(channel.name for channel in self.channels), OVERALL)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(group.name for group in self.groups)

    def explanation(self, channel: str = OVERALL) -> ChannelExplanation:
        """Return the shares of one channel's error that parameters explain; by default of all channels together."""
        column = self.columns.index(channel)
        single = column < len(self.channels)
        return ChannelExplanation(
            channel=channel,
            unit=self.channels[column].unit if single else "",
            nominal=float(self.nominal[column]) if single else np.nan,
            identified=float(self.identified[column]) if single else np.nan,
            causes=self.causes[column],
            remaining=self.remaining.interval.at(0, column),
            floor=float(self.floor[column]),
        )

    def explanations(self) -> tuple[ChannelExplanation, ...]:
        """Return the explanation of all channels together, then the explanation of each channel."""
        return (self.explanation(), *(self.explanation(channel.name) for channel in self.channels))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        tables = {
            "share": self.share,
            "alone": self.join_first_gain,
            "back": self.join_last_gain,
            "remaining": self.remaining,
        }
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
            "held_at_estimate": list(self.undetermined),
            "part": self.replayed_part,
            "note": self.note,
        }


def format_share(share: Interval) -> str:
    """Format a share in per cent with half the width of its interval, such as ``62 % ± 7``; NaN is a dash."""
    if np.isnan(float(share.estimate)):
        return "–"
    half = 50 * float(share.high - share.low)
    value = format_percent(float(share.estimate), 100 * abs(float(share.estimate)))
    return value if np.isnan(half) else f"{value} ± {_format_digits(half)}"


def format_percent(share: float, size: float | None = None) -> str:
    """Format a share in per cent: values from 0.05 % to 0.95 % with one decimal, all others with none.

    Args:
        share: Share as a fraction of 1.
        size: Value in per cent to print instead of |100 ``share``|, for example after rounding; ``share`` then gives
            only the sign.
    """
    return f"{'−' if share < 0 else ''}{_format_digits(abs(100 * share if size is None else size))} %"


def _format_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 or value < 0.05 else f"{value:.1f}"


def _format_harmful_cause(cause: ErrorCause) -> str:
    if cause.needed:
        return f"{cause.name} (it compensates others: the error grows without it)"
    return f"{cause.name} (its identified value adds error here)"
