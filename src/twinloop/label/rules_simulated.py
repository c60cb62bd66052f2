"""Rules that read the exact states of a simulated episode, as its task explains them: subtasks, the failure class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from twinloop.core.files import sha256_json
from twinloop.label.rule import UNKNOWN, Finding, Material
from twinloop.tasks.protocol import Task, is_explained
from twinloop.tasks.registry import TASKS


class SubtasksFromStates:
    """The phases of an episode as its task finds them in the states."""

    name = "subtask/states"
    version = "1"
    meaning = "phases of a simulated pick and place: hand closes, object rises, is carried, set down, let go"

    @property
    def hash(self) -> str:
        """See `Rule`."""
        return sha256_json([self.name, self.version])

    def label(self, material: Material) -> Sequence[Finding]:
        """See `Rule`: as many phases as there were, the last one until the end."""
        task, states = material.world, material.states
        if states is None or not is_explained(task):
            return [
                Finding(kind="subtask", value=UNKNOWN, reason=f"no states of a task with phases: {material.missing}")
            ]
        return ranges(task.phases(states, material.fps), material.frames, "what hand and object did in the states")


class FailureFromStates:
    """Why a simulated episode of a task failed, by the stage at which it did."""

    version = "1"

    def __init__(self, task: str = "") -> None:
        """``task``: the name of the task whose episodes are explained; of any task by default."""
        self._task, self._words = task, task.replace("_", " ") or "task"
        self.name = f"failure/{task}"
        self.meaning = f"failure class of a simulated {self._words} by the stage at which it went wrong"

    @property
    def hash(self) -> str:
        """See `Rule`."""
        return sha256_json([self.name, self.version])

    def label(self, material: Material) -> Sequence[Finding]:
        """See `Rule`; nothing of an episode that succeeded."""
        if material.reader.ours and not material.reader.appended(material.index):
            record = material.reader.provenance(material.index)
            if not record.valid:
                return [_failure("diverged", f"the world was lost: {record.invalid_reason}")]
        task, states = material.world, material.states
        if states is None or not is_explained(task) or not self._is_asked(task):
            return [_failure(UNKNOWN, f"it takes the states of a {self._words}: {material.missing}")]
        failed = task.failure(states, material.fps)
        return [_failure(*failed)] if failed else []

    def _is_asked(self, task: Task) -> bool:
        return not self._task or isinstance(task, cast("type", TASKS[self._task]))


def ranges(starts: Sequence[tuple[str, int | None]], frames: int, reason: str) -> list[Finding]:
    """Subtasks from where each begins to where the next one does; one that begins nowhere is left out."""
    known = [(word, min(start, frames)) for word, start in starts if start is not None]
    ends = [*(start for _, start in known[1:]), frames]
    return [
        Finding(kind="subtask", value=word, reason=reason, first_frame=start, last_frame=end - 1)
        for (word, start), end in zip(known, ends, strict=True)
        if end > start
    ]


def _failure(value: str, reason: str) -> Finding:
    return Finding(kind="failure", value=value, reason=reason)
