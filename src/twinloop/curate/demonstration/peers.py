"""Judge values of demonstrations against other episodes of the same task; base of most checks of demonstrations.

There is no absolute limit for the smoothness of a demonstration, but other episodes show the usual values. The limit is
median + factor · (quartile - median), see `stats.novelty.fence`. Median and quartiles are those of the episodes with
the same batch, robot, source and task. Up to a quarter of the episodes may be poor, in the direction that the check
tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.stats.novelty import MIN_VALUES, ValueFence, fence

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """How a measured value is judged and described.

    Attributes:
        worse: whether low or high values are poor.
        unit: unit of the value.
        least_difference: smallest difference from the median that matters, in this unit.
        reason_prefix: text before the value in a reason, for example "It pauses in the middle for".
        value_format: format of the value.
        limit_factor: factor on the distance of the limit from the median. A check of many channels needs a factor above
            1, because one channel would exceed the limit by chance.
    """

    worse: Literal["low", "high"]
    unit: str
    least_difference: float
    reason_prefix: str
    value_format: str = "{:.2f}"
    limit_factor: float = 1.0


def group_key(recording: RecordedEpisode) -> Group:
    """Return the key of comparable episodes: batch, robot, source and task."""
    return (*recording.group, recording.task)


def group_recordings(recordings: Sequence[RecordedEpisode]) -> dict[Group, list[int]]:
    """Return the indices of the recordings of each group of comparable episodes, in their order.

    Comparable episodes have the same batch, robot, source and task.
    """
    found: defaultdict[Group, list[int]] = defaultdict(list)
    for place, recording in enumerate(recordings):
        found[group_key(recording)].append(place)
    return dict(found)


class PeerCheck(MeasuringCheck):
    """Base class of checks that judge a value in comparison with other episodes of the same task.

    Attributes:
        kinds: how each channel is judged, by its name; ``*`` is for all other channels.
    """

    kinds: Mapping[str, MetricKind]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield a score for each measured value by comparison with the same channel in other episodes of the task.

        The channel's entry in ``kinds`` determines whether high or low values are worse.
        """
        for places in group_recordings(recordings).values():
            fences = self._compute_fences([found for place in places for found in measured[place]])
            for place in places:
                for found in measured[place]:
                    yield self._score_measurement(recordings[place], found, fences.get(found.channel))

    def explain_incomparable(self, channel: str, values: Sequence[float]) -> str:
        """Return why the values of a channel cannot be judged in a group of episodes; "" if they can be judged.

        `judge` calls it for every channel. The base class returns ""; subclasses may override it.

        Args:
            channel: name of the channel.
            values: values of the channel in the group.
        """
        del channel, values
        return ""

    def _find_kind(self, channel: str) -> MetricKind:
        return self.kinds[channel] if channel in self.kinds else self.kinds["*"]

    def _compute_fences(self, found: Sequence[Measurement]) -> dict[str, ValueFence | str]:
        """Return the fence (limits around the median) of each channel, or the reason why the channel has none."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for metric in found:
            if metric.value is not None and np.isfinite(metric.value):
                values[metric.channel].append(metric.value)
        fences: dict[str, ValueFence | str] = {}
        for channel, known in values.items():
            if len(known) < MIN_VALUES:
                fences[channel] = (
                    f"only {len(known)} episode{'s' * (len(known) != 1)} of this task can be compared; a limit needs "
                    f"at least {MIN_VALUES}"
                )
            else:
                kind = self._find_kind(channel)
                usual = fence(known, least=kind.least_difference, stretch=kind.limit_factor)
                fences[channel] = self.explain_incomparable(channel, known) or usual
        return fences

    def _score_measurement(
        self, recording: RecordedEpisode, found: Measurement, usual: ValueFence | str | None
    ) -> CheckScore:
        if found.value is None or usual is None:  # its channel may be the whole episode, which has no kind
            unit = next((self.kinds[name].unit for name in (found.channel, "*") if name in self.kinds), "1")
            return replace(self.make_score(recording, found, "unknown"), unit=unit)
        kind = self._find_kind(found.channel)
        if isinstance(usual, str):
            reason = f"Not judged: {usual}."
            return replace(self.make_score(recording, found, "unknown", reason=reason), unit=kind.unit)
        near = usual.low if kind.worse == "low" else usual.high
        far = usual.double_limits()[0 if kind.worse == "low" else 1]
        sign = -1.0 if kind.worse == "low" else 1.0
        value = float(found.value)
        verdict = "bad" if sign * value > sign * far else "suspect" if sign * value > sign * near else "good"
        value_text, limit_text, usual_text = (
            kind.value_format.format(number) for number in (value, near, usual.median)
        )
        whose = f"of {usual.count} episodes of this task, the median is {usual_text} and the limit {limit_text}"
        reason = f"{kind.reason_prefix} {value_text}{format_unit(kind.unit)}{found.text}; {whose}."
        score = replace(self.make_score(recording, found, verdict, limit=near, reason=reason), unit=kind.unit)
        return replace(score, first_frame=None, last_frame=None) if verdict == "good" else score


def format_unit(unit: str) -> str:
    """Return a unit with a leading space; "" for the unit ``1``."""
    return "" if unit == "1" else f" {unit}"
