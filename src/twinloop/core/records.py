"""Define the data records that all packages share: episodes, signals, provenance and embeddings.

Their arrays are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.plain import JsonRecord
from twinloop.core.units import CommandKind, UnitMap

POSE_COLUMNS = ("x", "y", "z", "qw", "qx", "qy", "qz")
"""Columns of a signal ``pose/BODY``: position in m and quaternion wxyz."""

Source = Literal["real", "sim", "augmented", "human-in-the-loop"]


def freeze_array(array: ArrayLike) -> NDArray[np.float64]:
    """Return a read-only copy of an array as float64."""
    copy = np.array(array, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def freeze_fields(record: object, *names: str) -> None:
    """Replace array fields of a frozen dataclass by read-only float64 copies; a field that is None stays None.

    Call it in the dataclass's ``__post_init__``.

    Args:
        record: The dataclass instance, changed in place.
        names: Names of the fields.
    """
    for name in names:
        if getattr(record, name) is not None:
            object.__setattr__(record, name, freeze_array(getattr(record, name)))


@dataclass(frozen=True, kw_only=True)
class LoggedSignal:
    """One measured signal of a robot log with its own timestamps, in addition to joint positions and commands.

    Attributes:
        time: Timestamps in s, shape ``(T,)`` for T samples.
        values: Samples in SI units, shape ``(T, k)`` for k columns.
        columns: Names of the columns.
        unit: Unit of all columns; "" if the columns have different units, as a pose has (position in m, quaternion
            without unit).
    """

    time: NDArray[np.float64]
    values: NDArray[np.float64]
    columns: tuple[str, ...]
    unit: str

    def __post_init__(self) -> None:
        freeze_fields(self, "time", "values")

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, kw_only=True)
class StoredSimulation:
    """Data with which plain MuJoCo can display a simulated episode or simulate it again.

    T is the number of frames of the episode.

    Attributes:
        model: Model as MJCF text.
        states: States of the episode, shape ``(T + 1, n)``, or ``(T, n)`` if the last state is missing. Each begins
            with time, qpos and qvel.
        spec: Bit mask of type ``mjtState`` that lists the components of a state; 0 if a state has only time, qpos and
            qvel.
        controls: Actuator inputs of each physics step, shape ``(T, substeps, nu)``. None if other inputs affect the
            motion, too, for example external forces.
        assets: Contents of the files that the model uses, by file name.
        notes: Sentences that describe inputs that ``controls`` cannot represent.
    """

    model: str
    states: NDArray[np.float64]
    spec: int = 0
    controls: NDArray[np.float64] | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze_fields(self, "states", "controls")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One recorded episode, real or simulated, of a robot or of a body without joints, such as a drone.

    T is the number of frames and n the number of joints; n is 0 for a body without joints.

    Attributes:
        index: Number of the episode in its log or dataset.
        time: Timestamps in s, shape ``(T,)``.
        action: Command issued at each timestamp, shape ``(T, n)``, in the units of the log (see ``command``).
        state: Joint positions measured at each timestamp, shape ``(T, n)``, in the units of the log.
        units: Joint names, and the conversion of the log's units to SI.
        task: Instruction or name of the task.
        source: Origin of the motion, for example ``real`` or ``sim``.
        origin: File or dataset of the episode, for messages.
        robot_type: Type of the robot, for example ``so101``.
        command: Kind of the commands in ``action``: joint positions in the log's units, velocities in these units per
            second, torques (N·m, or N for slides), or none if the log has no commands.
        signals: Further measurements by signal name, see below.
        conditions: Values in SI units that were constant during the episode, by name, for example a firmware gain or
            the mass of a payload.
        simulation: Simulation that was stored with the episode, if any.

    The names of ``signals`` have the same meaning in every log:

    - ``joint_velocity`` (rad/s) and ``joint_torque`` (N·m), ``(T, n)`` each: one column per joint, with the joint's
      name;
    - ``joint/JOINT`` ``(T, 1)``: position (rad or m) of a hinge or slide that no motor drives, such as a drawer or the
      spring of a scale;
    - ``pose/BODY`` ``(T, 7)``: position of the body in the world in m, quaternion wxyz;
    - ``twist/BODY`` ``(T, 6)``: linear velocity in world axes (m/s), angular velocity in body axes (rad/s);
    - ``place/SITE`` ``(T, 3)``: position in the world, in m, of a site of the robot that a tracker measures;
    - ``view/CAMERA/SITE`` ``(T, 2)``: place of a site in a camera's image, to the right and down from its centre, in
      image heights;
    - ``acceleration/SITE`` ``(T, 3)`` (specific force, m/s²), ``angular_velocity/SITE`` ``(T, 3)`` (rad/s),
      ``wrench/SITE`` ``(T, 6)`` (force N, torque N·m), in the axes of the site;
    - ``motor`` ``(T, nu)``: throttle of each rotor, 0 to 1; ``enabled`` ``(T, 1)``: 1 while the motors are on.

    Raises:
        LogError: If the episode is empty, has NaN or arrays of unequal length, or if its time does not increase. The
            message has the frame and the column.
    """

    index: int
    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]
    units: UnitMap
    task: str = ""
    source: Source = "real"
    origin: str = ""
    robot_type: str = ""
    command: CommandKind | Literal["none"] = "position"
    signals: Mapping[str, LoggedSignal] = field(default_factory=dict[str, LoggedSignal])
    conditions: Mapping[str, float] = field(default_factory=dict[str, float])
    simulation: StoredSimulation | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "time", "action", "state")
        self._check()
        for name, signal in self.signals.items():
            self._check_signal(name, signal)

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names, in the order of the columns of ``action`` and ``state``."""
        return self.units.names

    def __len__(self) -> int:
        return len(self.time)

    def _check(self) -> None:
        where = f"Episode {self.index} of {self.origin or 'the log'}"
        shape = (len(self.time), len(self.joints))
        if not len(self.time):
            raise LogError(f"{where} is empty. Leave it out or record it again.")
        for name in ("action", "state"):
            values = getattr(self, name)
            if values.shape != shape:
                raise LogError(f"{where}: {name} has shape {values.shape}, expected {shape} (frames, joints).")
            step = "Remove those frames or fill them before importing."
            _check_finite(values, [f"{name} of {joint}" for joint in self.joints], where, step)
        _check_time(self.time, where)

    def _check_signal(self, name: str, signal: LoggedSignal) -> None:
        where = f"Signal {name} of episode {self.index} of {self.origin or 'the log'}"
        shape = (len(signal.time), len(signal.columns))
        if signal.values.shape != shape:
            raise LogError(f"{where} has shape {signal.values.shape}, expected {shape} (frames, columns).")
        step = "Leave those frames out: a signal may have other times than the log."
        _check_finite(signal.values, signal.columns, where, step)
        _check_time(signal.time, where)


def _check_finite(values: NDArray[np.float64], columns: Sequence[str], where: str, step: str) -> None:
    """Refuse values ``(T, k)`` that are not finite.

    Args:
        values: T rows of k columns.
        columns: Names of the columns.
        where: Start of the error message.
        step: Next step for the user, at the end of the error message.

    Raises:
        LogError: If a value is NaN or infinite.
    """
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        frame, column = bad[0]
        raise LogError(
            f"{where}: {columns[column]} is {values[frame, column]} at frame {frame} ({len(bad)} such values). {step}"
        )


def _check_time(time: NDArray[np.float64], where: str) -> None:
    """Refuse timestamps that are not finite or do not increase; ``where`` is the start of the error message."""
    if not np.isfinite(time).all():
        raise LogError(f"{where}: a timestamp is not finite at frame {int(np.argmin(np.isfinite(time)))}.")
    backwards = np.flatnonzero(np.diff(time) <= 0)
    if len(backwards):
        at = int(backwards[0]) + 1
        before, after = time[at - 1 : at + 1]
        raise LogError(
            f"{where}: time does not increase at frame {at} ({before:.6f} s, then {after:.6f} s). "
            "Sort the rows or remove duplicates before importing."
        )


@dataclass(frozen=True, kw_only=True)
class Provenance(JsonRecord):
    """Provenance of one episode: everything that is needed to compute the episode again.

    Attributes:
        source: Origin of the motion, for example ``sim`` or ``augmented``.
        twin: Name of the twin.
        twin_hash: Hash of the twin.
        config_hash: Hash of the generation settings.
        params: Parameter values of the world in SI units, by name.
        seed_path: Run seed, episode number and attempt.
        versions: Versions of the physics engine, twinloop, numpy and, for images, the renderer.
        actor: Policy, scripted expert, or person that controlled the robot.
        task: Instruction of the task.
        units: Units of the joint columns, as `UnitMap.to_json` returns them.
        success: Whether the episode succeeded; None if unknown.
        success_version: Version of the success condition.
        valid: False if the world diverged.
        invalid_reason: Reason why the world is invalid.
        parents: Identifiers (content hashes) of the episodes from which this episode was computed.
        content_hash: SHA-256 of the episode's data and provenance, used as its identifier; empty before it is written.
        extra: Further JSON-compatible values.
    """

    json_schema = 1

    source: Source
    twin: str
    twin_hash: str
    config_hash: str
    params: Mapping[str, float]
    seed_path: tuple[int, int, int]
    versions: Mapping[str, str]
    actor: str
    task: str
    units: Mapping[str, Any]
    success: bool | None = None
    success_version: str = ""
    valid: bool = True
    invalid_reason: str = ""
    parents: tuple[str, ...] = ()
    content_hash: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """Create the provenance from the dictionary that `to_json` returns, in this or an earlier schema version."""
        fields = {key: item for key, item in value.items() if key != "schema"}
        fields["seed_path"] = tuple(fields["seed_path"])
        fields["parents"] = tuple(fields["parents"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class SimEpisode:
    """One simulated episode before it is written to a dataset: T control steps and T + 1 states.

    Attributes:
        number: Episode number within the run.
        commands: Actuator commands in SI units, shape ``(T, nu)``, float64, for exact replay in the simulator.
        states: Simulator states in SI units, shape ``(T + 1, nstate)``; the first column is the time in s.
        action: Commands that the policy gave, for the column ``action`` of the dataset and in its units, shape ``(T,
            n)``.
        observation: Joint readings that the policy received, for the column ``observation.state`` of the dataset and in
            its units, shape ``(T, n)``.
        next_success: Whether the success condition holds after each step, shape ``(T,)``.
        provenance: Seeds, parameters, versions and units with which the episode can be simulated again.
        readings: Readings of further sensors that the policy receives at each frame, by LeRobot feature name, shape
            ``(T, k)`` for k columns, in the units that the dataset declares.
    """

    number: int
    commands: NDArray[np.float64]
    states: NDArray[np.float64]
    action: NDArray[np.float64]
    observation: NDArray[np.float64]
    next_success: NDArray[np.bool_]
    provenance: Provenance
    readings: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])

    def __len__(self) -> int:
        return len(self.commands)


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Feature vectors that an encoder computed from images or clips.

    Attributes:
        values: Feature vectors, shape ``(n, d)``: n images or clips, d features.
        clusters: Number of the episode from which each row comes, shape ``(n,)``. Rows of one episode are one cluster,
            because they depend on each other.
        encoder: Name of the encoder.
        encoder_hash: Hash of the encoder's weights and settings. Only rows with equal hashes can be compared.
        source: Description of the encoded data, for messages and reports.

    Raises:
        InputError: If there are no rows, a row is not finite, or ``clusters`` has another length than ``values``.
    """

    values: NDArray[np.float64]
    clusters: NDArray[np.int64]
    encoder: str
    encoder_hash: str
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", freeze_array(self.values))
        clusters = np.array(self.clusters, dtype=np.int64)
        clusters.setflags(write=False)
        object.__setattr__(self, "clusters", clusters)
        self._check()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def episodes(self) -> int:
        """Number of different episodes from which the rows come."""
        return len(np.unique(self.clusters))

    def _check(self) -> None:
        what = f"The embedding of {self.source} by {self.encoder}"
        if self.values.ndim != 2 or not self.values.size:
            raise InputError(f"{what} has shape {self.values.shape}; expected (rows, numbers), at least one of each.")
        if self.clusters.shape != (len(self.values),):
            raise InputError(
                f"{what} has {len(self.values)} rows and episode numbers of shape {self.clusters.shape}. "
                "Give the number of its episode for every row."
            )
        bad = np.flatnonzero(~np.isfinite(self.values).all(axis=1))
        if len(bad):
            raise InputError(
                f"{what}: row {bad[0]}, of episode {self.clusters[bad[0]]}, is not finite ({len(bad)} such rows). "
                "Check that image, and the encoder's input range."
            )


def require_same_encoder(real: Embedding, sim: Embedding) -> None:
    """Check that two embeddings come from the same encoder, because features of different encoders cannot be compared.

    Args:
        real: Embedding of real data.
        sim: Embedding of simulated data.

    Raises:
        InputError: If the encoders or the numbers of features differ.
    """
    if real.encoder_hash == sim.encoder_hash and real.values.shape[1] == sim.values.shape[1]:
        return
    one, other = (
        f"{e.source} was encoded by {e.encoder} ({e.encoder_hash[:12]}, {e.values.shape[1]} numbers)"
        for e in (real, sim)
    )
    raise InputError(
        f"{one}, {other}: embeddings of different encoders cannot be compared. Encode both with the same encoder."
    )
