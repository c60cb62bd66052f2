"""Many checks over many recordings: each recording is read once, in several processes, and forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from twinloop.core.pool import Engine
from twinloop.curate.check import Check, Measured, MeasuringCheck, Score
from twinloop.curate.recording import Recording

_CHUNK = 8  # recordings that a process gets at a time


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Some recordings, and what is to be measured of each; it travels to another process."""

    recordings: tuple[Recording, ...]
    checks: tuple[MeasuringCheck, ...]


def score_all(
    recordings: Sequence[Recording],
    checks: Sequence[Check],
    engine: Engine,
    *,
    done: Callable[[int], None] = lambda _count: None,
) -> list[Score]:
    """The scores of every check, check by check.

    What can be measured of one recording alone is measured in the engine's processes, arrays are let go of as soon as
    a recording is measured, and only then is judged what is usual. Other checks run here.

    Args:
        recordings: of any folders; only those of one batch, robot and source are measured against each other.
        checks: what to look for.
        engine: where the work is done.
        done: told how many more recordings were measured.
    """
    measuring = tuple(check for check in checks if isinstance(check, MeasuringCheck))
    rows: list[list[Sequence[Measured]]] = [[] for _ in measuring]
    for work, measured in engine.map(_measured, _works(recordings, measuring)):
        for place, part in enumerate(measured):
            rows[place] += part
        done(len(work.recordings))
    found = {id(check): list(check.judge(recordings, part)) for check, part in zip(measuring, rows, strict=True)}
    scores = []
    for check in checks:
        scores += found[id(check)] if id(check) in found else list(check.score(recordings))
        for recording in recordings:
            recording.forget()
    return scores


def _works(recordings: Sequence[Recording], checks: tuple[MeasuringCheck, ...]) -> Iterator[_Work]:
    for begin in range(0, len(recordings) if checks else 0, _CHUNK):
        yield _Work(recordings=tuple(recordings[begin : begin + _CHUNK]), checks=checks)


def _measured(work: _Work) -> list[list[Sequence[Measured]]]:
    """The figures of each check, recording by recording."""
    rows: list[list[Sequence[Measured]]] = [[] for _ in work.checks]
    for recording in work.recordings:
        for place, check in enumerate(work.checks):
            rows[place].append(check.measured(recording))
        recording.forget()
    return rows
