"""Compute the lidar scans of an episode; each point uses the poses of lidar and bodies at the time of its beam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.imaging import LUMA, srgb_to_linear
from twinloop.core.params import ParamTable
from twinloop.core.records import SimEpisode
from twinloop.dataset.side_tables import table_metadata
from twinloop.render.protocol import Fields, SceneStates
from twinloop.render.rays import BodyMotion, RayCaster, open_caster
from twinloop.rollout.depth import frame_generators, sensor_settings
from twinloop.rollout.replay import recorded_params
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.sensors.lidar import BeamPattern, Lidar, LidarSpec, NonRepetitivePattern, SpinningPattern
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors

_PATTERNS: Mapping[str, Any] = {"spinning": SpinningPattern, "nonrepetitive": NonRepetitivePattern}
_ROUND_OFF = 1e-9  # s; tolerance for round-off of times
_LONGEST_WARM_UP = 1000.0  # s; longest time that a device has run before an episode begins (our choice)

COLUMNS: Mapping[str, tuple[pa.DataType, str]] = {
    "number": (pa.int64(), "the episode's number"),
    "scan": (pa.int32(), "number of the scan, from 0"),
    "time": (pa.float64(), "when the beam was fired, s since the episode began"),
    "x": (pa.float32(), "m, in the device's axes at that time: forward"),
    "y": (pa.float32(), "m, left"),
    "z": (pa.float32(), "m, up"),
    "range": (pa.float32(), "m"),
    "intensity": (pa.float32(), "strength of the return in 1/m²: 1 of a white surface met head-on at 1 m"),
    "line": (pa.int16(), "of the beam, from 0"),
    "body": (pa.int32(), "id of the body that was hit: ground truth, which a real device does not report"),
}
"""Columns of a lidar's table, with types and meanings."""


def lidar_scans(twin: Twin, episode: SimEpisode, sensor: str, *, caster: str = "auto") -> pa.Table:
    """Return all points that one lidar reports in an episode, in the order in which its beams are fired.

    A scan is one turn of the device, at its own rate and on its own clock. The end of the episode cuts the last scan
    short. Points are in the device's axes at their own times, so the scan of a moving device is skewed, as with a real
    one. A scan depends on run seed, episode, attempt, sensor and scan number. A parameter that changes at every control
    step has the value of the step in which the scan begins.

    Args:
        twin: twin version that made the episode.
        episode: record of the episode.
        sensor: name of the lidar among the twin's sensors. The lidar is at the site of that name, or at the site named
            by its key ``site:``. Its beams pass through the body of that site, which is its housing, except the world
            body.
        caster: name of a ray caster, see `render.rays.open_caster`.

    Returns:
        Table with the columns `COLUMNS`, whose meanings are in its metadata, for the argument ``tables`` of
        `DatasetWriter.commit_block`.

    Raises:
        UnknownNameError: If the twin has no such sensor, or the device setting ``pattern`` is unknown.
        InputError: If the sensor is not a lidar, or the episode lacks data to recompute its physics steps.
    """
    device = _LidarDevice.of(twin, recorded_params(twin, episode.provenance), sensor)
    parts: list[dict[str, NDArray]] = []
    if len(episode):
        world = _ResteppedWorld.of(twin, episode, caster)
        parts = [device.scan(world, number) for number in range(device.scan_count(world.duration))]
    schema = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()], metadata=_metadata(twin, sensor))
    columns = [
        np.concatenate([part[name] for part in parts]) if parts else np.empty(0) for name in COLUMNS if name != "number"
    ]
    count = len(columns[0])
    arrays = [np.full(count, episode.number), *columns]
    return pa.table([pa.array(values, kind) for values, kind in zip(arrays, schema.types, strict=True)], schema)


def lidar_model(twin: Twin, table: ParamTable, sensor: str) -> tuple[Lidar, BeamPattern]:
    """Return the model and the beam pattern of a twin's lidar, with the parameters of a table's first world.

    Raises:
        UnknownNameError: If the twin has no such sensor, or the device setting ``pattern`` is unknown.
        InputError: If the sensor is not a lidar, or its settings do not give a valid pattern.
    """
    settings = sensor_settings(twin, sensor, "lidar")
    name = str(settings.get("pattern"))
    if name not in _PATTERNS:
        raise UnknownNameError("beam pattern", name, _PATTERNS, where=f"the device of {sensor}: pattern")
    kind = _PATTERNS[name]
    pattern = kind(**{key: settings[key] for key in kind.__dataclass_fields__ if key in settings})
    spec = LidarSpec(**{key: settings[key] for key in LidarSpec.__dataclass_fields__ if key in settings})
    values = {key: float(value[0]) for key, value in twin.sensor_values(table, sensor).items()}
    return Lidar(spec=spec, **values), pattern


@dataclass(frozen=True, kw_only=True)
class _ResteppedWorld:
    """World of a stored episode whose physics steps were recomputed, because only control steps are stored.

    Attributes:
        twin: twin of the episode.
        table: parameters of the world, one row.
        time: times of the physics steps since the start of the episode in s.
        motion: poses of the bodies at these times.
        caster: ray caster for the world.
        reflectivity: reflectivity of each geom, ``(ngeom,)``.
    """

    twin: Twin
    table: ParamTable
    time: NDArray[np.float64]
    motion: BodyMotion
    caster: RayCaster
    reflectivity: NDArray[np.float64]

    @classmethod
    def of(cls, twin: Twin, episode: SimEpisode, caster: str) -> _ResteppedWorld:
        steps = PhysicsStepper.of_episode(twin, episode).run()
        table = recorded_params(twin, episode.provenance)
        # A control step ends where the next begins.
        states = np.concatenate([steps.states[:, :-1].reshape(-1, steps.states.shape[-1]), steps.states[-1:, -1]])
        time = np.concatenate([steps.time[:, :-1].ravel(), steps.time[-1:, -1]])
        fields = {name: values[0] for name, values in twin.fields(table, visual=True).arrays.items()}
        return cls(
            twin=twin,
            table=table,
            time=time - time[0],
            motion=BodyMotion.of(twin.model, SceneStates(**state_poses(twin.model, states)), fields),
            caster=open_caster(caster, twin.model, fields),
            reflectivity=reflectivity(twin.model, fields),
        )

    @property
    def duration(self) -> float:
        return float(self.time[-1])

    def step(self, time: float) -> int:
        """Return the number of the control step that contains a time in s since the start of the episode."""
        return int(np.searchsorted(self.time, time + _ROUND_OFF, side="right") - 1) // self.twin.substeps

    def moments(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert times in s to fractional indices of physics steps."""
        return np.interp(time, self.time, np.arange(len(self.time)))


@dataclass(frozen=True, kw_only=True)
class _LidarDevice:
    """Lidar of a twin at its site.

    Attributes:
        pattern: beam pattern.
        sensor: name of the lidar among the twin's sensors.
        body: id of the body with the site.
        position: position of the site in the body, ``(3,)`` in m.
        quaternion: orientation of the site in the body, quaternion wxyz ``(4,)``.
        uptime: running time of the device in s at the beginning of the episode.
    """

    pattern: BeamPattern
    sensor: str
    body: int
    position: NDArray[np.float64]
    quaternion: NDArray[np.float64]
    uptime: float

    @classmethod
    def of(cls, twin: Twin, table: ParamTable, sensor: str) -> _LidarDevice:
        pattern = lidar_model(twin, table, sensor)[1]
        site = twin.model.site(twin.spec.sensors[sensor].site or sensor)
        seeds = table.require_seeds(f"Noise and losses of {sensor} happen")
        share = seeds.uniforms(f"sensor/{sensor}/began")[0, 0]
        return cls(
            pattern=pattern,
            sensor=sensor,
            body=int(site.bodyid[0]),
            position=site.pos.copy(),
            quaternion=site.quat.copy(),
            uptime=float(share * _LONGEST_WARM_UP),
        )

    def scan_count(self, duration: float) -> int:
        """Return the number of scans that begin within an episode of ``duration`` s."""
        return int(np.ceil(duration * self.pattern.scan_rate - 1e-9))

    def scan(self, world: _ResteppedWorld, number: int) -> dict[str, NDArray]:
        """Return the points of the scan with this number, as arrays by the names in `COLUMNS`."""
        generator = frame_generators(world.table, self.sensor, np.array([number]))[0]
        begin, end = np.minimum(np.array([number, number + 1]) / self.pattern.scan_rate, world.duration)
        lidar = lidar_model(world.twin, world.table.at(world.step(begin)), self.sensor)[0]
        beams = self.pattern.beams(self.uptime + begin, self.uptime + end)
        time = np.clip(beams.time - self.uptime, 0.0, world.duration)
        aim = lidar.aim(beams, generator)
        moments = world.moments(time)
        position, turn = world.motion.at(self.body, moments)
        count, rays = aim.shape[:2]
        origins = position + rotate_vectors(turn, np.broadcast_to(self.position, position.shape))
        axes = np.repeat(quat_multiply(turn, np.broadcast_to(self.quaternion, turn.shape)), rays, axis=0)
        toward = rotate_vectors(axes, aim.reshape(-1, 3))
        hits = world.caster.cast(
            world.motion,
            np.repeat(origins, rays, axis=0),
            toward,
            times=np.repeat(moments, rays),
            exclude=self.body or -1,  # its own housing; a device fixed to the world has none
        )
        cosine = np.maximum(-np.einsum("ij,ij->i", hits.normal, toward), 0.0)
        bright = np.where(hits.geom >= 0, world.reflectivity[hits.geom], 0.0)
        shape = (count, rays)
        back = lidar.receive(
            beams, hits.distance.reshape(shape), bright.reshape(shape), cosine.reshape(shape), generator
        )
        return {
            "scan": np.full(len(back), number),
            "time": time[back.beam],
            **dict(zip("xyz", back.points.T, strict=True)),
            "range": back.distance,
            "intensity": back.strength,
            "line": beams.line[back.beam],
            "body": world.twin.model.geom_bodyid[hits.geom.reshape(shape)[back.beam, back.source]],
        }


def reflectivity(model: mujoco.MjModel, fields: Fields) -> NDArray[np.float64]:
    """Return the reflectivity of each geom, ``(ngeom,)`` from 0 to 1.

    It is the luminance of the geom's colour; textures are ignored.

    Args:
        model: compiled model.
        fields: model fields of one world, which replace those of the model.
    """
    material = np.asarray(fields.get("geom_matid", model.geom_matid))
    own = np.asarray(fields.get("geom_rgba", model.geom_rgba))
    shared = np.asarray(fields.get("mat_rgba", model.mat_rgba))
    colour = np.where(material[:, None] >= 0, shared[material] if len(shared) else own, own)[:, :3]
    return srgb_to_linear(np.clip(colour, 0.0, 1.0)) @ LUMA


def _metadata(twin: Twin, sensor: str) -> dict[bytes, bytes]:
    device = twin.devices[sensor].name
    return table_metadata(
        f"sensors/{sensor}", {"device": device, "columns": {name: meaning for name, (_, meaning) in COLUMNS.items()}}
    )
