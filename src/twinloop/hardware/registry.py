"""Open a robot by its address.

An address is ``virtual:TWIN?seed=N``, ``twin:TWIN``, ``lerobot:TYPE?port=PORT``, or ``path/to/file.py:Class`` for the
user's own class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl

from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.core.extension import describe_error
from twinloop.core.registry import Registry
from twinloop.hardware.cell_robot import CellCameras, ImageKind
from twinloop.hardware.lerobot import lerobot_names
from twinloop.hardware.protocol import Robot
from twinloop.hardware.virtual import VirtualRobot
from twinloop.hardware.virtual_cell import TwinCell, VirtualCell
from twinloop.render.catalog import AUTO, renderer_entry
from twinloop.tasks import task_names
from twinloop.twin import builtin_names, load_twin
from twinloop.twin.places import LAST

_IMAGE_NUMBERS, _IMAGE_WORDS = ("height", "width", "room"), ("images", "renderer")
_OF_CAMERAS = ("cameras", *_IMAGE_WORDS)
_NUMBERS, _WORDS = ("seed", "session", "run_seed", *_IMAGE_NUMBERS), ("task", "fault", *_OF_CAMERAS)
_OF_CELLS = ("run_seed", "fault", *_OF_CAMERAS, *_IMAGE_NUMBERS)
_NUMBERS_OF_TWINS, _WORDS_OF_TWINS = ("session", "run_seed", *_IMAGE_NUMBERS), ("task", "identified", *_OF_CAMERAS)


def robot_names() -> list[str]:
    """Return the addresses of the built-in robots."""
    return [f"virtual:{name}" for name in builtin_names() if load_twin(name).spec.robot is not None]


# Address schemes are built in; other registered classes are called with the address's options, like a user's class.
ROBOTS: Registry[Callable[..., Robot]] = Registry(
    "robot",
    {
        "virtual:": "twinloop.hardware.registry:open_virtual",
        "twin:": "twinloop.hardware.registry:open_twin",
        "lerobot:": "twinloop.hardware.lerobot:open_lerobot",
    },
    group="twinloop.robots",
    files=True,
    listed_names=lambda: [*robot_names(), *lerobot_names()],
)


def open_robot(address: str) -> Robot:
    """Open the robot at an address, without connecting.

    Args:
        address: one of

            - ``virtual:TWIN?seed=N&session=M``, where TWIN is any argument of `load_twin` and both numbers default to
              0. With ``&task=NAME``, the robot is at that task and has a scene tracker; ``&run_seed=N&fault=NAME`` are
              then possible (see `VirtualCell`), and ``&cameras=front,wrist&height=240&width=320`` for images, with
              ``&images=device`` through the models of the cameras, and with ``&room=N&renderer=NAME`` in a random room.
            - ``twin:TWIN?task=NAME&identified=RUN``: the twin itself with nominal or identified parameters (see
              `TwinCell`). Further options: ``session``, ``run_seed``, and those of cameras.
            - ``lerobot:so101?port=PORT&id=ID`` (see `lerobot.open_lerobot`).
            - ``path/to/file.py:Class?option=value`` or, for an installed package, ``NAME?option=value``. The class is
              called with the options as strings.

    Raises:
        UnknownNameError: If the robot, twin, option, task, fault or class does not exist. The message lists the most
            similar names.
        InputError: If a seed is not an integer, a twin has no robot, a file cannot be read as Python, or a class is not
            a robot.
    """
    name, _, query = address.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    scheme, colon, rest = name.partition(":")
    if f"{scheme}{colon}" in ROBOTS.builtin:
        return ROBOTS[f"{scheme}{colon}"](rest, options, origin=address)
    return _open_user_robot(name, ROBOTS[name], options)


def open_virtual(twin: str, options: Mapping[str, str], *, origin: str) -> Robot:
    """Return a virtual robot, at a task if the options have the key ``task``; see `open_robot`.

    Args:
        twin: name or file of the twin.
        options: options of the address.
        origin: the whole address, for messages.
    """
    numbers = _parse_numbers(options, _NUMBERS, _WORDS, origin=origin)
    for key in _OF_CELLS:
        if key in options and "task" not in options:
            raise InputError(
                f"{key}={options[key]} in {origin} needs a robot at a task. Add task=NAME ({', '.join(task_names())})."
            )
    if "task" not in options:
        return VirtualRobot(twin, **numbers)
    cameras = _parse_cameras(options, numbers, origin=origin)
    return VirtualCell(twin, task=options["task"], fault=options.get("fault"), cameras=cameras, **numbers)


def open_twin(twin: str, options: Mapping[str, str], *, origin: str) -> Robot:
    """Return a twin as a robot, with nominal or identified parameters; see `open_robot`.

    Args:
        twin: name or file of the twin.
        options: options of the address.
        origin: the whole address, for messages.
    """
    numbers = _parse_numbers(options, _NUMBERS_OF_TWINS, _WORDS_OF_TWINS, origin=origin)
    cameras = _parse_cameras(options, numbers, origin=origin)
    return TwinCell(twin, task=options.get("task"), identified=options.get("identified"), cameras=cameras, **numbers)


def _parse_numbers(
    options: Mapping[str, str], numbers: tuple[str, ...], words: tuple[str, ...], *, origin: str
) -> dict[str, int]:
    """Return the options that are whole numbers; refuse an option that is in neither list of names."""
    for key, value in options.items():
        if key not in (*numbers, *words):
            raise UnknownNameError("option", key, (*numbers, *words), where=origin)
        if key in numbers and not value.isdecimal():
            raise InputError(f"{key}={value} in {origin} is not a whole number from 0. Write for example {key}=3.")
    return {key: int(value) for key, value in options.items() if key in numbers}


def _parse_cameras(options: Mapping[str, str], numbers: dict[str, int], *, origin: str) -> CellCameras:
    """Return the cameras of an address; take the numbers that they need out of ``numbers``."""
    given: dict[str, Any] = {key: numbers.pop(key) for key in _IMAGE_NUMBERS if key in numbers}
    given |= {key: options[key] for key in _IMAGE_WORDS if key in options}
    names = tuple(name for name in options.get("cameras", "").split(",") if name)
    if given and not names:
        raise InputError(f"{next(iter(given))}= in {origin} is for images. Add cameras=NAME.")
    if given.get("images", "clean") not in get_args(ImageKind):
        raise UnknownNameError("images", given["images"], get_args(ImageKind), where=origin)
    if given.get("room", 0) > LAST:
        raise InputError(f"room={given['room']} in {origin}: the last room is {LAST}.")
    if given.get("renderer", AUTO) != AUTO:
        renderer_entry(given["renderer"])  # raises the error of an unknown name
    return CellCameras(names=names, **given)


def _open_user_robot(name: str, found: Callable[..., Robot], options: dict[str, str]) -> Robot:
    try:
        robot = found(**options)
    except TwinloopError:
        raise
    except TypeError as error:
        raise InputError(f"{name} does not take these options ({', '.join(options)}): {error}.") from error
    except (Exception, SystemExit) as error:  # any error of the class or its options
        raise InputError(f"{name} could not be created: {describe_error(error)}.") from error
    if not all(hasattr(found, word) for word in ("get_observation", "send_action", "connect", "disconnect")):
        raise InputError(f"{name} is not a robot: see hardware.protocol.Robot, and check_robot to test one.")
    return robot
