"""Read sensing devices with values from data sheets or measurements, and convert them to parameters of a twin.

This folder has one YAML file per type of device. The ``settings`` of a device describe its design (lens type, beam
pattern, image size) and are the same in every world. Its ``values`` are the nominal values of the parameters
``sensor/<name>/<quantity>`` of a twin with the device. Quantities that a device does not define keep their default,
which is that of an ideal sensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import mujoco
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin.quantities.kinds import DeviceKind
from twinloop.twin.quantities.sensing import SENSING, SENSOR_TEXT
from twinloop.twin.spec import ParamSpec, RobotSpec, SensorSpec, describe_errors

_IDEAL = "value of an ideal sensor; the device file has none"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourcedValue(_Strict):
    """Value of a device's quantity, with its source.

    Attributes:
        value: Value in the quantity's unit.
        source: Data sheet, measurement or reason.
        range: Range for default randomization, as ``op`` defines; None for none.
        op: Meaning of ``range``: ``absolute`` values, factors on the value (``scale``), or values added to it
            (``add``).
    """

    value: float
    source: str
    range: tuple[float, float] | None = None
    op: Literal["absolute", "scale", "add"] = "absolute"

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.range and not self.range[0] <= self.range[1]:
            raise ValueError(f"the range must be [low, high], given {list(self.range)}")
        return self


class DeviceSetting(_Strict):
    """Setting of a sensing device, the same in every world, with its source."""

    value: str | bool | int | float | list[float] | list[int]
    source: str


class SensingDevice(_Strict):
    """Type of camera, lidar or other sensor, with its settings and values.

    Attributes:
        name: Name of the device.
        kind: Type of device, which determines its quantities.
        description: Manufacturer and model.
        settings: Settings by name, which are the same in every world.
        values: Values by quantity name, from which parameters are made.
    """

    name: str
    kind: DeviceKind
    description: str
    settings: dict[str, DeviceSetting] = {}
    values: dict[str, SourcedValue] = {}


@cache
def device_presets() -> Mapping[str, SensingDevice]:
    """Return all built-in sensing devices by name."""
    presets: dict[str, SensingDevice] = {}
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        presets.update(read_devices(file))
    return presets


def read_devices(file: Path) -> dict[str, SensingDevice]:
    """Return the sensing devices of one YAML file by name.

    A device with the key ``base`` inherits the settings and values of another device of the file.

    Raises:
        InputError: If a key or a value is invalid; the message names file and key.
        UnknownNameError: If a device has a quantity that its type does not have.
    """
    rows = load_yaml(file)
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise InputError(f"{file} holds no devices. Write one mapping per device, with kind, description and values.")
    devices = {}
    for name in rows:
        try:
            device = SensingDevice.model_validate(_merge_base_rows(rows, name, file))
        except ValidationError as error:
            raise InputError(describe_errors(error, where=f"{file.name}: {name}", model=SensingDevice)) from error
        known = [quantity.quantity for quantity in SENSING if quantity.device == device.kind]
        for key in device.values:
            if key not in known:
                raise UnknownNameError(f"{device.kind} quantity", key, known, where=f"{file.name}: {name}")
        devices[name] = device
    return devices


def _merge_base_rows(rows: Mapping[str, Any], name: str, file: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Merge the content of a device into the content of the devices that it is based on.

    Args:
        rows: Content of the YAML file: the keys and values of each device, by device name.
        name: Name of the device.
        file: Path of the YAML file, for error messages.
        above: Devices whose chain of bases led to this device, to detect a cycle.
    """
    row, above = rows[name], (*above, name)
    for key in ("settings", "values"):
        if not isinstance(row.get(key, {}), dict):
            raise InputError(f"{file}: {name}.{key} is a mapping, `NAME: {{value: …, source: …}}`; given {row[key]!r}.")
    base = row.get("base")
    if base is None:
        return {**row, "name": name}
    if base not in rows or base in above:
        others = [other for other in rows if other not in above]
        raise UnknownNameError("device", str(base), others, where=f"{file}: base of {name}")
    below = _merge_base_rows(rows, base, file, above)
    merged = {key: {**below.get(key, {}), **row.get(key, {})} for key in ("settings", "values")}
    return {**below, **{key: value for key, value in row.items() if key != "base"}, **merged, "name": name}


def find_device(name: str, *, where: str, folder: Path | None = None) -> SensingDevice:
    """Return a built-in sensing device, or one from a YAML file of the user.

    Args:
        name: Name of a built-in device, ``FILE.yaml`` for the first device of a file, or ``FILE.yaml:NAME``.
        where: Place in which the name is used, for error messages.
        folder: Folder of the file; by default the current folder.

    Raises:
        UnknownNameError: If there is no such device or file.
    """
    path, _, chosen = name.partition(".yaml")
    file = (folder or Path()) / f"{path}.yaml"
    if name in device_presets():
        return device_presets()[name]
    if ".yaml" not in name or not file.is_file():
        raise UnknownNameError("device", name, device_presets(), where=where)
    devices = read_devices(file)
    chosen = chosen.removeprefix(":") or next(iter(devices), "")
    if chosen not in devices:
        raise UnknownNameError("device", chosen, devices, where=str(file))
    return devices[chosen]


def twin_devices(
    sensors: Mapping[str, SensorSpec], robot: RobotSpec | None, *, where: str, folder: Path | None = None
) -> dict[str, SensingDevice]:
    """Return the sensing device of each sensor of a twin by sensor name.

    Settings in the twin's YAML replace those of the device file.

    Args:
        sensors: Sensors by name, as in the twin's YAML.
        robot: Robot section of the twin's YAML, or None if the twin has no robot.
        where: Name of the twin or its file, for error messages.
        folder: Folder of the user's device files; by default the current folder.

    Raises:
        UnknownNameError: If a device does not exist, or lacks a setting.
        InputError: If a sensor has the name of a joint or an invalid name, or if a setting has a value of another type.
    """
    devices = {}
    for name, spec in sensors.items():
        if not name or "/" in name:
            raise InputError(
                f"{where}: sensors: {name!r} is not a valid name, because parameters are named sensor/NAME/…. Choose a "
                "name without slashes that is not empty."
            )
        if robot is not None and name in robot.joints:
            raise InputError(
                f"{where}: sensors.{name} has the name of a joint, whose encoder has the parameters sensor/{name}/…. "
                "Choose another name."
            )
        device = find_device(spec.device, where=f"{where}: sensors.{name}", folder=folder)
        for key, value in spec.settings.items():
            if key not in device.settings:
                raise UnknownNameError("setting", key, device.settings, where=f"{where}: sensors.{name}")
            _check_setting(value, device.settings[key].value, where=f"{where}: sensors.{name}.settings.{key}")
        own = {
            key: DeviceSetting(value=value, source=f"{Path(where).name}: sensors.{name}")
            for key, value in spec.settings.items()
        }
        devices[name] = device.model_copy(update={"settings": {**device.settings, **own}})
    return devices


def _check_setting(value: Any, own: Any, *, where: str) -> None:
    """Raise `InputError` if a setting has another type than the value in the device file.

    The range of the value is checked later, by the function that computes with it.

    Args:
        value: Value of the setting in the twin's YAML.
        own: Value of the setting in the device file.
        where: Location of the setting, for error messages.
    """
    if isinstance(own, bool):
        valid, expected = isinstance(value, bool), "true or false"
    elif isinstance(own, str):
        valid, expected = isinstance(value, str), "a text"
    elif isinstance(own, list):
        valid, expected = isinstance(value, list) and all(_is_number(item) for item in value), "a list of numbers"
    else:
        whole = isinstance(own, int)
        valid = _is_number(value) and not (whole and value % 1)
        expected = "a whole number" if whole else "a number"
    if not valid:
        raise InputError(f"{where} must be {expected}, as in the device ({own!r:.60}); given {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mark_sensors(mjspec: mujoco.MjSpec, devices: Mapping[str, SensingDevice]) -> None:
    """Write the names and types of sensors into a model as MuJoCo ``text`` elements.

    The sensor parameters of a twin can therefore be derived from the model alone.

    Args:
        mjspec: Model specification, changed in place.
        devices: Sensing devices by sensor name.
    """
    for name, device in devices.items():
        mjspec.add_text(name=SENSOR_TEXT.format(device.kind, name), data=device.name)


def sensor_params(devices: Mapping[str, SensingDevice]) -> Iterator[ParamSpec]:
    """Yield the declarations of all parameters of a twin's sensors, with the nominal values of their devices."""
    for name, device in devices.items():
        for quantity in SENSING:
            if quantity.device != device.kind:
                continue
            sourced = device.values.get(quantity.quantity)
            if sourced is None:
                yield ParamSpec(name=quantity.path(name), source=_IDEAL)
            else:
                yield ParamSpec(
                    name=quantity.path(name),
                    nominal=sourced.value,
                    range=sourced.range,
                    op=sourced.op,
                    source=sourced.source,
                )
