"""Every check by name: the built-in ones, those of installed packages, and a class in a user's own file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.core.extension import load_class, raised
from twinloop.curate.check import FAMILIES, READABLE, Check
from twinloop.curate.recording import Recording
from twinloop.twin import Twin

ENTRY_POINTS = "twinloop.checks_of_episodes"  # FAMILY/NAME = "package.module:Class"


class Twins(Protocol):
    """The twin of an episode; picklable, so that checks can run in other processes."""

    def __call__(self, recording: Recording) -> Twin:
        """The twin.

        Raises:
            InputError: there is none; says why.
        """
        ...


# Where each check stands. A class whose constructor takes ``twins`` gets the `Twins`.
CHECKS: dict[str, str] = {
    "physics/torque": "physics.torque:Torque",
    "physics/replay": "physics.replay:ReplayResidual",
    "physics/next_state": "physics.states:NextState",
    "physics/penetration": "physics.states:Penetration",
    "physics/energy": "physics.states:EnergyJumps",
    "physics/teleport": "physics.states:Teleports",
    "physics/float": "physics.states:Floating",
    "physics/joint_range": "physics.joints:JointRange",
    "physics/velocity": "physics.joints:Velocity",
    "physics/acceleration": "physics.joints:Acceleration",
    "physics/jerk": "physics.joints:Jerk",
    "physics/lag": "physics.lag:Lag",
    "recording/readable": "recording_checks.readable:Readable",
    "recording/clock_jump": "recording_checks.findings:ClockJumps",
    "recording/clock_drift": "recording_checks.findings:ClockDrift",
    "recording/dropped_frames": "recording_checks.frames:DroppedFrames",
    "recording/duplicate_frames": "recording_checks.frames:DuplicateFrames",
    "recording/frozen_camera": "recording_checks.cameras:FrozenCamera",
    "recording/black_camera": "recording_checks.cameras:BlackCamera",
    "recording/blur": "recording_checks.cameras:Blur",
    "recording/swapped_cameras": "recording_checks.cameras:SwappedCameras",
    "recording/units": "recording_checks.profiles:Units",
    "recording/swapped": "recording_checks.profiles:Swaps",
    "recording/sign": "recording_checks.findings:Signs",
    "recording/static_tail": "recording_checks.endings:StaticTail",
    "recording/truncated": "recording_checks.endings:Truncated",
    "recording/not_finite": "recording_checks.findings:NotFinite",
    "recording/spikes": "recording_checks.findings:Spikes",
    "recording/frozen_joint": "recording_checks.findings:Standstill",
    "recording/dead_channel": "recording_checks.channels:DeadChannel",
    "recording/saturation": "recording_checks.channels:Saturation",
    "demonstration/smoothness": "demonstration.smoothness:Smoothness",
    "demonstration/jerk": "demonstration.smoothness:Jerk",
    "demonstration/path": "demonstration.path:PathEfficiency",
    "demonstration/hesitation": "demonstration.hesitation:Hesitation",
    "demonstration/gripper": "demonstration.gripper:Gripper",
    "demonstration/actions": "demonstration.consistency:ActionConsistency",
    "demonstration/near_duplicates": "demonstration.duplicates:NearDuplicates",
    "demonstration/outcome": "demonstration.outcome:OutcomeFits",
    "learned/fake": "learned.fakes:Fakes",
    "learned/support": "learned.support:Support",
}


def check_names() -> list[str]:
    """Names of the built-in checks and of those that installed packages offer."""
    return [*CHECKS, *(entry.name for entry in entry_points(group=ENTRY_POINTS) if entry.name not in CHECKS)]


def open_checks(words: Sequence[str], twins: Twins) -> list[Check]:
    """The checks that are asked for, in the registry's order.

    Args:
        words: names (``recording/blur``), families (``physics``), or ``path/to/file.py:Class``; none for all.
        twins: for checks that need a twin.

    Raises:
        UnknownNameError: neither a check nor a family nor a class in a file.
        InputError: a class that is no check, or cannot be made.
    """
    known = check_names()
    own = [word for word in words if ".py:" in word]
    for word in words:
        if word not in own and word not in known and word not in FAMILIES:
            raise UnknownNameError("check", word, [*FAMILIES, *known])
    asked = [word for word in words if word not in own]
    chosen = [name for name in known if not words or name in asked or name.partition("/")[0] in asked]
    return [*(_made(name, _found(name), twins) for name in chosen),
            *(_made(word, load_class("check", word, known), twins) for word in own)]  # fmt: skip


def with_readable(checks: Sequence[Check], twins: Twins) -> list[Check]:
    """Return the checks with the one that finds what cannot be read, which no choice of checks leaves out."""
    named = any(check.name == READABLE for check in checks)
    return [*([] if named else open_checks([READABLE], twins)), *checks]


def _found(name: str) -> Callable[..., Any]:
    if name in CHECKS:
        module, _, kind = CHECKS[name].partition(":")
        return getattr(importlib.import_module(f"twinloop.curate.{module}"), kind)
    return next(entry for entry in entry_points(group=ENTRY_POINTS) if entry.name == name).load()


def _made(name: str, kind: Callable[..., Any], twins: Twins) -> Check:
    try:
        check = kind(twins=twins) if "twins" in inspect.signature(kind).parameters else kind()
    except TwinloopError:
        raise
    except Exception as error:  # whatever a user's class raises, it is the class that is wrong
        raise InputError(f"The check {name} could not be made: {raised(error)}.") from error
    if not isinstance(check, Check):
        lacks = [part for part in ("name", "meaning", "hash", "score") if not hasattr(check, part)]
        raise InputError(
            f"{name} is no check of episodes: it lacks {', '.join(lacks)}. See twinloop.curate.check.Check."
        )
    if check.name.partition("/")[0] not in FAMILIES or "/" not in check.name:
        raise InputError(f"The check {name} is called {check.name!r}. A name is FAMILY/NAME, with a family of "
                         f"{', '.join(FAMILIES)}.")  # fmt: skip
    return check
