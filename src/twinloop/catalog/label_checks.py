"""Check labels before they are written: kind, value, author, episode and frames.

The built-in failure classes of manipulation are our own choice. They divide a pick-and-place task by the phase that
failed, and add failures that occur on any robot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, Literal, get_args

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.yaml_documents import load_yaml

if TYPE_CHECKING:
    from twinloop.catalog.state import OpenWorkspace


FILE = "labels.yaml"
UNKNOWN = "unknown"
FAILURES: Mapping[str, str] = {
    "never_reached": "the hand never came within reach of the object",
    "grasp_missed": "the hand was within reach, but the object was never held",
    "wrong_object": "another object was taken than the task requires",
    "pushed_away": "the object was moved out of reach or knocked over before it was held",
    "dropped": "the object was held, and lost before the release",
    "placed_off_target": "the object was released and came to rest at a wrong place",
    "not_released": "the object was brought to its place and not released",
    "timeout": "the task was not finished when the time was over",
    "collision": "the robot hit something that it must not touch",
    "stopped": "the robot stopped by itself: overload, a limit, a lost connection",
    "aborted": "a person ended it",
    "misunderstood": "another task was done than the given one",
    "recording_fault": "the recording does not show the outcome",
    "diverged": "the simulation diverged",
    "other": "none of these; describe it in a reason or a tag",
    UNKNOWN: "the author cannot decide",
}
SUBTASKS: Mapping[str, str] = {
    "reach": "from the beginning, or the last release, until the hand begins to close",
    "grasp": "until the object is held, or begins to rise",
    "lift": "up",
    "transport": "to the target; from joints alone it includes lift and place",
    "place": "down",
    "release": "while the hand opens",
    "retreat": "away, until the end or the next reach",
    UNKNOWN: "the author cannot decide",
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Allowed values of the label kinds failure, subtask and tag.

    Attributes:
        failures: failure classes with their meanings.
        subtasks: subtasks with their meanings; None allows any subtask.
        tags: tags with their meanings; None allows any tag.
        where: origin of the vocabulary, for error messages.
    """

    failures: Mapping[str, str] = field(default_factory=lambda: FAILURES)
    subtasks: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None
    where: str = f"the built-in words, to which {FILE} in the workspace adds"

    @classmethod
    def of(cls, root: Path) -> Vocabulary:
        """Return the vocabulary of a workspace: the built-in failure classes and the content of its ``labels.yaml``.

        An example of the file::

            failures: {slipped_on_felt: the object turned in the fingers}   # in addition to the built-in ones
            tags: {blurry: a camera is out of focus, night: lamps only}     # allows no other tags
            subtasks: {reach: …, insert: …}                                 # allows no other subtasks

        Raises:
            UnknownNameError: If the file has an unknown key.
            InputError: If the file does not have this form.
        """
        path = root / FILE
        if not path.is_file():
            return cls()
        given: Any = load_yaml(path)
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise InputError(f"{path} must have the keys failures, tags and subtasks, each with words and meanings.")
        for key in given:
            if key not in ("failures", "tags", "subtasks"):
                raise UnknownNameError("key", str(key), ("failures", "tags", "subtasks"), where=str(path))
        words = {key: _parse_words(value, f"{key} of {path}") for key, value in given.items()}
        return cls(
            failures={**FAILURES, **words.get("failures", {})},
            subtasks={**words["subtasks"], UNKNOWN: SUBTASKS[UNKNOWN]} if "subtasks" in words else None,
            tags=words.get("tags"),
            where=str(path),
        )

    def require(self, kind: str, value: str) -> None:
        """Raise an error if the vocabulary restricts the values of a label kind and does not contain ``value``.

        Raises:
            UnknownNameError: If the value is not in the vocabulary.
        """
        known = {"failure": self.failures, "tag": self.tags, "subtask": self.subtasks}.get(kind)
        if known is not None and value not in known:
            noun = {"failure": "failure class", "tag": "tag", "subtask": "subtask"}[kind]
            raise UnknownNameError(noun, value, known, where=self.where)


def _parse_words(value: Any, where: str) -> dict[str, str]:
    if isinstance(value, list):
        value = dict.fromkeys(value, "")
    if not isinstance(value, dict) or not all(isinstance(word, str) and word for word in value):
        raise InputError(f"{where} must be a list of words, or words with meanings.")
    return {str(word): "" if meaning is None else str(meaning) for word, meaning in value.items()}


Source = Literal["hand", "rule", "model"]
SOURCES: tuple[Source, ...] = get_args(Source)  # in order of priority if they contradict each other
KINDS = ("success", "failure", "subtask", "language", "tag", "number/NAME")
YES, NO = "yes", "no"
_YES, _NO = {"yes", "true", "1", "success"}, {"no", "false", "0", "failure"}
_MOST_TEXT = 20_000  # maximum characters of one value; a hostile file may have millions


@dataclass(frozen=True, kw_only=True)
class Label:
    """Statement about an episode, or about some of its frames.

    Attributes:
        episode_id: the episode.
        kind: ``success`` (value yes or no), ``failure`` (a failure class), ``subtask`` (a word, with frames),
            ``language`` (a text, for some or all frames), ``tag`` (a word), or ``number/NAME`` (a number).
        value: the value as text. A success, a failure, or a subtask without frames may be ``unknown``, which means that
            the author cannot decide.
        source: who made the label: ``hand`` (a person), ``rule`` or ``model``.
        author: name of the person, rule or model.
        first_frame: first frame to which the label applies; None for the whole episode.
        last_frame: last frame to which the label applies, included.
        author_hash: hash of the rule or model.
        confidence: confidence of the author, from 0 to 1.
        reason: reason, in one sentence.
    """

    episode_id: str
    kind: str
    value: str
    source: Source
    author: str
    first_frame: int | None = None
    last_frame: int | None = None
    author_hash: str | None = None
    confidence: float | None = None
    reason: str | None = None

    @property
    def slot(self) -> str:
        """Part of the key of a label: the tag itself for a tag, else empty.

        A newer label replaces earlier labels with the same author, episode, kind and slot. Different tags have
        different slots, so that an author may give an episode several tags.
        """
        return self.value if self.kind == "tag" else ""

    @property
    def where(self) -> str:
        """Short description of the label for error messages: kind, value and episode."""
        return f"{self.kind} {self.value[:40]!r} of episode {self.episode_id[:12]}"


def validate_label(label: Label, words: Vocabulary) -> Label:
    """Check a label; return it with its value in the stored form, such as ``yes`` for ``True``.

    Args:
        label: the label.
        words: the allowed values of failures, subtasks and tags.

    Raises:
        UnknownNameError: If the kind, the source or the value does not exist.
        InputError: If the value, the author, the frames or the confidence is invalid.
    """
    require_kind(label.kind)
    if label.source not in SOURCES:
        raise UnknownNameError("source", label.source, SOURCES, where=f"the label {label.where}")
    if not label.author or "\x00" in label.author + label.value or len(label.value) > _MOST_TEXT:
        raise InputError(
            f"The label {label.where} has no author, a zero byte, or more than {_MOST_TEXT} characters. Correct it."
        )
    if label.confidence is not None and not 0.0 <= label.confidence <= 1.0:
        raise InputError(f"The label {label.where} has the confidence {label.confidence}; it must be between 0 and 1.")
    value = _normalize_value(label)
    words.require(label.kind, value)
    _require_range(label, value)
    return replace(label, value=value)


def require_kind(kind: str) -> None:
    """Raise an error if a kind of label does not exist.

    Raises:
        UnknownNameError: If the kind does not exist.
    """
    known = {"success", "failure", "subtask", "language", "tag"}
    if kind not in known and not (kind.startswith("number/") and len(kind) > len("number/")):
        raise UnknownNameError("kind of label", kind, KINDS)


def _normalize_value(label: Label) -> str:
    value = label.value.strip()
    if not value:
        raise InputError(f"The {label.kind} of episode {label.episode_id[:12]} is empty. Give a value, or retract it.")
    if label.kind == "success":
        word = value.lower()
        if word not in _YES | _NO | {UNKNOWN}:
            raise InputError(f"The label {label.where} is neither yes nor no. Write yes, no or unknown.")
        return YES if word in _YES else NO if word in _NO else UNKNOWN
    if label.kind.startswith("number/"):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"The label {label.where} is not a finite number.")
        return repr(number)
    if label.kind in ("subtask", "tag") and not value.isprintable():
        raise InputError(f"The label {label.where} has a line break or another control character. Write a word.")
    return value


def _require_range(label: Label, value: str) -> None:
    first, last = label.first_frame, label.last_frame
    if (first is None) != (last is None):
        raise InputError(f"The label {label.where} has only one of first and last frame. Give both, or neither.")
    if first is not None and last is not None and not 0 <= first <= last:
        raise InputError(
            f"The label {label.where} has the frames {first} to {last}. Frames count from 0, the smaller one first."
        )
    if label.kind == "subtask" and value != UNKNOWN and first is None:
        raise InputError(f"The label {label.where} has no frames, but a subtask needs them. Write {value}:FIRST-LAST.")
    if first is not None and label.kind not in ("subtask", "language", "tag"):
        raise InputError(f"The label {label.where} has frames, but a {label.kind} applies to the whole episode.")


def require_consistent_labels(labels: Sequence[Label]) -> None:
    """Raise an error if labels of one author, episode and kind contradict each other.

    Raises:
        InputError: If the labels have two values for the same frames, subtasks overlap, or a subtask with frames is
            given together with ``unknown``.
    """
    one = labels[0]
    who = f"{one.source}:{one.author} gives"
    if one.kind == "subtask":
        ranged = sorted((x for x in labels if x.first_frame is not None), key=lambda x: x.first_frame or 0)
        for early, late in pairwise(ranged):
            if (early.last_frame or 0) >= (late.first_frame or 0):
                raise InputError(
                    f"{who} {early.value} until frame {early.last_frame} and {late.value} from frame "
                    f"{late.first_frame} of episode {one.episode_id[:12]}; one author's subtasks must not overlap."
                )
        if len(ranged) not in (0, len(labels)):
            raise InputError(f"{who} subtasks and the value unknown, for episode {one.episode_id[:12]}. Keep one.")
    places = [(x.first_frame, x.last_frame) for x in labels]
    if len(set(places)) < len(places):
        values = ", ".join(dict.fromkeys(x.value[:40] for x in labels))
        raise InputError(
            f"{who} {one.kind} {len(labels)} times for episode {one.episode_id[:12]} ({values}). Give it once."
        )


def require_episodes(ws: OpenWorkspace, labels: Sequence[Label]) -> None:
    """Raise an error if the episode of a label does not exist, is excluded, or is shorter than the label's frames.

    Raises:
        UnknownNameError: If an episode is not in the catalog.
        InputError: If an episode is excluded, or a label ends after the episode's last frame.
    """
    names = sorted({label.episode_id for label in labels})
    table = ws.query("SELECT episode_id, frames FROM episodes")
    frames = dict(zip(table["episode_id"].to_pylist(), table["frames"].to_pylist(), strict=True))
    missing = [name for name in names if name not in frames]
    if missing:
        _raise_missing(ws, missing)
    for label in labels:
        if label.last_frame is not None and label.last_frame >= frames[label.episode_id]:
            raise InputError(
                f"The label {label.where} ends at frame {label.last_frame}; the episode has the frames 0 to "
                f"{frames[label.episode_id] - 1}."
            )


def _raise_missing(ws: OpenWorkspace, missing: Sequence[str]) -> None:
    excluded = ws.query("SELECT episode_id, reason FROM tombstones").to_pylist()
    reasons = {row["episode_id"]: row["reason"] for row in excluded}
    for name in missing:
        if name in reasons:
            raise make_excluded_error(name, reasons[name])
    known = ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist()
    raise UnknownNameError("episode", missing[0], known, where=f"{ws.root}, which has {len(known)} episodes")


def refuse_excluded(connection: Connection, episode_ids: set[str]) -> None:
    """Raise an error if one of the episodes is excluded.

    It runs within the write transaction, because another process may have excluded an episode after `require_episodes`.

    Raises:
        InputError: If an episode is excluded.
    """
    for name, reason in connection.execute("SELECT episode_id, reason FROM tombstones"):
        if name in episode_ids:
            raise make_excluded_error(name, reason)


def make_excluded_error(name: str, reason: str) -> InputError:
    """Return the error for an excluded episode with id ``name`` and the recorded reason of its exclusion."""
    return InputError(f"Episode {name[:12]} is excluded ({reason}). Include it with `Workspace.include_episodes`.")
