"""The words that labels may use: failure classes, and what a workspace adds or narrows in ``labels.yaml``.

The classes of manipulation failures are ours; they divide a pick and place by the stage at which it went wrong and
add what goes wrong with any robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.yaml_documents import load_yaml

FILE = "labels.yaml"
UNKNOWN = "unknown"
FAILURES: Mapping[str, str] = {
    "never_reached": "the hand never came within reach of the object",
    "grasp_missed": "within reach, and the object was never held",
    "wrong_object": "another thing was taken than was asked for",
    "pushed_away": "the object was moved out of reach or knocked over before it was held",
    "dropped": "held, and lost before it was to be let go",
    "placed_off_target": "let go, and came to rest somewhere else than asked for",
    "not_released": "brought to its place and not let go",
    "timeout": "on its way when time was over",
    "collision": "the robot hit what it was not to touch",
    "stopped": "the robot stopped by itself: overload, a limit, a lost connection",
    "aborted": "a person ended it",
    "misunderstood": "another task was done than was asked for",
    "recording_fault": "what happened cannot be told from the recording",
    "diverged": "the simulation did not hold",
    "other": "none of these; say what in a reason or a tag",
    UNKNOWN: "whoever says so cannot tell",
}
SUBTASKS: Mapping[str, str] = {
    "reach": "from the beginning, or the last release, until the hand begins to close",
    "grasp": "until the object is held, or begins to rise",
    "lift": "up",
    "transport": "to where it goes; from joints alone with lift and place in it",
    "place": "down",
    "release": "while the hand opens",
    "retreat": "away, until the end or the next reach",
    UNKNOWN: "whoever says so cannot tell",
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Words by kind, each with its meaning. ``tags`` and ``subtasks`` are free where they are None."""

    failures: Mapping[str, str] = field(default_factory=lambda: FAILURES)
    subtasks: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None
    where: str = f"the built-in words, to which {FILE} in the workspace adds"

    @classmethod
    def of(cls, root: Path) -> Vocabulary:
        """The words of a workspace: the built-in failures and what its ``labels.yaml`` adds.

        ::

            failures: {slipped_on_felt: the object turned in the fingers}   # beside the built-in ones
            tags: {blurry: a camera is out of focus, night: lamps only}     # then no other tag is taken
            subtasks: {reach: …, insert: …}                                 # then no other subtask is taken

        Raises:
            InputError: the file is not such YAML; names the key.
        """
        path = root / FILE
        if not path.is_file():
            return cls()
        given: Any = load_yaml(path)
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise InputError(f"{path} is to hold the keys failures, tags and subtasks, each with words and meanings.")
        for key in given:
            if key not in ("failures", "tags", "subtasks"):
                raise UnknownNameError("key", str(key), ("failures", "tags", "subtasks"), where=str(path))
        words = {key: _words(value, f"{key} of {path}") for key, value in given.items()}
        return cls(
            failures={**FAILURES, **words.get("failures", {})},
            subtasks={**words["subtasks"], UNKNOWN: SUBTASKS[UNKNOWN]} if "subtasks" in words else None,
            tags=words.get("tags"),
            where=str(path),
        )

    def require(self, kind: str, value: str) -> None:
        """Refuse a word that is not in the vocabulary of its kind.

        Raises:
            UnknownNameError: names the nearest words.
        """
        known = {"failure": self.failures, "tag": self.tags, "subtask": self.subtasks}.get(kind)
        if known is not None and value not in known:
            noun = {"failure": "failure class", "tag": "tag", "subtask": "subtask"}[kind]
            where = (
                self.where if self.where != "the vocabulary" else f"the vocabulary; {FILE} in the workspace adds some"
            )
            raise UnknownNameError(noun, value, known, where=where)


def _words(value: Any, where: str) -> dict[str, str]:
    if isinstance(value, list):
        value = dict.fromkeys(value, "")
    if not isinstance(value, dict) or not all(isinstance(word, str) and word for word in value):
        raise InputError(f"{where} is to be a list of words, or words with meanings.")
    return {str(word): "" if meaning is None else str(meaning) for word, meaning in value.items()}
