"""Clocks of commands and measurements: who is ahead, by how much, whether that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.log_checks.finding import Finding
from twinloop.dataset.log_checks.response import Answer, Pair
from twinloop.stats import warped_correlation

# Servos follow after 0.1 to 0.17 s in the public logs (SO-101 3-4 frames, G1 4-5 frames at 30 Hz): twice that is late.
_LATE_S = 0.35
_AHEAD_FRAMES, _AHEAD_S = 1.0, 0.02  # a measurement before its command by more than both has another clock
_APART_FRAMES, _APART_S = 3.0, 0.12  # joints of one robot, episodes of one log: more than both is no common clock
_CLEAR = 0.8  # correlation from which a lag is told finely
# Drifts over an episode and steps at moments of it that are tried, in s. Clocks of good logs, real and virtual, gain up
# to 0.2 by any of them, planted drifts of 0.18 s and steps of 0.3 s gain 0.3 to 0.9.
_TOTALS, _STEPS, _MOMENTS = np.linspace(-0.5, 0.5, 21), np.linspace(-0.5, 0.5, 11), np.linspace(0.1, 0.9, 17)
_GAIN, _REACH_S = 0.3, 0.3
# A clock is common to all joints: of one or two alone, a servo that is slower at other speeds looks the same.
_FEWEST_JOINTS, _AGREEING = 3, 0.6
_FOLLOWS = 0.003  # of a joint's movement left unexplained: its clock needs no bending
_GRID_S, _LONG_S = 0.04, 4.0  # arms move below 5 Hz; a shorter episode tells no drift from a pause
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
    """A lag that grows, or steps, over one episode: the clocks run at unlike rates, or one was set anew.

    All joints are seen through one bent clock after another; what counts is how much of their movement that a constant
    lag of each leaves unexplained the best one explains.
    """
    dt = max(pair.series.dt, _GRID_S)
    rows = np.arange(0, len(pair.series.time) - pair.series.stride, max(1, round(dt / pair.series.dt)))
    chosen = [pair.columns.index(answer.joint) for answer in answers]
    if len(rows) * dt < _LONG_S or len(chosen) < _FEWEST_JOINTS:
        return
    commands, measured = (pair.series.moves(part)[rows][:, chosen] for part in (pair.commands, pair.measured))
    part, seconds = rows / rows[-1], float(rows[-1]) * pair.series.dt
    dt = seconds / (len(rows) - 1)
    lags, reach = np.array([answer.lag_s for answer in answers]) / dt, round(_REACH_S / dt)

    def explained(bends: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
        warps = np.array([_bend(total, at, part) for total, at in bends]) / dt
        return warped_correlation(commands, measured, warps=warps, lags=lags, reach=reach)

    straight = np.sum(1 - explained([(0.0, np.nan)])[0] ** 2)
    if straight < _FOLLOWS * len(chosen):
        return
    for bends in (_bends(_TOTALS[::2], _STEPS[::2], _MOMENTS[::2]), _bends(_TOTALS, _STEPS, _MOMENTS)):
        correlation = explained(bends)
        left = np.sum(1 - correlation**2, axis=1)
        best = int(np.argmin(left))
        gain = float(1 - left[best] / straight)
        if gain < _GAIN / 2:  # a finer search will not find twice as much
            return
    total, at = bends[best]
    gaining = np.mean(correlation[best] ** 2 > explained([(0.0, np.nan)])[0] ** 2)
    if gain < _GAIN or gaining < _AGREEING or np.abs(correlation[best]).mean() < _CLEAR:
        return
    begin = float(pair.series.time[0])
    if np.isnan(at):
        yield Finding(
            kind="clock_drift", severity="error", column="", episodes=(index,), begin_s=begin,
            evidence=f"the lag between commands and measurements grows by about {1e3 * total:+.0f} ms over "
            f"{seconds:.3g} s, {100 * total / seconds:+.2g} % (explains {100 * gain:.0f} % of what a constant lag does "
            "not).",
            remedy=f"--clock-rate {1 + total / seconds:.4f} stretches the commands' clock to the measurements'.",
            figures={"total_s": total, "slope": total / seconds, "gain": gain},
        )  # fmt: skip
    else:
        yield Finding(
            kind="clock_step", severity="error", column="", episodes=(index,), begin_s=begin + at * seconds,
            evidence=f"from then on measurements follow commands about {1e3 * total:+.0f} ms later than before "
            f"(explains {100 * gain:.0f} % of what a constant lag does not).",
            remedy="Split the episode there: frames were lost, or a clock was set.",
            figures={"step_s": total, "gain": gain},
        )  # fmt: skip


def _bends(
    totals: NDArray[np.float64], steps: NDArray[np.float64], moments: NDArray[np.float64]
) -> list[tuple[float, float]]:
    """Drifts (at NaN) and steps to try, and none."""
    drifts = [(float(total), np.nan) for total in totals]
    return drifts + [(float(step), float(at)) for at in moments for step in steps if step != 0]


def _bend(total: float, at: float, part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds by which commands are seen later at each part of an episode, zero on average."""
    bent = part if np.isnan(at) else (part >= at).astype(np.float64)
    return total * (bent - 0.5)


def _unlike_joints(usual: dict[str, float], numbers: tuple[int, ...], begin: float, frame: float) -> Iterator[Finding]:
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
