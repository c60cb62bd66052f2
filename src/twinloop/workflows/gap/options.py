"""Resolve options that several `twinloop gap` commands share: replays, measured episodes, real and simulated log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.gap.requests import ComparisonOptions

# Longer than the delays (0.1 to 0.2 s) and time constants (0.05 to 0.1 s) of servos, so that they matter; shorter than
# the time after which a chaotic or drifting replay depends more on its first state than on the twin.
WINDOW = 1.0  # s


def build_replay_options(comparing: ComparisonOptions, twin: Twin, episodes: Sequence[Episode]) -> ReplayOptions:
    """Return the replay options for a twin and a log.

    Args:
        comparing: the user's flags on windows, compared channels and contacts.
        twin: the twin.
        episodes: episodes of the log; their median duration decides the default length of windows.

    Raises:
        InputError: If a window or stride is not a valid duration, a stride is given for whole episodes, or a value of
            ``--condition`` is not written as PARAMETER=CONDITION.
    """
    window, stride = _resolve_window(comparing.window, episodes), comparing.stride
    if stride is not None and (window is None or not stride > 0):
        raise InputError(f"--stride {stride:g}: give seconds between windows, and a --window longer than 0.")
    robot = twin.spec.robot is not None
    return ReplayOptions(
        window=window,
        stride=stride,
        start="measured",
        compare=comparing.compare or (("position",) if robot else _find_pose_errors(twin, episodes[0])),
        contacts=comparing.contacts or not robot,
        torque="measured" if comparing.measured_torque else "command",
        conditions=_parse_conditions(comparing.condition),
    )


def _resolve_window(window: float | None, episodes: Sequence[Episode]) -> float | None:
    if window is None:
        usual = np.median([episode.time[-1] - episode.time[0] for episode in episodes])
        return WINDOW if usual >= WINDOW else None
    if not (np.isfinite(window) and window >= 0):
        raise InputError(f"--window {window:g}: give seconds, such as 0.5, or 0 for whole episodes.")
    return window or None


def _find_pose_errors(twin: Twin, episode: Episode) -> tuple[str, ...]:
    """Return the channels ``pose_error/BODY`` of the twin's free bodies whose poses an episode contains.

    Raises:
        InputError: If the episode contains no such pose.
    """
    model = twin.model
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    bodies = [model.body(int(model.jnt_bodyid[joint])).name for joint in free]
    channels = tuple(f"pose_error/{body}" for body in bodies if f"pose/{body}" in episode.signals)
    if not channels:
        available, wanted = ", ".join(episode.signals) or "none", ", ".join(f"pose/{body}" for body in bodies) or "none"
        raise InputError(
            f"The twin {twin.name} has no robot, and the log no pose of its free bodies ({wanted}; signals of the log: "
            f"{available}). Name the channels with --compare."
        )
    return channels


def _parse_conditions(words: Sequence[str]) -> Mapping[str, str]:
    pairs = [word.partition("=") for word in words]
    for word, (name, sign, condition) in zip(words, pairs, strict=True):
        if not (name and sign and condition):
            raise InputError(
                f"--condition {word}: write PARAMETER=CONDITION, such as actuator/pendulum/firmware_gain=firmware_kp."
            )
    return {name: condition for name, _, condition in pairs}


@dataclass(frozen=True, kw_only=True)
class EpisodeSplit:
    """Which episodes of a log a gap is measured on.

    Attributes:
        measured: the episodes to measure.
        training: the episodes from which the delay of the delayed-command baseline (prediction of joint positions by
            delayed commands) may be estimated; None to use ``measured``.
        note: description of the choice for the user.
    """

    measured: Sequence[Episode]
    training: Sequence[Episode] | None
    note: str


def name_and_hash(twin: Twin) -> dict[str, str]:
    """Return the name and the hash of a twin for result.json."""
    return {"name": twin.name, "hash": twin.hash}


def held_out_split(log: LogEpisodes, run: dict[str, Any] | None) -> EpisodeSplit:
    """Choose the held-out episodes of an identify run on the same log, or all episodes if there is no such run.

    Args:
        log: the log.
        run: result.json of an identify run; None for nominal parameters.
    """
    if run is None or run.get("data", {}).get("hash") != log.hash:
        return EpisodeSplit(measured=log.episodes, training=None, note=f"all {len(log.episodes)} episodes")
    held, trained = set(run["holdout"]), set(run["training"])
    if not held:
        return EpisodeSplit(
            measured=log.episodes, training=None, note="NOTHING HELD OUT: the episodes that were fitted"
        )
    return EpisodeSplit(
        measured=[e for e in log.episodes if e.index in held],
        training=[e for e in log.episodes if e.index in trained],
        note=f"{len(held)} held-out episodes of the identify run",
    )


def require_two_sides(real: LogEpisodes, sim: LogEpisodes) -> None:
    """Check that the logs of --real and --sim are different and not interchanged.

    Two real logs, or two simulated ones, may be compared, because not every log declares its source.

    Raises:
        InputError: If both are the same log, or --real is marked as simulated and --sim as real.
    """
    if real.hash and real.hash == sim.hash:
        raise InputError(
            f"--real and --sim are the same log, {real.name}, so they cannot differ. Give simulated episodes as --sim."
        )
    sources = [{episode.source for episode in log.episodes} for log in (real, sim)]
    if sources == [{"sim"}, {"real"}]:
        raise InputError(
            f"{real.name}, given as --real, is marked as simulated, and {sim.name}, given as --sim, as real. Swap them."
        )
