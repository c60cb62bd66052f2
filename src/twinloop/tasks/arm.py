"""An arm at the beginning of an episode, as every task of an arm with position servos has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.command import command_map
from twinloop.tasks.kinematics import Chain
from twinloop.tasks.servo import ServoModel
from twinloop.twin import Twin


class Arm:
    """The home pose, the chain from the base to the tool site, and the servos of a twin's robot.

    Attributes:
        home: ``qpos`` of the home pose; ``home_command``: the command there.
    """

    def __init__(self, twin: Twin) -> None:
        """Raises: InputError where the robot names no tool site or has no position servos."""
        if twin.robot.tcp is None:
            raise InputError(f"The robot of {twin.name} names no tool site. Add `robot.tcp` to its YAML.")
        self.twin = twin
        self.home, self.home_command = twin.home()
        self.chain = Chain(twin.model, twin.robot.tcp, self.home)
        self.servo = ServoModel.of(twin, self.chain)

    def begin(
        self, params: ParamTable, noise: float, *, stream: str, run_seed: int, episodes: Sequence[int], attempt: int
    ) -> InitialState:
        """Return worlds whose arm is at home within ``noise`` (rad, uniform) and held still there.

        The command before the first is the one that holds the arm in its initial position under gravity, through the
        encoder's map and the servo's stiffness of that world.
        """
        chain, initial = self.chain, InitialState.home(self.twin, params.nworld)
        qpos = initial.qpos.copy()
        u = uniforms(run_seed, stream, episodes, size=chain.njoint, attempt=attempt)
        arm = np.clip(self.home[chain.qpos] + noise * (2.0 * u - 1.0), chain.limits[:, 0], chain.limits[:, 1])
        qpos[:, chain.qpos] = arm
        return dataclasses.replace(initial, qpos=self.twin.with_motors(qpos), command=self._holding(params, arm))

    def _holding(self, params: ParamTable, arm: NDArray[np.float64]) -> NDArray[np.float64]:
        servo, columns = self.servo, self.servo.actuators
        names = [f"actuator/{self.twin.robot.actuator_names[i]}/kp" for i in columns]
        ones = np.ones(params.nworld)
        pairs = zip(names, servo.stiffness, strict=True)
        stiffness = np.stack([params.get(name, ones * nominal) for name, nominal in pairs], axis=-1)
        offset, scale = command_map(self.twin, params)
        target = np.tile(self.home_command, (params.nworld, 1))
        target[:, columns] = arm + self.chain.gravity(self.chain.pose(arm)) / stiffness
        return (target - offset) / scale


def mocap_row(twin: Twin, name: str) -> int:
    """Return the row of a mocap body in ``mocap_pos``.

    Raises:
        UnknownNameError: no mocap body has that name.
    """
    model = twin.model
    rows = {model.body(b).name: int(model.body_mocapid[b]) for b in np.flatnonzero(model.body_mocapid >= 0)}
    if name not in rows:
        raise UnknownNameError("mocap body", name, rows, where=f"the twin {twin.name}")
    return rows[name]
