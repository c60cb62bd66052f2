"""Clocks of commands and measurements: who is ahead, by how much, whether that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.log_checks.finding import Finding
from twinloop.dataset.log_checks.response import Answer, Pair
from twinloop.stats import cross_lag, level_change, linear_trend

# Servos follow after 0.1 to 0.17 s in the public logs (SO-101 3-4 frames, G1 4-5 frames at 30 Hz): twice that is late.
_LATE_S = 0.35
_AHEAD_FRAMES, _AHEAD_S = 1.0, 0.02  # a measurement before its command by more than both has another clock
_APART_FRAMES, _APART_S = 3.0, 0.12  # joints of one robot, episodes of one log: more than both is no common clock
_DRIFT_FRAMES, _DRIFT_S, _DRIFT_ERRORS = 1.0, 0.03, 5.0  # over an episode, and in standard errors of the slope
_STEP_GAIN = 0.7
_WINDOW_S, _FEWEST_WINDOWS, _CLEAR = 2.0, 5, 0.8
_FEWEST_EPISODES = 5
# An episode's number, its first time, its frame's length in s, how its joints answer, and its conditions.
Row = tuple[int, float, float, Sequence[Answer], tuple[tuple[str, float], ...]]
_SHIFT = "--shift {:.3f} brings the measurements onto the commands' clock."


def check_lags(lags: Sequence[Row]) -> Iterator[Finding]:
    """Lags of all episodes together: too long, negative, unlike the other joints', unlike the other episodes'."""
    if not lags:
        return
    numbers = tuple(dict.fromkeys(number for number, *_ in lags))
    begin, frame = lags[0][1], float(np.median([dt for _, _, dt, *_ in lags]))
    lags = [(number, at, dt, _clear(answers), group) for number, at, dt, answers, group in lags]
    usual = median_lags([answers for *_, answers, _ in lags])
    for joint, lag in usual.items():
        if lag < -max(_AHEAD_FRAMES * frame, _AHEAD_S):
            yield Finding(
                kind="ahead", severity="error", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"moves {-1e3 * lag:.0f} ms before its command: two clocks, or a shifted column.",
                remedy=_SHIFT.format(-lag), figures={"lag_s": lag},
            )  # fmt: skip
        elif lag > _LATE_S:
            yield Finding(
                kind="late", severity="warning", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"follows its command {1e3 * lag:.0f} ms later; servos of known logs take 100 to 170 ms.",
                remedy=f"If the clocks differ, {_SHIFT.format(-(lag - 0.1))} Else the delay is the robot's.",
                figures={"lag_s": lag},
            )  # fmt: skip
    yield from _unlike_joints(usual, numbers, begin, frame)
    for group in dict.fromkeys(group for *_, group in lags):
        yield from _unlike_episodes([row for row in lags if row[-1] == group], frame)


def median_lags(answers: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Each joint's median lag in s over the episodes in which it answered."""
    by_joint: dict[str, list[float]] = {}
    for episode in answers:
        for answer in episode:
            by_joint.setdefault(answer.joint, []).append(answer.lag_s)
    return {joint: float(np.median(values)) for joint, values in by_joint.items()}


def check_drift(index: int, pair: Pair, answers: Sequence[Answer]) -> Iterator[Finding]:
    """A lag that grows, or steps, over one episode: the clocks run at unlike rates, or one was set anew."""
    centres, lags, weights = _windowed(pair, answers)
    if len(centres) < _FEWEST_WINDOWS:
        return
    least = max(_DRIFT_FRAMES * pair.series.dt, _DRIFT_S)
    trend = linear_trend(centres, lags, weights)
    step = level_change(lags, least=2)
    total = trend.slope * float(centres[-1] - centres[0])
    residual = float(np.var(lags)) * (1 - step.gain)
    if step.gain > _STEP_GAIN and abs(step.after - step.before) > 1.5 * least and residual < trend.spread**2:
        yield Finding(
            kind="clock_step", severity="error", column="", episodes=(index,),
            begin_s=float(centres[step.index] - _WINDOW_S / 2),
            evidence=f"the lag between commands and measurements changes from {1e3 * step.before:+.0f} to "
            f"{1e3 * step.after:+.0f} ms about its median.",
            remedy="Split the episode there: frames were lost, or a clock was set.",
            figures={"before_s": step.before, "after_s": step.after},
        )  # fmt: skip
    elif abs(total) > least and abs(trend.slope) > _DRIFT_ERRORS * trend.standard_error:
        yield Finding(
            kind="clock_drift", severity="error" if abs(total) > 3 * least else "warning", column="",
            episodes=(index,), begin_s=float(pair.series.time[0]),
            evidence=f"the lag between commands and measurements grows by {1e3 * total:+.0f} ms over "
            f"{centres[-1] - centres[0]:.3g} s ({1e6 * trend.slope:+.0f} ± {1e6 * trend.standard_error:.0f} ppm).",
            remedy=f"--clock-rate {1 + trend.slope:.6f} stretches the commands' clock to the measurements'.",
            figures={"slope": trend.slope, "standard_error": trend.standard_error, "total_s": total},
        )  # fmt: skip


def _windowed(
    pair: Pair, answers: Sequence[Answer]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Centres of stretches, the lag there relative to each joint's own, joints averaged, and how much moved."""
    dt = pair.series.dt
    window = max(16, round(_WINDOW_S / dt))
    commands, measured = pair.series.moves(pair.commands), pair.series.moves(pair.measured)
    taper = np.hanning(window)
    scale = np.sqrt(np.sum(commands**2, axis=0)) + 1e-300
    rows = []
    for first in range(0, len(commands) - window + 1, window // 2):
        total, weight = 0.0, 0.0
        for answer in answers:
            column = pair.columns.index(answer.joint)
            x, y = (taper * part[first : first + window, column] for part in (commands, measured))
            about = answer.lag_s / dt
            reach = 0.25 / dt
            lag, correlation = cross_lag(
                x, y, earliest=about - reach, latest=about + reach, sign=1 if answer.correlation > 0 else -1
            )
            if abs(correlation) > _CLEAR:
                energy = float(np.sum((x / scale[column]) ** 2))
                total, weight = total + energy * (lag * dt - answer.lag_s), weight + energy
        if weight > 0:
            rows.append((pair.series.time[0] + (first + window / 2) * dt, total / weight, weight))
    made = np.array(rows).reshape(-1, 3)
    return made[:, 0], made[:, 1], made[:, 2]


def _unlike_joints(usual: dict[str, float], numbers, begin: float, frame: float) -> Iterator[Finding]:
    for joint, lag in usual.items():
        others = [value for name, value in usual.items() if name != joint]
        rest = float(np.median(others)) if others else 0.0
        if len(others) >= 2 and abs(lag - rest) > max(_APART_FRAMES * frame, _APART_S):
            yield Finding(
                kind="joint_lag", severity="warning", column=joint, episodes=numbers, begin_s=begin,
                evidence=f"follows its command {1e3 * lag:.0f} ms later, the others {1e3 * rest:.0f} ms (medians).",
                remedy=f"--shift {joint}={rest - lag:.3f} if its column is late; else its servo is slower.",
                figures={"lag_s": lag, "others_s": rest},
            )  # fmt: skip


def _clear(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if abs(answer.correlation) > _CLEAR]


def _unlike_episodes(lags: Sequence[Row], frame: float) -> Iterator[Finding]:
    """Among episodes under equal conditions: with another gain a servo is slower."""
    if len(lags) < _FEWEST_EPISODES:
        return
    usual = median_lags([answers for *_, answers, _ in lags])
    for number, begin, _, answers, _ in lags:
        apart = [answer.lag_s - usual[answer.joint] for answer in answers]
        if apart and abs(np.median(apart)) > max(_APART_FRAMES * frame, _APART_S):
            yield Finding(
                kind="episode_lag", severity="warning", column="", episodes=(number,), begin_s=begin,
                evidence=f"its joints follow their commands {1e3 * np.median(apart):+.0f} ms unlike in the other "
                "episodes (median).",
                remedy="Leave it out, or import it alone with --shift.",
                figures={"apart_s": float(np.median(apart))},
            )  # fmt: skip
