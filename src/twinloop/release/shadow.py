"""Compare the commands of a candidate in shadow with the commands of the acting champion, step by step."""

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
    """Difference of the commands of shadow and champion at one control step.

    Attributes:
        step: number of the step, from 0.
        difference: shadow minus champion for each of k joints, shape ``(k,)``, in the unit of the commands; NaN if the
            shadow gave no valid command.
        largest: largest absolute difference of any joint; NaN if unknown.
        fault: reason why the shadow's answer is not usable, or "".
    """

    step: int
    difference: NDArray[np.float64]
    largest: float
    fault: str


class ShadowLog:
    """Log of the commands of champion and shadow (candidate whose commands are computed but not sent) in one episode.

    The shadow has a fault at a step if its answer is not a number, has a wrong number of commands, or takes longer than
    ``budget_s``. As champion it would have given no valid command at that step.

    Args:
        names: names of the k joints; by default their numbers.
        quantile: level of the quantile, over the steps, of the largest difference of any joint between the two
            commands; this quantile is the metric of the episode.
        budget_s: longest time in s that an answer may take; None for no limit.
    """

    def __init__(self, names: Sequence[str] = (), *, quantile: float = 0.95, budget_s: float | None = None) -> None:
        self.names, self._quantile, self._budget = tuple(names), quantile, budget_s
        self._champion: list[NDArray[np.float64]] = []
        self._steps: list[ShadowDifference] = []

    def compare_step(
        self, commands_champion: ArrayLike, commands_shadow: ArrayLike | None, *, latency_s: float | None = None
    ) -> ShadowDifference:
        """Add one control step to the log, and return the difference of its commands.

        Args:
            commands_champion: command that was sent to the robot, shape ``(k,)``.
            commands_shadow: command of the shadow, shape ``(k,)``; None if it did not answer.
            latency_s: time in s that the shadow took; None if unknown.

        Raises:
            InputError: If the champion's command is not finite, or has another number of joints than before.
        """
        sent = np.asarray(commands_champion, dtype=np.float64).reshape(-1)
        self.names = self.names or tuple(str(joint) for joint in range(len(sent)))
        if len(sent) != len(self.names) or not np.isfinite(sent).all():
            raise InputError(
                f"Step {len(self._steps)}: the champion's command {sent.tolist()} must have one finite number for each "
                f"joint ({', '.join(self.names)}). Give the command that was sent to the robot."
            )
        answer, fault = _check_commands(commands_shadow, len(sent))
        if not fault and self._budget is not None and latency_s is not None and latency_s > self._budget:
            fault = f"answered after {latency_s:.3g} s, {self._budget:g} s were allowed"
        difference = answer - sent
        largest = float(np.abs(difference).max()) if np.isfinite(difference).all() else float("nan")
        step = ShadowDifference(step=len(self._steps), difference=difference, largest=largest, fault=fault)
        self._champion.append(sent)
        self._steps.append(step)
        return step

    @property
    def steps(self) -> tuple[ShadowDifference, ...]:
        """Differences at all steps so far."""
        return tuple(self._steps)

    def summary(self) -> dict[str, Any]:
        """Return the metrics of the episode by name.

        Differences are the shadow's command minus the sent command of the champion. ``value`` is compared with the
        stage's limit. It is a quantile, over the steps, of the largest absolute difference of any joint; 0 if no step
        has a valid command of the shadow. ``quantile`` is its level, from the settings of the stage. ``faults`` counts
        the steps without a usable answer, and ``fault`` describes the first of them. ``joints`` has the quantile of
        each joint, and ``joint`` is the joint with the largest one. ``rms`` is the root mean square over steps and
        joints.
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
        """Write all steps to a Parquet file.

        The columns are ``step``, ``champion/JOINT`` and ``shadow/JOINT`` for each joint, and ``fault``.
        """
        sent = np.array(self._champion).reshape(-1, len(self.names))
        off = np.array([one.difference for one in self._steps]).reshape(-1, len(self.names))
        columns: dict[str, Any] = {"step": np.arange(len(self._steps))}
        columns |= {f"champion/{name}": sent[:, j] for j, name in enumerate(self.names)}
        columns |= {f"shadow/{name}": (sent + off)[:, j] for j, name in enumerate(self.names)}
        columns["fault"] = [one.fault for one in self._steps]
        with atomic_open(path) as file:
            pq.write_table(pa.table(columns), file)


def _check_commands(commands: ArrayLike | None, joints: int) -> tuple[NDArray[np.float64], str]:
    """Check the command of the shadow (candidate whose commands are computed but not sent) at one control step.

    Args:
        commands: command of the shadow; None if it did not answer.
        joints: required number k of values.

    Returns:
        The command ``(k,)``, NaN if it is not valid; and the reason why it is not valid, or "".
    """
    nothing = np.full(joints, np.nan)
    if commands is None:
        return nothing, "gave no answer"
    given = np.asarray(commands, dtype=np.float64).reshape(-1)
    if len(given) != joints:
        return nothing, f"gave {len(given)} commands for {joints} joints"
    if not np.isfinite(given).all():
        return nothing, f"gave {given.tolist()}"
    return given, ""
