"""A twin with other sensing devices than its YAML says: to try a device, or to see a stored episode through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from twinloop.twin.devices import mark_sensors, sensor_params, twin_devices
from twinloop.twin.params import expand_params
from twinloop.twin.quantities.sensing import SENSOR_TEXT
from twinloop.twin.spec import SensorSpec
from twinloop.twin.twin import Twin


def equipped(twin: Twin, sensors: Mapping[str, SensorSpec], *, folder: Path | None = None) -> Twin:
    """The twin carrying these sensors, in place of its own of the same names and beside the others.

    Its model, its hash and all its other parameters stay as they are: what was simulated with the twin is as well of
    this one. Parameters of the sensors are nominal where nothing else is said.

    Args:
        sensors: by name, as in the twin's YAML.
        folder: where device files of a user's own are looked up.

    Raises:
        UnknownNameError: a device or a setting that does not exist.
        InputError: a sensor named as a joint is.
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
