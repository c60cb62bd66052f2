"""Define the records shared by all packages: episodes, signals, provenance, embeddings, with read-only arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.plain import JsonRecord
from twinloop.core.units import UnitMap

Source = Literal["real", "sim", "augmented", "human-in-the-loop"]


def freeze_array(array: ArrayLike) -> NDArray[np.float64]:
    """Return a read-only float64 copy."""
    copy = np.array(array, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def freeze_fields(record: object, *names: str) -> None:
    """Replace arrays of a frozen dataclass by `freeze_array` copies, in its ``__post_init__``; None stays None."""
    for name in names:
        if getattr(record, name) is not None:
            object.__setattr__(record, name, freeze_array(getattr(record, name)))


@dataclass(frozen=True, kw_only=True)
class LoggedSignal:
    """A further signal of a log: ``values`` ``(T, k)`` in SI at its own times ``(T,)`` in s, one name per column.

    ``unit`` is one unit for all columns, or "" if they differ (a pose: m and the quaternion wxyz).
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
    """Data with which MuJoCo alone can show a simulated episode again, or step it again.

    ``model`` is MJCF, and ``assets`` the files that it names. ``states`` are ``(T+1, n)``, or ``(T, n)`` without the
    last state, and begin with time, qpos and qvel; ``spec`` is the ``mjtState`` of their components, 0 if they have no
    others. ``controls`` ``(T, substeps, nu)`` are the actuators' inputs in each physics step, or None if other inputs
    act too; ``notes`` then describe those.
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
    """One recorded episode of a robot or of an object that moves by itself, real or virtual.

    ``action[t]`` is the command issued at ``time[t]``, ``state[t]`` the joint positions measured then; both are
    ``(T, n)`` in the log's own units, which ``units`` maps to SI. ``command`` is the kind of a command: a joint
    position in those units, a torque (N·m, N), or none in this log. An object without joints has n = 0.

    ``signals`` are further measurements by name; these names mean the same in every log:

    - ``joint_velocity`` ``(T, n)`` rad/s, ``joint_torque`` N·m: a column per joint, named after it;
    - ``pose/BODY`` ``(T, 7)``: position in the world in m, quaternion wxyz;
    - ``twist/BODY`` ``(T, 6)``: linear velocity in world axes (m/s), angular velocity in body axes (rad/s);
    - ``place/SITE`` ``(T, 3)``: position of a robot's site that a tracker measures, in the world, in m;
    - ``acceleration/SITE`` (specific force, m/s²), ``angular_velocity/SITE`` (rad/s), ``wrench/SITE`` (force N, torque
      N·m), in the site's axes;
    - ``motor`` ``(T, nu)``: throttle of each rotor, 0 to 1; ``enabled`` ``(T, 1)``: 1 while the motors are on.

    ``conditions`` are values that held for the whole episode (a firmware gain, an added mass), by name, in SI.
    ``simulation`` is the simulation that was stored with it, if any.

    Raises:
        LogError: empty, NaN, mismatched lengths, or time that does not increase; names the frame and column.
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
    command: Literal["position", "torque", "none"] = "position"
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
        """Joint names in column order."""
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
    """Check that values ``(T, k)`` are finite; ``step`` is the next step in the message."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        frame, column = bad[0]
        raise LogError(
            f"{where}: {columns[column]} is {values[frame, column]} at frame {frame} ({len(bad)} such values). {step}"
        )


def _check_time(time: NDArray[np.float64], where: str) -> None:
    """Check that times are finite and increase."""
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
    """Provenance of one episode: everything needed to compute it again.

    ``params`` are the drawn values in SI; ``seed_path`` is (run seed, episode number, attempt); ``versions`` names
    engine, package, numpy and, for images, renderer; ``commands_hash`` and ``states_hash`` are SHA-256.
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
        """Create the record from the dictionary that `to_json` returned, in this or an earlier schema version."""
        fields = {key: item for key, item in value.items() if key != "schema"}
        fields["seed_path"] = tuple(fields["seed_path"])
        fields["parents"] = tuple(fields["parents"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class SimEpisode:
    """One simulated episode before it is written: T commands, T+1 states, observations, and provenance.

    ``commands`` ``(T, nu)`` and ``states`` ``(T+1, nstate)`` are float64 in SI, for exact replay; the first column of
    the states is the true time in s. ``action`` and ``observation`` ``(T, n)`` are in the dataset's units
    (``provenance.units``), as a policy sees them. ``next_success`` ``(T,)`` is true where the success condition was met
    after the step. ``readings`` are the delivered values of further sensors at each frame, ``(T, k)`` by feature key,
    in the units of the dataset's spec.
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
    """Feature vectors from an encoder.

    ``values`` is ``(n, d)``; ``clusters`` ``(n,)`` is the number of the episode of each row. ``encoder`` is the name of
    the encoder, ``encoder_hash`` the hash of its weights and settings: rows of equal hash are in the same space.
    ``source`` describes the encoded data, for messages and pages.

    Raises:
        InputError: no rows, rows that are not finite, or clusters that do not fit; names the source and the row.
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
        """Number of episodes that the rows come from."""
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
    """Check that two embeddings come from the same encoder; values of different encoders cannot be compared.

    Raises:
        InputError: names both encoders.
    """
    if real.encoder_hash == sim.encoder_hash and real.values.shape[1] == sim.values.shape[1]:
        return
    one, other = (
        f"{e.source} was encoded by {e.encoder} ({e.encoder_hash[:12]}, {e.values.shape[1]} numbers)"
        for e in (real, sim)
    )
    raise InputError(
        f"{one}, {other}: embeddings of different encoders cannot be compared. Encode both with the same one."
    )
