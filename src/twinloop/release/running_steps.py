"""What running an episode is made of: steps, events, what is asked for and what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.release.envelope import Ruling
from twinloop.release.running_robot import Seen

Array = NDArray[np.float64]
EventKind = Literal["held", "limited", "late", "stopped", "alarm", "policy", "robot", "slow", "hand"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened at a frame: what kind, and a sentence."""

    frame: int
    time_s: float
    kind: EventKind
    message: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """One control step. ``wanted`` is NaN where no command came; ``latency_s`` is how long the policy took for it.

    ``age_s`` is how old the observation behind the command was when it was sent; ``scores`` are a monitor's. ``sent``
    says whether the robot took the command; where it did not, ``issued`` is the last one that it took.
    """

    time_s: float
    seen: Seen
    wanted: Array
    issued: Array
    ruling: Ruling
    latency_s: float
    age_s: float
    scores: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    sent: bool = True


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a watcher says of a step: its scores, an alarm that ends the episode, or "", and ``notes`` that do not."""

    scores: Mapping[str, float] = field(default_factory=dict)
    alarm: str = ""
    notes: tuple[str, ...] = ()


class Watcher(Protocol):
    """Something that looks on, step by step: a monitor, or a policy in shadow."""

    def begin(self, episode: int) -> None:
        """An episode begins."""
        ...

    def look(self, seen: Seen, command: Array) -> Told:
        """What it makes of an observation and of the command that was sent after it ``(n,)``."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How an episode is run.

    Attributes:
        steps: control steps at most.
        patience_s: how long a policy's answer is waited for in seconds of the wall; None is the envelope's watchdog.
            A robot whose time stands still while one thinks may be given more.
        judge: says whether the task is done now; None where nobody can.
        stop_on_success: end there.
        interrupted: says whether a person wants it to stop.
    """

    steps: int
    patience_s: float | None = None
    judge: Callable[[], bool] | None = None
    stop_on_success: bool = False
    interrupted: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class Ran:
    """What came of an episode: its steps, its events, and why it ended early, or "".

    ``trip`` says what kind of end that was: ``stopped`` by the envelope, an ``alarm``, ``policy`` or ``robot`` lost,
    or ``hand`` where a person stopped it. ``success`` is the judge's, None where there was none. ``shadow`` are the
    figures of a policy in shadow, if one looked on.
    """

    episode: int
    policy: str
    steps: list[Step] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    trip: EventKind | None = None
    reason: str = ""
    success: bool | None = None
    shadow: Mapping[str, Any] | None = None

    @property
    def unsent(self) -> int:
        """Steps whose command the robot did not take."""
        return sum(not step.sent for step in self.steps)

    @property
    def rulings(self) -> dict[str, int]:
        """Commands that the robot took, by what the envelope made of them."""
        return dict(Counter(step.ruling.kind for step in self.steps if step.sent))

    @property
    def violations(self) -> int:
        """Steps at which the envelope had to hold or stop; a command that was only cut to the limits breaks none."""
        return sum(step.ruling.kind in ("held", "stopped") for step in self.steps)
