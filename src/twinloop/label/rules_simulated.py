"""Rules that read the exact states of a simulated pick and place: subtasks, and the failure class."""

from __future__ import annotations

from collections.abc import Sequence

from twinloop.core.files import sha256_json
from twinloop.label.placing import Placing
from twinloop.label.rule import UNKNOWN, Finding, Material


class SubtasksFromStates:
    """The phases of a pick and place by what hand and object did."""

    name = "subtask/states"
    version = "1"
    meaning = "phases of a simulated pick and place: hand closes, object rises, is carried, set down, let go"

    @property
    def hash(self) -> str:
        """See `Rule`."""
        return sha256_json([self.name, self.version])

    def label(self, material: Material) -> Sequence[Finding]:
        """See `Rule`: as many phases as there were, the last one until the end."""
        placing = Placing.of(material)
        if placing is None:
            return [Finding(kind="subtask", value=UNKNOWN, reason=f"no states of a pick and place: {material.missing}")]
        starts = [("reach", 0), ("grasp", placing.closing)]
        if placing.held is not None:
            starts.append(("lift", placing.held))
            if placing.carrying is not None:
                starts += [("transport", placing.carrying[0]), ("place", placing.carrying[1])]
            starts += [("release", placing.opening_again), ("retreat", placing.leaving)]
        return ranges(starts, material.frames, "what hand and object did in the states")


class FailureFromStates:
    """Why a simulated pick and place failed, by the stage at which it did."""

    name = "failure/pick_and_place"
    version = "1"
    meaning = "failure class of a simulated pick and place by the stage at which it went wrong"

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
        placing = Placing.of(material)
        if placing is None:
            return [_failure(UNKNOWN, f"it takes the states of a pick and place: {material.missing}")]
        if placing.done[-1]:
            return []
        return [_failure(*_class(placing, material.fps))]


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


def _class(placing: Placing, fps: float) -> tuple[str, str]:
    """The class of an episode that did not end in success, and why."""
    nearest = float(placing.distance.min())
    if placing.reached is None:
        return "never_reached", (
            f"the tool came within {1000 * nearest:.0f} mm of the object, and touches it from "
            f"{1000 * placing.reach:.0f} mm on"
        )
    if placing.held is None:
        if float(placing.way.max()) > placing.radius and placing.distance[-1] > placing.reach:
            return "pushed_away", f"the object was moved {1000 * placing.way.max():.0f} mm and never lifted"
        closed = "closed" if placing.closing is not None else "never closed"
        return "grasp_missed", (
            f"the hand {closed} within reach, and the object rose {1000 * max(placing.rise.max(), 0.0):.0f} mm "
            f"where {1000 * placing.lifted:.0f} mm count as lifted"
        )
    if placing.lost is not None:
        return "dropped", f"lost from the closed hand at {placing.lost / fps:.2f} s"
    return _class_of_placed(placing, fps)


def _class_of_placed(placing: Placing, fps: float) -> tuple[str, str]:
    """The class of an episode whose object was lifted and not lost."""
    over = placing.aside[-1] <= placing.radius
    low = abs(float(placing.rise[-1])) <= placing.tolerance
    if placing.opening_again is None:
        if over and placing.rise[-1] < placing.lifted:
            return "not_released", "the object is down at its place and the hand still closed at the end"
        return "timeout", f"still in the hand at the end, {1000 * placing.aside[-1]:.0f} mm from the target"
    released = placing.opening_again
    if placing.rise[released] > placing.lifted:
        return "dropped", (
            f"the hand opened at {released / fps:.2f} s with the object {1000 * placing.rise[released]:.0f} mm up"
        )
    if not over or (not low and placing.left[-1]):
        return "placed_off_target", (
            f"let go at {released / fps:.2f} s and ended {1000 * placing.aside[-1]:.0f} mm from the target's centre "
            f"(within {1000 * placing.radius:.0f} mm is on it), {1000 * placing.rise[-1]:+.0f} mm in height"
        )
    return "timeout", "let go on the target, and time was over before the hand was out of reach and the object at rest"
