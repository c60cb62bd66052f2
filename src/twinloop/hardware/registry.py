"""Open a robot by its address.

An address is ``virtual:TWIN?seed=N``, ``lerobot:TYPE?port=PORT``, or ``path/to/file.py:Class`` for the user's own
class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.core.extension import describe_error
from twinloop.core.registry import Registry
from twinloop.hardware.lerobot import lerobot_names
from twinloop.hardware.protocol import Robot
from twinloop.hardware.virtual import VirtualRobot
from twinloop.hardware.virtual_cell import VirtualCell
from twinloop.tasks import DEFAULT_TASK
from twinloop.twin import builtin_names, load_twin

_NUMBERS, _WORDS = ("seed", "session", "run_seed"), ("task", "fault")
_OF_CELLS = ("run_seed", "fault")


def robot_names() -> list[str]:
    """Return the addresses of the built-in robots."""
    return [f"virtual:{name}" for name in builtin_names() if load_twin(name).spec.robot is not None]


# Address schemes are built in; other registered classes are called with the address's options, like a user's class.
ROBOTS: Registry[Callable[..., Robot]] = Registry(
    "robot",
    {"virtual:": "twinloop.hardware.registry:open_virtual", "lerobot:": "twinloop.hardware.lerobot:open_lerobot"},
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
              then possible (see `VirtualCell`).
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
    for key, value in options.items():
        if key not in (*_NUMBERS, *_WORDS):
            raise UnknownNameError("option", key, (*_NUMBERS, *_WORDS), where=origin)
        if key in _NUMBERS and not value.isdecimal():
            raise InputError(f"{key}={value} in {origin} is not a whole number from 0. Write for example {key}=3.")
        if key in _OF_CELLS and "task" not in options:
            raise InputError(f"{key}={value} in {origin} needs a robot at a task. Add task={DEFAULT_TASK}.")
    numbers = {key: int(value) for key, value in options.items() if key in _NUMBERS}
    if "task" not in options:
        return VirtualRobot(twin, **numbers)
    return VirtualCell(twin, task=options["task"], fault=options.get("fault"), **numbers)


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
