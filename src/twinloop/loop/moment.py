"""A moment in which a twin moves, to look at it through its sensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable, SeedPath
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.render import Fields, SceneStates
from twinloop.render.cameras import intrinsics
from twinloop.rollout.camera_motion import PictureMotion
from twinloop.rollout.camera_shots import MovingWorld
from twinloop.rollout.substeps import Restepper
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin

_SECONDS = 4.0  # a hand's way to a thing and back
_EARLIEST = 0.5  # s; before that nothing has come up to speed, and cameras with a latency have shown nothing
_BUSY = 0.95  # quantile of the motion; the fastest moment of all is a jerk


class MovingTwin:
    """A twin whose robot is moved as by hand, from home; one without a robot is left to itself.

    Attributes:
        world: what a camera sees of it.
        table: its nominal parameters.
    """

    def __init__(self, twin: Twin, *, seed: int = 0) -> None:
        self.twin = twin
        self.table: ParamTable = twin.table(1).with_seeds(SeedPath.of(seed, [0]))
        initial, commands = InitialState.home(twin, 1), _commands(twin, seed)
        found = rollout(open_backend(nthread=1), twin, self.table, initial, commands[None], len(commands))
        states = found.states[0]
        again = Restepper(twin, self.table, states, commands, initial.command[0])
        self.world = MovingWorld(
            model=twin.model, time=states[:-1, 0], poses=again.poses_at, fields=_fields(twin, self.table)
        )
        self.states = SceneStates(**state_poses(twin.model, states[:-1]))

    def busiest(self, camera: str, *, height: int, width: int) -> float:
        """A time in s at which much moves in the pictures of a camera."""
        motion, fields = PictureMotion(self.twin.model, camera), self.world.fields(np.array([0]))
        pinhole = intrinsics(self.twin.model, camera, height=height, width=width, fields=fields)
        first = int(np.searchsorted(self.world.time, _EARLIEST))
        moved = np.array(
            [motion.pixels(self.states.take([i - 1, i]), fields, pinhole) for i in range(first, len(self.states))]
        )
        return float(self.world.time[first + int(np.argmin(np.abs(moved - np.quantile(moved, _BUSY))))])


def _commands(twin: Twin, seed: int) -> NDArray[np.float64]:
    """Commands ``(nstep, nu)`` in SI."""
    if twin.spec.robot is None:
        home = InitialState.home(twin, 1).command
        return np.tile(home, (round(_SECONDS * twin.control_hz), 1))
    return twin.units.to_si(teleop_commands(twin, seed=seed, episodes=[0], seconds=_SECONDS)[0])


def _fields(twin: Twin, table: ParamTable) -> Callable[[NDArray[np.intp]], Fields]:
    arrays = {name: values[0] for name, values in twin.fields(table, visual=True).arrays.items()}

    def fields(steps: NDArray[np.intp]) -> Fields:
        del steps  # nothing changes
        return arrays

    return fields
