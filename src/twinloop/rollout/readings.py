"""Compute the readings of a twin's inertial units, force/torque sensors and servos in an episode.

True signals come from the episode's recomputed physics steps (`rollout.substeps`); the sensor models in `sensors`
convert them to readings. A sensor samples on its own clock between frames. The dataset has the newest delivered sample
of each frame, and all samples in a side table.
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
from twinloop.rollout.substeps import TEMPERATURE, VOLTAGE, PhysicsStepper, PhysicsSteps
from twinloop.sensors import force_torque, imu, servo
from twinloop.sensors.filters import low_pass
from twinloop.sensors.sampling import SampleClock, make_sample_clock
from twinloop.simulate.drive_stages import COPPER
from twinloop.twin import Twin
from twinloop.twin.compiling import compile_model

_SAME_MOMENT = 1e-9  # s; tolerance for round-off between clock times and sums of physics steps


@dataclass(frozen=True, kw_only=True)
class SensedSignal:
    """Signal with k values at n + 1 times: the start of each of n physics steps, and the end of the last one.

    Signals that depend on forces jump when a command takes effect, so each time has two values. A sensor that samples
    at such a time measures the value before the jump.

    Attributes:
        before: values just before each of these times (left limits), ``(n + 1, k)``.
        after: values just after each of these times (right limits), ``(n + 1, k)``.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]

    @classmethod
    def of_state(cls, values: NDArray[np.float64]) -> SensedSignal:
        """Return the signal of a part of the state, which is continuous, so that left and right limits are equal.

        Args:
            values: k values at n + 1 times (start of each of n physics steps, end of the last step), ``(n + 1, k)``.
        """
        return cls(before=values, after=values)

    @classmethod
    def of_record(cls, rows: NDArray[np.float64], ends: NDArray[np.float64], rest: NDArray[np.float64]) -> SensedSignal:
        """Return the signal of a MuJoCo result with k values, such as a force, that was recorded at every physics step.

        Args:
            rows: values at the start of each physics step, ``(nstep, substeps, k)``.
            ends: values at the end of each control step, ``(nstep, k)``.
            rest: initial value, before the first control step, ``(k,)``.
        """
        width = rows.shape[2:]
        after = np.concatenate([rows.reshape(rows.shape[0] * rows.shape[1], *width), ends[-1:]])
        before = np.concatenate([rows[:, 1:], ends[:, None]], axis=1).reshape(len(after) - 1, *width)
        return cls(before=np.concatenate([rest[None], before]), after=after)

    def part(self, columns: slice | NDArray[np.intp]) -> SensedSignal:
        """Return the signal with the selected columns only."""
        return SensedSignal(before=self.before[:, columns], after=self.after[:, columns])


@dataclass(frozen=True, kw_only=True)
class SubstepMotion:
    """Motion of an episode at its n physics steps.

    Attributes:
        time: start of each physics step and end of the last one, ``(n + 1,)`` in s.
        qpos: generalized positions.
        qvel: generalized velocities.
        records: recorded MuJoCo results by name.
    """

    time: NDArray[np.float64]
    qpos: SensedSignal
    qvel: SensedSignal
    records: Mapping[str, SensedSignal]

    @classmethod
    def of_steps(cls, made: PhysicsSteps, *, rest: Mapping[str, NDArray[np.float64]]) -> SubstepMotion:
        """Return the motion of a whole episode.

        Args:
            made: physics steps of all control steps of the episode, in order.
            rest: initial value of each recorded quantity, before the first control step, by name.
        """
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
        """Return samples ``(nsample, k)`` of a signal after a low-pass filter.

        Between physics steps the filtered signal is interpolated linearly.

        Args:
            signal: the signal.
            clock: clock of the sensor, which gives the sample times.
            bandwidth: bandwidth of the filter in Hz; 0 for no filter.
        """
        smooth = low_pass(self.time[None], signal.after[None], bandwidth, left_limits=signal.before[None])[0]
        leaves = smooth if np.any(bandwidth > 0.0) else signal.after
        following = np.searchsorted(self.time, clock.sample_times - _SAME_MOMENT, side="left")
        last = np.maximum(following - 1, 0)
        span = np.where(following > 0, self.time[following] - self.time[last], 1.0)
        part = np.clip((clock.sample_times - self.time[last]) / span, 0.0, 1.0)[:, None]
        between = leaves[last] + part * (smooth[following] - leaves[last])
        return np.where(following[:, None] > 0, between, smooth[:1])


def _join_steps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Join values ``(nstep, substeps + 1, …)`` of consecutive control steps into one sequence over all physics steps.

    The last value of a control step is left out if another step follows, because it is the first value of that step.
    """
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
    """Readings of one sensor in one episode, k values per sample.

    Attributes:
        frames: readings at each of the T frames, ``(T, k)``: values of the newest sample that was delivered by then.
        time: simulation time at which each of the n samples was taken, ``(n,)`` in s.
        delivered: simulation time at which each sample was delivered, ``(n,)`` in s.
        values: values of all samples, ``(n, k)``.
    """

    frames: NDArray[np.float64]
    time: NDArray[np.float64]
    delivered: NDArray[np.float64]
    values: NDArray[np.float64]


def reading_columns(twin: Twin, name: str) -> dict[str, str]:
    """Return the names of a sensor's columns with their units.

    An inertial unit has ``gyro.x`` to ``accel.z``, a force/torque sensor ``force.x`` to ``torque.z``. Servos have
    ``JOINT.velocity``, ``.current``, ``.load``, ``.voltage`` and ``.temperature`` for each joint.

    Raises:
        UnknownNameError: If the twin has no sensor of that name.
        InputError: If the sensor gives images or point clouds.
    """
    kind = _kind(twin, name)
    if kind != "servo":
        return dict(_COLUMNS[kind])
    return {f"{joint}.{report}": unit for joint in twin.robot.joints for report, unit in _COLUMNS[kind].items()}


def select_sensors(twin: Twin, requested: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of the requested sensors with numeric readings, in the order of the twin.

    Args:
        twin: twin with the sensors.
        requested: names of sensors, or ``all``.

    Raises:
        UnknownNameError: If the twin has no sensor of that name.
        InputError: If a sensor has no numeric readings, or needs motor constants that the twin does not have.
    """
    known = [name for name, device in twin.devices.items() if device.kind in KINDS]
    names = known if requested == "all" else [requested] if isinstance(requested, str) else list(requested)
    for name in names:
        if _kind(twin, name) == "servo":
            _motors(twin, name)
    return tuple(name for name in known if name in names)


class BodySensors:
    """A twin's inertial units, force/torque sensors and servos; the object computes their readings in episodes.

    Attributes:
        twin: the twin.
        names: names of the sensors.
        model: the twin's model with MuJoCo sensors at the sites of these sensors.
    """

    def __init__(self, twin: Twin, names: Sequence[str] | str = "all") -> None:
        """Select the sensors and compile the model.

        Args:
            twin: twin with the sensors.
            names: names of sensors, or ``all``.

        Raises:
            UnknownNameError: If the twin has no sensor of that name.
            InputError: If a sensor has no numeric readings, or needs motor constants that the twin does not have.
        """
        self.twin, self.names = twin, select_sensors(twin, names)
        self.model, self._slices = _add_model_sensors(twin, self.names)

    def read(self, episode: SimEpisode) -> dict[str, SensorReading]:
        """Return the sensors' readings in an episode, by sensor name; they depend only on the episode's record.

        Raises:
            InputError: If another twin made the episode, a sensor's parameter changes at every control step, or a
                random effect needs seeds that the episode lacks.
        """
        return self.read_world(PhysicsStepper.of_episode(self.twin, episode, model=self.model))

    def read_world(self, world: PhysicsStepper) -> dict[str, SensorReading]:
        """Return the sensors' readings in an episode, by sensor name.

        Args:
            world: stepper that recomputes the episode's physics steps; it must have been created with
                `BodySensors.model`.
        """
        servos = any(self.twin.devices[name].kind == "servo" for name in self.names)
        record = ["sensordata", *(("actuator_force", VOLTAGE, TEMPERATURE) if servos else ())]
        made = world.run(record=record)
        motion = SubstepMotion.of_steps(made, rest=world.read_initial_records(record))
        return {name: self._read(name, world, motion, made) for name in self.names}

    def _read(self, name: str, world: PhysicsStepper, motion: SubstepMotion, made: PhysicsSteps) -> SensorReading:
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
            time=clock.sample_times[clock.first :],
            delivered=clock.delivered[clock.first :],
            values=reported[clock.first :],
        )

    def _imu(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        unit = imu.Imu(**values)
        sampled = motion.sample_signal(
            motion.records["sensordata"].part(self._slices[name]), clock, values["bandwidth"]
        )
        normals = _draw_normals(params, name, clock, imu.NORMALS_PER_SAMPLE) if unit.is_random else None
        rate, force = imu.imu_readings(
            unit, sampled[None, :, :3], sampled[None, :, 3:], period=clock.period, normals=normals
        )
        return np.concatenate([rate[0], force[0]], axis=1)

    def _force_torque(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        sensor = force_torque.ForceTorque(**values)
        # MuJoCo gives the force that supports the bodies beyond the site; a sensor reports the opposite force.
        held = motion.records["sensordata"].part(self._slices[name])
        sampled = -motion.sample_signal(held, clock, values["bandwidth"])
        normals, unit_uniforms = None, None
        if sensor.is_random:
            normals = _draw_normals(params, name, clock, force_torque.NORMALS_PER_SAMPLE)
            seeds = params.require_seeds(f"sensor/{name}/crosstalk happens")
            unit_uniforms = seeds.uniforms(f"{_STREAM.format(name)}/specimen", size=force_torque.COUPLINGS)
        return force_torque.force_torque_readings(
            sensor, sampled[None], period=clock.period, normals=normals, unit_uniforms=unit_uniforms
        )[0]

    def _servo(
        self, name: str, values: dict[str, Any], params: ParamTable, motion: SubstepMotion, clock: SampleClock
    ) -> NDArray[np.float64]:
        feedback, twin = servo.ServoFeedback(**values), self.twin
        truth = _motor_truth(twin, name, params, motion)
        sampled = motion.sample_signal(truth, clock, values["bandwidth"])
        position = motion.sample_signal(motion.qpos.part(twin.encoder_qpos), clock, np.zeros(1))
        count = len(twin.robot.joints)
        normals = _draw_normals(params, name, clock, servo.NORMALS_PER_SAMPLE * count) if feedback.is_random else None
        reported = servo.servo_readings(
            feedback,
            sampled.reshape(1, -1, count, len(servo.REPORTS)),
            position[None],
            normals=None if normals is None else normals.reshape(1, -1, count, servo.NORMALS_PER_SAMPLE),
        )
        return reported[0].reshape(len(clock.sample_times), -1)


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
    """Return torque constant (N·m/A), resistance (Ω) and nominal voltage (V) of each joint's motor, ``(n,)`` each.

    Args:
        twin: twin with the servos.
        name: name of the sensor for the error message.

    Raises:
        InputError: If the constants of a motor are unknown.
    """
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
    """Return the true state of each joint's servo motor, 5 values per joint.

    The columns are the joints in order, each with the speed at its encoder in rad/s, current in A, duty cycle (a signed
    fraction of the voltage), voltage in V, and temperature rise in K.
    """
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

    return SensedSignal(before=of("before"), after=of("after"))


def _add_model_sensors(twin: Twin, names: Sequence[str]) -> tuple[mujoco.MjModel, dict[str, slice]]:
    """Return the twin's model with MuJoCo sensors at the sites of the named sensors.

    Returns:
        The model, and the part of ``sensordata`` of each sensor by name. Servos need no MuJoCo sensor.
    """
    body_sensors = [name for name in names if twin.devices[name].kind in _MODEL_SENSORS]
    if not body_sensors:
        return twin.model, {}
    variant = twin.mjspec.copy()
    for name in body_sensors:
        site = twin.spec.sensors[name].site or name
        for kind in _MODEL_SENSORS[twin.devices[name].kind]:
            variant.add_sensor(name=f"{kind.name}/{name}", type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)
    model = compile_model(variant)
    slices = {}
    for name in body_sensors:
        first = int(model.sensor(f"{_MODEL_SENSORS[twin.devices[name].kind][0].name}/{name}").adr[0])
        slices[name] = slice(first, first + 6)
    return model, slices


def _draw_normals(params: ParamTable, name: str, clock: SampleClock, size: int) -> NDArray[np.float64]:
    """Return standard normal random numbers ``(1, n, size)`` for n samples; they depend on episode, sensor and sample.

    Args:
        params: parameters of the world with its seeds (run seed, episode, attempt).
        name: name of the sensor.
        clock: clock of the sensor, which numbers the samples.
        size: number of random numbers per sample.
    """
    seeds = params.require_seeds(f"Noise of sensor/{name} happens").take(np.zeros(len(clock.number), dtype=np.intp))
    return ndtri(seeds.uniforms(_STREAM.format(name), size=size, step=clock.number))[None]


def _check_steady(params: ParamTable, name: str) -> None:
    changing = [path for path in params.steps if path.startswith(f"sensor/{name}/")]
    if changing:
        raise InputError(
            f"{changing[0]} changes at every control step, but the sensor samples between them. Draw it per episode."
        )
