"""Define planted defects of logs, and the helpers that plant one into an episode, a joint or a whole log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.logs.checks.finding import LogRecord
from twinloop.dataset.logs.importers.protocol import RawEpisode

Log = list[RawEpisode]
_MOVES = 0.05  # of the largest range of a joint: joints that move less are not changed
_FEWEST = 100


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A log with one planted defect, and the correct finding.

    Attributes:
        records: Episodes of the log.
        column: Column with the defect; "" if all columns have it, "*" if a finding may name any joint.
        episode: Index of the first episode with the defect.
        begin_s: Time in that episode at which the defect begins, s; NaN if it has no beginning.
    """

    records: Log
    column: str
    episode: int
    begin_s: float


Plant = Callable[[Log, np.random.Generator], Planted | None]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect that can be planted into a log.

    Attributes:
        name: Name, as printed.
        finds: Kinds of log finding that correctly name the defect.
        also: Other kinds of finding that are true for the changed log.
        plant: Function that plants the defect; returns None if the log cannot have it.
    """

    name: str
    finds: frozenset[str]
    also: frozenset[str]
    plant: Plant


DEFECTS: dict[str, Defect] = {}


def defect(name: str, *finds: str, also: Sequence[str] = ()) -> Callable[[Plant], Plant]:
    """Register the decorated function as a defect in `DEFECTS`."""

    def register(plant: Plant) -> Plant:
        DEFECTS[name] = Defect(name=name, finds=frozenset(finds), also=frozenset(also), plant=plant)
        return plant

    return register


def raw(record: LogRecord) -> RawEpisode:
    """Copy an episode, so that its arrays can be changed."""
    given = {f.name: getattr(record, f.name) for f in fields(RawEpisode) if hasattr(record, f.name)}
    for name in ("time", "action", "state"):
        given[name] = np.array(given[name], dtype=np.float64)
    return RawEpisode(**given)


def choose_episode(log: Log, random: np.random.Generator) -> int | None:
    """Choose the position of a random episode with enough frames; None if there is none."""
    long = [row for row, record in enumerate(log) if len(record.time) >= _FEWEST]
    return int(random.choice(long)) if long else None


def moving_joints(record: RawEpisode) -> NDArray[np.intp]:
    """Return the columns of joints that move, both as measured and as commanded."""
    if not record.joints or record.command != "position" or record.action.shape != record.state.shape:
        return np.empty(0, dtype=np.intp)
    reach = np.minimum(np.ptp(record.state, axis=0), np.ptp(record.action, axis=0))
    return np.flatnonzero(reach > max(_MOVES * float(reach.max()), 1e-9))


def choose_joint(log: Log, row: int, random: np.random.Generator) -> int | None:
    """Choose the column of a random joint that moves in episode ``row``; None if there is none."""
    moving = moving_joints(log[row])
    return int(random.choice(moving)) if len(moving) else None


def choose_middle_row(record: RawEpisode, random: np.random.Generator) -> int:
    """Choose a random row in the second quarter of an episode."""
    return int(random.integers(len(record.time) // 4, len(record.time) // 2))


def replace_episode(log: Log, row: int, record: RawEpisode) -> Log:
    """Return the log with the episode at position ``row`` replaced by ``record``."""
    return [*log[:row], record, *log[row + 1 :]]


def change_from_row(log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int], None]) -> Planted | None:
    """Change one random episode in place by ``change(episode, row)``, from a row near its middle on."""
    row = choose_episode(log, random)
    if row is None:
        return None
    record = raw(log[row])
    at = choose_middle_row(record, random)
    change(record, at)
    return Planted(
        records=replace_episode(log, row, record), column="", episode=record.index, begin_s=float(record.time[at])
    )


def change_joint(
    log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int, int], float]
) -> Planted | None:
    """Change one joint of one random episode in place.

    Args:
        log: The log.
        random: Chooses episode, joint and row.
        change: Called with the episode, the joint's column and a row near the middle. Returns the time at which the
            defect
            begins, s; NaN if this joint cannot have it.
    """
    row = choose_episode(log, random)
    joint = None if row is None else choose_joint(log, row, random)
    if row is None or joint is None:
        return None
    record = raw(log[row])
    begin = change(record, joint, choose_middle_row(record, random))
    if math.isnan(begin):
        return None
    name = record.joints[joint]
    return Planted(records=replace_episode(log, row, record), column=name, episode=record.index, begin_s=begin)


def change_joint_everywhere(
    log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int], None]
) -> Planted | None:
    """Change one random joint in place in every episode, by ``change(episode, column)``."""
    row = choose_episode(log, random)
    joint = None if row is None else choose_joint(log, row, random)
    if row is None or joint is None:
        return None
    made = [raw(record) for record in log]
    for record in made:
        change(record, joint)
    first = next(record for record in log if joint in moving_joints(record))
    return Planted(records=made, column=first.joints[joint], episode=first.index, begin_s=float(first.time[0]))


def keep_rows(record: RawEpisode, rows: NDArray[np.bool_]) -> RawEpisode:
    """Keep the selected rows of an episode; signals, and commands with their own times, stay complete."""
    action = record.action if record.action_time is not None else record.action[rows]
    return replace(record, time=record.time[rows], state=record.state[rows], action=action)
