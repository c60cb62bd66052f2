"""Sensing devices: cameras, depth cameras, lidars, inertial units, force sensors, what a servo reports of itself.

Which sensors a twin carries is written into its model as texts ``sensor/<kind>/<name>`` (`twin.devices`), so that a
model alone says which of these parameters it has. Defaults are an ideal sensor's; a device's own numbers stand in
``twin/devices/*.yaml``.
"""

from __future__ import annotations

import mujoco

from twinloop.twin.quantities.camera_optics import CAMERA_OPTICS
from twinloop.twin.quantities.cameras import CAMERA_SENSORS
from twinloop.twin.quantities.inertial import INERTIAL
from twinloop.twin.quantities.kinds import Quantity
from twinloop.twin.quantities.ranging import RANGING

SENSOR_TEXT = "sensor/{}/{}"

SENSING: tuple[Quantity, ...] = (*CAMERA_SENSORS, *CAMERA_OPTICS, *RANGING, *INERTIAL)


def sensor_members(model: mujoco.MjModel, device: str) -> list[str]:
    """Names of a model's sensors of one kind of device."""
    prefix = SENSOR_TEXT.format(device, "")
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
