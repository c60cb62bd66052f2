"""What a planted defect is, and the ways by which one enters a log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.logs.checks.finding import LogRecord
from twinloop.dataset.logs.importers.protocol import RawEpisode

Log = list[RawEpisode]
_MOVES = 0.05  # of the widest joint's reach: a joint that moves less is not planted into
_FEWEST = 100


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A log with a defect, and the truth about it.

    ``column`` is "" where all of it are concerned and "*" where any joint may be named; ``begin_s`` is NaN where no
    moment is meant.
    """

    records: Log
    column: str
    episode: int
    begin_s: float


Plant = Callable[[Log, np.random.Generator], Planted | None]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A mistake that can be made on purpose.

    ``finds`` are the kinds of finding that name it; ``also`` are kinds that are true of the planted log besides.
    ``plant`` returns None for a log that cannot have it.
    """

    name: str
    finds: frozenset[str]
    also: frozenset[str]
    plant: Plant


DEFECTS: dict[str, Defect] = {}


def defect(name: str, *finds: str, also: Sequence[str] = ()) -> Callable[[Plant], Plant]:
    """Enter a function among the defects."""

    def register(plant: Plant) -> Plant:
        DEFECTS[name] = Defect(name=name, finds=frozenset(finds), also=frozenset(also), plant=plant)
        return plant

    return register


def raw(record: LogRecord) -> RawEpisode:
    """An episode whose arrays may be written to; they are copies."""
    given = {f.name: getattr(record, f.name) for f in fields(RawEpisode) if hasattr(record, f.name)}
    for name in ("time", "action", "state"):
        given[name] = np.array(given[name], dtype=np.float64)
    return RawEpisode(**given)


def some_episode(log: Log, random: np.random.Generator) -> int | None:
    """The position of an episode with enough frames."""
    long = [row for row, record in enumerate(log) if len(record.time) >= _FEWEST]
    return int(random.choice(long)) if long else None


def moving_joints(record: RawEpisode) -> NDArray[np.intp]:
    """Joints that move, both measured and by command."""
    if not record.joints or record.command != "position" or record.action.shape != record.state.shape:
        return np.empty(0, dtype=np.intp)
    reach = np.minimum(np.ptp(record.state, axis=0), np.ptp(record.action, axis=0))
    return np.flatnonzero(reach > max(_MOVES * float(reach.max()), 1e-9))


def some_joint(log: Log, row: int, random: np.random.Generator) -> int | None:
    """A joint that moves in an episode."""
    moving = moving_joints(log[row])
    return int(random.choice(moving)) if len(moving) else None


def middle_row(record: RawEpisode, random: np.random.Generator) -> int:
    """A row in the second quarter of an episode."""
    return int(random.integers(len(record.time) // 4, len(record.time) // 2))


def with_episode(log: Log, row: int, record: RawEpisode) -> Log:
    """The log with one episode in another's place."""
    return [*log[:row], record, *log[row + 1 :]]


def in_time(log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int], None]) -> Planted | None:
    """One episode changed in place from a row in its middle on."""
    row = some_episode(log, random)
    if row is None:
        return None
    record = raw(log[row])
    at = middle_row(record, random)
    change(record, at)
    return Planted(
        records=with_episode(log, row, record), column="", episode=record.index, begin_s=float(record.time[at])
    )


def in_joint(log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int, int], float]) -> Planted | None:
    """One episode whose joint is changed in place.

    Args:
        log: the log.
        random: chooses episode, joint and row.
        change: of the episode, the joint's column and a row in the middle; returns when the defect begins, NaN where
            this joint cannot have it.
    """
    row = some_episode(log, random)
    joint = None if row is None else some_joint(log, row, random)
    if row is None or joint is None:
        return None
    record = raw(log[row])
    begin = change(record, joint, middle_row(record, random))
    if math.isnan(begin):
        return None
    name = record.joints[joint]
    return Planted(records=with_episode(log, row, record), column=name, episode=record.index, begin_s=begin)


def of_all(log: Log, random: np.random.Generator, change: Callable[[RawEpisode, int], None]) -> Planted | None:
    """One joint changed in place in every episode."""
    row = some_episode(log, random)
    joint = None if row is None else some_joint(log, row, random)
    if row is None or joint is None:
        return None
    made = [raw(record) for record in log]
    for record in made:
        change(record, joint)
    first = next(record for record in log if joint in moving_joints(record))
    return Planted(records=made, column=first.joints[joint], episode=first.index, begin_s=float(first.time[0]))


def keep(record: RawEpisode, rows: NDArray[np.bool_]) -> RawEpisode:
    """Some of an episode's frames; commands with times of their own, and signals, stay whole."""
    action = record.action if record.action_time is not None else record.action[rows]
    return replace(record, time=record.time[rows], state=record.state[rows], action=action)
