"""Read the public sets of impacts: cube tosses (ContactNets), Cassie's landings, planar drops and bounces.

The format of each set:

- Cube toss: a tensor ``(1, T, 19)`` for T frames. Its columns are position, quaternion wxyz, linear velocity in world
  axes, angular velocity in body axes, and six zeros. Positions and linear velocities are divided by half the cube's
  side. The files are legacy torch files, see below.
- Landing: three arrays per recording. ``data/x_NN.npy`` ``(T, 45)`` has quaternion wxyz and position of the pelvis, 16
  joint positions, angular and linear velocity of the pelvis in world axes, and 16 joint velocities. ``u_NN.npy``
  ``(T, 10)`` has the motor torques at the joints. ``t_NN.npy`` ``(T,)`` has the times. The axes were
  inferred: the angular velocity differs from the derivative of the quaternion by 0.14 rad/s in world axes, and by
  0.41 rad/s in body axes. The ankle springs have no encoder: their positions come from inverse kinematics, and their
  velocities are 0 in the files.
- Planar drop: one CSV file per drop of a square, with the columns x, z, th, vx, vz and vth at 250 Hz. The bounces of an
  ellipse, pairs of such states, are in a MATLAB file. x to the right and z up from the ground are in m, and th is an
  angle in rad from x towards z (a hinge about −y). The sign of the angle was inferred from the data. It agrees with the
  contact points of the ellipse. It also agrees with the spin after an impulse at the lowest corner in the recordings of
  the square (44 bounces: regression slope 0.93, correlation 0.91; with the other sign 0.49).

Legacy torch files are read without torch. Such a file is five pickles and raw data: a magic number, a protocol
version, a description of the writer's system, the tensor, and the keys of its storages (torch's arrays of values).
Then each storage follows: an int64 count and the values. The tensor refers to a storage by a persistent id. A pickle
can call any function. Therefore only the names that rebuild a tensor are allowed, and any other name is refused before
it is called.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import POSE_COLUMNS
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.importers.tables import (
    make_signal,
    make_unit_map,
    read_columns,
    require_readable_size,
    stack_columns,
)
from twinloop.dataset.logs.sets.files import find_recordings, recording_number

_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
_PROTOCOL = 1001
_MOST_TENSOR_BYTES = 1 << 28
_STORAGES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "LongStorage": "<i8", "IntStorage": "<i4"}


@dataclass(frozen=True)
class _StorageKind:
    """NumPy dtype of a torch storage class to which the pickle refers."""

    dtype: str


@dataclass
class _Storage:
    """Array of values (torch storage) in a legacy torch file.

    Attributes:
        key: Name of the storage in the file.
        dtype: NumPy dtype of the values.
        count: Number of values.
        values: Values; None until they are read.
    """

    key: str
    dtype: str
    count: int
    values: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Tensor:
    """Layout of a tensor in its storage. Offset and stride are in elements."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_tensor(path: Path) -> NDArray[Any]:
    """Read the tensor of a legacy torch file.

    Raises:
        LogError: If it is not such a file, is damaged, or has other content than one numeric tensor.
    """
    data = require_readable_size(path, _MOST_TENSOR_BYTES).read_bytes()
    try:
        return _read_stream(io.BytesIO(data), len(data))
    except _RefusedNameError as error:
        raise LogError(f"{path}: {error} Only a tensor of numbers is read from such files.") from error
    except Exception as error:  # a damaged pickle raises anything
        raise LogError(f"{path} is not a legacy torch file, or damaged ({type(error).__name__}: {error}).") from error


class _RefusedNameError(Exception):
    """Error for a file that refers to something that is not part of a numeric tensor."""


def _read_stream(stream: BinaryIO, size: int) -> NDArray[Any]:
    if _PlainUnpickler(stream).load() != _MAGIC or _PlainUnpickler(stream).load() != _PROTOCOL:
        raise ValueError("the magic number is missing")
    system = _PlainUnpickler(stream).load()
    if not system.get("little_endian", True):
        raise _RefusedNameError("It was written on a big-endian machine.")
    tensors = _TensorUnpickler(stream, size)
    found = tensors.load()
    if not isinstance(found, _Tensor):
        raise _RefusedNameError(f"It holds a {type(found).__name__}.")
    for key in _PlainUnpickler(stream).load():
        storage = tensors.storages[key]
        (count,) = struct.unpack("<q", stream.read(8))
        if count != storage.count:
            raise ValueError(f"storage {key} has {count} values, its description says {storage.count}")
        raw = stream.read(count * np.dtype(storage.dtype).itemsize)
        storage.values = np.frombuffer(raw, dtype=storage.dtype, count=count)
    return _view(found)


def _view(tensor: _Tensor) -> NDArray[Any]:
    values = tensor.storage.values
    if values is None:
        raise ValueError("the tensor's values are missing")
    index = np.asarray(tensor.offset)
    for length, step in zip(tensor.size, tensor.stride, strict=True):
        index = index[..., None] + np.arange(length) * step
    if index.size and not (index.min() >= 0 and index.max() < len(values)):
        raise ValueError("the tensor reaches beyond its values")
    return values[index]


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of numbers, strings, lists and dictionaries. It refuses every name of a class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse the name of a class or function."""
        raise _RefusedNameError(f"It names {module}.{name}.")


class _TensorUnpickler(_PlainUnpickler):
    """Unpickler that accepts only the names needed to rebuild a tensor."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        super().__init__(stream)
        self.storages: dict[str, _Storage] = {}
        self._size = size

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of an allowed name: a storage class, the function to rebuild tensors, or ``OrderedDict``.

        Raises:
            _RefusedNameError: If the name is not allowed. No code of the file is run.
        """
        if module == "torch" and name in _STORAGES:
            return _StorageKind(_STORAGES[name])
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._rebuild,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in allowed:
            raise _RefusedNameError(f"It names {module}.{name}.")
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage of a persistent id: ("storage", kind, key, device, count, view)."""
        word, kind, key, _, count, *_ = pid
        if word != "storage" or not isinstance(kind, _StorageKind):
            raise _RefusedNameError("It refers to something that is not a storage.")
        if not 0 <= count * np.dtype(kind.dtype).itemsize <= self._size:
            raise ValueError(f"storage {key} has {count} values by its description, more than the file has")
        return self.storages.setdefault(key, _Storage(key, kind.dtype, count))

    def _rebuild(self, storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage):
            raise _RefusedNameError("It rebuilds a tensor of something that is not a storage.")
        shape = tuple(map(int, size))
        if any(length < 0 for length in shape) or np.prod([float(n) for n in shape]) > storage.count:
            raise ValueError(f"a tensor of shape {shape} has more values than its storage")
        return _Tensor(storage, int(offset), shape, tuple(map(int, stride)))


CUBE_BODY = "cube"
HALF_WIDTH_M = 0.0524  # the length by which upstream divides (experiment.json: g = 9.81 / 0.0524 = 187.2)
CUBE_RATE_HZ = 148.0  # experiment.json: dt = 1/148 s
_WIDTH = 19
_CUBE_TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")


def read_cube_tosses(folder: Path) -> list[RawEpisode]:
    """Read all cube tosses in the subfolder ``tosses_processed``, with the numbers of their files."""
    return [_cube_episode(path) for path in find_recordings(folder, "tosses_processed", "*.pt")]


def _cube_episode(path: Path) -> RawEpisode:
    values = np.asarray(read_tensor(path), dtype=np.float64)
    if values.shape != (1, *values.shape[1:2], _WIDTH):
        raise LogError(f"{path} holds a tensor of shape {values.shape}; a toss is (1, frames, {_WIDTH}).")
    rows = values[0] * np.repeat([HALF_WIDTH_M, 1.0, HALF_WIDTH_M, 1.0], [3, 4, 3, 9])
    time = np.arange(len(rows)) / CUBE_RATE_HZ
    nothing = np.empty((len(rows), 0))
    return RawEpisode(
        index=recording_number(path),
        time=time,
        action=nothing,
        state=nothing,
        units=UnitMap(joints=(), source="a body without joints"),
        task="toss",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="cube_toss",
        command="none",
        signals={
            f"pose/{CUBE_BODY}": make_signal(time, rows[:, :7], POSE_COLUMNS, ""),
            f"twist/{CUBE_BODY}": make_signal(time, rows[:, 7:13], _CUBE_TWIST, ""),
        },
    )


CASSIE_BODY = "pelvis"
_BOTH = ("hip_roll", "hip_yaw", "hip_pitch", "knee", "knee_joint", "ankle_joint")
_SIDES = ("left", "right")
CASSIE_JOINTS = (
    *(f"{name}_{side}" for name in _BOTH for side in _SIDES),
    *(f"{name}_{side}" for side in _SIDES for name in ("ankle_spring_joint", "toe")),
)
CASSIE_MOTORS = tuple(f"{name}_{side}" for name in (*_BOTH[:4], "toe") for side in _SIDES)
_CASSIE_TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")
_CASSIE_LEGEND = "post_processed_trajectories_legend.md"
_MOST_CASSIE_BYTES = 1 << 28


def read_cassie_landings(folder: Path) -> list[RawEpisode]:
    """Read all landings of the robot Cassie in the subfolder ``data``, with the numbers of their files.

    The condition ``pelvis_offset`` is the offset of the pelvis height in m, from the set's legend.
    """
    offsets = _cassie_offsets(folder / _CASSIE_LEGEND)
    return [_cassie_episode(path, offsets) for path in find_recordings(folder, "data", "x_*.npy")]


def _cassie_episode(path: Path, offsets: dict[int, float]) -> RawEpisode:
    index = recording_number(path)
    x = _load_cassie(path, 2)
    u = _load_cassie(path.with_name(path.name.replace("x_", "u_", 1)), 2)
    time = _load_cassie(path.with_name(path.name.replace("x_", "t_", 1)), 1)
    n = len(CASSIE_JOINTS)
    if x.shape != (len(time), 13 + 2 * n) or u.shape != (len(time), len(CASSIE_MOTORS)):
        raise LogError(f"{path}: states {x.shape}, torques {u.shape} and times {time.shape} are not of one landing.")
    position, joints, spin, velocity, rates = np.split(x, [7, 7 + n, 10 + n, 13 + n], axis=1)
    state = joints
    body_spin = _rotate_into_body(position[:, :4], spin)
    return RawEpisode(
        index=index,
        time=time,
        action=np.zeros_like(state),
        state=state,
        units=make_unit_map(dict.fromkeys(CASSIE_JOINTS, "rad"), source="the set's description"),
        task="jump landing",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="cassie",
        command="none",
        signals={
            "joint_velocity": make_signal(time, rates, CASSIE_JOINTS, "rad/s"),
            "joint_torque": make_signal(time, u, CASSIE_MOTORS, "N·m"),
            f"pose/{CASSIE_BODY}": make_signal(time, np.roll(position, 3, axis=1), POSE_COLUMNS, ""),
            f"twist/{CASSIE_BODY}": make_signal(time, np.concatenate([velocity, body_spin], axis=1), _CASSIE_TWIST, ""),
        },
        conditions={"pelvis_offset": offsets[index]} if index in offsets else {},
    )


def _rotate_into_body(wxyz: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate vectors from world to body axes, shape ``(T, 3)``. Invalid orientations give invalid vectors.

    Args:
        wxyz: Orientation of the body, shape ``(T, 4)``.
        vectors: Vectors in world axes, shape ``(T, 3)``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        axis = -wxyz[:, 1:]
        across = 2 * np.cross(axis, vectors)
        return vectors + wxyz[:, :1] * across + np.cross(axis, across)


def _load_cassie(path: Path, rank: int) -> NDArray[np.float64]:
    try:
        values = np.asarray(
            np.load(require_readable_size(path, _MOST_CASSIE_BYTES), allow_pickle=False), dtype=np.float64
        )
    except Exception as error:  # a damaged header raises anything
        raise LogError(f"{path} is not an array of numbers ({error}).") from error
    if values.ndim != rank:
        raise LogError(f"{path} holds an array of shape {values.shape}, expected {rank} axes.")
    return values


def _cassie_offsets(path: Path) -> dict[int, float]:
    """Return the offset of the pelvis height in m for each landing, by the number in the names of its files.

    The offsets are those of the table in the set's legend, a Markdown file. There are none if the file is missing.

    Args:
        path: The legend.
    """
    if not path.is_file():
        return {}
    rows = re.findall(r"^\|\s*(\d+)\s*\|.*\|\s*(-?[\d.]+)\s*\|\s*$", path.read_text(), re.MULTILINE)
    return {int(row): float(offset) for row, offset in rows}


PLANAR_RATE_HZ = 250.0  # the set's description; steps of x are velocity times 4 ms within 0.3 %
_POSITIONS = ("x", "z", "th")
_VELOCITIES = ("vx", "vz", "vth")
_MOST_PLANAR_BYTES = 1 << 28
_PLANAR_STATES = 12


def read_planar_drops(folder: Path) -> list[RawEpisode]:
    """Read all drops of a square in the subfolder ``square_dice``.

    The joints are the slides x and z and the hinge th of the square; there are no commands.
    """
    return [_planar_episode(path) for path in find_recordings(folder, "square_dice", "*.csv")]


def _planar_episode(path: Path) -> RawEpisode:
    columns = read_columns(path, [*_POSITIONS, *_VELOCITIES])
    state = stack_columns(columns, _POSITIONS)
    time = np.arange(len(state)) / PLANAR_RATE_HZ
    return RawEpisode(
        index=recording_number(path),
        time=time,
        action=np.zeros_like(state),
        state=state,
        units=make_unit_map({"x": "m", "z": "m", "th": "rad"}, source="the set's description"),
        task="drop",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="planar_square",
        command="none",
        signals={"joint_velocity": make_signal(time, stack_columns(columns, _VELOCITIES), _POSITIONS, "")},
    )


@dataclass(frozen=True, kw_only=True)
class Bounces:
    """Single planar impacts, one per row.

    Attributes:
        before: State before each of n impacts: x, z, th, vx, vz, vth in m and rad, shape ``(n, 6)``.
        after: State after each impact, shape ``(n, 6)``.
        normal: Jacobian of the contact point's normal velocity with respect to (vx, vz, vth), shape ``(n, 3)``.
        tangent: Jacobian of its tangential velocity, shape ``(n, 3)``.
        flagged: Whether the recording marks the impact as doubtful for any reason, shape ``(n,)``.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    normal: NDArray[np.float64]
    tangent: NDArray[np.float64]
    flagged: NDArray[np.bool_]


def read_ellipse(folder: Path) -> Bounces:
    """Read the bounces of an ellipse (axes 0.07 m and 0.05 m) from the file ``ellipse_uniform.mat``.

    Raises:
        LogError: If the file is missing or has other content.
    """
    import scipy.io

    path = folder / "ellipse_uniform.mat"
    if not path.is_file():
        raise LogError(f"{path} is missing: it holds the bounces of the ellipse.")
    try:
        rows = scipy.io.loadmat(str(require_readable_size(path, _MOST_PLANAR_BYTES)))["bounce_array"].ravel()
        states = np.array([row["states"].ravel() for row in rows], dtype=np.float64).reshape(-1, _PLANAR_STATES)
        normal, tangent = (np.array([row[n].ravel() for row in rows], dtype=np.float64) for n in ("n", "d"))
        flagged = np.array([row["flags"].any() for row in rows], dtype=np.bool_)
    except (ValueError, KeyError, IndexError, TypeError, NotImplementedError) as error:
        raise LogError(f"{path} is not a file of bounces ({type(error).__name__}: {error}).") from error
    return Bounces(before=states[:, :6], after=states[:, 6:], normal=normal, tangent=tangent, flagged=flagged)
