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


_CLEAR = 1.05  # times: faults that the SO-101's twin confuses are closer (measured while this was made)
_EXPLAINED = 0.35  # of the departure, as the cosine between them in whitened coefficients (our choice)

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
    excess: Mapping[str, float], ways: Mapping[str, float] | None = None, departed: float = 0.0
) -> tuple[Cause, list[Cause]]:
    """What signals point to together, and the causes that come into question, the likeliest first.

    Faults of the drives look alike, so only the one that explains the departure best is named, where it explains
    enough of it and clearly more than one of another cause. A drive's fault shows in the jaws too, which then say
    nothing of their own. The signals of one cause count by the largest; a cause stands where it is clearly further
    beyond its limit than the next. General signals speak only where no other does.

    Args:
        excess: of signals beyond their limits, how many times the limit they reached.
        ways: how far the coefficients of the drives went as each fault would move them, in standard deviations, over
            the time in which they were beyond a limit.
        departed: how far they went in all, then.
    """
    left = {name: value for name, value in excess.items() if not name.startswith("drives/")}
    drives = {name: value for name, value in excess.items() if name.startswith("drives/")}
    strength: dict[Cause, float] = {}
    doubtful: list[Cause] = []
    if drives:
        named = _of_drives(ways or {}, departed)
        if len(named) == 1:
            strength[named[0]] = max(drives.values())
        else:
            doubtful = named
        if named and named[0] in ("worn actuator", "latency"):
            left.pop("grip", None)
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


def _of_drives(ways: Mapping[str, float], departed: float) -> list[Cause]:
    """The cause of the fault that explains the departure best; several where it is not clear, none where none does."""
    best: dict[Cause, float] = {}
    for name, value in ways.items():
        cause = _DRIVES[name].cause
        best[cause] = max(best.get(cause, 0.0), value)
    order = sorted(best, key=lambda cause: -best[cause])
    if not order or best[order[0]] < _EXPLAINED * departed:
        return []
    return [cause for cause in order if best[order[0]] < _CLEAR * best[cause] or cause == order[0]]
