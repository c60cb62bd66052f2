"""Judge values of demonstrations against other episodes of the same task: the base of most checks of demonstrations.

There is no absolute limit for the smoothness of a demonstration, but other episodes show the usual values. Values have
fences (`stats.outlying`) within batch, robot, source and task; up to a quarter of the episodes may be poor on one side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.stats.novelty import LEAST_VALUES, ValueFence, fence

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """Description of a measured value: the poor side, its unit, and the smallest difference that matters.

    ``words`` introduce the value in a reason, as in "it pauses for …"; ``show`` is the value's format. ``stretch``
    widens the fence for checks with many channels, of which one would be outside by chance.
    """

    worse: Literal["low", "high"]
    unit: str
    least: float
    words: str
    show: str = "{:.2f}"
    stretch: float = 1.0


def group_key(recording: RecordedEpisode) -> Group:
    """Return the key of comparable episodes: batch, robot, source and task."""
    return (*recording.group, recording.task)


def group_recordings(recordings: Sequence[RecordedEpisode]) -> dict[Group, list[int]]:
    """Return the indices of the recordings of each group, in order."""
    found: defaultdict[Group, list[int]] = defaultdict(list)
    for place, recording in enumerate(recordings):
        found[group_key(recording)].append(place)
    return dict(found)


class PeerCheck(MeasuringCheck):
    """A check whose values are judged by the task's other episodes; subclasses measure, and set ``kinds``.

    ``kinds`` maps channels to kinds; ``*`` is the kind of all other channels.
    """

    kinds: Mapping[str, MetricKind]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge each value by the fence of its channel and group; see `MeasuringCheck`."""
        for places in group_recordings(recordings).values():
            fences = self._compute_fences([found for place in places for found in measured[place]])
            for place in places:
                for found in measured[place]:
                    yield self._score_measurement(recordings[place], found, fences.get(found.channel))

    def explain_incomparable(self, channel: str, values: Sequence[float]) -> str:
        """Return why a channel's values cannot be judged in this group, or an empty string."""
        del channel, values
        return ""

    def _find_kind(self, channel: str) -> MetricKind:
        return self.kinds[channel] if channel in self.kinds else self.kinds["*"]

    def _compute_fences(self, found: Sequence[Measurement]) -> dict[str, ValueFence | str]:
        """Return each channel's fence, or the reason there is none."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for figure in found:
            if figure.value is not None and np.isfinite(figure.value):
                values[figure.channel].append(figure.value)
        fences: dict[str, ValueFence | str] = {}
        for channel, known in values.items():
            if len(known) < LEAST_VALUES:
                fences[channel] = (
                    f"only {len(known)} episode{'s' * (len(known) != 1)} of this task can be compared; a limit needs "
                    f"at least {LEAST_VALUES}"
                )
            else:
                kind = self._find_kind(channel)
                usual = fence(known, least=kind.least, stretch=kind.stretch)
                fences[channel] = self.explain_incomparable(channel, known) or usual
        return fences

    def _score_measurement(
        self, recording: RecordedEpisode, found: Measurement, usual: ValueFence | str | None
    ) -> CheckScore:
        if found.value is None or usual is None:  # of the whole episode, perhaps, for which there is no kind
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
        value_text, limit_text, usual_text = (kind.show.format(number) for number in (value, near, usual.median))
        whose = f"of {usual.count} episodes of this task, the median is {usual_text} and the limit {limit_text}"
        reason = f"{kind.words} {value_text}{format_unit(kind.unit)}{found.said}; {whose}."
        score = replace(self.make_score(recording, found, verdict, limit=near, reason=reason), unit=kind.unit)
        return replace(score, first_frame=None, last_frame=None) if verdict == "good" else score


def format_unit(unit: str) -> str:
    """Return a unit with a leading space; empty for the unit ``1``."""
    return "" if unit == "1" else f" {unit}"
