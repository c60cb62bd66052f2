"""The signals of a monitor and what each points to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "worn actuator",
    "latency",
    "unknown object",
    "moved tracker",
    "moved camera",
    "light",
    "unclear picture",
    "out of distribution",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a signal says: the cause it speaks for, and the words for a person.

    ``general`` signals see that something is unusual, not what: they speak only where nothing else does.
    """

    cause: Cause
    words: str
    general: bool = False


# Chosen on virtual robots 0 to 2; the tables of docs/monitoring.md are of others.
_CLEAR = 1.05  # times: signals of other causes are not that close
# The least likeness of a fault that is named, by its cause.
_ALIKE: Mapping[Cause, float] = {"worn actuator": 0.45, "latency": 0.45, "unknown object": 0.4}
_APART = 0.05  # by which the likeness of another cause's faults must be less
_EARLIER_S = 0.5  # by which drives that depart before the jaws do are not explained by what is in the jaws

_DRIVES: Mapping[str, Meaning] = {
    "friction": Meaning(cause="worn actuator", words="joints move as if their friction had grown"),
    "gain": Meaning(cause="worn actuator", words="servos pull as if weaker than they were"),
    "play": Meaning(cause="worn actuator", words="joints move as if the play of their gears had grown"),
    "latency": Meaning(cause="latency", words="the robot follows its commands later than it did"),
    "load": Meaning(cause="unknown object", words="the arm moves as if it carried another weight"),
    "any": Meaning(cause="unknown", words="the drives do not move as the twin says", general=True),
}
_OTHERS: Mapping[str, Meaning] = {
    "grip": Meaning(cause="unknown object", words="the jaws stop or move other than on what they knew"),
    "tracker": Meaning(cause="moved tracker", words="the tracker sees the hand where the joints say it is not"),
    "observation": Meaning(cause="out of distribution", words="readings or scene are unlike any success", general=True),
    "latent": Meaning(cause="out of distribution", words="the policy sees what it saw in no success", general=True),
    "chunk": Meaning(
        cause="out of distribution", words="the policy changes its mind from chunk to chunk", general=True
    ),
}
_CAMERA: Mapping[str, Meaning] = {
    "light": Meaning(cause="light", words="its pictures are lighter or darker"),
    "sharpness": Meaning(cause="unclear picture", words="its pictures are blurred or noisy"),
    "shift": Meaning(cause="moved camera", words="the still scene stands elsewhere in its pictures"),
}


def meaning(signal: str) -> Meaning:
    """What a signal says, such as ``drives/latency``, ``tracker`` or ``camera/front/shift``."""
    first, _, rest = signal.partition("/")
    if first == "drives":
        return _DRIVES[rest]
    if first == "camera":
        camera, _, kind = rest.rpartition("/")
        said = _CAMERA[kind]
        return Meaning(cause=said.cause, words=f"camera {camera}: {said.words}")
    return _OTHERS[first]


def cause_of(
    excess: Mapping[str, float],
    likeness: Mapping[str, float] | None = None,
    first: Mapping[str, int] | None = None,
    *,
    hz: float = 30.0,
) -> tuple[Cause, list[Cause]]:
    """What signals point to together, and the causes that come into question, the likeliest first.

    Of the drives a fault is named that the episode so far is like, and clearly more than like one of another cause. It
    shows in the jaws too, which then say nothing of their own; nor do they where the drives had departed before for no
    known reason. The signals of one cause count by the largest; a cause stands where it is clearly further beyond its
    limit than the next. General signals speak only where no other does.

    Args:
        excess: of signals beyond their limits, how many times the limit they reached.
        likeness: of the episode so far to each fault of the drives, see `judging.Drives.likeness`.
        first: steps at which they went beyond them.
        hz: steps per second.
    """
    left = {name: value for name, value in excess.items() if not name.startswith("drives/")}
    drives = {name: value for name, value in excess.items() if name.startswith("drives/")}
    strength: dict[Cause, float] = {}
    doubtful: list[Cause] = []
    if drives:
        named = _of_drives(likeness or {})
        if len(named) == 1:
            strength[named[0]] = max(drives.values())
        else:
            doubtful = named
        if "grip" in left and not _of_the_jaws(named, drives, first or {}, hz):
            left.pop("grip")
    special = {name: value for name, value in left.items() if not meaning(name).general}
    for name, value in special.items():
        cause = meaning(name).cause
        strength[cause] = max(strength.get(cause, 0.0), value)
    if not strength and not drives:
        strength = {meaning(name).cause: value for name, value in left.items()}
    order = sorted(strength, key=lambda cause: -strength[cause])
    if not order or (len(order) > 1 and strength[order[0]] < _CLEAR * strength[order[1]]):
        return "unknown", [*order, *doubtful]
    return order[0], order


def _of_the_jaws(named: list[Cause], drives: Mapping[str, float], first: Mapping[str, int], hz: float) -> bool:
    """Whether jaws that depart speak for what they hold, beside drives that do."""
    if len(named) == 1:
        return named[0] == "unknown object"
    earliest = min((first[name] for name in drives if name in first), default=0)
    return first.get("grip", 0) - earliest <= _EARLIER_S * hz


def _of_drives(likeness: Mapping[str, float]) -> list[Cause]:
    """The cause that the drives speak for; several where it is not clear, none where they are like no fault."""
    best: dict[Cause, float] = {}
    for name, value in likeness.items():
        cause = _DRIVES[name].cause
        best[cause] = max(best.get(cause, value), value)
    alike: list[Cause] = [cause for cause, value in best.items() if value >= _ALIKE[cause]]
    if not alike:
        return []
    near: list[Cause] = [cause for cause, value in best.items() if value > max(map(best.__getitem__, alike)) - _APART]
    return sorted(near, key=best.__getitem__, reverse=True)
