"""Check the delay of joints after their commands, and the twin's prediction error, against other episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.judging import LEAST, UsualLimitCheck, select_reported_scores
from twinloop.curate.physics.joints import find_drawn_params
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.dataset.logs.checks.response import find_command_pair, find_responses
from twinloop.dataset.logs.checks.series import prepare_series
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin


class CommandLag(MeasuringCheck):
    """Check for joints that follow their commands later or earlier than in comparable episodes.

    Attributes:
        frames: number of frames by which the median delay of an episode's joints may differ from that of comparable
            episodes. The delay of a single joint may differ by twice as many frames.
    """

    reads = frozenset({"raw"})

    name = "physics/lag"
    meaning = "joints follow their commands later or earlier than in the other episodes"
    unit = "s"
    frames = 1.5  # frames by which an episode may differ; twice as many for a single joint

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the delay after the command in s: the median over the joints, and one value per joint."""
        raw = recording.raw
        series = prepare_series(raw)
        pair = None if series is None else find_command_pair(raw, series)
        found = [] if pair is None else [answer for answer in find_responses(pair) if abs(answer.correlation) > 0.8]
        if series is None or not found:
            return [
                Measurement(value=None, text="No joint follows a command clearly, so the delay cannot be measured.")
            ]
        rows = [Measurement(value=answer.lag_s, channel=answer.joint, facts={"dt": series.dt}) for answer in found]
        return [Measurement(value=float(np.median([a.lag_s for a in found])), facts={"dt": series.dt}), *rows]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield scores for the command delays of each episode.

        A delay is judged by its difference to the median delay of comparable episodes: those with the same batch,
        robot type and source.

        Args:
            recordings: the episodes.
            measured: measurements of each episode from `measure`.
        """
        lags: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            for row in rows:
                if row.value is not None:
                    lags[*recording.group, row.channel].append(row.value)
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores(
                [self._score_lag(recording, row, lags[*recording.group, row.channel]) for row in rows]
            )

    def _score_lag(self, recording: RecordedEpisode, row: Measurement, others: Sequence[float]) -> CheckScore:
        if row.value is None:
            return self.make_score(recording, row, "unknown")
        what = row.channel or "The median joint"
        delay_text = f"{what} follows after {1e3 * row.value:.0f} ms"
        if len(others) < LEAST:
            reason = f"{delay_text}. Only {len(others)} episodes are comparable; a limit needs at least {LEAST}."
            return self.make_score(recording, row, "unknown", reason=reason)
        usual = float(np.median(others))
        spread = 1.4826 * float(np.median(np.abs(np.asarray(others) - usual)))
        limit = max((2 if row.channel else 1) * self.frames * row.facts["dt"], 6 * spread)
        apart = abs(row.value - usual)
        reason = (
            f"{delay_text}, in the median episode after {1e3 * usual:.0f} ms. The limit of the difference is "
            f"{1e3 * limit:.0f} ms: "
        )
        reason += "1.5 frames (3 for a single joint), or six standard deviations of the other episodes."
        verdict = "bad" if apart > 2 * limit else "suspect" if apart > limit else "good"
        scored = Measurement(value=apart, channel=row.channel)
        return self.make_score(recording, scored, verdict, limit=limit, reason=reason)


_WINDOW_S = 0.5  # long enough for a servo to respond (0.17 s), short enough for local errors
_NOISE = 0.01  # of a joint's travel: motion by gear play and stiction, which a twin cannot predict


class ReplayResidual(UsualLimitCheck):
    """Check for episodes that the twin predicts much worse than the others.

    The value is computed for each channel: the RMS error of a replay in windows of 0.5 s, divided by the RMS change of
    the readings from the start of each window. A twin that was not fitted to the robot has errors in every episode.
    Therefore only an episode with much larger errors than the others is suspect.
    """

    reads = frozenset({"raw"})

    name = "physics/replay"
    meaning = "the twin predicts this episode far worse than the others: its dynamics were different"
    unit = "of the movement"
    floor, spread = 0.25, 0.15

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Replay the episode in the twin, and return the error relative to the motion for each channel."""
        twin = self._twins(recording)
        episode = recording.episode
        if episode.command != twin.robot.control:
            text = f"The twin takes {twin.robot.control} commands, the recording has {episode.command} commands."
            return [Measurement(value=None, text=text)]
        return _measure_residuals(twin, recording)


def _measure_residuals(twin: Twin, recording: RecordedEpisode) -> list[Measurement]:
    episode = recording.episode
    logs = prepare_replay(twin, [episode], ReplayOptions(window=_WINDOW_S, start="measured"))
    params = find_drawn_params(recording, twin) or twin.table(1)
    errors = replay(open_backend("threads", nthread=1), logs, params)[0] - logs.measured
    moved = logs.hold_baseline - logs.measured
    travel = _compute_joint_travel(twin, logs)
    made = []
    for column, channel in enumerate(logs.channels):
        error, size = errors[..., column], moved[..., column]
        if not np.isfinite(error[np.isfinite(size)]).all():
            made.append(Measurement(value=1e3, channel=channel.name, text=f"The replay of {channel.name} diverges."))
            continue
        moves = float(np.nanmax(logs.measured[..., column]) - np.nanmin(logs.measured[..., column]))
        least = _NOISE * max(moves, travel.get(channel.name, 0.0))
        rms, movement = float(np.sqrt(np.nanmean(error**2))), float(np.sqrt(np.nanmean(size**2)))
        value = rms / (movement + least) if movement + least > 0 else 0.0
        worst = int(np.argmax(np.nanmean(error**2, axis=1)))
        frame = int(np.searchsorted(episode.time, logs.start_times[worst] - 1e-9))
        said = (
            f"The replay error of {channel.name} is {100 * value:.0f} % of its movement, largest from frame {frame} on."
        )
        made.append(Measurement(value=value, channel=channel.name, text=said, first_frame=frame))
    return made


def _compute_joint_travel(twin: Twin, logs: ReplayLogs) -> dict[str, float]:
    """Return the width of the range of each joint that has limits, in the log's unit, by channel (``position/JOINT``).

    `ReplayResidual` adds a small fraction of it to the motion by which it divides, so that small motions do not inflate
    the value.
    """
    joints = [twin.model.joint(name) for name in twin.robot.joints]
    low, high = logs.units.from_si(np.array([joint.range for joint in joints]).T)
    return {
        f"position/{joint.name}": abs(float(high[i] - low[i]))
        for i, joint in enumerate(joints)
        if twin.model.jnt_limited[joint.id]
    }
