"""Define the interface of episode checks, their scores, and their usual form: measure, then judge."""

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
from twinloop.core.extension import describe_error
from twinloop.core.files import sha256_file, sha256_json
from twinloop.core.plain import JsonRecord
from twinloop.curate.recording import RecordedEpisode

_ROOM = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (twinloop[\w.]*) import ", re.MULTILINE)
# Packages whose imports are followed further. Of other packages, such as `dataset`, only direct imports count.
_FOLLOWED = ("twinloop.curate", "twinloop.stats", "twinloop.encoders", "twinloop.dataset.logs.checks")
# Modules that do not affect measured values, and a registry of names, which grows.
_NO_FIGURES = (
    *("twinloop.curate.registry", "twinloop.core.errors", "twinloop.core.files", "twinloop.core.headline"),
    "twinloop.core.registry",
)


def hash_sources(kind: type) -> dict[str, str]:
    """Return the SHA-256 of the source files that a check's values depend on, by file name.

    They are the files of a built-in class's package, or the user's own file, and the modules that these import.
    """
    file = Path(inspect.getfile(kind)).resolve()
    ours = _ROOM in file.parents and file.parent != _ROOM
    return {
        path.name if path == file else _format_relative_path(path): sha
        for path, sha in _hash_files(file.parent if ours else file)
    }


@functools.lru_cache(maxsize=64)
def _hash_files(place: Path) -> tuple[tuple[Path, str], ...]:
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


def _format_relative_path(path: Path) -> str:
    """Return a file's path within twinloop, so that a hash does not depend on the installation folder."""
    root = _ROOM.parent
    return path.relative_to(root).as_posix() if root in path.parents else path.name


Verdict = Literal["good", "suspect", "bad", "unknown", "unreadable"]
VERDICTS: tuple[Verdict, ...] = ("unreadable", "bad", "suspect", "good", "unknown")
"""Verdicts, worst first; ``unknown`` comes last, so that any other verdict outweighs it."""
READABLE = "recording/readable"  # always runs with the other checks; does not judge the quality of readable data
FAMILIES = ("physics", "recording", "demonstration", "learned")


@dataclass(frozen=True, kw_only=True)
class CheckScore(JsonRecord):
    """Score of one episode, or of one of its channels, by one check: a row of the catalog's table ``scores``.

    ``value`` is the measured value in ``unit``, ``limit`` the value from which it is suspect, None if there is none.
    ``reason`` is one sentence for people. ``first_frame`` to ``last_frame`` are the frames concerned, None for all.
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
        """Return a sort key, larger is worse: first the verdict, then the distance of the value beyond its limit."""
        if self.check == READABLE and self.verdict == "good":
            return -len(VERDICTS), 0.0
        beyond = 0.0
        if self.verdict in ("suspect", "bad") and self.value is not None and self.limit:
            beyond = abs(self.value - self.limit) / abs(self.limit)
        return -VERDICTS.index(self.verdict), beyond


@runtime_checkable
class EpisodeCheck(Protocol):
    """A check of episodes.

    ``name`` is FAMILY/NAME, ``meaning`` one line for people, ``hash`` identifies version and settings. ``score`` gives
    at least one score for every recording: ``unknown`` with a reason if it cannot be determined.
    """

    name: str
    meaning: str

    @property
    def hash(self) -> str:
        """Hash of version and settings; scores with different hashes must not be compared."""
        ...

    def score(self, recordings: Sequence[RecordedEpisode]) -> Iterable[CheckScore]:
        """Return the scores of all recordings; the check may compare recordings with each other."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured value of one channel of an episode, before it is compared with other episodes.

    ``value`` is None if it cannot be determined; ``said`` is then the reason, else the evidence in words. ``facts`` are
    other small values that `MeasuringCheck.judge` needs. ``unreadable`` excludes the episode from judgement: a part of
    it cannot be read, or the check raised an error.
    """

    value: float | None
    channel: str = ""
    said: str = ""
    first_frame: int | None = None
    last_frame: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unreadable: bool = False


class MeasuringCheck(ABC):
    """A check in two steps: `measure` reads one episode and may run in another process; `judge` compares all values.

    Subclasses set ``name``, ``meaning`` and ``unit``. ``reads`` are the parts of a recording that the values depend on:
    some of ``raw``, ``states`` and ``pictures``. Instances are picklable.
    """

    name: str
    meaning: str
    unit: str = ""
    reads: frozenset[str] = frozenset({"raw", "states", "pictures"})

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the check; part of its hash."""
        return {}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the source files that the values depend on, and of the settings."""
        return sha256_json({"check": self.name, "sources": hash_sources(type(self)), "settings": dict(self.settings)})

    @abstractmethod
    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the measured values of one episode."""

    @abstractmethod
    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield scores of all episodes from their measured values."""

    def measure_safely(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the result of `measure`; if it raises an error, return one unknown value with the reason.

        A built-in check that does not apply raises an error other than `DatasetError`. Any error of a user's check
        makes the episode unreadable.
        """
        try:
            return [_replace_nan(row) for row in self.measure(recording)]
        except TwinloopError as error:
            own = type(self).__module__.startswith("twinloop.")
            return [Measurement(value=None, said=str(error), unreadable=isinstance(error, DatasetError) or not own)]
        except Exception as error:  # noqa: BLE001 - any error means that the episode was not checked
            return [Measurement(value=None, said=f"{self.name} raised {describe_error(error)}.", unreadable=True)]

    def score(self, recordings: Sequence[RecordedEpisode]) -> Iterator[CheckScore]:
        """Measure every recording, then judge all measured values."""
        return self.judge(recordings, [self.measure_safely(recording) for recording in recordings])

    def make_score(
        self,
        recording: RecordedEpisode,
        found: Measurement,
        verdict: Verdict,
        *,
        limit: float | None = None,
        reason: str = "",
    ) -> CheckScore:
        """Return the score of a measured value; ``reason`` is by default the text of the measurement."""
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


def _replace_nan(row: Measurement) -> Measurement:
    """Replace NaN by an unknown value, because every comparison of NaN with a limit is false."""
    if row.value is None or not math.isnan(row.value):
        return row
    return replace(row, value=None, said=f"{row.said} The value is not a number.".strip())


def select_worst_scores(scores: Iterable[CheckScore]) -> dict[str, CheckScore]:
    """Return the worst score of each episode by its id; among equal verdicts the one furthest beyond its limit."""
    found: dict[str, CheckScore] = {}
    for score in scores:
        before = found.get(score.episode_id)
        if before is None or score.badness() > before.badness():
            found[score.episode_id] = score
    return found
