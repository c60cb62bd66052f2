"""Define the interface of episode checks and of their scores, and a base class for checks that measure, then judge."""

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

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (twinloop[\w.]*) import ", re.MULTILINE)
# Packages whose own imports count too. Of other packages, such as `dataset`, only the imported module counts.
_FOLLOWED_PACKAGES = ("twinloop.curate", "twinloop.stats", "twinloop.encoders", "twinloop.dataset.logs.checks")
# Modules that do not affect measured values. The registries of names change with every new check.
_UNRELATED_MODULES = (
    *("twinloop.curate.registry", "twinloop.core.errors", "twinloop.core.files", "twinloop.core.headline"),
    "twinloop.core.registry",
)


def hash_sources(kind: type) -> dict[str, str]:
    """Return the SHA-256 of the source files on which a check's values depend, by file name.

    For a built-in check these are all files of its package, for a user's check it is the user's file. The twinloop
    modules that these files import are added.

    Args:
        kind: class of the check.
    """
    file = Path(inspect.getfile(kind)).resolve()
    ours = _PACKAGE in file.parents and file.parent != _PACKAGE
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
            spec = None if module in _UNRELATED_MODULES else find_spec(module)
            path = None if spec is None or spec.origin is None else Path(spec.origin)
            if path is not None and path not in found:
                found.add(path)
                waiting += [path] * module.startswith(_FOLLOWED_PACKAGES)
    return tuple((path, sha256_file(path)) for path in sorted(found))


def _format_relative_path(path: Path) -> str:
    """Return a file's path relative to twinloop's folder, so that hashes do not depend on the installation folder."""
    root = _PACKAGE.parent
    return path.relative_to(root).as_posix() if root in path.parents else path.name


Verdict = Literal["good", "suspect", "bad", "unknown", "unreadable"]
VERDICTS: tuple[Verdict, ...] = ("unreadable", "bad", "suspect", "good", "unknown")
"""Verdicts, the worst first. ``unknown`` comes last, so that any other verdict takes precedence over it."""
READABLE = "recording/readable"  # always runs with the other checks; does not judge the quality of readable data
FAMILIES = ("physics", "recording", "demonstration", "learned")


@dataclass(frozen=True, kw_only=True)
class CheckScore(JsonRecord):
    """Score of one episode, or of one channel of an episode, by one check; a row of the catalog's table ``scores``.

    Attributes:
        episode_id: id of the episode.
        check: name of the check, for example ``recording/blur``.
        channel: joint, camera or signal to which the score belongs; "" for the whole episode.
        value: measured value in ``unit``; None if it cannot be determined.
        unit: unit of the value and of the limit.
        limit: value from which the verdict is ``suspect``; None if there is no limit.
        verdict: ``good``, ``suspect``, ``bad``, ``unknown`` or ``unreadable``.
        reason: one sentence that explains the verdict to the user.
        first_frame: first frame with the defect; None for the whole episode.
        last_frame: last frame with the defect; None for the whole episode.
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
        """Return a sort key that is larger for worse scores: the verdict, then the relative excess over the limit."""
        if self.check == READABLE and self.verdict == "good":
            return -len(VERDICTS), 0.0
        beyond = 0.0
        if self.verdict in ("suspect", "bad") and self.value is not None and self.limit:
            beyond = abs(self.value - self.limit) / abs(self.limit)
        return -VERDICTS.index(self.verdict), beyond


@runtime_checkable
class EpisodeCheck(Protocol):
    """Protocol of checks that score the quality of episodes.

    Attributes:
        name: FAMILY/NAME, for example ``recording/blur``.
        meaning: one line that describes the tested defect to the user.
    """

    name: str
    meaning: str

    @property
    def hash(self) -> str:
        """Hash of the check's version and settings; scores with different hashes must not be compared."""
        ...

    def score(self, recordings: Sequence[RecordedEpisode]) -> Iterable[CheckScore]:
        """Return at least one score for every recording; the check may compare the recordings with each other.

        If an episode cannot be judged, its verdict is ``unknown`` and its score gives the reason.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measured value of one channel of an episode, before it is judged against a limit or other episodes.

    Attributes:
        value: measured value in the check's unit; None if it cannot be determined.
        channel: joint, camera or signal that was measured; "" for the whole episode.
        text: text for the score's reason: the evidence, or why there is no value.
        first_frame: first frame with the defect; None for the whole episode.
        last_frame: last frame with the defect; None for the whole episode.
        facts: further small values that `MeasuringCheck.judge` needs.
        unreadable: whether the episode is excluded from judgement, because a part of it cannot be read or the check
            raised an error.
    """

    value: float | None
    channel: str = ""
    text: str = ""
    first_frame: int | None = None
    last_frame: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unreadable: bool = False


class MeasuringCheck(ABC):
    """Base class of checks with two steps: `measure` reads one episode, `judge` compares the values of all episodes.

    `measure` may run in other processes, so instances must be picklable. Subclasses set the attributes.

    Attributes:
        name: FAMILY/NAME, for example ``recording/blur``.
        meaning: one line that describes the tested defect to the user.
        unit: unit of the measured values.
        reads: parts of a recording on which the values depend: ``raw`` (joints, commands and signals), ``states``
            (simulator states) and ``images``; see `RecordedEpisode`.
    """

    name: str
    meaning: str
    unit: str = ""
    reads: frozenset[str] = frozenset({"raw", "states", "images"})

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the check that affect its scores; they are part of its hash."""
        return {}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the check's name, its settings, and the source files on which its values depend."""
        return sha256_json({"check": self.name, "sources": hash_sources(type(self)), "settings": dict(self.settings)})

    @abstractmethod
    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the measured values of one episode, for example one per joint or camera."""

    @abstractmethod
    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield the scores of all episodes from their measured values.

        Args:
            recordings: the episodes.
            measured: the result of `measure` for each of the episodes, in the same order.
        """

    def measure_safely(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the result of `measure`, or one measurement that holds the reason if `measure` raises an error.

        A `DatasetError`, and any error of a user's own check, marks the episode as unreadable. Other `TwinloopError`s
        of a built-in check mean that the check does not apply to the episode.
        """
        try:
            return [_replace_nan(row) for row in self.measure(recording)]
        except TwinloopError as error:
            own = type(self).__module__.startswith("twinloop.")
            return [Measurement(value=None, text=str(error), unreadable=isinstance(error, DatasetError) or not own)]
        except Exception as error:  # noqa: BLE001 - any error means that the episode was not checked
            return [Measurement(value=None, text=f"{self.name} raised {describe_error(error)}.", unreadable=True)]

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
        """Return the score of a measured value.

        Args:
            recording: the measured episode.
            found: the measured value.
            verdict: verdict on the value.
            limit: value from which the verdict is ``suspect``; None if there is no limit.
            reason: one sentence for the user; by default the text of the measurement.
        """
        return CheckScore(
            episode_id=recording.episode_id,
            check=self.name,
            channel=found.channel,
            value=None if found.value is None else float(found.value),
            unit=self.unit,
            limit=limit,
            verdict=verdict,
            reason=reason or found.text,
            first_frame=found.first_frame,
            last_frame=found.last_frame,
        )


def _replace_nan(row: Measurement) -> Measurement:
    """Replace a NaN value by None, because every comparison of NaN with a limit is false."""
    if row.value is None or not math.isnan(row.value):
        return row
    return replace(row, value=None, text=f"{row.text} The value is not a number.".strip())


def select_worst_scores(scores: Iterable[CheckScore]) -> dict[str, CheckScore]:
    """Return the worst score of each episode, by episode id.

    Among scores with the same verdict it is the one whose value exceeds its limit most.
    """
    found: dict[str, CheckScore] = {}
    for score in scores:
        before = found.get(score.episode_id)
        if before is None or score.badness() > before.badness():
            found[score.episode_id] = score
    return found
