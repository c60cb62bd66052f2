"""Compute the readings of a twin's inertial units, force sensors and servos along an episode.

Ideal signals come from the episode's recomputed physics steps (`rollout.substeps`); `sensors` turns them into readings.
A sensor samples on its own clock between frames. The dataset keeps for each frame the newest sample delivered by then,
and in a side table every sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import SimEpisode
from twinloop.rollout.substeps import TEMPERATURE, VOLTAGE, PhysicsSteps, Restepper
from twinloop.sensors import force_torque, imu, servo
from twinloop.sensors.filters import low_pass
from twinloop.sensors.sampling import SampleClock, make_sample_clock
from twinloop.simulate.drive_stages import COPPER
from twinloop.twin import Twin
from twinloop.twin.compiling import compile_model

_SAME_MOMENT = 1e-9  # s; round-off between times of a clock and sums of physics steps


@dataclass(frozen=True, kw_only=True)
class SensedSignal:
    """A signal at the ``(n + 1,)`` boundaries of physics steps, just before (``arrives``) and just after (``leaves``).

    Signals that depend on forces jump when a command takes effect. A sample at such a moment takes the value before the
    jump, because the value after it is not known yet.
    """

    arrives: NDArray[np.float64]
    leaves: NDArray[np.float64]

    @classmethod
    def of_state(cls, values: NDArray[np.float64]) -> SensedSignal:
        """Make a signal from a part of the state ``(n + 1, k)``, which does not jump."""
        return cls(arrives=values, leaves=values)

    @classmethod
    def of_record(cls, rows: NDArray[np.float64], ends: NDArray[np.float64], rest: NDArray[np.float64]) -> SensedSignal:
        """Make a signal from values at the start of physics steps ``(nstep, substeps, k)`` and at the end of the last.

        ``ends`` is ``(nstep, k)``; ``rest`` ``(k,)`` is the value before the first step.
        """
        width = rows.shape[2:]
        leaves = np.concatenate([rows.reshape(rows.shape[0] * rows.shape[1], *width), ends[-1:]])
        arrives = np.concatenate([rows[:, 1:], ends[:, None]], axis=1).reshape(len(leaves) - 1, *width)
        return cls(arrives=np.concatenate([rest[None], arrives]), leaves=leaves)

    def part(self, columns: slice | NDArray[np.intp]) -> SensedSignal:
        """Return some of the columns."""
        return SensedSignal(arrives=self.arrives[:, columns], leaves=self.leaves[:, columns])


@dataclass(frozen=True, kw_only=True)
class SubstepMotion:
    """Motion of an episode at its physics steps, ``time`` ``(n + 1,)``."""

    time: NDArray[np.float64]
    qpos: SensedSignal
    qvel: SensedSignal
    records: Mapping[str, SensedSignal]

    @classmethod
    def of_steps(cls, made: PhysicsSteps, *, rest: Mapping[str, NDArray[np.float64]]) -> SubstepMotion:
        """Make the motion of all control steps; ``rest`` holds each record's value before the first."""
        return cls(
            time=_join_steps(made.time),
            qpos=SensedSignal.of_state(_join_steps(made.qpos)),
            qvel=SensedSignal.of_state(_join_steps(made.qvel)),
            records={
                name: SensedSignal.of_record(rows, made.ends[name], rest[name]) for name, rows in made.records.items()
            },
        )

    def sample_signal(
        self, signal: SensedSignal, clock: SampleClock, bandwidth: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Filter a signal and sample it at a clock's times, linearly interpolated within each physics step."""
        smooth = low_pass(self.time[None], signal.leaves[None], bandwidth, ends=signal.arrives[None])[0]
        leaves = smooth if np.any(bandwidth > 0.0) else signal.leaves
        following = np.searchsorted(self.time, clock.taken - _SAME_MOMENT, side="left")
        last = np.maximum(following - 1, 0)
        span = np.where(following > 0, self.time[following] - self.time[last], 1.0)
        part = np.clip((clock.taken - self.time[last]) / span, 0.0, 1.0)[:, None]
        between = leaves[last] + part * (smooth[following] - leaves[last])
        return np.where(following[:, None] > 0, between, smooth[:1])


def _join_steps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Join values ``(nstep, substeps + 1, …)`` of consecutive control steps into one sequence of physics steps."""
    body = rows[:, :-1].reshape(-1, *rows.shape[2:])
    return np.concatenate([body, rows[-1:, -1]])


KINDS = ("imu", "force_torque", "servo")
_STREAM = "rollout/sensor/{}"
_MODEL_SENSORS = {
    "imu": (mujoco.mjtSensor.mjSENS_GYRO, mujoco.mjtSensor.mjSENS_ACCELEROMETER),
    "force_torque": (mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE),
}
_COLUMNS = {
    "imu": {
        **{f"gyro.{axis}": "rad/s" for axis in imu.AXES},
        **{f"accel.{axis}": "m/s²" for axis in imu.AXES},
    },
    "force_torque": {name.replace("_", "."): "N" if "force" in name else "N·m" for name in force_torque.COMPONENTS},
    "servo": dict(zip(servo.REPORTS, ("rad/s", "A", "1", "V", "°C"), strict=True)),
}


@dataclass(frozen=True, kw_only=True)
class SensorReading:
    """Readings of one sensor in one episode.

    ``frames`` ``(T, k)`` is the newest sample delivered at each frame. ``time`` ``(n,)`` is when each sample was taken,
    ``delivered`` ``(n,)`` when it arrived, both in s of true time; ``values`` ``(n, k)`` are the samples.
    """

    frames: NDArray[np.float64]
    time: NDArray[np.float64]
    delivered: NDArray[np.float64]
    values: NDArray[np.float64]


def reading_columns(twin: Twin, name: str) -> dict[str, str]:
    """Return the columns of a sensor's readings by name, with their units.

    An inertial unit: ``gyro.x`` … ``accel.z``. A force/torque sensor: ``force.x`` … ``torque.z``. Servos:
    ``JOINT.velocity``, ``.current``, ``.load``, ``.voltage``, ``.temperature`` of each joint.

    Raises:
        UnknownNameError: the twin has no sensor of that name.
        InputError: the sensor gives images.
    """
    kind = _kind(twin, name)
    if kind != "servo":
        return dict(_COLUMNS[kind])
    return {f"{joint}.{report}": unit for joint in twin.robot.joints for report, unit in _COLUMNS[kind].items()}


def select_sensors(twin: Twin, asked: Sequence[str] | str) -> tuple[str, ...]:
    """Return the requested sensors in the twin's order.

    Args:
        asked: names of sensors, or ``all``.

    Raises:
        UnknownNameError: the twin has no sensor of that name.
        InputError: a sensor gives images, or needs motor constants that the twin does not have.
    """
    known = [name for name, device in twin.devices.items() if device.kind in KINDS]
    names = known if asked == "all" else [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if _kind(twin, name) == "servo":
            _motors(twin, name)
    return tuple(name for name in known if name in names)


class BodySensors:
    """Some of a twin's sensors with the model that computes their signals; usable for any number of episodes."""

    def __init__(self, twin: Twin, names: Sequence[str] | str = "all") -> None:
        """Raises: the errors of `select_sensors`."""
        self.twin, self.names = twin, select_sensors(twin, names)
        self.model, self._places = _add_model_sensors(twin, self.names)

    def read(self, episode: SimEpisode) -> dict[str, SensorReading]:
        """Return the sensors' readings of an episode by name; they depend only on its record.

        Raises:
            InputError: another twin made the episode, a sensor's parameter changes at every control step, or a random
                effect needs seeds that the episode lacks.
        """
        return self.read_world(Restepper.of_episode(self.twin, episode, model=self.model))

    def read_world(self, world: Restepper) -> dict[str, SensorReading]:
        """Return the readings of a world whose record is loaded; it must use this object's ``model``."""
        servos = any(self.twin.devices[name].kind == "servo" for name in self.names)
        record = ["sensordata", *(("actuator_force", VOLTAGE, TEMPERATURE) if servos else ())]
        made = world.run(record=record)
        motion = SubstepMotion.of_steps(made, rest=world.read_initial_records(record))
        return {name: self._read(name, world, motion, made) for name in self.names}

    def _read(self, name: str, world: Restepper, motion: SubstepMotion, made: PhysicsSteps) -> SensorReading:
        params, kind = world.params, self.twin.devices[name].kind
        _check_steady(params, name)
        values = self.twin.sensor_values(params, name)
        timing = {key: float(values[key][0]) for key in ("rate", "phase", "delay")}
        clock = make_sample_clock(
            made.time[:, 0], end=float(world.time[-1]), period=1.0 / self.twin.control_hz, **timing
        )
        sense = {"imu": self._imu, "force_torque": self._force_torque, "servo": self._servo}[kind]
        reported = sense(name, values, params, motion, clock)
        return SensorReading(
            frames=reported[clock.frame],
            time=clock.taken[clock.first :],
            delivered=clock.delivered[clock.first :],
            values=reported[clock.first :],
        )

    def _imu(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        unit = imu.Imu(**values)
        felt = motion.sample_signal(motion.records["sensordata"].part(self._places[name]), clock, values["bandwidth"])
        chance = _draw_normals(params, name, clock, imu.CHANCE) if unit.is_random else None
        rate, force = imu.imu_readings(unit, felt[None, :, :3], felt[None, :, 3:], period=clock.period, chance=chance)
        return np.concatenate([rate[0], force[0]], axis=1)

    def _force_torque(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        sensor = force_torque.ForceTorque(**values)
        # MuJoCo gives the force that supports the bodies beyond the site; a sensor reports the opposite force.
        held = motion.records["sensordata"].part(self._places[name])
        felt = -motion.sample_signal(held, clock, values["bandwidth"])
        chance, specimen = None, None
        if sensor.is_random:
            chance = _draw_normals(params, name, clock, force_torque.CHANCE)
            seeds = params.seed_path(f"sensor/{name}/crosstalk happens")
            specimen = seeds.uniforms(f"{_STREAM.format(name)}/specimen", size=force_torque.COUPLINGS)
        return force_torque.force_torque_readings(
            sensor, felt[None], period=clock.period, chance=chance, specimen=specimen
        )[0]

    def _servo(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        feedback, twin = servo.ServoFeedback(**values), self.twin
        truth = _motor_truth(twin, name, params, motion)
        felt = motion.sample_signal(truth, clock, values["bandwidth"])
        position = motion.sample_signal(motion.qpos.part(twin.encoder_qpos), clock, np.zeros(1))
        count = len(twin.robot.joints)
        chance = _draw_normals(params, name, clock, servo.CHANCE * count) if feedback.is_random else None
        reported = servo.servo_readings(
            feedback,
            felt.reshape(1, -1, count, len(servo.REPORTS)),
            position[None],
            chance=None if chance is None else chance.reshape(1, -1, count, servo.CHANCE),
        )
        return reported[0].reshape(len(clock.taken), -1)


def _kind(twin: Twin, name: str) -> str:
    if name not in twin.devices:
        raise UnknownNameError("sensor", name, twin.devices, where=f"twin {twin.name}")
    kind = twin.devices[name].kind
    if kind not in KINDS:
        raise InputError(
            f"The sensor {name} of {twin.name} is a {kind}, which gives no numeric readings. Use one of the "
            f"kinds {', '.join(KINDS)}."
        )
    return kind


def _motors(twin: Twin, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return torque constant, resistance and nominal voltage of each joint's motor, ``(n,)`` each."""
    motors = [preset.motor if preset else None for preset in twin.servos]
    known = [motor for motor in motors if motor is not None]
    if len(known) < len(twin.robot.joints):
        raise InputError(
            f"The sensor {name} of {twin.name} reports currents, but the motor constants of some joints are "
            "unknown. Name a servo that has them: `robot: {servo: NAME}`."
        )
    kt, resistance, voltage = zip(*((m.kt, m.resistance, m.voltage) for m in known), strict=True)
    return np.array(kt), np.array(resistance), np.array(voltage)


def _motor_truth(twin: Twin, name: str, params: ParamTable, motion: SubstepMotion) -> SensedSignal:
    """Return speed, current, duty, voltage and temperature rise of each joint's servo, ``(n + 1, 5 njoint)``."""
    kt, cold, nominal = _motors(twin, name)
    voltage = twin.column(params, "actuator", "voltage", nominal)
    rise = twin.column(params, "actuator", "temperature_rise")

    def of(side: str) -> NDArray[np.float64]:
        torque, speed = (getattr(signal, side) for signal in (motion.records["actuator_force"], motion.qvel))
        volts, kelvin = (
            getattr(motion.records[key], side) if key in motion.records else np.broadcast_to(held, torque.shape)
            for key, held in ((VOLTAGE, voltage), (TEMPERATURE, rise))
        )
        turning = twin.model.actuator_gear[: len(kt), 0] * speed[:, twin.motor_qvel]
        warm = cold * (1.0 + COPPER * kelvin)
        current, duty = servo.motor_state(torque, turning, volts, kt=kt, resistance=warm)
        return np.stack([speed[:, twin.encoder_qvel], current, duty, volts, kelvin], axis=-1).reshape(len(torque), -1)

    return SensedSignal(arrives=of("arrives"), leaves=of("leaves"))


def _add_model_sensors(twin: Twin, names: Sequence[str]) -> tuple[mujoco.MjModel, dict[str, slice]]:
    """Return the twin's model with MuJoCo sensors at the sensors' sites, and their slices of ``sensordata``."""
    felt = [name for name in names if twin.devices[name].kind in _MODEL_SENSORS]
    if not felt:
        return twin.model, {}
    variant = twin.mjspec.copy()
    for name in felt:
        site = twin.spec.sensors[name].site or name
        for kind in _MODEL_SENSORS[twin.devices[name].kind]:
            variant.add_sensor(name=f"{kind.name}/{name}", type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)
    model = compile_model(variant)
    places = {}
    for name in felt:
        first = int(model.sensor(f"{_MODEL_SENSORS[twin.devices[name].kind][0].name}/{name}").adr[0])
        places[name] = slice(first, first + 6)
    return model, places


def _draw_normals(params: ParamTable, name: str, clock: SampleClock, size: int) -> NDArray[np.float64]:
    """Return standard normal numbers of each sample, ``(1, n, size)``; they depend on episode, sensor and sample."""
    seeds = params.seed_path(f"Noise of sensor/{name} happens").take(np.zeros(len(clock.number), dtype=np.intp))
    return ndtri(seeds.uniforms(_STREAM.format(name), size=size, step=clock.number))[None]


def _check_steady(params: ParamTable, name: str) -> None:
    changing = [path for path in params.steps if path.startswith(f"sensor/{name}/")]
    if changing:
        raise InputError(
            f"{changing[0]} changes at every control step, but the sensor samples between them. Draw it per episode."
        )
