"""Derive variants of a twin with more declared parameters, with gears at its joints, or with more sensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json
from twinloop.twin.compiling import changed_settings_lines, compile_model
from twinloop.twin.devices import mark_sensors, sensor_params, twin_devices
from twinloop.twin.gear import add_gears, robot_gears
from twinloop.twin.params import declared_params, expand_params, residual_params
from twinloop.twin.quantities.sensing import SENSOR_TEXT
from twinloop.twin.residual_spec import ResidualSpec, check_residual_joints
from twinloop.twin.scene import SceneSlots
from twinloop.twin.servos import preset_nominals
from twinloop.twin.spec import GearSpec, ParamSpec, SensorSpec
from twinloop.twin.twin import Twin


def declare_params(twin: Twin, specs: Sequence[ParamSpec]) -> Twin:
    """Return a twin with additional parameters; a declaration replaces an earlier one of the same parameter.

    Args:
        twin: The twin; it is not changed.
        specs: Declarations of the additional parameters.

    Raises:
        UnknownNameError: If a quantity or an object does not exist.
        InputError: If an object lacks the quantity.
    """
    robot = twin.spec.robot
    added = expand_params(twin.model, specs, where=twin.name, nominals=preset_nominals(robot, twin.servos))
    spec = twin.spec.model_copy(update={"params": [*twin.spec.params, *specs]})
    return replace(twin, spec=spec, params={**twin.params, **added})


def add_twin_gears(twin: Twin, gears: GearSpec) -> Twin:
    """Return a twin in which a gear couples the motor side and the link side of every robot joint.

    Args:
        twin: The twin; it is not changed.
        gears: Backlash and stiffness of the gears.

    Raises:
        InputError: If the twin has gears already, or if an elastic gear is too stiff for the physics step.
    """
    if twin.robot.gears is not None:
        raise InputError(f"The twin {twin.name} already has gears. Change their parameters instead.")
    robot = twin.robot.model_copy(update={"gears": gears})
    mjspec = twin.mjspec.copy()
    add_gears(mjspec, robot_gears(robot, twin.servos or (None,) * len(robot.joints), where=twin.name), where=twin.name)
    model = compile_model(mjspec)
    spec = twin.spec.model_copy(update={"robot": robot})
    scene = None if twin.scene is None else SceneSlots(layout=twin.scene.layout, model=model)
    rows = declared_params(spec, scene=scene.param_specs() if scene else (), sensors=sensor_params(twin.devices))
    params = expand_params(model, rows, where=twin.name, nominals=preset_nominals(robot, twin.servos))
    name = "+".join([twin.hash, "gears", *changed_settings_lines(model)])
    return replace(twin, spec=spec, model=model, mjspec=mjspec, scene=scene, params=params, hash=name)


def add_twin_residual(twin: Twin, residual: ResidualSpec) -> Twin:
    """Return a twin with a residual, which replaces an earlier one.

    Args:
        twin: The twin; it is not changed.
        residual: Offsets and disturbances of the controls that no parameter explains.

    Raises:
        UnknownNameError: If the residual names a joint that the robot does not have.
    """
    joints = twin.robot.joints if twin.spec.robot else []
    check_residual_joints(residual, joints, twin.name)
    added = expand_params(twin.model, residual_params(residual), where=twin.name)
    digest = sha256_json(residual.model_dump(mode="json"))
    spec = twin.spec.model_copy(update={"residual": residual})
    return replace(twin, spec=spec, params={**twin.params, **added}, hash=f"{twin.hash}+residual+{digest[:16]}")


def add_twin_sensors(twin: Twin, sensors: Mapping[str, SensorSpec], *, folder: Path | None = None) -> Twin:
    """Return a twin with additional sensors; a sensor replaces an earlier one of the same name.

    The motion of the twin, its hash and all other parameters do not change. Data that were simulated with the original
    twin can therefore be used with the result. Parameters of the sensors have their nominal values by default.

    Args:
        twin: The twin; it is not changed.
        sensors: Sensors by name, as in the twin's YAML.
        folder: Folder of the user's device files; by default the current folder.

    Raises:
        UnknownNameError: If a device or a setting does not exist.
        InputError: If a sensor has the name of a joint.
    """
    where = f"twin {twin.name}"
    devices = twin_devices(sensors, twin.spec.robot, where=where, folder=folder)
    marked = twin.mjspec.copy()
    for name in sensors:
        old = twin.devices.get(name)
        if old is not None:
            marked.delete(next(text for text in marked.texts if text.name == SENSOR_TEXT.format(old.kind, name)))
    mark_sensors(marked, devices)
    new_params = expand_params(marked.compile(), sensor_params(devices), where=where)
    replaced = tuple(f"sensor/{name}/" for name in sensors)
    other_params = {name: param for name, param in twin.params.items() if not name.startswith(replaced)}
    return replace(
        twin,
        spec=twin.spec.model_copy(update={"sensors": {**twin.spec.sensors, **sensors}}),
        params={**other_params, **new_params},
        devices={**twin.devices, **devices},
    )
