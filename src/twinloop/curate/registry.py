"""Find episode checks by name: built-in checks, checks of installed packages, and classes in a user's own file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.registry import Registry, is_file_reference
from twinloop.curate.check import FAMILIES, READABLE, EpisodeCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.twin import Twin


class EpisodeTwins(Protocol):
    """Protocol of functions that return an episode's twin; picklable, so that checks can run in other processes."""

    def __call__(self, recording: RecordedEpisode) -> Twin:
        """Return the twin of an episode.

        Raises:
            InputError: If the episode has no twin; the message gives the reason.
        """
        ...


# A class whose constructor takes ``twins`` gets the `EpisodeTwins`.
_BUILTIN = {
    "physics/torque": "twinloop.curate.physics.joints:TorqueCheck",
    "physics/replay": "twinloop.curate.physics.replay:ReplayResidual",
    "physics/next_state": "twinloop.curate.physics.states:NextState",
    "physics/penetration": "twinloop.curate.physics.states:Penetration",
    "physics/energy": "twinloop.curate.physics.states:EnergyJumps",
    "physics/teleport": "twinloop.curate.physics.states:Teleports",
    "physics/float": "twinloop.curate.physics.states:Floating",
    "physics/joint_range": "twinloop.curate.physics.joints:JointRangeCheck",
    "physics/velocity": "twinloop.curate.physics.joints:JointVelocityCheck",
    "physics/acceleration": "twinloop.curate.physics.joints:JointAccelerationCheck",
    "physics/jerk": "twinloop.curate.physics.joints:JointJerkCheck",
    "physics/lag": "twinloop.curate.physics.replay:CommandLag",
    "recording/readable": "twinloop.curate.recording_checks.readable:Readable",
    "recording/clock_jump": "twinloop.curate.recording_checks.profiles:ClockJumps",
    "recording/clock_drift": "twinloop.curate.recording_checks.profiles:ClockDrift",
    "recording/dropped_frames": "twinloop.curate.recording_checks.frames:DroppedFrames",
    "recording/duplicate_frames": "twinloop.curate.recording_checks.frames:DuplicateFrames",
    "recording/frozen_camera": "twinloop.curate.recording_checks.cameras:FrozenCamera",
    "recording/black_camera": "twinloop.curate.recording_checks.cameras:BlackCamera",
    "recording/blur": "twinloop.curate.recording_checks.cameras:Blur",
    "recording/swapped_cameras": "twinloop.curate.recording_checks.cameras:SwappedCameras",
    "recording/units": "twinloop.curate.recording_checks.profiles:UnitConsistency",
    "recording/swapped": "twinloop.curate.recording_checks.profiles:SwappedColumns",
    "recording/sign": "twinloop.curate.recording_checks.profiles:SignConsistency",
    "recording/static_tail": "twinloop.curate.recording_checks.channels:StaticTail",
    "recording/truncated": "twinloop.curate.recording_checks.channels:Truncated",
    "recording/not_finite": "twinloop.curate.recording_checks.profiles:NotFinite",
    "recording/spikes": "twinloop.curate.recording_checks.profiles:Spikes",
    "recording/frozen_joint": "twinloop.curate.recording_checks.profiles:Standstill",
    "recording/dead_channel": "twinloop.curate.recording_checks.channels:DeadChannel",
    "recording/saturation": "twinloop.curate.recording_checks.channels:Saturation",
    "demonstration/smoothness": "twinloop.curate.demonstration.smoothness:Smoothness",
    "demonstration/jerk": "twinloop.curate.demonstration.smoothness:DimensionlessJerk",
    "demonstration/path": "twinloop.curate.demonstration.smoothness:PathEfficiency",
    "demonstration/hesitation": "twinloop.curate.demonstration.smoothness:Hesitation",
    "demonstration/gripper": "twinloop.curate.demonstration.gripper:GripperUse",
    "demonstration/actions": "twinloop.curate.demonstration.consistency:ActionConsistency",
    "demonstration/near_duplicates": "twinloop.curate.demonstration.duplicates:NearDuplicates",
    "demonstration/outcome": "twinloop.curate.demonstration.outcome:OutcomeConsistency",
    "learned/fake": "twinloop.curate.learned.realism:LooksSimulated",
    "learned/support": "twinloop.curate.learned.realism:OutOfSupport",
}


CHECKS: Registry[Callable[..., Any]] = Registry(
    "check", _BUILTIN, group="twinloop.checks_of_episodes", files=True, listed_names=lambda: [*FAMILIES, *_BUILTIN]
)


def open_checks(words: Sequence[str], twins: EpisodeTwins) -> list[EpisodeCheck]:
    """Create the requested checks, in the order of the registry; checks from files come last.

    Args:
        words: names of checks (``recording/blur``), families of checks (the part before the slash, such as
            ``physics``), or ``path/to/file.py:Class``; if empty, all checks.
        twins: function that returns the twin of an episode, for checks that need a twin.

    Raises:
        UnknownNameError: If a word is neither a check, nor a family, nor a class in a file.
        InputError: If a class is not a check, or cannot be created.
    """
    known, own = list(CHECKS), [word for word in words if is_file_reference(word)]
    for word in words:
        if word not in own and word not in known and word not in FAMILIES:
            CHECKS.find(word)
    asked = [word for word in words if word not in own]
    chosen = [name for name in known if not words or name in asked or name.partition("/")[0] in asked]
    return [_create_check(name, CHECKS[name], twins) for name in [*chosen, *own]]


def add_readable_check(checks: Sequence[EpisodeCheck], twins: EpisodeTwins) -> list[EpisodeCheck]:
    """Return the checks, preceded by the check for unreadable episodes (``recording/readable``) if it is missing."""
    named = any(check.name == READABLE for check in checks)
    return [*([] if named else open_checks([READABLE], twins)), *checks]


def _create_check(name: str, kind: Callable[..., Any], twins: EpisodeTwins) -> EpisodeCheck:
    try:
        check = kind(twins=twins) if "twins" in inspect.signature(kind).parameters else kind()
    except TwinloopError:
        raise
    except Exception as error:  # any error of a user's class
        raise InputError(f"The check {name} could not be created: {describe_error(error)}.") from error
    if not isinstance(check, EpisodeCheck):
        lacks = [part for part in ("name", "meaning", "hash", "score") if not hasattr(check, part)]
        raise InputError(
            f"{name} is not a check of episodes: it lacks {', '.join(lacks)}. See twinloop.curate.check.EpisodeCheck."
        )
    if check.name.partition("/")[0] not in FAMILIES or "/" not in check.name:
        raise InputError(f"The check {name} has the name {check.name!r}. A name is FAMILY/NAME, with a family of "
                         f"{', '.join(FAMILIES)}.")  # fmt: skip
    return check
