"""HDF5 files of robomimic and what robosuite collects in its layout.

``data/demo_N`` holds ``actions`` ``(T, k)`` and ``obs/KEY`` ``(T, …)``, each observed before the action beside it;
``data`` has the attribute ``env_args``, JSON with the environment's name, ``control_freq`` and controller. Joint
positions stand in ``obs/robot0_joint_pos`` (rad). What an action is depends on the controller (robosuite docs):
``JOINT_POSITION`` adds it, clipped and rescaled, to the measured positions, or takes it as it is where its inputs are
absolute; ``JOINT_TORQUE`` rescales it. Inputs of the hand's controllers command no joint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError, MissingDependencyError
from twinloop.core.records import Signal
from twinloop.core.units import RADIANS
from twinloop.dataset.importers.numeric import signal, unit_map
from twinloop.dataset.importers.options import Importer, LogOptions, resolve_units
from twinloop.dataset.importers.raw import RawEpisode

Array = NDArray[np.float64]
Kind = Literal["position", "torque", "none"]
_MAGIC = b"\x89HDF\r\n\x1a\n"
_STATE = "robot0_joint_pos"
_MOST_VALUES = 1 << 28  # numbers of one array: 2 GiB as float64
_RATE_HZ = 20.0  # robosuite's default control_freq
_SIMULATORS = (1, 2, 3)  # robomimic's EnvType: robosuite, Gym, iGibson
_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


def recognizes(path: Path) -> bool:
    """Whether a path is an HDF5 file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """The demonstrations, numbered as they are named.

    Raises:
        MissingDependencyError: `h5py` is not installed.
        LogError: damaged, no demonstrations, none of the joints' positions.
    """
    with _open(path) as file:
        try:
            return _episodes(path, file, options)
        except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise LogError(f"{path} is damaged or no file of robomimic ({type(error).__name__}: {error}).") from error


def _episodes(path: Path, file: Any, options: LogOptions) -> list[RawEpisode]:
    demos = file.get("data")
    if demos is None or not hasattr(demos, "keys"):
        has = ", ".join(file) or "nothing"
        raise LogError(f"{path} has no group data, as robomimic's files have. It has: {has}.")
    env = _env(path, demos)
    names = sorted((name for name in demos if name.startswith("demo")), key=_number)
    return [_episode(path, name, demos[name], env, options) for name in names]


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is an HDF5 file, and nothing here reads those.", remedy="pip install 'twinloop[hdf5]'"
        ) from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise LogError(f"{path} cannot be opened as HDF5 ({error}). Copy it again.") from error
    with file:
        yield file


def _episode(path: Path, name: str, demo: Any, env: Mapping[str, Any], options: LogOptions) -> RawEpisode:
    where = f"{path}#{name}"
    observations = demo.get("obs", {})
    key = options.state_key if options.state_key in observations else _STATE
    if key not in observations:
        has = ", ".join(sorted(observations)) or "none"
        raise LogError(f"{where} has no obs/{_STATE}, the joints' positions. Its observations are: {has}.")
    state = _array(observations, key, where)
    time = np.arange(len(state)) / env["rate"]
    joints = _joints(state.shape[1], options, where)
    actions = _array(demo, "actions", where)
    command, values, note = _command(actions, state, env)
    units = (
        unit_map(dict.fromkeys(joints, RADIANS), source="robosuite's observations")
        if options.units is None
        else resolve_units(joints, options, where=str(path), sample=state)
    )
    return RawEpisode(
        index=_number(name),
        time=time,
        action=values,
        state=state,
        units=units,
        task=options.task or str(env["name"]),
        source="sim" if env["simulated"] or "model_file" in demo.attrs else "real",
        origin=options.origin or where,
        robot_type=options.robot_type or str(env["robot"]),
        command=command,
        signals=_signals(observations, time, joints, where),
        notes=(f"{env['rate']:g} Hz {env['rate_from']}", note),
    )


def _joints(width: int, options: LogOptions, where: str) -> tuple[str, ...]:
    """Names as given, or robosuite's own order of the arm: ``joint1`` and so on."""
    if options.joints is None:
        return tuple(f"joint{i + 1}" for i in range(width))
    if len(options.joints) != width:
        raise LogError(f"{where} has {width} joints; {len(options.joints)} joint names were given.")
    return tuple(options.joints)


def _command(actions: Array, state: Array, env: Mapping[str, Any]) -> tuple[Kind, Array, str]:
    """What an action commands, its values per joint ``(T, n)``, and a note."""
    name, arm = str(env["arm"].get("type", "")), env["arm"]
    joints = state.shape[1]
    if name == "JOINT_POSITION" and env["absolute"] and actions.shape[1] >= joints:
        return "position", actions[:, :joints], f"actions are positions ({name}, absolute)"
    limits = [arm.get(f"{side}_{end}") for side in ("input", "output") for end in ("min", "max")]
    known = actions.shape[1] >= joints and None not in limits
    if name == "JOINT_POSITION" and known:
        return "position", state + _rescaled(actions[:, :joints], limits), f"actions are steps of position ({name})"
    if name == "JOINT_TORQUE" and known and arm.get("use_torque_compensation") is False:
        return "torque", _rescaled(actions[:, :joints], limits), f"actions are torques ({name})"
    why = f"actions are inputs of {name or 'an unnamed controller'}, from which no joint's command follows: left out"
    return "none", np.zeros_like(state), why


def _rescaled(values: Array, limits: list[Any]) -> Array:
    """Inputs clipped to their range and brought to that of the outputs."""
    low, high, least, most = (np.asarray(limit, dtype=np.float64) for limit in limits)
    return (np.clip(values, low, high) - low) / (high - low) * (most - least) + least


def _signals(observations: Any, time: Array, joints: tuple[str, ...], where: str) -> dict[str, Signal]:
    """Joint velocities, and the poses of the hand and of objects; quaternions are xyzw in robosuite."""
    found: dict[str, Signal] = {}
    if "robot0_joint_vel" in observations:
        values = _array(observations, "robot0_joint_vel", where)
        found["joint_velocity"] = signal(time, values, joints, "rad/s")
    for key in sorted(observations):
        body = key.removesuffix("_pos")
        if body == key or f"{body}_quat" not in observations:
            continue
        position, xyzw = (_array(observations, f"{body}_{part}", where) for part in ("pos", "quat"))
        if position.shape[1:] == (3,) and xyzw.shape[1:] == (4,):
            values = np.concatenate([position, np.roll(xyzw, 1, axis=1)], axis=1)
            found[f"pose/{body}"] = signal(time, values, _POSE, "")
    return found


def _array(group: Any, key: str, where: str) -> Array:
    """An array of numbers ``(T, k)`` that lies in this file itself."""
    stored = group[key]
    if stored.file.filename != where.partition("#")[0] or stored.is_virtual or stored.external:
        raise LogError(f"{where}/{key} is a link to another file; such are not followed.")
    if stored.size > _MOST_VALUES:
        raise LogError(f"{where}/{key} has {stored.size:,} numbers, more than the {_MOST_VALUES:,} that are read.")
    values = np.asarray(stored[()], dtype=np.float64)
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def _env(path: Path, demos: Any) -> dict[str, Any]:
    """What ``env_args`` say that is needed here."""
    text = demos.attrs.get("env_args", "{}")
    try:
        said = json.loads(text)
    except (json.JSONDecodeError, TypeError) as error:
        raise LogError(f"{path}: the attribute env_args is not JSON ({error}).") from error
    settings = said.get("env_kwargs") or {}
    controller = settings.get("controller_configs") or {}
    parts = controller.get("body_parts") or {}  # robosuite since 1.5: a composite of parts
    arm = next((part for name, part in parts.items() if name in ("right", "arm")), controller)
    robots = settings.get("robots") or ""
    rate = settings.get("control_freq")
    return {
        "name": said.get("env_name", ""),
        "simulated": said.get("type") in _SIMULATORS,
        "robot": robots[0] if isinstance(robots, list) and robots else robots,
        "rate": float(rate or _RATE_HZ),
        "rate_from": "as env_args say" if rate else "assumed: robosuite's default, env_args do not say",
        "arm": arm,
        "absolute": arm.get("input_type") == "absolute",
    }


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


IMPORTER = Importer(name="hdf5", recognizes=recognizes, read=read)
