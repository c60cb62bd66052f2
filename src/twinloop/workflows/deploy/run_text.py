"""Describe a run of a policy on a robot as text: its limits, and what the envelope did in an episode."""

from __future__ import annotations

from collections import Counter

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.release.running_robot import EpisodeRun
from twinloop.twin import Twin
from twinloop.workflows.deploy.parts import OpenedRun, episode_steps
from twinloop.workflows.deploy.requests import RunRequest

_SHOWN = 3  # joints of a rule in a line


def describe_run(opened: OpenedRun, request: RunRequest) -> str:
    """Return two lines about a run: policy, robot and duration, and the limits of the envelope.

    Args:
        opened: parts of the run.
        request: flags of the run.
    """
    limits, settings = opened.envelope.limits, opened.envelope.settings
    return (
        f"{opened.deciders['champion'].name} on {opened.robot.origin}: {request.episodes} × "
        f"{episode_steps(opened, request) * limits.dt:.1f} s at {opened.robot_contract.control_hz:g} Hz\n"
        f"Envelope from the twin {opened.twin.name}: speed {_format_limits(limits.speed, opened.twin, 's')}, "
        f"acceleration {_format_limits(limits.acceleration, opened.twin, 's²')}, links at least "
        f"{1e3 * settings.clearance_m:g} mm and the hand {1e3 * settings.hand_clearance_m:g} mm away from fixed "
        f"objects, holds after {1e3 * opened.envelope.watchdog_s:.0f} ms without a command"
    )


def _format_limits(values: NDArray[np.float64], twin: Twin, per: str) -> str:
    """Return the smallest and largest limit of the hinges in degrees and of the slides in mm, as text.

    Args:
        values: limit of each joint of the robot, of the speed in rad/s or m/s, or of the acceleration.
        twin: twin of the robot.
        per: ``s`` for speeds, ``s²`` for accelerations.
    """
    slides = np.array([twin.model.joint(name).type[0] == mujoco.mjtJoint.mjJNT_SLIDE for name in twin.robot.joints])
    kinds = ((np.rad2deg(values[~slides]), "deg"), (1e3 * values[slides], "mm"))
    return " and ".join(f"{_format_range(part)} {unit}/{per}" for part, unit in kinds if part.size)


def _format_range(values: NDArray[np.float64]) -> str:
    ends = dict.fromkeys(f"{end:.0f}" for end in (values.min(), values.max()))
    return " to ".join(ends)


def episode_line(episode: EpisodeRun, success: bool | None) -> str:
    """Return a line about an episode: outcome, number of frames, and how often the envelope changed or held commands.

    Args:
        episode: the episode.
        success: its outcome; None if unknown.
    """
    said = "outcome unknown" if success is None else "success" if success else "failure"
    tail = f"; {episode.reason}" if episode.end_kind else ""
    return f"episode {episode.episode}: {said}, {len(episode.steps)} frames, {_format_envelope_actions(episode)}{tail}"


def _format_envelope_actions(episode: EpisodeRun) -> str:
    """Return how many commands the envelope clipped to the limits, held (did not send) or stopped, as text."""
    kinds = Counter(episode.decision_counts)
    told = {"limited": "clipped to the limits", "held": "held", "stopped": "stopped"}
    done = [
        f"{kinds[kind]} {words}{_format_rules(episode) if kind == 'limited' else ''}"
        for kind, words in told.items()
        if kinds[kind]
    ]
    done += [f"{episode.unsent_count} not taken by the robot"] if episode.unsent_count else []
    return f"envelope: {', '.join(done)}" if done else "all passed by the envelope"


def _format_rules(episode: EpisodeRun) -> str:
    """Return the rules that clipped commands, most frequent first, each with its share of all commands and joints."""
    sent = [step.decision.changes for step in episode.steps if step.sent]
    rules = Counter(rule for changes in sent for rule in sorted({change.rule for change in changes}))
    texts = list[str]()
    for rule, count in rules.most_common():
        joints = Counter(change.joint for changes in sent for change in changes if change.rule == rule)
        names = [joint for joint, _ in joints.most_common(_SHOWN)] + ["…"] * (len(joints) > _SHOWN)
        texts.append(f"{rule} in {count / len(sent):.0%} of commands: {', '.join(names)}")
    return f" ({'; '.join(texts)})" if texts else ""
