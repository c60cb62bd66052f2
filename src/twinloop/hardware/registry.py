"""Finding a robot: ``virtual:TWIN?seed=N``, or the user's own class as ``path/to/file.py:Class``, through one door."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qsl

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_file
from twinloop.hardware.protocol import Robot
from twinloop.hardware.virtual import VirtualRobot
from twinloop.twin import builtin_names, load_twin

_VIRTUAL = "virtual:"
_OPTIONS = ("seed", "session")


def robot_names() -> list[str]:
    """Addresses of the robots that everybody has."""
    return [f"{_VIRTUAL}{name}" for name in builtin_names() if load_twin(name).spec.robot is not None]


def open_robot(address: str) -> Robot:
    """The robot at an address, not yet connected.

    Args:
        address: ``virtual:TWIN?seed=N&session=M``, where TWIN is anything `load_twin` takes and both numbers default
            to 0; or ``path/to/file.py:Class?option=value``, where the class is called with the options as strings.

    Raises:
        UnknownNameError: no such robot, twin, option or class; names the nearest.
        InputError: a seed that is no whole number, a twin without a robot, a file that cannot be read as Python, or a
            class that is not a robot.
    """
    name, _, query = address.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if name.startswith(_VIRTUAL):
        return _virtual(name.removeprefix(_VIRTUAL), options, address)
    path, separator, class_name = name.rpartition(":")
    if not separator or not Path(path).is_file():
        where = "the robots that everybody has, and no file path/to/file.py:Class of that name"
        raise UnknownNameError("robot", address, robot_names(), where=where)
    return _own(Path(path), class_name, options)


def _virtual(twin: str, options: dict[str, str], address: str) -> VirtualRobot:
    for key, value in options.items():
        if key not in _OPTIONS:
            raise UnknownNameError("option", key, _OPTIONS, where=address)
        if not value.isdecimal():
            raise InputError(f"{key}={value} in {address} is not a whole number from 0. Write for example {key}=3.")
    return VirtualRobot(twin, **{key: int(value) for key, value in options.items()})


def _own(path: Path, class_name: str, options: dict[str, str]) -> Robot:
    module = _load(path)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError("robot class", class_name, classes, where=str(path))
    try:
        robot = found(**options)
    except TypeError as error:
        raise InputError(f"{path}:{class_name} does not take these options ({', '.join(options)}): {error}.") from error
    if not all(hasattr(found, word) for word in ("get_observation", "send_action", "connect", "disconnect")):
        raise InputError(
            f"{path}:{class_name} is not a robot: see hardware.protocol.Robot, and check_robot to test one."
        )
    return robot


def _load(path: Path) -> ModuleType:
    name = f"twinloop_robot_{sha256_file(path)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file. Give path/to/file.py:Class.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{path} cannot be read as Python: {error}") from error
    return module
