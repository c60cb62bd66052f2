"""How an episode ends: long after nothing moves any more, or before it is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from twinloop.curate.check import Measured, Score
from twinloop.curate.judging import UsualLimitCheck
from twinloop.curate.motion import filled, motion_of
from twinloop.curate.recording import Recording

_SAME = 0.01  # of a joint's range: closer to its last value it has arrived
_END_S = 0.2
_MOST_FAIL = 0.2  # of a task's episodes: where more fail, failing is no sign of a recording that broke off


class StaticTail(UsualLimitCheck):
    """Seconds at the end in which neither joints nor commands move."""

    reads = frozenset({"raw"})

    name = "recording/static_tail"
    meaning = "the episode goes on long after everything has come to rest"
    unit = "s"
    floor, spread, linear = 1.0, 0.1, True

    def key(self, recording: Recording) -> tuple[str, ...]:
        """Tasks end unlike."""
        return (*recording.group, recording.task)

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        raw, motion = recording.raw, motion_of(recording)
        tables = [filled(raw.state)]
        if raw.command != "none" and len(raw.action) == len(raw.state):
            tables.append(filled(raw.action))
        values = np.concatenate(tables, axis=1)
        reach = np.ptp(values, axis=0)
        if not len(motion.columns):
            return [Measured(value=None, said="Nothing moves in the whole episode.", first_frame=0)]
        apart = np.abs(values - values[-1]) / np.where(reach > 0.01 * reach.max(), reach, np.inf)
        away = np.flatnonzero(apart.max(axis=1) > _SAME)
        first = int(away[-1]) + 1 if len(away) else 0
        seconds = (len(values) - 1 - first) * motion.dt
        said = f"Nothing moves in the last {seconds:.2f} s, from frame {first} on."
        return [Measured(value=seconds, said=said, first_frame=first, last_frame=len(values) - 1)]


class Truncated(UsualLimitCheck):
    """Episodes that break off: in full motion, much earlier than others of their task, or before any success."""

    reads = frozenset({"raw"})

    name = "recording/truncated"
    meaning = "the episode ends while moving, is much shorter than its task's others, or fails where others do not"
    unit = "times"
    floor, spread, linear = 1.5, 0.05, True

    def key(self, recording: Recording) -> tuple[str, ...]:
        """Tasks take unlike times."""
        return (*recording.group, recording.task)

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        motion = motion_of(recording)
        seconds = (len(motion.steps) + 1) * motion.dt
        rows = [
            Measured(value=1 / max(seconds, 1e-9), channel="duration", said=f"It lasts {seconds:.2f} s."),
        ]
        if motion.moving.any():
            last = max(1, round(_END_S / motion.dt))
            ratio = float(motion.speed[-last:].mean() / np.median(motion.speed[motion.moving]))
            said = f"In its last {_END_S:g} s it moves {ratio:.2f} times as fast as it usually moves."
            rows.append(Measured(value=ratio, channel="end", said=said, first_frame=len(motion.steps) - last))
        return rows

    def judge(self, recordings: Sequence[Recording], measured: Sequence[Sequence[Measured]]) -> Iterator[Score]:
        """See `UsualLimitCheck`; durations in parts of the median of their task, and success beside the others'."""
        usual = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            usual[self.key(recording)] += [row.value for row in rows if row.channel == "duration" and row.value]
        scaled = [
            [self._relative(row, usual[self.key(recording)]) for row in rows]
            for recording, rows in zip(recordings, measured, strict=True)
        ]
        yield from super().judge(recordings, scaled)
        yield from self._failures(recordings)

    @staticmethod
    def _relative(row: Measured, usual: Sequence[float]) -> Measured:
        if row.channel != "duration" or row.value is None:
            return row
        times = row.value / float(np.median(usual))
        said = f"{row.said} Others of its task last {times:.2f} times as long."
        return Measured(value=times, channel=row.channel, said=said)

    def _failures(self, recordings: Sequence[Recording]) -> Iterator[Score]:
        told = defaultdict(list)
        for recording in recordings:
            if recording.success is not None:
                told[self.key(recording)].append(recording.success)
        for recording in recordings:
            others = told[self.key(recording)]
            if recording.success is False and others.count(False) <= _MOST_FAIL * len(others):
                row = Measured(value=None, channel="success")
                said = f"Success is never reached; {others.count(True)} of {len(others)} episodes of its task reach it."
                yield self.of(recording, row, "suspect", reason=said)
