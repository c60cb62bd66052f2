"""An episode as a file has it, before anything is checked.

Importers make these; `RawEpisode.episode` turns one into the `Episode` that the other rooms work with and refuses
what is no episode. Checks that look for defects read the raw one, because a defect is what the strict one refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import Episode, Signal, Source, StoredSimulation
from twinloop.core.units import UnitMap


@dataclass(frozen=True, kw_only=True)
class RawEpisode:
    """The fields of an `Episode`, unchecked: there may be NaN, times that repeat or go backwards, or no frame at all.

    ``time`` ``(T,)`` and ``state`` ``(T, n)`` belong together, and ``action`` ``(T, n)`` too, unless ``action_time``
    ``(K,)`` says that commands have times of their own: then ``action`` is ``(K, n)``. Both count from the same zero.
    ``notes`` say how the file was read, where there was a choice.
    """

    index: int
    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]
    units: UnitMap
    action_time: NDArray[np.float64] | None = None
    task: str = ""
    source: Source = "real"
    origin: str = ""
    robot_type: str = ""
    command: Literal["position", "torque", "none"] = "position"
    signals: Mapping[str, Signal] = field(default_factory=dict[str, Signal])
    conditions: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    simulation: StoredSimulation | None = None

    @classmethod
    def of(cls, episode: Episode) -> RawEpisode:
        """What has been checked, as what is to be."""
        return cls(**{item.name: getattr(episode, item.name) for item in fields(episode)})

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    def __len__(self) -> int:
        return len(self.time)

    def episode(self) -> Episode:
        """The checked record. A command with a time of its own counts from then until the next one.

        Frames before the first command are left out, because nothing says what held then.

        Raises:
            LogError: as `Episode`; commands whose times do not increase, or none before the last frame.
        """
        shared = self._shared()
        if self.action_time is None or self.command == "none":
            return Episode(time=self.time, action=self.action, state=self.state, **shared)
        where = f"Episode {self.index} of {self.origin or 'the log'}"
        _check_commands(self.action_time, where)
        held = np.searchsorted(self.action_time, self.time, side="right") - 1
        begun = held >= 0
        if not begun.any():
            raise LogError(
                f"{where}: the first command is at {self.action_time[0]:.6f} s, after the last measurement. "
                "The two have different clocks, or this is another run's command topic."
            )
        return Episode(time=self.time[begun], action=self.action[held[begun]], state=self.state[begun], **shared)

    def _shared(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "units": self.units,
            "task": self.task,
            "source": self.source,
            "origin": self.origin,
            "robot_type": self.robot_type,
            "command": self.command,
            "signals": self.signals,
            "conditions": self.conditions,
            "simulation": self.simulation,
        }


def _check_commands(time: NDArray[np.float64], where: str) -> None:
    """Refuse commands whose times cannot be searched."""
    if not len(time):
        raise LogError(f"{where} holds measurements and no command. Leave it out, or say that nothing was commanded.")
    wrong = np.flatnonzero(~np.isfinite(time[1:]) | ~(np.diff(time) > 0)) + 1
    if not np.isfinite(time[0]) or len(wrong):
        at = int(wrong[0]) if np.isfinite(time[0]) else 0
        raise LogError(
            f"{where}: the time of command {at} is {time[at]:.6f} s, which does not increase. "
            "Sort the commands or remove duplicates before importing."
        )
