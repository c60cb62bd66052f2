"""Find and compile a twin: a built-in name, a twin YAML, an MJCF or URDF file, ``package:…`` or ``menagerie:NAME``."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import InputError, MissingDependencyError, TwinloopError, UnknownNameError
from twinloop.core.files import absolute_path, sha256_file, sha256_json
from twinloop.core.registry import Registry
from twinloop.core.units import DEGREES, METRES, NORMALIZED, PERCENT, RADIANS
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin.compiling import compile_model, prepare_spec
from twinloop.twin.devices import SensingDevice, mark_sensors, sensor_params, twin_devices
from twinloop.twin.gear import add_gears, robot_gears
from twinloop.twin.model_limits import ENGINE_ERRORS, check_model_file, check_options, list_model_files
from twinloop.twin.model_text import embed_files
from twinloop.twin.params import declared_params, expand_params
from twinloop.twin.quantities import QUANTITIES
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors
from twinloop.twin.quantities.soft import FAMILY as SOFT
from twinloop.twin.residual_spec import check_residual_joints
from twinloop.twin.scene import SceneSlots
from twinloop.twin.scene_build import SceneLayout, build_scene
from twinloop.twin.servos import add_servos, apply_servos, preset_nominals, robot_servos
from twinloop.twin.spec import AttachSpec, ParamSpec, RobotSpec, TwinSpec, parse_spec
from twinloop.twin.twin import Twin
from twinloop.twin.visuals import replace_visuals

JOINT_UNITS = (NORMALIZED, PERCENT, DEGREES, RADIANS, METRES)
_INSTALLED = MENAGERIE, _PACKAGE = "menagerie:", "package:"
_URDF = ".urdf"
MODEL_SUFFIXES = {".xml", ".mjcf", _URDF}


_BUILTIN, _LIBRARY = (Path(str(resources.files("twinloop.twin") / name)) for name in ("builtin", "library"))
_FILES = {path.stem: path for folder in (_BUILTIN, _LIBRARY) for path in sorted(folder.glob("[!_]*.yaml"))}
TWINS: Registry[Path] = Registry(
    "twin",
    _FILES,
    group="twinloop.twins",
    where="the built-in twins, and no file has that name",
)


def builtin_names() -> list[str]:
    """Return the names of the built-in twins that need no other package, without the library of tasks' worlds."""
    return [name for name, path in _FILES.items() if path.parent == _BUILTIN]


def library_names() -> list[str]:
    """Return the names of the twins in the library of tasks' worlds; some need a Python package with their models."""
    return [name for name, path in _FILES.items() if path.parent == _LIBRARY]


def read_spec(name: str) -> TwinSpec:
    """Return the content of a built-in twin's YAML file, merged with that of its base; nothing is compiled."""
    return parse_spec(_merge_base(load_yaml(_FILES[name]), _FILES[name])[0], where=name)


def load_twin(reference: str | Path) -> Twin:
    """Load and compile a twin, given by its name or file.

    A twin is compiled once per process, until the content of one of its files changes. Each call returns a copy, which
    the caller may change.

    Args:
        reference: Name of a built-in twin or of a twin in an installed package, path of a twin YAML, an MJCF or a URDF
            file, ``package:NAME/PATH`` for such a file in an installed Python package, or ``menagerie:NAME`` for a
            robot of MuJoCo Menagerie.

    Raises:
        UnknownNameError: If there is no such twin or file.
        InputError: If the file is invalid; the message names file and key.
        MissingDependencyError: If the package is not installed, or for ``menagerie:NAME`` the package
            ``mujoco-menagerie``.
    """
    text = str(reference)
    path = _find_installed_file(text) if text.startswith(_INSTALLED) else Path(text)
    if text in TWINS.builtin or not path.is_file():
        path = _find_registered_file(text)
    key = (text, str(path), str(Path.cwd()))
    loaded = _LOADED.pop(key, None)
    if loaded is None or any(_hash_file(file) != digest for file, digest in loaded.files.items()):
        loaded = _load_files(text, path)
    _LOADED[key] = loaded  # at the end, because the oldest is removed
    while len(_LOADED) > _MOST_LOADED:
        del _LOADED[next(iter(_LOADED))]
    return _copy_twin(loaded.twin)


@dataclass(frozen=True)
class _LoadedTwin:
    """A compiled twin, and the hash of each file from which it was made; None for a file that did not exist."""

    twin: Twin
    files: Mapping[Path, str | None]


_MOST_LOADED = 8
_LOADED: dict[tuple[str, str, str], _LoadedTwin] = {}  # by reference, file and current folder; the newest last


def _load_files(text: str, path: Path) -> _LoadedTwin:
    is_model = path.suffix in MODEL_SUFFIXES
    try:
        files = {file: _hash_file(file) for file in ([path] if is_model else _list_sources(path))}
        models = [path] if is_model else [file for file in files if file.suffix in MODEL_SUFFIXES]
        files |= {file: _hash_file(file) for model in models for file in list_model_files(model)}
    except (TwinloopError, OSError):  # the same error, or one that describes it better, is raised below
        files = {path: None}
    if is_model:
        name = text.removeprefix(MENAGERIE) if text.startswith(MENAGERIE) else path.stem
        return _LoadedTwin(compile_twin(_describe_model(path, name), path, where=str(path)), files)
    return _LoadedTwin(_load_yaml_twin(path), files)


def _hash_file(file: Path) -> str | None:
    return sha256_file(file) if file.is_file() else None


def _list_sources(path: Path) -> list[Path]:
    """Return the files that a twin YAML names, built-in ones included, and those that would replace a built-in one.

    The files that the model names are left out.
    """
    files, own = [path], path
    while own.suffix not in MODEL_SUFFIXES and isinstance(value := load_yaml(own), dict) and "base" in value:
        base = str(value["base"])
        files.append(own.parent / base)
        own = _find_base(base, own)
        if own in files[:-1]:
            break
        files.append(own)
    merged, folder = _merge_base(load_yaml(path), path)
    if not isinstance(merged, dict):
        return files
    files += _list_part_files(files)
    spec = parse_spec({"params": [], **merged}, where=str(path))
    shapes = [*spec.scene.objects, *(one for group in spec.scene.sets.values() for one in group)] if spec.scene else []
    named = [file for shape in shapes for file in shape.files]
    named += [f"{sensor.device.partition('.yaml')[0]}.yaml" for sensor in spec.sensors.values()]
    others = [*spec.attach, *([spec.visuals] if spec.visuals else [])]
    attached = [_find_model(one.model, path.parent) for one in others]
    return [*files, _find_model(spec.model, folder), *attached, *(path.parent / name for name in named)]


def _find_model(model: str, folder: Path) -> Path:
    return _find_installed_file(model) if model.startswith(_INSTALLED) else folder / model


def _copy_twin(twin: Twin) -> Twin:
    """Return a twin of which nothing that can be changed is shared with the given one."""
    model = copy.copy(twin.model)
    return replace(
        twin,
        spec=twin.spec.model_copy(deep=True),
        model=model,
        params=dict(twin.params),
        mjspec=twin.mjspec.copy(),
        scene=replace(twin.scene, model=model) if twin.scene else None,
        devices=dict(twin.devices),
    )


def list_twin_files(reference: str | Path) -> list[Path]:
    """Return all files of a twin as absolute paths, its YAML or model file first; none for a twin that has a name.

    They are the YAML file, the YAML files on which it is based, the model with its meshes and images, and the meshes
    and sensing devices that the YAML names. Files of built-in twins and installed packages are left out.

    Raises:
        UnknownNameError, InputError: See `load_twin`.
    """
    path = absolute_path(reference)
    if str(reference) in TWINS.builtin or str(reference).startswith(_INSTALLED) or not path.is_file():
        return []
    if path.suffix in MODEL_SUFFIXES:
        return list_model_files(path)
    merged, folder = _merge_base(load_yaml(path), path)
    spec = parse_spec(merged, where=str(path))
    yamls = [path]
    while yamls[-1].suffix not in MODEL_SUFFIXES:
        base = str(load_yaml(yamls[-1]).get("base", ""))
        below = absolute_path(yamls[-1].parent / base)
        if not base or base in TWINS.builtin or base.startswith(_INSTALLED) or not below.is_file():
            break
        yamls.append(below)
    yamls += [absolute_path(file) for file in _list_part_files(yamls, installed=False)]
    shapes = [*spec.scene.objects, *(one for group in spec.scene.sets.values() for one in group)] if spec.scene else []
    named = [file for shape in shapes for file in shape.files]
    named += [f"{sensor.device.partition('.yaml')[0]}.yaml" for sensor in spec.sensors.values()]
    own = [absolute_path(path.parent / name) for name in named]
    is_own = not spec.model.startswith(_INSTALLED) and absolute_path(folder) in {file.parent for file in yamls}
    models = [folder / spec.model] if is_own else []
    others = [*spec.attach, *([spec.visuals] if spec.visuals else [])]
    models += [path.parent / one.model for one in others if not one.model.startswith(_INSTALLED)]
    read = [file for model in models for file in list_model_files(model)]
    return list(dict.fromkeys([*yamls, *read, *filter(Path.is_file, own)]))


def _find_registered_file(name: str, *, where: str = "") -> Path:
    """Return the file of a built-in twin or of a twin in an installed package.

    Args:
        name: Name of the twin.
        where: Place in which the name is used, for error messages.
    """
    path = TWINS.find(name, where=where)
    if not isinstance(path, str | Path):
        raise InputError(
            f"The installed package registers {path!r:.60} as the twin {name}. Register the path of its file."
        )
    return Path(path)


def _load_yaml_twin(path: Path) -> Twin:
    value, folder = _merge_base(load_yaml(path), path)
    if isinstance(value, dict) and "params" not in value:
        value = {**value, "params": generic_params()}
    spec = parse_spec(value, where=str(path))
    try:
        return compile_twin(spec, _find_model(spec.model, folder), where=str(path), folder=path.parent)
    except MissingDependencyError as error:
        raise MissingDependencyError(error.what, remedy=spec.install or error.remedy) from error


def _merge_base(value: Any, path: Path, above: tuple[Path, ...] = ()) -> tuple[Any, Path]:
    """Merge the content of a twin YAML into the content of its ``base``, a twin or a model file, recursively.

    The twin's ``params``, ``attach`` and ``remove`` are appended to those of the base. Its ``sensors`` are added to
    those of the base or replace sensors of the same name; a null value removes a sensor. All other keys replace those
    of the base.

    Args:
        value: Content of the YAML file.
        path: Path of the YAML file.
        above: Files whose chain of bases led to this file, to detect a cycle.

    Returns:
        The merged content, and the folder of the model file.
    """
    if not isinstance(value, dict):
        return value, path.parent
    value = _open_parts(value, path)
    if "base" not in value:
        return value, path.parent
    own = {key: item for key, item in value.items() if key != "base"}
    base = str(value["base"])
    file = _find_base(base, path)
    above = (*above, path.resolve())
    if file.resolve() in above:
        raise InputError(
            f"{path}: base: {base} is based on itself, directly or through other twins. Name another twin."
        )
    below, folder = _read_base(file, above)
    added = own.pop("params", None) or []
    if not isinstance(below, dict):
        raise InputError(f"{path}: base: {file} is not the YAML file of a twin. Name another twin.")
    if not isinstance(added, list):
        raise InputError(
            f"{path}: params must be a list of lines `- {{name: PATH, range: [low, high]}}`; given {added!r:.60}."
        )
    below = _move_attached(below, file.parent, path.parent)
    if isinstance(own.get("remove"), list):
        below = _leave_out(below, [str(name) for name in own["remove"]])
    merged = {**below, **own, "params": [*below.get("params", []), *added]}
    for key in ("attach", "remove"):
        if isinstance(own.get(key), list) and isinstance(below.get(key), list):
            merged[key] = [*below[key], *own[key]]
    if isinstance(own.get("sensors"), dict):
        together = {**(below.get("sensors") or {}), **own["sensors"]}
        merged["sensors"] = {name: sensor for name, sensor in together.items() if sensor is not None}
    return merged, path.parent if "model" in own else folder


def _read_base(file: Path, above: tuple[Path, ...]) -> tuple[Any, Path]:
    """Return the content of a base, merged with its own bases, and the folder of its model file."""
    if file.suffix in MODEL_SUFFIXES:
        described = _describe_model(file, file.stem).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return described, file.parent
    return _merge_base(load_yaml(file), file, above)


def _move_attached(content: dict[str, Any], source: Path, folder: Path) -> dict[str, Any]:
    """Return the content of a base whose attached and shown models have paths relative to another folder.

    Files of twinloop become ``package:twinloop/PATH``, so that the content does not depend on where it is installed.

    Args:
        content: Content of the base, merged with its own bases.
        source: Folder of the base.
        folder: Folder of the twin with this base.
    """
    if source.resolve() == folder.resolve():
        return content

    def move(entry: Any) -> Any:
        model = entry.get("model") if isinstance(entry, dict) else None
        if not isinstance(model, str) or model.startswith(_INSTALLED):
            return entry
        file, own = (source / model).resolve(), Path(str(resources.files("twinloop"))).resolve()
        if file.is_relative_to(own):
            return {**entry, "model": f"{_PACKAGE}twinloop/{file.relative_to(own).as_posix()}"}
        return {**entry, "model": Path(os.path.relpath(file, folder.resolve())).as_posix()}

    attached = content.get("attach")
    moved = {"attach": [move(one) for one in attached]} if isinstance(attached, list) else {}
    moved |= {"visuals": move(content["visuals"])} if "visuals" in content else {}
    return {**content, **moved}


def _leave_out(content: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the content of a base without the parameters and objects of removed bodies."""
    gone = set(names)
    params = [row for row in content.get("params", []) if not gone & set(str(row.get("name", "")).split("/")[1:2])]
    return {**content, "params": params, "objects": [one for one in content.get("objects", []) if one not in gone]}


def _open_parts(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a twin YAML in which each attached YAML file is replaced by its model and parameters.

    The parameters of the twin replace those of its parts.

    Args:
        value: Content of the twin YAML.
        path: Path of the twin YAML.
    """
    found, attached, params = _list_parts(value, path), list[Any](), list[Any]()
    if all(file is None for _, file in found):
        return value
    for one, file in found:
        if file is None:
            attached.append(one)
            continue
        part = load_yaml(file)
        known = isinstance(part, dict) and isinstance(part.get("model"), str) and not set(part) - {"model", "params"}
        if not known or not isinstance(part.get("params") or [], list):
            given = ", ".join(map(str, part)) if isinstance(part, dict) else f"{part!r:.60}"
            raise InputError(
                f"{path}: attach {file}: a part has the keys model, a file, and params, a list; given {given}. Change "
                "it, or name the model."
            )
        attached.append({**one, "model": (Path(one["model"]).parent / part["model"]).as_posix()})
        params += part.get("params") or []
    return {**value, "attach": attached, "params": [*params, *(value.get("params") or [])]}


def _list_parts(value: Any, path: Path) -> list[tuple[Any, Path | None]]:
    """Return the entries under ``attach`` in a twin YAML, each with its path if it is a YAML file itself."""
    entries = value.get("attach") if isinstance(value, dict) else None
    entries = entries if isinstance(entries, list) else []
    models = [(one, str(one.get("model", "")) if isinstance(one, dict) else "") for one in entries]
    return [(one, _find_model(model, path.parent) if model.endswith(".yaml") else None) for one, model in models]


def _list_part_files(files: Sequence[Path], *, installed: bool = True) -> list[Path]:
    """Return the YAML files that the twin YAMLs among some files attach, by default also those in packages."""
    yamls = [file for file in files if file.suffix not in MODEL_SUFFIXES and file.is_file()]
    parts = [(one, part) for file in yamls for one, part in _list_parts(load_yaml(file), file) if part is not None]
    return [part for one, part in parts if installed or not one["model"].startswith(_INSTALLED)]


def _find_base(base: str, path: Path) -> Path:
    """Return the file that a twin YAML names as its ``base``; ``path`` is that YAML."""
    file = _find_installed_file(base) if base.startswith(_INSTALLED) else path.parent / base
    if base in TWINS.builtin or not file.is_file():
        file = _find_registered_file(base, where=f"{path}: base, and no file in its folder has that name")
    return file


def _find_installed_file(reference: str) -> Path:
    """Return the model ``menagerie:NAME``, or the file ``package:NAME/PATH`` of a Python package, without importing it.

    Raises:
        MissingDependencyError: If the package is not installed.
        UnknownNameError: If the package has no such model. The message lists its models.
    """
    if reference.startswith(MENAGERIE):
        return _menagerie_file(reference.removeprefix(MENAGERIE))
    name, _, place = reference.removeprefix(_PACKAGE).partition("/")
    found = find_spec(name.replace("-", "_")) if name.replace("-", "_").isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            f"{reference}: there is no installed package {name}.", remedy=f"pip install {name}"
        )
    root = Path(next(iter(found.submodule_search_locations))).resolve()
    file = root / place
    if not file.resolve().is_relative_to(root) or not file.is_file():
        kinds = {".yaml"} if file.suffix == ".yaml" else MODEL_SUFFIXES
        models = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.suffix in kinds]
        raise UnknownNameError("model", place, models, where=f"the package {name}")
    return file


def _describe_model(path: Path, name: str) -> TwinSpec:
    """Return the content of a twin YAML for an MJCF or URDF file alone.

    The control rate follows from the model's timestep, the robot consists of the actuated joints, and the parameters
    are those that ``_generic.yaml`` in the folder of built-in twins declares for any robot. Commands are velocities if
    all actuators are velocity servos, and otherwise positions.

    Args:
        path: Path of the model file.
        name: Name of the twin and of its robot.
    """
    mjspec = _read_model(path)
    if path.suffix == _URDF:
        _add_servos(mjspec, path)
    timestep = mjspec.option.timestep
    control_hz = min(50.0, 1.0 / timestep)
    model = _compile(mjspec, path)
    joints = [_find_driven_joint(model, i) for i in range(model.nactuator)]
    actuators = [model.actuator(i).name for i in range(model.nactuator)]
    robot = None
    if joints and all(joints) and all(actuators):
        control = "velocity" if (model.actuator_ctrlspec == mujoco.mjtCtrlInput.mjINPUT_VEL).all() else "position"
        slides = [model.joint(joint).type[0] == mujoco.mjtJoint.mjJNT_SLIDE for joint in joints]
        units = [METRES if slide else RADIANS for slide in slides]
        robot = RobotSpec(type=name, joints=joints, actuators=actuators, units=units, control=control)
    return TwinSpec(
        schema=1,
        name=name,
        description=f"from {path.name}",
        model=path.name,
        control_hz=control_hz,
        substeps=max(1, round(1.0 / (timestep * control_hz))),
        robot=robot,
        objects=[],
        params=[ParamSpec(**row) for row in [*generic_params(), *(_soft_params() if model.nflex else ())]],
    )


def _soft_params() -> list[dict[str, Any]]:
    """Return the declarations of the parameters of soft bodies; apart, which keeps the hashes of all other twins."""
    return [{"name": kind.path()} for kind in QUANTITIES if kind.family == SOFT and kind.default_range]


def generic_params() -> list[dict[str, Any]]:
    """Return the declarations of the parameters of a model that comes without any, as in a twin YAML."""
    return load_yaml(_BUILTIN / "_generic.yaml")["params"]


def _find_driven_joint(model: mujoco.MjModel, actuator: int) -> str:
    if model.actuator_trntype[actuator] != mujoco.mjtTrn.mjTRN_JOINT:
        return ""
    return model.joint(int(model.actuator_trnid[actuator, 0])).name


def _menagerie_file(name: str) -> Path:
    try:
        import mujoco_menagerie  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        root = os.environ.get("MENAGERIE_ROOT")
        if root and name.isidentifier():  # a checkout or a cache, whose robots have one model beside their scenes
            models = [file for file in (Path(root) / name).glob("*.xml") if not file.name.startswith("scene")]
            if models:
                return min(models, key=lambda file: len(file.name))
        what = f"menagerie:{name} needs the mujoco-menagerie package."
        raise MissingDependencyError(what, remedy='pip install "twinloop[menagerie]"') from error
    if name not in mujoco_menagerie.names():
        raise UnknownNameError("Menagerie robot", name, mujoco_menagerie.names())
    try:
        return Path(mujoco_menagerie.get(name).xml())
    except mujoco_menagerie.MenagerieError as error:
        what = f"menagerie:{name} could not be loaded: {error}."
        raise MissingDependencyError(what, remedy="set MENAGERIE_ROOT to a checkout of mujoco_menagerie") from error


def compile_twin(spec: TwinSpec, model_path: Path, *, where: str, folder: Path | None = None) -> Twin:
    """Compile a twin from its checked YAML content and its model file.

    Args:
        spec: Checked content of the twin's YAML.
        model_path: MJCF or URDF file.
        where: Name of the YAML file, for error messages.
        folder: Folder of the attached models, of the scene's mesh files and of the user's device files. By default
            models and meshes are searched in the model's folder and device files in the current folder.

    Raises:
        InputError: If the model does not compile, or if robot, scene or sensors are invalid.
        UnknownNameError: If the model lacks an element that the YAML names.
    """
    mjspec = _read_model(model_path)
    if spec.integrator:
        mjspec.option.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{spec.integrator.upper()}")
    for attached in spec.attach:
        _attach_model(mjspec, attached, _find_model(attached.model, folder or model_path.parent), where)
    if spec.remove:
        _remove_bodies(mjspec, spec.remove, model_path, where)
    if spec.visuals:
        shown = _read_model(_find_model(spec.visuals.model, folder or model_path.parent))
        replace_visuals(mjspec, _compile(mjspec, model_path), shown, spec.visuals.bodies, where=where)
    mjspec.option.timestep = 1.0 / (spec.control_hz * spec.substeps)
    if model_path.suffix == _URDF:
        _add_servos(mjspec, model_path, control=spec.robot.control if spec.robot else "position")
    servos = robot_servos(spec.robot, where=where)
    if spec.robot:
        apply_servos(mjspec, spec.robot, servos)
    mjspec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    layout = _build_scene(mjspec, spec, folder or model_path.parent, where)
    devices = twin_devices(spec.sensors, spec.robot, where=where, folder=folder)
    mark_sensors(mjspec, devices)
    prepare_spec(mjspec, spec.params)
    gears = robot_gears(spec.robot, servos, where=where)
    if gears:
        _check_names(spec, _compile(mjspec, model_path), where)
        add_gears(mjspec, gears, where=where)
    model = _compile(mjspec, model_path)
    _require_memory(model, model_path)
    scene = SceneSlots(layout=layout, model=model) if layout else None
    _check_names(spec, model, where)
    _check_sensors(spec, devices, model, where)
    declared = declared_params(spec, scene=scene.param_specs() if scene else (), sensors=sensor_params(devices))
    params = expand_params(model, declared, where=where, nominals=preset_nominals(spec.robot, servos))
    content = [_stored_content(spec, scene, devices), mjspec.to_xml(), _asset_hashes(mjspec, model_path.parent)]
    content += [device.model_dump(mode="json") for device in devices.values()]
    return Twin(
        spec=spec,
        model=model,
        params=params,
        hash=sha256_json(content),
        mjspec=mjspec,
        servos=servos,
        scene=scene,
        devices=devices,
    )


def _stored_content(spec: TwinSpec, scene: SceneSlots | None, devices: Mapping[str, SensingDevice]) -> dict[str, Any]:
    """Return the content of a twin's YAML that enters its hash.

    Keys without a value are left out, so that a new key of the format does not change the hashes of twins without it.
    """
    unused = {
        "integrator": spec.integrator,
        "remove": spec.remove,
        "attach": spec.attach,
        "visuals": spec.visuals,
        "scene": scene,
        "sensors": devices,
        "residual": spec.residual,
    }
    excluded = {"classes", "install", *(key for key, value in unused.items() if not value)}
    stored = spec.model_dump(mode="json", by_alias=True, exclude=excluded)
    for attached in stored.get("attach", []):
        for key, default in (("position", [0.0, 0.0, 0.0]), ("yaw", 0.0)):
            if attached[key] == default:
                del attached[key]
    if spec.robot and not spec.robot.hands:
        del stored["robot"]["hands"]
    return stored


def _build_scene(mjspec: mujoco.MjSpec, spec: TwinSpec, folder: Path, where: str) -> SceneLayout | None:
    if spec.scene is None:
        return None
    return build_scene(mjspec, spec.scene, folder, like=spec.objects[0] if spec.objects else None, where=where)


def _read_model(path: Path) -> mujoco.MjSpec:
    if not os.path.lexists(path):  # also false if the name is too long for the file system
        raise InputError(f"{path} does not exist. Check `model:` in the twin's YAML.")
    check_model_file(path)
    try:
        mjspec = mujoco.MjSpec.from_file(str(path))
    except ENGINE_ERRORS as error:
        raise InputError(f"{path} is not a model that MuJoCo reads: {_one_line(error)}") from error
    check_options(mjspec, str(path))
    return mjspec


def _remove_bodies(mjspec: mujoco.MjSpec, names: Sequence[str], path: Path, where: str) -> None:
    """Remove bodies with all that is attached to them, in place; the keyframes lose their positions."""
    _compile(mjspec, path)  # else the keyframes would not fit the rest
    existing = [body.name for body in mjspec.bodies[1:]]
    for name in names:
        if name not in existing:
            raise UnknownNameError("body", name, existing, where=f"{where}: remove")
        body = mjspec.body(name)
        if body is not None:  # else it was within a removed body
            mjspec.delete(body)


def _attach_model(mjspec: mujoco.MjSpec, spec: AttachSpec, path: Path, where: str) -> None:
    """Add another model in place: names with a prefix, files as content, keyframes under their own names."""
    sites = [site.name for site in mjspec.sites]
    if spec.site and spec.site not in sites:
        raise UnknownNameError("site", spec.site, sites, where=f"{where}: attach {spec.model}")
    added = _read_model(path)
    files = embed_files(added, owner=spec.model, prefix=spec.prefix)
    keys = [key.name for key in mjspec.keys]
    place: dict[str, Any] = {"site": mjspec.site(spec.site)} if spec.site else {"frame": mjspec.worldbody.add_frame()}
    if any((*spec.position, spec.yaw)):
        place = {"frame": _add_frame(mjspec, spec, path)}
    try:
        mjspec.attach(added, prefix=spec.prefix, **place)
    except ENGINE_ERRORS as error:
        raise InputError(f"{where}: attach {spec.model}: {_one_line(error)}") from error
    mjspec.assets = {**mjspec.assets, **files}
    _compile(mjspec, path)  # which extends the keyframes to the whole model
    for key in mjspec.keys:
        plain = key.name.removeprefix(spec.prefix)
        key.name = key.name if plain in keys else plain


def _add_frame(mjspec: mujoco.MjSpec, spec: AttachSpec, path: Path) -> Any:
    """Add the frame of an attached model to the body that holds it, and return the frame."""
    position, turn = np.array(spec.position), np.array([np.cos(spec.yaw / 2), 0.0, 0.0, np.sin(spec.yaw / 2)])
    if not spec.site:
        return mjspec.worldbody.add_frame(pos=position, quat=turn)
    site = _compile(mjspec, path).site(spec.site)
    moved = site.pos + rotate_vectors(site.quat, position)
    return mjspec.site(spec.site).parent.add_frame(pos=moved, quat=quat_multiply(site.quat, turn))


def _add_servos(mjspec: mujoco.MjSpec, path: Path, *, control: str = "position") -> None:
    try:
        add_servos(mjspec, control=control)
    except ENGINE_ERRORS as error:
        raise InputError(f"{path} does not compile: {_one_line(error)}") from error


def _compile(mjspec: mujoco.MjSpec, path: Path) -> mujoco.MjModel:
    try:
        return compile_model(mjspec)
    except ENGINE_ERRORS as error:
        raise InputError(f"{path} does not compile: {_one_line(error)}") from error


def _require_memory(model: mujoco.MjModel, path: Path) -> None:
    """Raise an error if MuJoCo cannot evaluate the initial state or a keyframe, for example for lack of memory."""
    data = mujoco.MjData(model)
    try:
        mujoco.mj_forward(model, data)
        for key in range(model.nkey):
            mujoco.mj_resetDataKeyframe(model, data, key)
            mujoco.mj_forward(model, data)
    except ENGINE_ERRORS as error:
        raise InputError(f"{path} cannot be simulated from its initial state: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_names(spec: TwinSpec, model: mujoco.MjModel, where: str) -> None:
    robot = spec.robot
    wanted = [("joint", model.njnt, model.joint, robot.joints if robot else [])]
    wanted += [("actuator", model.nactuator, model.actuator, robot.actuator_names if robot else [])]
    wanted += [("camera", model.ncam, model.camera, spec.cameras), ("body", model.nbody, model.body, spec.objects)]
    hands = [robot.find_hand(), *robot.hands.values()] if robot else []
    sites = [hand.tcp for hand in hands if hand.tcp]
    wanted += [("site", model.nsite, model.site, sites)]
    for kind, count, accessor, names in wanted:
        existing = [accessor(i).name for i in range(count)]
        for name in names:
            if name not in existing:
                raise UnknownNameError(kind, name, existing, where=where)
    check_residual_joints(spec.residual, robot.joints if robot else [], where)
    if robot and len({len(robot.joints), len(robot.units), len(robot.actuator_names), model.nactuator}) > 1:
        raise InputError(
            f"{where}: robot has {len(robot.joints)} joints, {len(robot.units)} units, "
            f"{len(robot.actuator_names)} actuators and the model {model.nactuator} actuators. Give as many of each."
        )
    if robot and model.nu != model.nactuator:
        several = next(i for i in range(model.nactuator) if model.actuator_ctrlnum[i] != 1)
        raise InputError(
            f"{where}: the actuator {model.actuator(several).name} has {model.actuator_ctrlnum[several]} inputs, and a "
            'robot has one command per joint. Give the actuator one input, for example input="pos".'
        )
    for unit in robot.units if robot else []:
        if unit not in JOINT_UNITS:
            raise UnknownNameError("joint unit", unit, JOINT_UNITS, where=f"{where}: robot.units")


# Type of element to which a type of device is attached. All other devices are attached to a site, servos to no element.
_PLACES = {"camera": "camera", "depth": "camera", "servo": ""}


def _check_sensors(spec: TwinSpec, devices: Mapping[str, SensingDevice], model: mujoco.MjModel, where: str) -> None:
    """Raise an error if a sensor is attached to an element that does not exist or has the wrong type.

    Cameras need a camera of the model, and other sensors need a site. Servo feedback belongs to the robot and needs no
    element.
    """
    for name, device in devices.items():
        needed = _PLACES.get(device.kind, "site")
        for other in ("camera", "site"):
            if other != needed and getattr(spec.sensors[name], other):
                rule = f"is attached to a {needed}" if needed else "belongs to the robot and is attached to no element"
                raise InputError(
                    f"{where}: sensors.{name}.{other}: a device of kind {device.kind} {rule}. Remove {other}"
                    + (f", and give `{needed}:` instead." if needed else ".")
                )
        if not needed:
            continue
        kind, count, accessor = (
            ("camera", model.ncam, model.camera) if needed == "camera" else ("site", model.nsite, model.site)
        )
        place = getattr(spec.sensors[name], kind) or name
        existing = [accessor(i).name for i in range(count)]
        if place not in existing:
            raise UnknownNameError(kind, place, existing, where=f"{where}: sensors.{name}")


def _asset_hashes(mjspec: mujoco.MjSpec, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every mesh, texture and height-field file of a model, by the file name in the model."""
    named = [(mjspec.meshdir, item.file) for item in mjspec.meshes]
    named += [(mjspec.texturedir, item.file) for item in mjspec.textures]
    named += [(mjspec.meshdir, item.file) for item in mjspec.hfields]
    files = {name: folder / directory / name for directory, name in named if name}
    stored = {name: sha256(bytes(mjspec.assets[name])).hexdigest() for name in files if name in mjspec.assets}
    return {**{name: sha256_file(path) for name, path in sorted(files.items()) if path.is_file()}, **stored}
