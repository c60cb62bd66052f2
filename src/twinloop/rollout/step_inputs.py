"""What acts on one world in every control step: functions of its commands and parameters since its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes
from twinloop.twin import Twin


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Controls ``(substeps, nu)``, wrenches ``(substeps, nbody, 6)`` or None, physics step in s or None: nominal."""

    controls: NDArray[np.float64]
    wrenches: NDArray[np.float64] | None
    timestep: float | None


def step_inputs(
    twin: Twin, params: ParamTable, initial: NDArray[np.float64], commands: NDArray[np.float64]
) -> Iterator[StepInputs]:
    """What acts in one control step after the other.

    Args:
        params: of the world, one row.
        initial: what the robot was told before, ``(1, nu)``.
        commands: ``(T, nu)``.
    """
    path, pushes = CommandPath(twin, params, initial), Pushes(twin, params)
    for command in commands:
        step, clock = path.step, path.clock
        controls = path.controls(command[None])[0]
        wrenches = pushes.wrenches(step, clock.began, clock.ratio)
        yield StepInputs(
            controls=np.broadcast_to(controls, (twin.substeps, twin.model.nu)),
            wrenches=None if wrenches is None else wrenches[0],
            # A loop that keeps time has the model's own physics step, to the bit.
            timestep=None if clock.steady else float(clock.timestep[0]),
        )
