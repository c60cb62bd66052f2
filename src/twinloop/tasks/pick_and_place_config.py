"""Define the settings of pick and place, and read them from the twin's ``task:`` section."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

NAME = "pick_and_place"


@dataclass(frozen=True, kw_only=True)
class PickAndPlaceConfig:
    """Settings of the task, in m, s and rad; those without a default are in the twin's ``task:`` section.

    ``x``, ``y``, ``target_x``, ``target_y`` are the region of the expert. The next settings are geometry: height of the
    tool site at the grasp and while carrying, outward tilt of the hand at that height, radius of the target.
    ``duration`` is the length of an episode.

    Success: the object was raised by at least ``lifted``; afterwards, for ``rest_time``, its centre is above the target
    disc, within ``height_tolerance`` of its initial height and slower than ``rest_speed`` and ``rest_spin``, and the
    hand is open and out of reach. Heights are measured from the plane of the target on the table. These limits and the
    duration are our choice, not a published range.
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

    @classmethod
    def of(cls, twin: Twin) -> PickAndPlaceConfig:
        """Return the settings in the task section of a twin.

        Raises:
            InputError: the twin has no such section, or a key is missing.
            UnknownNameError: the section has an unknown key.
        """
        where = f"task.{NAME} of the twin {twin.name}"
        section = twin.spec.task.get(NAME)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        if section is None:
            raise InputError(f"The twin {twin.name} has no section task.{NAME}. Add one with {', '.join(required)}.")
        for key in section:
            if key not in fields:
                raise UnknownNameError("key", key, fields, where=where)
        missing = [name for name in required if name not in section]
        if missing:
            raise InputError(f"{where} lacks {', '.join(missing)}. Add it to the twin's YAML.")
        try:
            return TypeAdapter(cls).validate_python(section)
        except ValidationError as error:
            raise InputError(describe_errors(error, where=where)) from error
