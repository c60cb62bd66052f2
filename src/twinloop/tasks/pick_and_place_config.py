"""Define the settings of pick and place."""

from __future__ import annotations

from dataclasses import dataclass

NAME = "pick_and_place"


@dataclass(frozen=True, kw_only=True)
class PickAndPlaceConfig:
    """Settings of pick and place, in m, s and rad; settings without a default are in the twin's ``task:`` section.

    An episode succeeds if the object was raised by at least ``lifted`` and afterwards, for ``rest_time``, its centre is
    above the target disc, within ``height_tolerance`` of its initial height and slower than ``rest_speed`` and
    ``rest_spin``, and the hand is open and out of reach. Heights are measured from the plane of the target on the
    table. These limits and the duration are our choice, not a published range.

    Attributes:
        object: name of the object.
        target: name of the target's mocap body.
        x: range of object positions along x in which the scripted expert is designed to work.
        y: the same range along y.
        target_x: range of target positions along x in which the scripted expert is designed to work.
        target_y: the same range along y.
        grasp_height: height of the tool site at the grasp.
        lift_height: height of the tool site while carrying.
        target_radius: radius of the target's disc.
        approach_tilt: outward tilt of the hand at ``lift_height``.
        duration: length of an episode.
        joint_noise: largest deviation of an initial joint position from home; uniform.
        rest_speed: speed below which the object is at rest, in m/s.
        rest_spin: angular speed below which the object is at rest, in rad/s.
        rest_time: time for which the placed object must be at rest.
        height_tolerance: allowed difference of the placed object's height from its initial height.
        lifted: height above the initial height that counts as lifted.
    """

    object: str
    target: str
    x: tuple[float, float]
    y: tuple[float, float]
    target_x: tuple[float, float]
    target_y: tuple[float, float]
    grasp_height: float
    lift_height: float
    target_radius: float
    approach_tilt: float = 0.0
    duration: float = 6.0
    joint_noise: float = 0.02  # initial joint position, uniform ±; initial noise of 0.02 rad: squint
    rest_speed: float = 0.01
    rest_spin: float = 0.2
    rest_time: float = 0.2
    height_tolerance: float = 0.005
    lifted: float = 0.02
