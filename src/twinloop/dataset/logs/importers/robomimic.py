"""Import HDF5 files of robomimic, and of robosuite in the same layout.

``data/demo_N`` has ``actions`` ``(T, k)`` and ``obs/KEY`` ``(T, …)`` for T steps; each observation is measured
before the action of the same row. ``data`` has the attribute ``env_args``, JSON with the environment's name,
``control_freq`` and controller. Joint positions are in ``obs/robot0_joint_pos`` (rad). The meaning of an action
depends on the controller (robosuite docs): ``JOINT_POSITION`` adds it, clipped and rescaled, to the measured
positions, or uses it directly if its inputs are absolute; ``JOINT_TORQUE`` rescales it. Inputs of end-effector
controllers are not joint commands.

``states`` and ``model_file`` of a demonstration are kept as its simulation (`Episode.simulation`). A file of
`twinloop export robomimic` is restored with the dataset's numbers, units and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import POSE_COLUMNS, LoggedSignal
from twinloop.core.units import RADIANS, UnitMap
from twinloop.dataset import robomimic_layout as names
from twinloop.dataset.logs.importers import hdf5_values
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode, name_columns, resolve_units
from twinloop.dataset.logs.importers.tables import make_signal, make_unit_map

Array = NDArray[np.float64]
Kind = Literal["position", "torque", "none"]
_MAGIC = b"\x89HDF\r\n\x1a\n"
_STATE = "robot0_joint_pos"
_RATE_HZ = 20.0  # robosuite's default control_freq
_SIMULATORS = (1, 2, 3)  # robomimic's EnvType: robosuite, Gym, iGibson


def recognizes(path: Path) -> bool:
    """Return whether a path is an HDF5 file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return the demonstrations of a file as episodes. The number in a demonstration's name is the episode's index.

    Raises:
        MissingDependencyError: If `h5py` is not installed.
        LogError: If the file is damaged, or has no demonstrations or no joint positions.
    """
    with _open(path) as file:
        try:
            return _read_episodes(path, file, options)
        except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise LogError(
                f"{path} is damaged or not a file of robomimic ({type(error).__name__}: {error})."
            ) from error


def _read_episodes(path: Path, file: Any, options: LogOptions) -> list[RawEpisode]:
    demos = hdf5_values.get_member(file, "data", str(path)) if "data" in file else None
    if demos is None or not hasattr(demos, "keys"):
        has = ", ".join(file) or "nothing"
        raise LogError(f"{path} has no group data, as robomimic's files have. It has: {has}.")
    env, about = _read_env(path, demos), hdf5_values.read_json_attribute(demos, names.OURS, str(path))
    found = sorted((name for name in demos if name.startswith("demo")), key=_demo_number)
    if about:
        return [
            _read_own_episode(path, name, hdf5_values.get_member(demos, name, str(path)), about, options)
            for name in found
        ]
    return [_read_episode(path, name, hdf5_values.get_member(demos, name, str(path)), env, options) for name in found]


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    h5py = names.import_h5py(f"{path} is an HDF5 file, which needs the package h5py.")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise LogError(f"{path} cannot be opened as HDF5 ({error}). Copy it again.") from error
    with file:
        yield file


def _read_episode(path: Path, name: str, demo: Any, env: Mapping[str, Any], options: LogOptions) -> RawEpisode:
    where = f"{path}#{name}"
    observations = hdf5_values.get_member(demo, "obs", where) if "obs" in demo else {}
    key = options.state_key if options.state_key in observations else _STATE
    if key not in observations:
        has = ", ".join(sorted(observations)) or "none"
        raise LogError(f"{where} has no obs/{_STATE}, the joints' positions. Its observations are: {has}.")
    state = hdf5_values.read_matrix(observations, key, where)
    time = np.arange(len(state)) / env["rate"]
    joints = _joint_names(state.shape[1], options, where)
    actions = hdf5_values.read_matrix(demo, "actions", where)
    command, values, note = _interpret_action(actions, state, env)
    units = (
        make_unit_map(dict.fromkeys(joints, RADIANS), source="robosuite's observations")
        if options.units is None
        else resolve_units(joints, options, where=str(path), sample=state)
    )
    return RawEpisode(
        index=_demo_number(name),
        time=time,
        action=values,
        state=state,
        units=units,
        task=options.task or str(env["name"]),
        source="sim" if env["simulated"] or "model_file" in demo.attrs else "real",
        origin=options.origin or where,
        robot_type=options.robot_type or str(env["robot"]),
        command=command,
        signals=_read_signals(observations, time, joints, where),
        notes=(f"{env['rate']:g} Hz {env['rate_from']}", note),
        simulation=hdf5_values.read_simulation(demo, where),
    )


def _read_own_episode(path: Path, name: str, demo: Any, about: Mapping[str, Any], options: LogOptions) -> RawEpisode:
    """Return a demonstration that twinloop exported, with the unscaled values of its dataset.

    Args:
        path: File.
        name: Name of the demonstration.
        demo: HDF5 group of the demonstration.
        about: Content of the attribute ``twinloop`` of ``data``.
        options: Metadata that the caller gives.
    """
    if not isinstance(about.get("schema"), int) or about["schema"] > names.SCHEMA:
        raise LogError(f"{path} was written by a newer version (schema {about.get('schema')}). Upgrade twinloop.")
    where = f"{path}#{name}"
    ours, attributes = (
        hdf5_values.get_member(demo, names.OURS, where),
        hdf5_values.read_json_attribute(demo, names.OURS, where),
    )
    inside = f"{where}/{names.OURS}"
    action, state = (hdf5_values.read_matrix(ours, key, inside) for key in (names.ACTION, names.STATE))
    joints, columns = name_columns(about["action_columns"], action.shape[1], options, where=where)
    known: dict[str, Any] | None = about["units"]
    units = (
        resolve_units(joints, options, where=str(path), sample=state[:, columns])
        if options.units is not None or known is None
        else UnitMap.from_json(known)
    )
    record = attributes.get("provenance", {})
    return RawEpisode(
        index=_demo_number(name),
        time=hdf5_values.read_array(ours, names.TIME, inside),
        action=action[:, columns],
        state=state[:, columns],
        units=units,
        task=options.task or next(iter(attributes.get("tasks", ())), ""),
        source=record.get("source", "real"),
        origin=options.origin or where,
        robot_type=options.robot_type or about["robot_type"],
        command=about["command"],
        simulation=hdf5_values.read_simulation(demo, where),
        notes=(f"exported by twinloop: times and numbers as in its dataset, {about['fps']:g} Hz",),
    )


def _joint_names(width: int, options: LogOptions, where: str) -> tuple[str, ...]:
    """Return the caller's joint names, or ``joint1``, ``joint2``, … in robosuite's order."""
    if options.joints is None:
        return tuple(f"joint{i + 1}" for i in range(width))
    if len(options.joints) != width:
        raise LogError(f"{where} has {width} joints; {len(options.joints)} joint names were given.")
    return tuple(options.joints)


def _interpret_action(actions: Array, state: Array, env: Mapping[str, Any]) -> tuple[Kind, Array, str]:
    """Convert the actions of a demonstration to joint commands, according to the controller.

    Args:
        actions: Actions, shape ``(T, k)``.
        state: Joint positions, shape ``(T, n)``.
        env: Settings of the environment (`_read_env`).

    Returns:
        Command type, commands of shape ``(T, n)``, and a note for the user.
    """
    name, arm = str(env["arm"].get("type", "")), env["arm"]
    joints = state.shape[1]
    if name == "JOINT_POSITION" and env["absolute"] and actions.shape[1] >= joints:
        return "position", actions[:, :joints], f"actions are positions ({name}, absolute)"
    limits = [arm.get(f"{side}_{end}") for side in ("input", "output") for end in ("min", "max")]
    known = actions.shape[1] >= joints and None not in limits
    if name == "JOINT_POSITION" and known:
        return (
            "position",
            state + _rescale_inputs(actions[:, :joints], limits),
            f"actions are steps of position ({name})",
        )
    if name == "JOINT_TORQUE" and known and arm.get("use_torque_compensation") is False:
        return "torque", _rescale_inputs(actions[:, :joints], limits), f"actions are torques ({name})"
    why = f"actions are inputs of {name or 'an unnamed controller'}, from which no joint's command follows: left out"
    return "none", np.zeros_like(state), why


def _rescale_inputs(values: Array, limits: list[Any]) -> Array:
    """Clip controller inputs to the input range and scale them to the output range.

    Args:
        values: Inputs, shape ``(T, n)``.
        limits: Smallest and largest input, smallest and largest output; each one number, or n numbers.
    """
    low, high, least, most = (np.asarray(limit, dtype=np.float64) for limit in limits)
    return (np.clip(values, low, high) - low) / (high - low) * (most - least) + least


def _read_signals(observations: Any, time: Array, joints: tuple[str, ...], where: str) -> dict[str, LoggedSignal]:
    """Return joint velocities, and poses of hand and objects. robosuite's xyzw quaternions are converted to wxyz."""
    found: dict[str, LoggedSignal] = {}
    if "robot0_joint_vel" in observations:
        values = hdf5_values.read_matrix(observations, "robot0_joint_vel", where)
        found["joint_velocity"] = make_signal(time, values, joints, "rad/s")
    for key in sorted(observations):
        body = key.removesuffix("_pos")
        if body == key or f"{body}_quat" not in observations:
            continue
        position, xyzw = (hdf5_values.read_matrix(observations, f"{body}_{part}", where) for part in ("pos", "quat"))
        if position.shape[1:] == (3,) and xyzw.shape[1:] == (4,):
            values = np.concatenate([position, np.roll(xyzw, 1, axis=1)], axis=1)
            found[f"pose/{body}"] = make_signal(time, values, POSE_COLUMNS, "")
    return found


def _read_env(path: Path, demos: Any) -> dict[str, Any]:
    """Return the settings of the environment that the import needs, from the attribute ``env_args``."""
    env_args = hdf5_values.read_json_attribute(demos, "env_args", str(path))
    settings = env_args.get("env_kwargs") or {}
    controller = settings.get("controller_configs") or {}
    parts = controller.get("body_parts") or {}  # robosuite since 1.5: a composite of parts
    arm = next((part for name, part in parts.items() if name in ("right", "arm")), controller)
    robots = settings.get("robots") or ""
    rate = settings.get("control_freq")
    return {
        "name": env_args.get("env_name", ""),
        "simulated": env_args.get("type") in _SIMULATORS,
        "robot": robots[0] if isinstance(robots, list) and robots else robots,
        "rate": float(rate or _RATE_HZ),
        "rate_from": "from env_args" if rate else "assumed: robosuite's default, env_args have none",
        "arm": arm,
        "absolute": arm.get("input_type") == "absolute",
    }


def _demo_number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


IMPORTER = Importer(name="hdf5", recognizes=recognizes, read=read)
