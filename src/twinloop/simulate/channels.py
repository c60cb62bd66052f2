"""What a log measured and a replay predicts: joint positions and speeds, poses and twists of bodies, inertial units.

Every kind gives columns, the measured values, and the same columns predicted from a rollout, so that measured and
predicted subtract.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap
from twinloop.simulate.channels_bodies import BODIES
from twinloop.simulate.measure import Channel, Measure, at_frames
from twinloop.simulate.open_loop import Motion
from twinloop.twin import Twin

Array = NDArray[np.float64]
_KINDS = (
    "position",
    "velocity",
    "pose/BODY",
    "pose_error/BODY",
    "twist/BODY",
    "place/SITE",
    "acceleration/SITE",
    "angular_velocity/SITE",
)
_SENSORS = {
    "acceleration": (mujoco.mjtSensor.mjSENS_ACCELEROMETER, "m/s²"),
    "angular_velocity": (mujoco.mjtSensor.mjSENS_GYRO, "rad/s"),
}


def measures(twin: Twin, kinds: Sequence[str], units: UnitMap | None, columns: Sequence[int]) -> tuple[Measure, ...]:
    """What is compared, in order.

    Args:
        twin: the twin.
        kinds: ``position``, ``velocity``, ``pose/BODY``, ``pose_error/BODY``, ``twist/BODY``, ``place/SITE``,
            ``acceleration/SITE``, ``angular_velocity/SITE``.
        units: of the log's joints, in the twin's order; None where it has none.
        columns: of the log, of each of the twin's joints.

    Raises:
        UnknownNameError: another kind.
        InputError: the twin lacks the joints, the free body or the sensor.
    """
    return tuple(_measure(twin, kind, units, columns) for kind in kinds)


def _measure(twin: Twin, kind: str, units: UnitMap | None, columns: Sequence[int]) -> Measure:
    family, _, name = kind.partition("/")
    if kind in ("position", "velocity"):
        if units is None:
            raise InputError(f"The twin {twin.name} has no joints, so no {kind} of joints can be compared.")
        return (JointPosition if kind == "position" else JointVelocity)(twin, units, columns)
    if family in BODIES and name:
        return BODIES[family](twin, name)
    if family == "place" and name:
        return SitePlace(twin, name)
    if family in _SENSORS and name:
        return SiteSensor(twin, family, name)
    raise UnknownNameError("kind of measurement", kind, _KINDS)


class JointPosition:
    """Readings of the joints' encoders, in the log's units."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._units, self._columns = twin, units, list(columns)
        self.channels = tuple(Channel(name=f"position/{unit.joint}", unit=unit.unit) for unit in units.joints)

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return episode.state[:, self._columns]

    def compare(self, kept: Array) -> Array:
        """See `Measure`."""
        return kept

    def instead(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return other

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        offset = self._twin.column(table, "sensor", "offset")[:, None]
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return self._units.from_si((run.qpos[..., self._twin.encoder_qpos] - offset) / scale)


class JointVelocity:
    """Speeds of the joints in rad/s or m/s, as their encoders would tell them."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._columns = twin, list(columns)
        self.channels = tuple(Channel(name=f"velocity/{unit.joint}", unit="rad/s") for unit in units.joints)

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return at_frames(episode, "joint_velocity")[:, self._columns]

    def compare(self, kept: Array) -> Array:
        """See `Measure`."""
        return kept

    def instead(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return other

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return run.qvel[..., self._twin.encoder_qvel] / scale


def _site(twin: Twin, name: str) -> int:
    sites = [twin.model.site(i).name for i in range(twin.model.nsite)]
    if name not in sites:
        raise UnknownNameError("site", name, sites, where=f"twin {twin.name}")
    return sites.index(name)


class _AtSite:
    """A signal of three axes that a site of the model has; one physics step behind, and silent at the first frame."""

    def __init__(self, signal: str, unit: str) -> None:
        self._signal = signal
        self.channels = tuple(Channel(name=f"{signal}/{axis}", unit=unit) for axis in "xyz")

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return at_frames(episode, self._signal)

    def compare(self, kept: Array) -> Array:
        """See `Measure`: a derived field says nothing yet at the first frame."""
        silent = kept.copy()
        silent[..., 0, :] = np.nan
        return silent

    def instead(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return other


class SitePlace(_AtSite):
    """Where a tracker sees a site of the model, such as the tool, in m in the frame of the world.

    It sees what encoders cannot: the zero of a joint, or play in its gear. One physics step behind, and not compared at
    the first frame.
    """

    records: tuple[str, ...] = ("site_xpos",)

    def __init__(self, twin: Twin, site: str) -> None:
        super().__init__(f"place/{site}", "m")
        self._row = _site(twin, site)

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return run.records["site_xpos"][..., self._row, :]


class SiteSensor(_AtSite):
    """An accelerometer or gyroscope of the model at a site; one physics step behind, and silent at the first frame."""

    records: tuple[str, ...] = ("sensordata",)

    def __init__(self, twin: Twin, family: str, site: str) -> None:
        kind, unit = _SENSORS[family]
        model = twin.model
        _site(twin, site)
        found = np.flatnonzero((model.sensor_type == int(kind)) & (model.sensor_objid == model.site(site).id))
        if not len(found):
            element = "accelerometer" if family == "acceleration" else "gyro"
            raise InputError(f"The twin {twin.name} has no {element} at the site {site}. Add one to the model.")
        super().__init__(f"{family}/{site}", unit)
        self._first = int(model.sensor_adr[found[0]])

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return run.records["sensordata"][..., self._first : self._first + 3]
