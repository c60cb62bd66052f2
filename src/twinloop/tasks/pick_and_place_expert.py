"""Control pick and place by a scripted expert.

The expert uses the true state of its world; the observations of a policy are recorded separately.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np

from twinloop.simulate import InitialState
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.tasks.arm import Arm
from twinloop.tasks.grasping import GraspFromAbove
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.waypoints import Waypoint, WaypointExpert


class ExpertPhase(IntEnum):
    """Phases of the scripted expert in order, from approaching the object (0) to returning home (8).

    The phases are APPROACH, DESCEND, CLOSE (the hand), LIFT, CARRY, LOWER, OPEN (the hand), RETREAT and HOME.
    """

    APPROACH = 0
    DESCEND = 1
    CLOSE = 2
    LIFT = 3
    CARRY = 4
    LOWER = 5
    OPEN = 6
    RETREAT = 7
    HOME = 8


class ExpertScene(Protocol):
    """Properties of the task `PickAndPlace` that the scripted expert uses.

    Attributes:
        arm: the arm.
        hand: the gripper.
    """

    arm: Arm
    hand: GripperHand

    def make_grasp(self, initial: InitialState, arrays: ArrayLibrary) -> GraspFromAbove:
        """Return the grasp and the placement in worlds that start in ``initial``, for arrays of a library."""
        ...


class PickAndPlaceExpert(WaypointExpert):
    """Scripted controller of pick and place for worlds that begin in given states; see `PickAndPlace.expert`.

    Args:
        task: the task.
        initial: initial states of the worlds.
        arrays: library of the arrays in `simulation.qpos` and in the returned commands, for example NumPy.
    """

    def __init__(self, task: ExpertScene, initial: InitialState, arrays: ArrayLibrary = HOST) -> None:
        self._task, self._initial = task, initial
        arm, grasp = task.arm, task.make_grasp(initial, arrays)
        home = Waypoint(name="home", position=arm.home_position, turn=0.0, gripper="home", seconds=0.8, patience=np.inf)
        waypoints = [*grasp.pick(), *grasp.place(), home]
        super().__init__(arm, initial, waypoints, frame=grasp.frame, hand=task.hand, arrays=arrays)

    def to_library(self, arrays: ArrayLibrary) -> PickAndPlaceExpert:
        """Return the same controller for arrays of another library, for example on a device."""
        return PickAndPlaceExpert(self._task, self._initial, arrays)
