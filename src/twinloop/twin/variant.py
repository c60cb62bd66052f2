"""Derive variants of a twin: with more declared parameters, with gears at its joints, or with more sensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from twinloop.core.errors import InputError
from twinloop.twin.compiling import changed_settings_lines, compile_model
from twinloop.twin.devices import mark_sensors, sensor_params, twin_devices
from twinloop.twin.gear import add_gears, robot_gears
from twinloop.twin.params import expand_params
from twinloop.twin.quantities.sensing import SENSOR_TEXT
from twinloop.twin.scene import SceneSlots
from twinloop.twin.servos import preset_nominals
from twinloop.twin.spec import GearSpec, ParamSpec, SensorSpec
from twinloop.twin.twin import Twin


def declare_params(twin: Twin, specs: Sequence[ParamSpec]) -> Twin:
    """Return the twin with more parameters; a later declaration replaces an earlier one of the same name.

    Raises:
        UnknownNameError, InputError: the model lacks a quantity or an object.
    """
    robot = twin.spec.robot
    added = expand_params(twin.model, specs, where=twin.name, nominals=preset_nominals(robot, twin.servos))
    spec = twin.spec.model_copy(update={"params": [*twin.spec.params, *specs]})
    return replace(twin, spec=spec, params={**twin.params, **added})


def add_twin_gears(twin: Twin, gears: GearSpec) -> Twin:
    """Return the twin with a motor side for every joint, coupled to the link side by these gears.

    Raises:
        InputError: the twin has gears already, or an elastic gear vibrates too fast for the physics step.
    """
    if twin.robot.gears is not None:
        raise InputError(f"The twin {twin.name} has gears already. Compare their parameters instead.")
    robot = twin.robot.model_copy(update={"gears": gears})
    mjspec = twin.mjspec.copy()
    add_gears(mjspec, robot_gears(robot, twin.servos or (None,) * len(robot.joints), where=twin.name), where=twin.name)
    model = compile_model(mjspec)
    spec = twin.spec.model_copy(update={"robot": robot})
    scene = None if twin.scene is None else SceneSlots(layout=twin.scene.layout, model=model)
    rows = [*(scene.param_specs() if scene else []), *sensor_params(twin.devices), *spec.params]
    params = expand_params(model, rows, where=twin.name, nominals=preset_nominals(robot, twin.servos))
    name = "+".join([twin.hash, "gears", *changed_settings_lines(model)])
    return replace(twin, spec=spec, model=model, mjspec=mjspec, scene=scene, params=params, hash=name)


def add_twin_sensors(twin: Twin, sensors: Mapping[str, SensorSpec], *, folder: Path | None = None) -> Twin:
    """Return the twin with these sensors in addition to its own; a sensor of the same name is replaced.

    Its model, its hash and all its other parameters do not change, so simulated data of the twin are also valid for
    this one. Parameters of the sensors are nominal by default.

    Args:
        sensors: sensors by name, as in the twin's YAML.
        folder: folder of the user's device files.

    Raises:
        UnknownNameError: a device or a setting does not exist.
        InputError: a sensor has the name of a joint.
    """
    where = f"twin {twin.name}"
    devices = twin_devices(sensors, twin.spec.robot, where=where, folder=folder)
    marked = twin.mjspec.copy()
    for name in sensors:
        old = twin.devices.get(name)
        if old is not None:
            marked.delete(next(text for text in marked.texts if text.name == SENSOR_TEXT.format(old.kind, name)))
    mark_sensors(marked, devices)
    own = expand_params(marked.compile(), sensor_params(devices), where=where)
    replaced = tuple(f"sensor/{name}/" for name in sensors)
    kept = {name: param for name, param in twin.params.items() if not name.startswith(replaced)}
    return replace(
        twin,
        spec=twin.spec.model_copy(update={"sensors": {**twin.spec.sensors, **sensors}}),
        params={**kept, **own},
        devices={**twin.devices, **devices},
    )
