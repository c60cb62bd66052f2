"""Define the format of a twin's YAML file, and check the content of such a file."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinloop.core.errors import InputError, UnknownNameError, nearest_names
from twinloop.core.units import CommandKind
from twinloop.twin.quantities import find_kind
from twinloop.twin.residual_spec import ResidualSpec
from twinloop.twin.scene_spec import SceneSpec

SCHEMA = 1
# Limits beyond which a simulation would not end: physics steps of 1 µs, one command in 1000 s.
MAX_STEPS_PER_SECOND = 1_000_000
MIN_CONTROL_HZ = 0.001
# rad or m; a value above 1 rad was probably meant in degrees: our choice.
Play = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Stiffness = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GripperSpec(_Strict):
    """Gripper of a robot.

    Attributes:
        joint: Name of the joint that opens and closes the gripper.
        open: Command that opens the gripper, in rad or m.
        closed: Command that closes the gripper, in rad or m.
    """

    joint: str
    open: float
    closed: float


class HandSpec(_Strict):
    """Hand of a robot.

    Attributes:
        tcp: Name of the site at its tool centre point.
        gripper: Joint and commands of its gripper.
    """

    tcp: str | None = None
    gripper: GripperSpec | None = None


class GearSpec(_Strict):
    """Gears between the motors and the links of a robot.

    A value applies to all joints, or is given by joint name; the key ``*`` gives the value of all other joints.

    Attributes:
        backlash: Total nominal backlash in rad or m; by default that of the servo preset.
        stiffness: Stiffness of elastic gears in N·m/rad or N/m; by default gears are rigid.
        feedback: Side of the gear with the encoder of the servo: ``link`` (output side, as in smart servos) or
            ``motor``.
    """

    backlash: Play | dict[str, Play] | None = None
    stiffness: Stiffness | dict[str, Stiffness] | None = None
    feedback: Literal["link", "motor"] = "link"


class RobotSpec(_Strict):
    """Actuated part of a twin: its joints, actuators and servos.

    Attributes:
        type: Type of the robot, for example ``so101_follower``.
        joints: Names of the joints.
        actuators: Name of the actuator of each joint; by default that of the joint. All actuators of the model must be
            listed, in the model's order.
        units: Unit of each joint in dataset files, in the order of ``joints``: deg, rad, mm, cm, m, range_m100_100 or
            range_0_100.
        control: Whether commands are positions, velocities or torques.
        encoder_counts: Encoder counts per turn; by default those of the servo preset. If neither is known, readings are
            not quantized.
        servo: Name of the servo preset (see ``servos.yaml``) whose values are written into the model, for all joints or
            by joint name; the key ``*`` gives the preset of all other joints.
        gears: Gears between motors and links, which split every joint into a motor side and a link side; None for
            direct coupling.
        tcp: Name of the site at the tool centre point.
        gripper: Joint and commands of the gripper.
        hands: Further hands of a robot with several arms, by name.
    """

    type: str
    joints: list[str]
    actuators: list[str] = []
    units: list[str]
    control: CommandKind = "position"
    encoder_counts: int | None = Field(default=None, gt=0)
    servo: str | dict[str, str] | None = None
    gears: GearSpec | None = None
    tcp: str | None = None
    gripper: GripperSpec | None = None
    hands: dict[str, HandSpec] = {}

    def find_hand(self, name: str = "") -> HandSpec:
        """Return the hand with a name, or the robot's main hand.

        Raises:
            UnknownNameError: If the robot has no such hand.
        """
        if not name:
            return HandSpec(tcp=self.tcp, gripper=self.gripper)
        if name not in self.hands:
            raise UnknownNameError("hand", name, self.hands, where=f"robot.hands of {self.type}")
        return self.hands[name]

    @property
    def missing_for_grasp(self) -> str:
        """The keys of the YAML that a grasp needs and that are not set, for messages; "" if both are."""
        needed = {"a tool site (robot.tcp)": self.tcp, "a gripper (robot.gripper)": self.gripper}
        return " and ".join(name for name, value in needed.items() if value is None)

    @property
    def actuator_names(self) -> list[str]:
        """Name of each joint's actuator, in the order of the joints."""
        return self.actuators or self.joints


class ParamSpec(_Strict):
    """Declaration of a parameter, or of several parameters if the name contains ``*``; all values are in SI units.

    If the declaration has no ``range``, ``op`` and ``source``, those of the quantity's default range are used.

    Attributes:
        name: Name of the parameter, for example ``joint/*/damping``.
        low: Lower physical bound; by default that of the quantity.
        high: Upper physical bound; by default that of the quantity.
        nominal: Nominal value; by default that of the model or the servo preset.
        range: Range of the default randomization, as ``op`` defines; None for none.
        op: Meaning of ``range``: ``absolute`` values, factors on the nominal value (``scale``), or values added to the
            nominal value (``add``).
        transform: Scale on which fits treat the parameter: linear (``identity``) or logarithmic (``log``).
        scope: How often a randomization draws a new value: per run, per episode or per control step.
        source: Reason for the range.
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
    """Sensor of a twin: its device, and the element of the model to which it is attached.

    Attributes:
        device: Name of a sensing device (see `twin.devices`), or of one in a YAML file of the user.
        camera: Name of the model's camera to which a camera or depth camera is attached; by default the sensor's name.
        site: Name of the model's site to which a lidar, inertial unit or force sensor is attached; by default the
            sensor's name.
        settings: Settings that replace those of the device.
    """

    device: str
    camera: str = ""
    site: str = ""
    settings: dict[str, str | bool | int | float | list[float] | list[int]] = {}


class AttachSpec(_Strict):
    """Another model that is added to the model of a twin, such as a robot on a stand or a tool on a flange.

    Attributes:
        model: Path of the MJCF or URDF file, relative to the YAML file, or ``package:NAME/PATH`` in a Python package.
            In a file, also such a reference to a YAML file with the keys ``model`` and ``params``, which the twin's own
            ``params`` can replace.
        prefix: Text before the names of all its elements, except its keyframes; by default none, which names that both
            models use do not allow.
        site: Name of the site at which its origin is fixed; by default the origin of the world.
        position: Position of its origin relative to that site or origin, x, y and z in m.
        yaw: Rotation about the z axis of that site or origin, in rad.
    """

    model: str
    prefix: str = ""
    site: str = ""
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    yaw: float = 0.0


class VisualsSpec(_Strict):
    """Another model whose visible geoms are shown instead of those of the twin's bodies, such as a maker's CAD meshes.

    Attributes:
        model: Path of the MJCF or URDF file, relative to the YAML file, or ``package:NAME/PATH`` in a Python package.
        bodies: Name of the other model's body by the twin's body, where their names differ.
    """

    model: str
    bodies: dict[str, str] = {}


class TwinSpec(_Strict):
    """Content of a twin's YAML file.

    Attributes:
        schema_: Version of the file format (key ``schema``).
        name: Name of the twin.
        description: Short description.
        model: Path of the MJCF or URDF file, relative to the YAML file, or ``package:NAME/PATH`` in a Python package.
        install: Command that installs the Python packages of its models, for the error message without them.
        remove: Names of bodies of the model that this twin does not have; a base's parameters and objects of these
            names are left out, too.
        attach: Other models that are added to it, in this order.
        visuals: Model whose visible geoms are shown instead of the twin's own; None for the twin's own.
        integrator: MuJoCo's integrator that replaces the one of the model; None for the model's own.
        control_hz: Control rate in commands per second.
        substeps: Physics steps per command.
        robot: Joints, actuators and servos of the robot; None for a twin without a robot.
        objects: Names of the bodies that tasks manipulate.
        cameras: Names of the model's cameras that policies and datasets use.
        sensors: Sensors by name.
        task: Settings of tasks: keys and values by task name.
        scene: Permanent objects and random clutter; None for the objects of the model only.
        classes: Semantic class for image annotations (see `render.annotate`), by name of a body, or by name of a geom
            that belongs to the world body (floor, table).
        residual: Motion that no parameter explains, which `twinloop identify --residual` writes; None for none.
        params: Declarations of the parameters with their ranges.
    """

    schema_: int = Field(alias="schema", default=SCHEMA, le=SCHEMA)
    name: str
    description: str = ""
    model: str
    install: str = ""
    remove: list[str] = []
    attach: list[AttachSpec] = []
    visuals: VisualsSpec | None = None
    integrator: Literal["Euler", "RK4", "implicit", "implicitfast", "discrete"] | None = None
    control_hz: float = Field(ge=MIN_CONTROL_HZ, le=MAX_STEPS_PER_SECOND, allow_inf_nan=False)
    substeps: int = Field(gt=0, le=MAX_STEPS_PER_SECOND)
    robot: RobotSpec | None = None
    objects: list[str] = []
    cameras: list[str] = []
    sensors: dict[str, SensorSpec] = {}
    task: dict[str, dict[str, Any]] = {}
    scene: SceneSpec | None = None
    classes: dict[str, Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]] = {}
    residual: ResidualSpec | None = None
    params: list[ParamSpec] = []

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        rate = self.control_hz * self.substeps
        if rate > MAX_STEPS_PER_SECOND:
            raise ValueError(
                f"control_hz × substeps are {rate:g} physics steps per second; at most {MAX_STEPS_PER_SECOND:,}"
            )
        return self


def parse_spec(value: Any, *, where: str) -> TwinSpec:
    """Check the content of a twin's YAML file and return it as a `TwinSpec`.

    Args:
        value: Content of the file as plain values.
        where: Name of the file, for error messages.

    Raises:
        InputError: If a key is missing or invalid; the message names every wrong key.
    """
    if value is None:
        raise InputError(f"{where} is empty. A twin needs at least name, model, control_hz and substeps.")
    try:
        return TwinSpec.model_validate(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=TwinSpec)) from error


def describe_errors(error: ValidationError, *, where: str, model: type[BaseModel] | None = None) -> str:
    """Return a message with one line per invalid key: its location, the error and the given value.

    Args:
        error: Error of pydantic.
        where: Name of the file, for the first line.
        model: Class that was validated; if given, unknown keys get a hint with the nearest existing key.
    """
    lines: dict[str, str] = {}
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"] if not _is_alternative(part)) or "(top)"
        if place in lines:  # error for another alternative of the same value
            lines[place] = f"{lines[place].rpartition(' (given: ')[0]}, or: {_format_error(item)}"
        else:
            lines[place] = _format_error(item)
        if model and item["type"] == "extra_forbidden":
            lines[place] += _suggest_key(item["loc"], model)
        elif model and item["type"] == "missing":
            lines[place] += _describe_key(item["loc"], model)
    return f"{where} has errors:\n" + "\n".join(f"  {place}: {text}" for place, text in lines.items())


def _format_error(item: Any) -> str:
    if item["type"] == "missing":
        return "This key is required, but missing"
    mapping = item["type"] in ("model_type", "model_attributes_type", "dict_type")
    text = "Input should be a mapping, `key: value`" if mapping else item["msg"].removeprefix("Value error, ")
    text = "This key does not exist" if item["type"] == "extra_forbidden" else text
    return f"{text} (given: {item['input']!r:.80})"


def _is_alternative(part: int | str) -> bool:
    """Return whether a part of an error location is an alternative of a union type rather than a key of the file."""
    return isinstance(part, str) and (part in ("float", "int", "str", "bool", "constrained-float") or "[" in part)


def _suggest_key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return a hint on an unknown key: the mapping that has this key, or the existing keys nearest to it.

    Args:
        location: Location of the unknown key as in pydantic's errors: keys and indices from the top of the file.
        model: Class that was validated.
    """
    name, within = str(location[-1]), _find_model(location[:-1], model)
    keys = _list_keys(within)
    near = nearest_names(name, keys, most=2)
    if near:
        return f". Nearest existing: {', '.join(near)}"
    owners = [key for key in keys if within and name in _list_keys(_find_model((key,), within))]
    if owners:
        return f". Move it into `{owners[0]}`"
    return f". Existing: {', '.join(keys)}" if keys else ""


def _describe_key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return the keys of a missing mapping, or the description of another missing key from its class's docstring."""
    from docstring_parser import parse

    *outer, name = location
    within, own = _find_model(tuple(outer), model), _find_model(location, model)
    if own is not None and own is not within:
        return f". It is a mapping with the keys {', '.join(_list_keys(own))}"
    described = {one.arg_name: one.description for one in parse(within.__doc__ or "").params} if within else {}
    text = " ".join((described.get(str(name)) or "").replace("``", "").split())
    return f": {text.removesuffix('.')}" if text else ""


def _list_keys(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _find_model(location: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the class of the value at a location of a file; None if the value is not a mapping with fixed keys."""
    found: type[BaseModel] | None = model
    for part in location:
        if found is not None and part in found.model_fields:  # else an index, a name in a mapping, or an alternative
            found = _inner_model(found.model_fields[str(part)].annotation)
    return found


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _inner_model(item))), None)
