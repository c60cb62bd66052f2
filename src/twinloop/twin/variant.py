"""The same twin with more parameters declared, or with gears between its motors and links: for rival structures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twinloop.core.errors import InputError
from twinloop.twin.compiling import changed_suffix, compile_model
from twinloop.twin.devices import sensor_params
from twinloop.twin.gear import add_gears, robot_gears
from twinloop.twin.params import expand_params
from twinloop.twin.scene import Scene
from twinloop.twin.servos import nominals
from twinloop.twin.spec import GearSpec, ParamSpec
from twinloop.twin.twin import Twin


def declaring(twin: Twin, specs: Sequence[ParamSpec]) -> Twin:
    """The twin with further parameters; a later declaration replaces an earlier one of the same name.

    Raises:
        UnknownNameError, InputError: a quantity or an object that the model lacks.
    """
    robot = twin.spec.robot
    added = expand_params(twin.model, specs, where=twin.name, nominals=nominals(robot, twin.servos))
    spec = twin.spec.model_copy(update={"params": [*twin.spec.params, *specs]})
    return replace(twin, spec=spec, params={**twin.params, **added})


def gearing(twin: Twin, gears: GearSpec) -> Twin:
    """The twin with a motor side for every joint and these gears between.

    Raises:
        InputError: it has gears already, or an elastic one vibrates faster than its physics step can follow.
    """
    if twin.robot.gears is not None:
        raise InputError(f"The twin {twin.name} has gears already. Compare their parameters instead.")
    robot = twin.robot.model_copy(update={"gears": gears})
    mjspec = twin.mjspec.copy()
    add_gears(mjspec, robot_gears(robot, twin.servos or (None,) * len(robot.joints), where=twin.name), where=twin.name)
    model = compile_model(mjspec)
    spec = twin.spec.model_copy(update={"robot": robot})
    scene = None if twin.scene is None else Scene(layout=twin.scene.layout, model=model)
    rows = [*(scene.param_specs() if scene else []), *sensor_params(twin.devices), *spec.params]
    params = expand_params(model, rows, where=twin.name, nominals=nominals(robot, twin.servos))
    name = "+".join([twin.hash, "gears", *changed_suffix(model)])
    return replace(twin, spec=spec, model=model, mjspec=mjspec, scene=scene, params=params, hash=name)
