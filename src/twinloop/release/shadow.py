"""Compare the commands of a policy in shadow with those of the acting policy, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import atomic_open


@dataclass(frozen=True, kw_only=True)
class ShadowDifference:
    """Commands at one step: ``difference`` ``(k,)``, shadow minus champion, in their unit; NaN if not available."""

    step: int
    difference: NDArray[np.float64]
    largest: float
    fault: str


class ShadowLog:
    """Commands of champion and shadow in one episode.

    A shadow is at fault if its answer is not a number, has a wrong number of commands or comes after ``budget_s``: as
    champion it would have had no command to give.

    Args:
        names: names of the joints, ``(k,)``; by default their numbers.
        quantile: quantile of the steps' largest differences, which is the metric of the episode.
        budget_s: longest time for an answer in s; None means no limit.
    """

    def __init__(self, names: Sequence[str] = (), *, quantile: float = 0.95, budget_s: float | None = None) -> None:
        self.names, self._quantile, self._budget = tuple(names), quantile, budget_s
        self._champion: list[NDArray[np.float64]] = []
        self._steps: list[ShadowDifference] = []

    def compare_step(
        self, commands_champion: ArrayLike, commands_shadow: ArrayLike | None, *, latency_s: float | None = None
    ) -> ShadowDifference:
        """Compare the commands of one step.

        Args:
            commands_champion: the sent command, ``(k,)``.
            commands_shadow: the command of the shadow; None if it did not answer.
            latency_s: time that the shadow took, in s.

        Raises:
            InputError: the champion's commands are not finite numbers for the same joints as before.
        """
        sent = np.asarray(commands_champion, dtype=np.float64).reshape(-1)
        self.names = self.names or tuple(str(joint) for joint in range(len(sent)))
        if len(sent) != len(self.names) or not np.isfinite(sent).all():
            raise InputError(
                f"Step {len(self._steps)}: the champion sent {sent.tolist()} for {len(self.names)} joints "
                f"({', '.join(self.names)}). Compare commands that were sent."
            )
        meant, fault = _check_commands(commands_shadow, len(sent))
        if not fault and self._budget is not None and latency_s is not None and latency_s > self._budget:
            fault = f"answered after {latency_s:.3g} s, {self._budget:g} s were allowed"
        off = meant - sent
        largest = float(np.abs(off).max()) if np.isfinite(off).all() else float("nan")
        seen = ShadowDifference(step=len(self._steps), difference=off, largest=largest, fault=fault)
        self._champion.append(sent)
        self._steps.append(seen)
        return seen

    @property
    def steps(self) -> tuple[ShadowDifference, ...]:
        """All steps so far."""
        return tuple(self._steps)

    def summary(self) -> dict[str, Any]:
        """Return the metrics of the episode. ``value`` is the quantile for the limit; 0 if no step is comparable.

        ``faults`` counts steps without a usable answer, ``fault`` describes the first of them, ``joint`` is the joint
        with the largest difference, ``rms`` is over steps and joints.
        """
        off = np.array([one.difference for one in self._steps if np.isfinite(one.largest)]).reshape(-1, len(self.names))
        faults = [one.fault for one in self._steps if one.fault]
        sizes = np.abs(off)
        by_joint = np.quantile(sizes, self._quantile, axis=0) if len(off) else np.zeros(len(self.names))
        return {
            "steps": len(self._steps),
            "value": float(np.quantile(sizes.max(axis=1), self._quantile)) if off.size else 0.0,
            "quantile": self._quantile,
            "largest": float(sizes.max(initial=0.0)),
            "rms": float(np.sqrt(np.mean(off**2))) if off.size else 0.0,
            "joint": self.names[int(np.argmax(by_joint))] if len(by_joint) else "",
            "joints": dict(zip(self.names, by_joint.tolist(), strict=True)),
            "faults": len(faults),
            "fault": faults[0] if faults else "",
        }

    def write(self, path: Path) -> None:
        """Store every step as a Parquet table: step, joint columns ``champion/NAME`` and ``shadow/NAME``, fault."""
        sent = np.array(self._champion).reshape(-1, len(self.names))
        off = np.array([one.difference for one in self._steps]).reshape(-1, len(self.names))
        columns: dict[str, Any] = {"step": np.arange(len(self._steps))}
        columns |= {f"champion/{name}": sent[:, j] for j, name in enumerate(self.names)}
        columns |= {f"shadow/{name}": (sent + off)[:, j] for j, name in enumerate(self.names)}
        columns["fault"] = [one.fault for one in self._steps]
        with atomic_open(path) as file:
            pq.write_table(pa.table(columns), file)


def _check_commands(commands: ArrayLike | None, joints: int) -> tuple[NDArray[np.float64], str]:
    """Return the shadow's commands, NaN if invalid, and a description of the fault or ""."""
    nothing = np.full(joints, np.nan)
    if commands is None:
        return nothing, "gave no answer"
    given = np.asarray(commands, dtype=np.float64).reshape(-1)
    if len(given) != joints:
        return nothing, f"gave {len(given)} commands for {joints} joints"
    if not np.isfinite(given).all():
        return nothing, f"gave {given.tolist()}"
    return given, ""
