"""Check timestamps (gaps, order, unit, repeated frames), and compare the clocks of commands and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.logs.checks.finding import LogFinding, LogRecord, Severity, make_finding
from twinloop.dataset.logs.checks.response import CommandPair, CommandResponse
from twinloop.dataset.logs.resampling import GAP_FACTOR
from twinloop.stats import warped_correlation

Array = NDArray[np.float64]
MakeFinding = Callable[..., LogFinding]  # returns a finding about one clock that begins at a given row

# Steps in s. No log in the registry is slower than 30 Hz or faster than 2 kHz; steps beyond these have a wrong unit.
_SLOWEST_S, _IMPOSSIBLE_S, _FASTEST_S = 0.5, 10.0, 2e-5
_UNEVEN = 0.2  # of a step, between the 5th and the 95th percentile: replay needs a grid (our choice)
_RATE_TOLERANCE = 0.02  # relative difference that replay allows between episodes (simulate/replay.py)
_REPEATED = 0.01  # share of the moving frames; a bus that is read faster than it is updated repeats frames
_FEWEST_REPEATS, _FEWEST_FRAMES = 3, 8
_MOTION = 3  # times the smallest observed step


def check_timing(record: LogRecord) -> Iterator[LogFinding]:
    """Find defects in the times of frames, commands and signals of one episode, and repeated frames."""
    checked: list[Array] = []
    for name, time in _list_clocks(record):
        if any(time is other or np.array_equal(time, other, equal_nan=True) for other in checked):
            continue
        checked.append(time)
        yield from _check_clock(record, name, np.asarray(time, dtype=np.float64))
    yield from _check_repeated_frames(record)


def check_rates(records: Sequence[LogRecord]) -> Iterator[LogFinding]:
    """Find episodes whose frame rate differs from the median of the log by more than 2 %."""
    steps = {record.index: np.diff(record.time) for record in records if len(record.time) > 2}
    medians = {index: float(np.nanmedian(values[values > 0])) for index, values in steps.items() if (values > 0).any()}
    if len(medians) < 2:
        return
    usual = float(np.percentile(list(medians.values()), 50, method="lower"))
    for index, step in medians.items():
        if abs(usual / step - 1) > _RATE_TOLERANCE:
            yield LogFinding(
                kind="rate_differs",
                severity="note",
                column="",
                episodes=(index,),
                begin_s=0.0,
                evidence=f"its rate is {1 / step:.2f} Hz, the log's median {1 / usual:.2f} Hz.",
                remedy="Fit the episode separately, or resample the log to one rate.",
                metrics={"rate_hz": 1 / step, "usual_hz": 1 / usual},
            )


def _list_clocks(record: LogRecord) -> Iterator[tuple[str, Array]]:
    yield "", record.time
    own = getattr(record, "action_time", None)
    if own is not None:
        yield "action", own
    for name, signal in record.signals.items():
        yield name, signal.time


def _check_clock(record: LogRecord, name: str, time: Array) -> Iterator[LogFinding]:
    def make(kind: str, severity: Severity, row: int, evidence: str, remedy: str, **metrics: float) -> LogFinding:
        begin = float(time[row]) if np.isfinite(time[row]) else _last_finite(time, row)
        return make_finding(record, name, begin, kind, severity, evidence, remedy, frame=float(row), **metrics)

    holes = np.flatnonzero(~np.isfinite(time))
    if len(holes):
        yield make(
            "time_not_finite", "error", int(holes[0]), f"{len(holes)} times are not finite, first at frame {holes[0]}.",
            "Remove those frames.", count=float(len(holes)),
        )  # fmt: skip
    finite = time[np.isfinite(time)]
    rows, steps = np.flatnonzero(np.isfinite(time)), np.diff(finite)
    if not (steps > 0).any():
        return
    median = float(np.median(steps[steps > 0]))
    back = np.flatnonzero(steps < 0)
    if len(back):
        row = int(rows[back[0] + 1])
        yield make(
            "time_backwards", "error", row,
            f"time jumps back by {-steps[back[0]]:.6g} s at frame {row} ({len(back)} such jumps).",
            "Sort the rows, or split the episode where its clock restarted.",
            jump_s=float(steps[back[0]]), count=float(len(back)),
        )  # fmt: skip
    twice = np.flatnonzero(steps == 0)
    if len(twice):
        row = int(rows[twice[0] + 1])
        yield make(
            "time_duplicate", "error", row, f"{len(twice)} times occur twice, first at frame {row}.",
            "--drop-duplicates keeps the first of each.", count=float(len(twice)),
        )  # fmt: skip
    yield from _check_gaps(make, name, rows, steps, median)
    yield from _check_steps(make, name, steps, median)


def _check_gaps(
    make: MakeFinding, name: str, rows: NDArray[np.intp], steps: Array, median: float
) -> Iterator[LogFinding]:
    if name == "enabled":  # a switch is logged only when it changes
        return
    gaps = np.flatnonzero(steps > GAP_FACTOR * median)
    if len(gaps):
        row = int(rows[gaps[0] + 1])
        yield make(
            "gap", "warning", row - 1,
            f"{len(gaps)} gaps, the longest of {steps[gaps].max():.4g} s (a usual step is {median:.4g} s); the first "
            f"before frame {row} lasts {steps[gaps[0]]:.4g} s.",
            "--resample HZ splits the episode there; nothing is filled in.",
            count=float(len(gaps)), longest_s=float(steps[gaps].max()), usual_s=median,
        )  # fmt: skip


def _check_steps(make: MakeFinding, name: str, steps: Array, median: float) -> Iterator[LogFinding]:
    if name in ("enabled", "action"):  # switches and commands need not be regular
        return
    if median > _SLOWEST_S or median < _FASTEST_S:
        faster = median > _SLOWEST_S
        unit = "milliseconds" if faster else "kiloseconds" if median < 1e-6 else "another unit"
        yield make(
            "time_unit", "error" if median > _IMPOSSIBLE_S or not faster else "warning", 0,
            f"the median step is {median:.4g} s ({1 / median:.4g} Hz); the times may be in {unit}.",
            "Give --time-scale 0.001 for milliseconds, 1e-6 for microseconds, 1e-9 for nanoseconds.", step_s=median,
        )  # fmt: skip
        return
    usual = steps[(steps > 0) & (steps <= GAP_FACTOR * median)]
    low, high = np.percentile(usual, [5, 95])
    if (high - low) / median > _UNEVEN:
        yield make(
            "uneven", "note", 0,
            f"steps are {1e3 * low:.3g} to {1e3 * high:.3g} ms (5 to 95 %), the median {1e3 * median:.3g} ms.",
            "--resample HZ brings the log onto a uniform grid.",
            low_s=float(low), high_s=float(high), median_s=median,
        )  # fmt: skip


def find_repeated_rows(record: LogRecord) -> tuple[NDArray[np.intp], int]:
    """Return the frames that repeat the previous frame while the robot moves, and the number of frames in motion.

    A frame is in motion if the steps before and after it are at least three times the smallest observed step. In
    slower motion, an encoder correctly repeats values.
    """
    state = record.state
    if len(state) < _FEWEST_FRAMES or not state.shape[1]:
        return np.empty(0, dtype=np.intp), 0
    step = np.abs(np.diff(state, axis=0))
    grains = [column[column > 0].min() if (column > 0).any() else np.inf for column in step.T]
    size = np.max(step / np.asarray(grains), axis=1)
    same = ~np.any(step > 0, axis=1)
    if getattr(record, "action_time", None) is None and record.command != "none" and len(record.action) == len(state):
        same &= ~np.any(np.diff(record.action, axis=0) != 0, axis=1)
    moving = np.zeros(len(size), dtype=np.bool_)
    moving[1:-1] = np.minimum(size[:-2], size[2:]) >= _MOTION
    return np.flatnonzero(same & moving) + 1, int(moving.sum())


def _check_repeated_frames(record: LogRecord) -> Iterator[LogFinding]:
    rows, moving = find_repeated_rows(record)
    if len(rows) >= max(_FEWEST_REPEATS, _REPEATED * moving):
        yield LogFinding(
            kind="repeated_frames",
            severity="warning",
            column="",
            episodes=(record.index,),
            begin_s=float(record.time[rows[0]]),
            evidence=f"{len(rows)} frames ({100 * len(rows) / moving:.1f} % of those in motion) repeat the previous "
            f"one, first frame {rows[0]}.",
            remedy="--drop-duplicates removes them. The recorder reads faster than the robot updates its values.",
            metrics={"count": float(len(rows)), "part": len(rows) / moving, "frame": float(rows[0])},
        )


def _last_finite(time: Array, row: int) -> float:
    before = time[:row][np.isfinite(time[:row])]
    return float(before[-1]) if len(before) else 0.0


# Servos follow after 0.1 to 0.17 s in the public logs (SO-101 3-4 frames, G1 4-5 frames at 30 Hz): twice that is late.
_LATE_S = 0.35
_AHEAD_FRAMES, _AHEAD_S = 1.0, 0.02  # a measurement earlier than its command by more than both has another clock
_APART_FRAMES, _APART_S = 3.0, 0.12  # lags of joints or episodes that differ by more than both have different clocks
_CLEAR = 0.8  # least correlation for a precise lag
# Tested drifts and steps in s, and the moments of steps as shares of an episode. The gain is at most 0.2 for good real
# and simulated logs, and 0.3 to 0.9 for planted drifts of 0.18 s and steps of 0.3 s.
_TOTALS, _STEPS, _MOMENTS = np.linspace(-0.5, 0.5, 21), np.linspace(-0.5, 0.5, 11), np.linspace(0.1, 0.9, 17)
_GAIN, _REACH_S = 0.3, 0.3
# A clock is common to all joints; with one or two joints, a servo whose lag depends on speed looks the same.
_FEWEST_JOINTS, _AGREEING = 3, 0.6
_FOLLOWS = 0.003  # unexplained share of a joint's movement below which no drift is tested
_GRID_S, _LONG_S = 0.04, 4.0  # s; arms move below 5 Hz; shorter episodes cannot distinguish a drift from a pause
_FEWEST_EPISODES = 5
# Number of an episode, its first time and frame period in s, the responses of its joints, and its conditions.
EpisodeLags = tuple[int, float, float, Sequence[CommandResponse], tuple[tuple[str, float], ...]]
_SHIFT = "--shift {:.3f} brings the measurements onto the commands' clock."


def check_lags(lags: Sequence[EpisodeLags]) -> Iterator[LogFinding]:
    """Find delays of measurements that are too long, negative, or different from those of other joints or episodes.

    Args:
        lags: One tuple per episode: (episode number, first time in s, frame period in s, responses, conditions). Each
            response has the delay of one joint. Conditions are recorded pairs of name and value, such as controller
            gains.
    """
    if not lags:
        return
    numbers = tuple(dict.fromkeys(number for number, *_ in lags))
    begin, frame = lags[0][1], float(np.median([dt for _, _, dt, *_ in lags]))
    lags = [(number, at, dt, _select_clear(answers), group) for number, at, dt, answers, group in lags]
    usual = median_lags([answers for *_, answers, _ in lags])
    for joint, lag in usual.items():
        if lag < -max(_AHEAD_FRAMES * frame, _AHEAD_S):
            yield LogFinding(
                kind="ahead", severity="error", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"moves {-1e3 * lag:.0f} ms before its command: two clocks differ, or a column is shifted.",
                remedy=_SHIFT.format(-lag), metrics={"lag_s": lag},
            )  # fmt: skip
        elif lag > _LATE_S:
            yield LogFinding(
                kind="late", severity="warning", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"follows its command {1e3 * lag:.0f} ms later; servos of known logs take 100 to 170 ms.",
                remedy=f"If the clocks differ, {_SHIFT.format(-(lag - 0.1))} Otherwise the robot has this delay.",
                metrics={"lag_s": lag},
            )  # fmt: skip
    yield from _check_joint_lags(usual, numbers, begin, frame)
    for group in dict.fromkeys(group for *_, group in lags):
        yield from _check_episode_lags([row for row in lags if row[-1] == group], frame)


def median_lags(answers: Sequence[Sequence[CommandResponse]]) -> dict[str, float]:
    """Return the median delay of each joint in s over the episodes in which the joint follows its command.

    Args:
        answers: Responses of the joints in each episode.
    """
    by_joint: dict[str, list[float]] = {}
    for episode in answers:
        for answer in episode:
            by_joint.setdefault(answer.joint, []).append(answer.lag_s)
    return {joint: float(np.median(values)) for joint, values in by_joint.items()}


def check_drift(index: int, pair: CommandPair, answers: Sequence[CommandResponse]) -> Iterator[LogFinding]:
    """Find a delay that drifts or jumps during one episode.

    The cause is that two clocks run at different rates, or that one of them was set to another time.

    Candidate drifts and jumps are tested on all joints together. The best candidate is reported only if it explains
    at least 30 % of the squared error that remains with constant delays.

    Args:
        index: Number of the episode.
        pair: Commands and measurements of the episode.
        answers: Joints that follow their commands, with their delays.
    """
    dt = max(pair.series.dt, _GRID_S)
    rows = np.arange(0, len(pair.series.time) - pair.series.stride, max(1, round(dt / pair.series.dt)))
    chosen = [pair.columns.index(answer.joint) for answer in answers]
    if len(rows) * dt < _LONG_S or len(chosen) < _FEWEST_JOINTS:
        return
    commands, measured = (pair.series.movement(part)[rows][:, chosen] for part in (pair.commands, pair.measured))
    part, seconds = rows / rows[-1], float(rows[-1]) * pair.series.dt
    dt = seconds / (len(rows) - 1)
    lags, reach = np.array([answer.lag_s for answer in answers]) / dt, round(_REACH_S / dt)

    def explained(changes: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
        warps = np.array([_clock_shift(total, at, part) for total, at in changes]) / dt
        return warped_correlation(commands, measured, warps=warps, lags=lags, reach=reach)

    constant_error = np.sum(1 - explained([(0.0, np.nan)])[0] ** 2)
    if constant_error < _FOLLOWS * len(chosen):
        return
    for changes in (
        _list_clock_changes(_TOTALS[::2], _STEPS[::2], _MOMENTS[::2]),
        _list_clock_changes(_TOTALS, _STEPS, _MOMENTS),
    ):
        correlation = explained(changes)
        errors = np.sum(1 - correlation**2, axis=1)
        best = int(np.argmin(errors))
        gain = float(1 - errors[best] / constant_error)
        if gain < _GAIN / 2:  # a finer search will not find twice as much
            return
    total, at = changes[best]
    improved = np.mean(correlation[best] ** 2 > explained([(0.0, np.nan)])[0] ** 2)
    if gain < _GAIN or improved < _AGREEING or np.abs(correlation[best]).mean() < _CLEAR:
        return
    begin = float(pair.series.time[0])
    if np.isnan(at):
        yield LogFinding(
            kind="clock_drift", severity="error", column="", episodes=(index,), begin_s=begin,
            evidence=f"the lag between commands and measurements grows by about {1e3 * total:+.0f} ms over "
            f"{seconds:.3g} s, {100 * total / seconds:+.2g} % (explains {100 * gain:.0f} % of the error of a "
            "constant lag).",
            remedy=f"--clock-rate {1 + total / seconds:.4f} stretches the commands' clock to the measurements'.",
            metrics={"total_s": total, "slope": total / seconds, "gain": gain},
        )  # fmt: skip
    else:
        yield LogFinding(
            kind="clock_step", severity="error", column="", episodes=(index,), begin_s=begin + at * seconds,
            evidence=f"from then on measurements follow commands about {1e3 * total:+.0f} ms later than before "
            f"(explains {100 * gain:.0f} % of the error of a constant lag).",
            remedy="Split the episode there: frames were lost, or a clock was set.",
            metrics={"step_s": total, "gain": gain},
        )  # fmt: skip


def _list_clock_changes(
    totals: NDArray[np.float64], jumps: NDArray[np.float64], jump_times: NDArray[np.float64]
) -> list[tuple[float, float]]:
    """Return candidate changes of one clock against another: total change in s, and time of a jump.

    A drift (change at a constant rate) has NaN as time; there is one for each total. A jump is a sudden change; there
    is one for each combination of a nonzero size and a time, which is a share of the episode.

    Args:
        totals: Total changes of the drifts in s.
        jumps: Sizes of the jumps in s.
        jump_times: Times of the jumps, as shares of the episode (0 to 1).
    """
    drifts = [(float(total), np.nan) for total in totals]
    return drifts + [(float(jump), float(at)) for at in jump_times for jump in jumps if jump != 0]


def _clock_shift(total: float, at: float, part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the additional delay in s, between ``-total/2`` and ``total/2``, due to a drift or jump of a clock.

    Args:
        total: Total change of the delay in s.
        at: Time of the jump as share of the episode (0 to 1); NaN for a drift.
        part: Times as shares of the episode, shape ``(N,)``.
    """
    progress = part if np.isnan(at) else (part >= at).astype(np.float64)
    return total * (progress - 0.5)


def _check_joint_lags(
    usual: dict[str, float], numbers: tuple[int, ...], begin: float, frame: float
) -> Iterator[LogFinding]:
    for joint, lag in usual.items():
        others = [value for name, value in usual.items() if name != joint]
        rest = float(np.median(others)) if others else 0.0
        if len(others) >= 2 and abs(lag - rest) > max(_APART_FRAMES * frame, _APART_S):
            yield LogFinding(
                kind="joint_lag", severity="warning", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"follows its command {1e3 * lag:.0f} ms later, the other joints {1e3 * rest:.0f} ms "
                "(medians).",
                remedy=f"--shift {joint}={rest - lag:.3f} if its column is late; otherwise its servo is slower.",
                metrics={"lag_s": lag, "others_s": rest},
            )  # fmt: skip


def _select_clear(answers: Sequence[CommandResponse]) -> list[CommandResponse]:
    return [answer for answer in answers if abs(answer.correlation) > _CLEAR]


def _check_episode_lags(lags: Sequence[EpisodeLags], frame: float) -> Iterator[LogFinding]:
    """Find episodes whose delays differ from the median of all episodes.

    Args:
        lags: One tuple per episode with the delay of each joint, as for `check_lags`. All episodes have the same
            recorded conditions, because for example controller gains change the delay.
        frame: Frame period in s.
    """
    if len(lags) < _FEWEST_EPISODES:
        return
    usual = median_lags([answers for *_, answers, _ in lags])
    for number, begin, _, answers, _ in lags:
        apart = [answer.lag_s - usual[answer.joint] for answer in answers]
        if apart and abs(np.median(apart)) > max(_APART_FRAMES * frame, _APART_S):
            yield LogFinding(
                kind="episode_lag", severity="warning", column="", episodes=(number,), begin_s=begin,
                evidence=f"the delay of its joints behind their commands differs by {1e3 * np.median(apart):+.0f} ms "
                "from that of all episodes (median).",
                remedy="Leave the episode out, or import it alone with --shift.",
                metrics={"apart_s": float(np.median(apart))},
            )  # fmt: skip
