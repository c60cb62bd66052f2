"""Define the YAML format of a twin, and check it when it is read."""

from __future__ import annotations

import difflib
import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinloop.core.errors import InputError
from twinloop.twin.quantities import find_kind
from twinloop.twin.scene_spec import SceneSpec

SCHEMA = 1
# Limits beyond which a simulation would not end: physics steps of 1 µs, one command in 1000 s.
MOST_STEPS_PER_SECOND = 1_000_000
LEAST_CONTROL_HZ = 0.001
# rad or m; a value above 1 rad was probably meant in degrees: our choice.
Play = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Stiffness = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GripperSpec(_Strict):
    """Actuator that opens and closes the hand, and its two commands (rad or m)."""

    joint: str
    open: float
    closed: float


class GearSpec(_Strict):
    """Gears between motors and links.

    ``backlash`` is the total nominal backlash (rad or m), of all joints or by joint (``*``: the others); by default
    that of the servo preset. ``stiffness`` (N·m/rad or N/m) makes the gears elastic; without it they are rigid.
    ``feedback`` is the side of the gear with the servo's encoder; on a smart servo it is the output side.
    """

    backlash: Play | dict[str, Play] | None = None
    stiffness: Stiffness | dict[str, Stiffness] | None = None
    feedback: Literal["link", "motor"] = "link"


class RobotSpec(_Strict):
    """Actuated part of a twin.

    ``joints[i]`` is driven by ``actuators[i]`` (default: the actuator of the same name), and ``units[i]`` is its unit
    in files. The actuators are all those of the model, in the model's order. ``encoder_counts`` is the number of
    encoder counts per turn; without it, or a servo preset with it, readings are not quantized. ``servo`` names the
    preset (see ``servos.yaml``) whose numbers are written into the model, for all joints or by joint (``*``: the
    others). ``gears`` gives every joint a motor side and a link side with backlash between them.
    """

    type: str
    joints: list[str]
    actuators: list[str] = []
    units: list[str]
    control: Literal["position", "torque"] = "position"
    encoder_counts: int | None = Field(default=None, gt=0)
    servo: str | dict[str, str] | None = None
    gears: GearSpec | None = None
    tcp: str | None = None
    gripper: GripperSpec | None = None

    @property
    def actuator_names(self) -> list[str]:
        """Name of each joint's actuator."""
        return self.actuators or self.joints


class ParamSpec(_Strict):
    """Declaration of a parameter, or of a family of them if the name contains ``*``.

    ``low`` and ``high`` are physical bounds, ``range`` with ``op`` the default randomization, all in SI units. Without
    ``range`` and ``source``, both are those of the quantity's declaration.
    """

    name: str
    low: float | None = None
    high: float | None = None
    nominal: float | None = None
    range: tuple[float, float] | None = None
    op: Literal["absolute", "scale", "add"] = "absolute"
    transform: Literal["identity", "log"] | None = None
    scope: Literal["run", "episode", "step"] = "episode"
    source: str

    @model_validator(mode="before")
    @classmethod
    def _fill_declared_range(cls, row: Any) -> Any:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str) or {"range", "op", "source"} & row.keys():
            return row
        kind = find_kind(row["name"])
        if kind is None or kind.default_range is None:
            return row
        usual = kind.default_range
        return {**row, "range": (usual.low, usual.high), "op": usual.op, "source": usual.source}

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        for key, (first, last) in (("range", self.range or (0, 0)), ("bounds", (low, high))):
            if not first <= last:
                raise ValueError(f"the {key} of {self.name} must be [low, high], given [{first:g}, {last:g}]")
        return self


class SensorSpec(_Strict):
    """Sensing device of a twin (see `twin.devices`), and the camera or site of the model to which it is attached.

    A camera or depth camera is attached to the model's ``camera``, a lidar, inertial unit or force sensor to a
    ``site``; by default to the one with the sensor's name. ``settings`` override those of the device.
    """

    device: str
    camera: str = ""
    site: str = ""
    settings: dict[str, str | bool | int | float | list[float] | list[int]] = {}


class TwinSpec(_Strict):
    """Content of a twin's YAML file: model file, rate, robot, sensors, scene, and parameters with their ranges.

    ``classes`` overrides the semantic class of bodies, or geoms of the world, in `render.annotate`.
    """

    schema_: int = Field(alias="schema", default=SCHEMA, le=SCHEMA)
    name: str
    description: str = ""
    model: str
    control_hz: float = Field(ge=LEAST_CONTROL_HZ, le=MOST_STEPS_PER_SECOND, allow_inf_nan=False)
    substeps: int = Field(gt=0, le=MOST_STEPS_PER_SECOND)
    robot: RobotSpec | None = None
    objects: list[str] = []
    cameras: list[str] = []
    sensors: dict[str, SensorSpec] = {}
    task: dict[str, dict[str, Any]] = {}
    scene: SceneSpec | None = None
    classes: dict[str, Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]] = {}
    params: list[ParamSpec] = []

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        rate = self.control_hz * self.substeps
        if rate > MOST_STEPS_PER_SECOND:
            raise ValueError(
                f"control_hz × substeps are {rate:g} physics steps per second; at most {MOST_STEPS_PER_SECOND:,}"
            )
        return self


def parse_spec(value: Any, *, where: str) -> TwinSpec:
    """Check plain values and return their spec; ``where`` is their origin, for messages."""
    if value is None:
        raise InputError(f"{where} is empty. A twin needs at least name, model, control_hz and substeps.")
    try:
        return TwinSpec.model_validate(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=TwinSpec)) from error


def describe_errors(error: ValidationError, *, where: str, model: type[BaseModel] | None = None) -> str:
    """Return one line per wrong key: its location, the error and the value; with ``model`` also the nearest key."""
    lines: dict[str, str] = {}
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"] if not _is_alternative(part)) or "(top)"
        if place in lines:  # error for another alternative of the same value
            lines[place] = f"{lines[place].rpartition(' (given: ')[0]}, or: {_format_error(item)}"
        else:
            lines[place] = _format_error(item)
        if model and item["type"] == "extra_forbidden":
            lines[place] += _nearest_key(item["loc"], model)
    return f"{where} has errors:\n" + "\n".join(f"  {place}: {said}" for place, said in lines.items())


def _format_error(item: Any) -> str:
    mapping = item["type"] in ("model_type", "model_attributes_type", "dict_type")
    text = "Input should be a mapping, `key: value`" if mapping else item["msg"].removeprefix("Value error, ")
    return f"{text} (given: {item['input']!r:.80})"


def _is_alternative(part: int | str) -> bool:
    """Return whether a part of an error location is an alternative of the type rather than a key of the file."""
    return isinstance(part, str) and (part in ("float", "int", "str", "bool", "constrained-float") or "[" in part)


def _nearest_key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return a hint with the allowed keys nearest to a wrong one, or ""."""
    for part in location[:-1]:
        if part not in model.model_fields:  # an index in a list, a name in a mapping, or an alternative
            continue
        inner = _inner_model(model.model_fields[part].annotation)
        if inner is None:
            return ""
        model = inner
    keys = [field.alias or name for name, field in model.model_fields.items()]
    near = difflib.get_close_matches(str(location[-1]), keys, n=2, cutoff=0.4)
    return f". Nearest existing: {', '.join(near)}" if near else f". Existing: {', '.join(keys)}"


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _inner_model(item))), None)
