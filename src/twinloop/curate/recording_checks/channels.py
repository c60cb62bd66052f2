"""Check for columns that never change, commands that the robot cannot follow, and faulty ends of episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from twinloop.curate.check import CheckScore, Measurement
from twinloop.curate.judging import UsualLimitCheck
from twinloop.curate.motion import compute_motion, fill_gaps
from twinloop.curate.recording import RecordedEpisode

_NEVER = 1e6  # value of a column that does not move at all


class DeadChannel(UsualLimitCheck):
    """Check for columns that do not change in this episode, but change in the other episodes.

    The columns of the states, of the commands and of each signal form one group each. The value of a column is the
    largest range (maximum minus minimum) in its group divided by the range of the column. A column that is constant in
    every episode is not a defect.
    """

    reads = frozenset({"raw"})

    name = "recording/dead_channel"
    meaning = "a column of states, commands or signals does not change, though it does in the other episodes"
    unit = "times less"
    floor, spread = 200.0, 0.3

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one value for each column: the largest range of any column in its group, divided by its own range.

        A group is the states, the commands or one signal.
        """
        raw = recording.raw
        tables = {"": (raw.joints, raw.state)}
        if raw.command != "none":
            tables["action/"] = (raw.joints, raw.action)
        for name, signal in raw.signals.items():
            tables[f"{name}/"] = (signal.columns, signal.values)
        made = []
        for prefix, (columns, values) in tables.items():
            reach = np.ptp(fill_gaps(values), axis=0) if len(values) else np.zeros(len(columns))
            widest = float(reach.max(initial=0.0))
            for column, own in zip(columns, reach, strict=False):
                times = widest / own if own > widest / _NEVER else _NEVER
                said = f"{prefix}{column} moves by {own:.3g} in the whole episode, the widest column by {widest:.3g}."
                made.append(Measurement(value=times if widest else _NEVER, channel=prefix + column, text=said))
        return made or [Measurement(value=None, text="The recording has no column.")]


class Saturation(UsualLimitCheck):
    """Check for joints that stay far from their commands, because the command is too fast or out of reach.

    Attributes:
        part: quantile of the distance over the frames; 0.75 means that a quarter of the frames have a larger distance.
    """

    reads = frozenset({"raw"})

    name = "recording/saturation"
    meaning = "a joint stays far from its command for longer than usual: the command is too fast or out of reach"
    unit = "of its range"
    floor, spread = 0.1, 0.2
    part = 0.75  # quantile over the frames: exceeded in a quarter of the episode

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return, for each joint, the 75th percentile of its distance from the command, divided by its range."""
        raw = recording.raw
        if raw.command != "position" or raw.action.shape != raw.state.shape:
            return [Measurement(value=None, text="Commands are not positions of these joints.")]
        state, action = fill_gaps(raw.state), fill_gaps(raw.action)
        apart = np.abs(action - state)
        reach = np.maximum(np.ptp(state, axis=0), np.ptp(action, axis=0))
        least = 0.05 * float(reach.max(initial=0.0))
        made = []
        for column, joint in enumerate(raw.joints):
            range_ = max(float(reach[column]), least)
            value = float(np.quantile(apart[:, column], self.part)) / range_ if range_ else 0.0
            far = np.flatnonzero(apart[:, column] > 0.1 * range_)
            said = (
                f"In a quarter of the frames, {joint} is more than {100 * value:.0f} % of its range from its command."
            )
            first, last = (int(far[0]), int(far[-1])) if len(far) else (None, None)
            made.append(Measurement(value=value, channel=joint, text=said, first_frame=first, last_frame=last))
        return made


_SAME = 0.01  # of a joint's range: closer to its last value, the joint counts as at rest
_END_S = 0.2
_MOST_FAIL = 0.2  # of a task's episodes: if more fail, a failure does not indicate a truncated recording


class StaticTail(UsualLimitCheck):
    """Check for a long time at the end of an episode in which neither joints nor commands move."""

    reads = frozenset({"raw"})

    name = "recording/static_tail"
    meaning = "the episode continues long after all motion has stopped"
    unit = "s"
    floor, spread, linear = 1.0, 0.1, True

    def key(self, recording: RecordedEpisode) -> tuple[str, ...]:
        """Return the key of the group of episodes with which an episode is compared.

        It includes the task, because tasks end differently.
        """
        return (*recording.group, recording.task)

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the time without motion at the end of the episode, in s."""
        raw, motion = recording.raw, compute_motion(recording)
        tables = [fill_gaps(raw.state)]
        if raw.command != "none" and len(raw.action) == len(raw.state):
            tables.append(fill_gaps(raw.action))
        values = np.concatenate(tables, axis=1)
        reach = np.ptp(values, axis=0)
        if not len(motion.columns):
            return [Measurement(value=None, text="Nothing moves in the whole episode.", first_frame=0)]
        apart = np.abs(values - values[-1]) / np.where(reach > 0.01 * reach.max(), reach, np.inf)
        away = np.flatnonzero(apart.max(axis=1) > _SAME)
        first = int(away[-1]) + 1 if len(away) else 0
        seconds = (len(values) - 1 - first) * motion.dt
        said = f"Nothing moves in the last {seconds:.2f} s, from frame {first} on."
        return [Measurement(value=seconds, text=said, first_frame=first, last_frame=len(values) - 1)]


class Truncated(UsualLimitCheck):
    """Check for episodes that may have been stopped early, and for rare failures.

    It finds episodes that end in full motion, are much shorter than other episodes of their task, or fail. A failure is
    suspect only if at most a fifth of the episodes of the task fail.
    """

    reads = frozenset({"raw"})

    name = "recording/truncated"
    meaning = "the episode ends while moving, is much shorter than its task's others, or fails where others do not"
    unit = "times"
    floor, spread, linear = 1.5, 0.05, True

    def key(self, recording: RecordedEpisode) -> tuple[str, ...]:
        """Return the key of the group of episodes with which an episode is compared.

        It includes the task, because tasks have different durations.
        """
        return (*recording.group, recording.task)

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the reciprocal duration in 1/s, and the speed at the end divided by the median speed in motion.

        Both values are larger for worse episodes.
        """
        motion = compute_motion(recording)
        seconds = (len(motion.steps) + 1) * motion.dt
        rows = [
            Measurement(value=1 / max(seconds, 1e-9), channel="duration", text=f"It lasts {seconds:.2f} s."),
        ]
        if motion.moving.any():
            last = max(1, round(_END_S / motion.dt))
            ratio = float(motion.speed[-last:].mean() / np.median(motion.speed[motion.moving]))
            said = f"In its last {_END_S:g} s it moves {ratio:.2f} times as fast as it usually moves."
            rows.append(Measurement(value=ratio, channel="end", text=said, first_frame=len(motion.steps) - last))
        return rows

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield scores of duration and speed at the end, and mark rare failures as suspect.

        Durations are compared with the median of the same task. A failure is suspect if at most a fifth of the task's
        episodes fail.
        """
        usual = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            usual[self.key(recording)] += [row.value for row in rows if row.channel == "duration" and row.value]
        scaled = [
            [self._divide_by_median(row, usual[self.key(recording)]) for row in rows]
            for recording, rows in zip(recordings, measured, strict=True)
        ]
        yield from super().judge(recordings, scaled)
        yield from self._score_failures(recordings)

    @staticmethod
    def _divide_by_median(row: Measurement, usual: Sequence[float]) -> Measurement:
        if row.channel != "duration" or row.value is None:
            return row
        times = row.value / float(np.median(usual))
        said = f"{row.text} Others of its task last {times:.2f} times as long."
        return Measurement(value=times, channel=row.channel, text=said)

    def _score_failures(self, recordings: Sequence[RecordedEpisode]) -> Iterator[CheckScore]:
        outcomes = defaultdict(list)
        for recording in recordings:
            if recording.success is not None:
                outcomes[self.key(recording)].append(recording.success)
        for recording in recordings:
            others = outcomes[self.key(recording)]
            if recording.success is False and others.count(False) <= _MOST_FAIL * len(others):
                row = Measurement(value=None, channel="success")
                said = f"Success is never reached; {others.count(True)} of {len(others)} episodes of its task reach it."
                yield self.make_score(recording, row, "suspect", reason=said)
