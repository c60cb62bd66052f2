"""Define what a check of episodes is, what it says, and the form in which most are written: measure, then judge."""

from __future__ import annotations

import functools
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.core.extension import raised
from twinloop.core.files import sha256_file, sha256_json
from twinloop.core.plain import JsonRecord
from twinloop.curate.recording import RecordedEpisode

_ROOM = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (twinloop[\w.]*) import ", re.MULTILINE)
# What is followed further: rooms that measure. Of others, as of `dataset`, what is imported directly counts.
_FOLLOWED = ("twinloop.curate", "twinloop.stats", "twinloop.encoders", "twinloop.dataset.logs.checks")
# A list of names, which grows, and modules of which no figure comes.
_NO_FIGURES = (
    *("twinloop.curate.registry", "twinloop.core.errors", "twinloop.core.files", "twinloop.core.headline"),
    "twinloop.core.registry",
)


def source_hashes(kind: type) -> dict[str, str]:
    """SHA-256 of files by name: for a class of ours all of its package folder and the modules that those import.

    A class in a user's own file has that file, and what it imports of twinloop.
    """
    file = Path(inspect.getfile(kind)).resolve()
    ours = _ROOM in file.parents and file.parent != _ROOM
    return {path.name if path == file else _name(path): sha for path, sha in _hashes(file.parent if ours else file)}


@functools.lru_cache(maxsize=64)
def _hashes(place: Path) -> tuple[tuple[Path, str], ...]:
    found = set(place.glob("*.py")) if place.is_dir() else {place}
    waiting = sorted(found)
    while waiting:
        for module in _IMPORT.findall(waiting.pop().read_text(encoding="utf-8")):
            spec = None if module in _NO_FIGURES else find_spec(module)
            path = None if spec is None or spec.origin is None else Path(spec.origin)
            if path is not None and path not in found:
                found.add(path)
                waiting += [path] * module.startswith(_FOLLOWED)
    return tuple((path, sha256_file(path)) for path in sorted(found))


def _name(path: Path) -> str:
    """A file within twinloop, so that a hash does not depend on where it is installed."""
    root = _ROOM.parent
    return path.relative_to(root).as_posix() if root in path.parents else path.name


Verdict = Literal["good", "suspect", "bad", "unknown", "unreadable"]
VERDICTS: tuple[Verdict, ...] = ("unreadable", "bad", "suspect", "good", "unknown")
"""Worst first; what cannot be told is outweighed by whatever can."""
READABLE = "recording/readable"  # runs with whatever other checks; says nothing of the quality of what can be read
FAMILIES = ("physics", "recording", "demonstration", "learned")


@dataclass(frozen=True, kw_only=True)
class CheckScore(JsonRecord):
    """What a check says of one episode, or of one channel of it: a row of the catalog's table ``scores``.

    ``value`` is the figure in ``unit``, ``limit`` the figure from which on it is suspect; None where there is none.
    ``reason`` is one sentence for a person. ``first_frame`` to ``last_frame`` are concerned, None where all are.
    """

    episode_id: str
    check: str
    channel: str = ""
    value: float | None = None
    unit: str = ""
    limit: float | None = None
    verdict: Verdict = "good"
    reason: str = ""
    first_frame: int | None = None
    last_frame: int | None = None

    def badness(self) -> tuple[int, float]:
        """Larger is worse: by the verdict, then by how far the figure lies beyond its limit, on whichever side."""
        if self.check == READABLE and self.verdict == "good":
            return -len(VERDICTS), 0.0
        beyond = 0.0
        if self.verdict in ("suspect", "bad") and self.value is not None and self.limit:
            beyond = abs(self.value - self.limit) / abs(self.limit)
        return -VERDICTS.index(self.verdict), beyond


@runtime_checkable
class EpisodeCheck(Protocol):
    """A check of episodes.

    ``name`` is FAMILY/NAME, ``meaning`` one line for people, ``hash`` names its version and settings. ``score`` gives
    at least one score for every recording: ``unknown`` with the reason where it cannot tell.
    """

    name: str
    meaning: str

    @property
    def hash(self) -> str:
        """Names version and settings: scores of different hashes are not to be compared."""
        ...

    def score(self, recordings: Sequence[RecordedEpisode]) -> Iterable[CheckScore]:
        """Scores of all recordings, which may be measured against each other."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure of one channel of an episode, before it is known what is usual.

    ``value`` is None where it cannot be told, and ``said`` then says why; else ``said`` is the evidence in words.
    ``facts`` are further small things that the judgement needs. ``unreadable`` says that the episode is not to be
    judged at all: something of it cannot be read, or the check raised an error on it.
    """

    value: float | None
    channel: str = ""
    said: str = ""
    first_frame: int | None = None
    last_frame: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unreadable: bool = False


class MeasuringCheck(ABC):
    """A check in two steps: `measure` reads one episode and may run in another process; `judge` knows all figures.

    Subclasses set ``name``, ``meaning`` and ``unit``. ``reads`` are the parts of a recording that figures are made of:
    some of ``raw``, ``states`` and ``pictures``. Instances are picklable.
    """

    name: str
    meaning: str
    unit: str = ""
    reads: frozenset[str] = frozenset({"raw", "states", "pictures"})

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the check was told; part of its hash."""
        return {}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the sources that its figures come from, and its settings."""
        return sha256_json({"check": self.name, "sources": source_hashes(type(self)), "settings": dict(self.settings)})

    @abstractmethod
    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """The figures of one episode."""

    @abstractmethod
    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Scores of all episodes from the figures of each."""

    def measured(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return what `measure` does; where it raises, one figure that gives the reason.

        A built-in check raises what is no `DatasetError` where it does not apply. Any error of a check that somebody
        else wrote makes the episode unreadable.
        """
        try:
            return [_no_nan(row) for row in self.measure(recording)]
        except TwinloopError as error:
            own = type(self).__module__.startswith("twinloop.")
            return [Measurement(value=None, said=str(error), unreadable=isinstance(error, DatasetError) or not own)]
        except Exception as error:  # noqa: BLE001 - whatever it is, the episode was not checked
            return [Measurement(value=None, said=f"{self.name} raised {raised(error)}.", unreadable=True)]

    def score(self, recordings: Sequence[RecordedEpisode]) -> Iterator[CheckScore]:
        """See `EpisodeCheck`."""
        return self.judge(recordings, [self.measured(recording) for recording in recordings])

    def of(
        self,
        recording: RecordedEpisode,
        found: Measurement,
        verdict: Verdict,
        *,
        limit: float | None = None,
        reason: str = "",
    ) -> CheckScore:
        """A figure as a score; ``reason`` is by default what was said when it was measured."""
        return CheckScore(
            episode_id=recording.episode_id,
            check=self.name,
            channel=found.channel,
            value=None if found.value is None else float(found.value),
            unit=self.unit,
            limit=limit,
            verdict=verdict,
            reason=reason or found.said,
            first_frame=found.first_frame,
            last_frame=found.last_frame,
        )


def _no_nan(row: Measurement) -> Measurement:
    """Return a figure as unknown where it is NaN: nothing is above a limit that is NaN, and NaN is above none."""
    if row.value is None or not math.isnan(row.value):
        return row
    return replace(row, value=None, said=f"{row.said} The figure is not a number.".strip())


def worst(scores: Iterable[CheckScore]) -> dict[str, CheckScore]:
    """The worst score of each episode by its id; of equal verdicts the one furthest beyond its limit."""
    found: dict[str, CheckScore] = {}
    for score in scores:
        before = found.get(score.episode_id)
        if before is None or score.badness() > before.badness():
            found[score.episode_id] = score
    return found
