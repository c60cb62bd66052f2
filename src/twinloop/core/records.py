"""Records that travel between rooms. Arrays are frozen on entry: a record is a fact, not a workspace."""

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


def frozen(array: ArrayLike) -> NDArray[np.float64]:
    """A read-only float64 copy."""
    copy = np.array(array, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def freeze_fields(record: object, *names: str) -> None:
    """Replace arrays of a frozen dataclass by `frozen` copies, from its ``__post_init__``; None stays None."""
    for name in names:
        if getattr(record, name) is not None:
            object.__setattr__(record, name, frozen(getattr(record, name)))


@dataclass(frozen=True, kw_only=True)
class LoggedSignal:
    """What else a log holds, at times of its own: ``values`` ``(T, k)`` in SI at ``time`` ``(T,)``, a name per column.

    ``unit`` is one for all columns, or "" where they differ (a pose: m and the quaternion wxyz).
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
    """What shows a simulated episode again, or steps it again, with nothing but MuJoCo.

    ``model`` is MJCF, and ``assets`` the files that it names. ``states`` are ``(T+1, n)``, or ``(T, n)`` where the last
    is not kept, and begin with time, qpos and qvel; ``spec`` says which ``mjtState`` components they are, 0 where that
    is all. ``controls`` ``(T, substeps, nu)`` are what the actuators were given in each physics step, or None where
    something besides them acts; ``notes`` say what.
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
    """One recorded episode of a robot or of a thing that moves by itself, real or virtual.

    ``action[t]`` is the command issued at ``time[t]``, ``state[t]`` the joint positions measured then; both are
    ``(T, n)`` in the log's own units, which ``units`` maps to radians. ``command`` says what a command is: a joint
    position in those units, a torque (N·m, N), or nothing that this log holds. A thing without joints has n = 0.

    ``signals`` is what was measured besides, by name; these names mean the same in every log:

    - ``joint_velocity`` ``(T, n)`` rad/s, ``joint_torque`` N·m: a column per joint, named after it;
    - ``pose/BODY`` ``(T, 7)``: position in the world in m, quaternion wxyz;
    - ``twist/BODY`` ``(T, 6)``: linear velocity in the world's axes (m/s), angular velocity in the body's own (rad/s);
    - ``place/SITE`` ``(T, 3)``: where a tracker sees a site of the robot, in the world, in m;
    - ``acceleration/SITE`` (specific force, m/s²), ``angular_velocity/SITE`` (rad/s), ``wrench/SITE`` (force N, torque
      N·m), in the site's axes;
    - ``motor`` ``(T, nu)``: throttle of each rotor, 0 to 1; ``enabled`` ``(T, 1)``: 1 where the motors were on.

    ``conditions`` are numbers that held for the whole episode (a firmware gain, a mass hung on), by name, in SI.
    ``simulation`` is what a simulator kept of it.

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
        step = "Leave those frames out: a signal has times of its own."
        _check_finite(signal.values, signal.columns, where, step)
        _check_time(signal.time, where)


def _check_finite(values: NDArray[np.float64], columns: Sequence[str], where: str, step: str) -> None:
    """Refuse values ``(T, k)`` that are not finite; ``step`` is what to do about them."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        frame, column = bad[0]
        raise LogError(
            f"{where}: {columns[column]} is {values[frame, column]} at frame {frame} ({len(bad)} such values). {step}"
        )


def _check_time(time: NDArray[np.float64], where: str) -> None:
    """Refuse times that are not finite or do not increase."""
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
    """Where one episode comes from, enough to make it again.

    ``params`` are the drawn values in SI; ``seed_path`` is (run seed, episode number, attempt); ``versions`` names
    engine, package, numpy and, where pixels exist, renderer; ``commands_hash`` and ``states_hash`` are SHA-256.
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
        """The inverse of `to_json`; reads every schema up to this one."""
        fields = {key: item for key, item in value.items() if key != "schema"}
        fields["seed_path"] = tuple(fields["seed_path"])
        fields["parents"] = tuple(fields["parents"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class SimEpisode:
    """One simulated episode on its way to a dataset: T commands, T+1 states, what was observed, and provenance.

    ``commands`` ``(T, nu)`` and ``states`` ``(T+1, nstate)`` are float64 in SI, for exact replay; the first column of
    the states is the true time in s. ``action`` and
    ``observation`` ``(T, n)`` are in the dataset's units (``provenance.units``), as a policy would see them.
    ``next_success`` ``(T,)`` says whether the success predicate held after each step. ``readings`` is what further
    sensors had delivered at each frame, ``(T, k)`` by the feature's key, in the units of the dataset's spec.
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
    """Rows of numbers that an encoder gave.

    ``values`` is ``(n, d)``; ``clusters`` ``(n,)`` the number of the episode that each row comes from. ``encoder``
    names what made them and ``encoder_hash`` its weights and settings: rows of equal hash lie in one space.
    ``source`` says what was encoded, for messages and pages.

    Raises:
        InputError: no rows, rows that are not finite, or clusters that do not fit; names the source and the row.
    """

    values: NDArray[np.float64]
    clusters: NDArray[np.int64]
    encoder: str
    encoder_hash: str
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen(self.values))
        clusters = np.array(self.clusters, dtype=np.int64)
        clusters.setflags(write=False)
        object.__setattr__(self, "clusters", clusters)
        self._check()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def episodes(self) -> int:
        """How many episodes the rows come from."""
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
                "Look at that picture, and at the encoder's input range."
            )


def require_same_encoder(real: Embedding, sim: Embedding) -> None:
    """Refuse to compare embeddings of different encoders: their numbers mean different things.

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
