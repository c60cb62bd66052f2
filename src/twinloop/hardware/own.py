"""Base class of a user's own robot or simulator.

`OwnRobot` implements the protocol of robots (`hardware.protocol.Robot`) on top of a few methods of the user: features,
units, connection, clock, and checks of commands. A simulator over any physics engine::

    class Pendulum(OwnRobot):
        joints, unit, tracked = ("hinge",), "rad", ("tip.x",)

        def __init__(self, mass="1"):
            self.engine = MyEngine(mass=float(mass))

        def reset(self, episode):
            self.engine.start(seed=episode)

        def step(self, command, dt):
            self.engine.run(target=command[0], seconds=dt)

        def read(self):
            return [self.engine.angle]

        def track(self):
            return [self.engine.tip_x]

        def success(self):
            return self.engine.angle > 3.0

A real robot defines ``send(command)`` instead of ``step``. If the vendor's call takes a time and returns after it, the
class of a real robot defines ``step`` with this call, and ``source = "real"``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Source
from twinloop.core.units import CommandKind, UnitMap, parse_unit
from twinloop.hardware.protocol import (
    COMMAND_KEYS,
    POSITION,
    TRACKED_PREFIX,
    Clock,
    NotConnectedError,
    WallClock,
    read_command,
)
from twinloop.twin import load_twin


class OwnRobot:
    """Robot or simulator of the user; see the module. It defines `read`, and `step` or `send`; all else is optional.

    Optional members that ``twinloop run`` uses: a method ``success()`` returns whether the task is done now, or None if
    that is not known; an attribute ``task`` has the name, length and instruction of the task. See
    `hardware.protocol.Robot`.

    Attributes:
        twin: Name or file of the robot's twin, which gives joints and units instead of ``joints`` and ``unit``. Degrees
            and normalized values are then those of LeRobot for the joint ranges of the twin; ``self.units.to_si`` and
            ``from_si`` convert them.
        joints: Names of the joints, in the order of all arrays.
        unit: Unit of the joints (rad, deg, m, cm, mm, range_m100_100, range_0_100): one for all, or one per joint.
        command: Whether commands are positions or velocities in the joints' units, or torques in N·m.
        tracked: Names of the values of `track`: positions in m, headings as cosine and sine.
        cameras: Height and width in px of the images of `see`, by camera name.
        name: LeRobot's name of the robot; by default that of the twin, or that of the class in lower case.
        origin: Address that datasets store; by default the name that the class defines, or its own in lower case.
        episode: Number of the next episode, which `reset` gets.
        source: ``real`` or ``sim``; by default ``real`` for a class that defines `send`, else ``sim``. A class that
            defines `step` may set ``real``: the computer's clock then gives the time, and `step` must block.
    """

    twin: str = ""
    joints: Sequence[str] = ()
    unit: str | Sequence[str] = "rad"
    command: CommandKind = "position"
    tracked: Sequence[str] = ()
    cameras: Mapping[str, tuple[int, int]] = {}
    name: str = ""
    origin: str = ""
    episode: int = 0
    source: Source = "sim"
    _session: _Session | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the name, the origin and the source of the class, if it does not define them."""
        super().__init_subclass__(**options)
        if "source" not in cls.__dict__ and cls.send is not OwnRobot.send:
            cls.source = "real"
        own = cls.__dict__.get("name", "") or cls.__name__.lower()
        of_twin = cls.twin and "name" not in cls.__dict__
        cls.name = cast("str", property(lambda self: load_twin(self.twin).robot.type)) if of_twin else own
        cls.origin = cls.__dict__.get("origin", "") or own

    def read(self) -> Sequence[float] | NDArray[np.float64]:
        """Return the present reading of every joint, in the unit of the joint."""
        raise NotImplementedError

    def reset(self, episode: int) -> None:
        """Start an episode. A simulator makes the scene with this number; the same number gives the same scene."""

    def step(self, command: NDArray[np.float64], dt: float) -> None:
        """Simulate ``dt`` seconds with a command, one value per joint. A real robot (``source``) moves in this time."""
        raise NotImplementedError

    def send(self, command: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Send a command to a real robot, and return it as sent, or None if it was not changed."""
        raise NotImplementedError

    def track(self) -> Sequence[float] | NDArray[np.float64]:
        """Return the values that a tracker measures in the scene, in the order of ``tracked``."""
        return ()

    def see(self) -> Mapping[str, NDArray[np.uint8]]:
        """Return the present image of every camera, ``(height, width, 3)``, RGB."""
        return {}

    def close(self) -> None:
        """Close the connection of a real robot; it is called after every episode or session."""

    @property
    def _is_stepped(self) -> bool:
        return self.source == "sim" or type(self).send is OwnRobot.send

    @property
    def units(self) -> UnitMap:
        """Unit of every joint."""
        if self.twin:
            return _read_units(self.twin)
        units = [self.unit] * len(self.joints) if isinstance(self.unit, str) else list(self.unit)
        if not self.joints or len(units) != len(self.joints):
            raise InputError(
                f"{type(self).__name__} has {len(self.joints)} joints and {len(units)} units. Give the names of its "
                "joints as `joints`, and as `unit` one unit, or one for each joint."
            )
        return UnitMap(joints=tuple(map(parse_unit, self.joints, units)), source=f"the class {type(self).__name__}")

    @property
    def observation_features(self) -> Mapping[str, Any]:
        """Keys and types of an observation: joints, tracked values, and the shapes of images."""
        joints = {f"{joint}.{POSITION}": float for joint in self.units.names}
        images = {name: (height, width, 3) for name, (height, width) in self.cameras.items()}
        return {**joints, **{f"{TRACKED_PREFIX}{name}": float for name in self.tracked}, **images}

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action."""
        return {f"{joint}.{COMMAND_KEYS[self.command]}": float for joint in self.units.names}

    @property
    def is_connected(self) -> bool:
        """Whether an episode or session is running."""
        return self._session is not None

    @property
    def is_calibrated(self) -> bool:
        """Always true: readings are in ``unit``."""
        return True

    def calibrate(self) -> None:
        """Do nothing."""

    def configure(self) -> None:
        """Do nothing."""

    def connect(self, calibrate: bool = True) -> None:  # noqa: ARG002 - LeRobot's signature
        """Start the next episode. If one is running, do nothing."""
        if self._session is not None:
            return
        own = type(self)
        if own.read is OwnRobot.read or (own.step is OwnRobot.step and own.send is OwnRobot.send):
            raise InputError(f"{own.__name__} must define read(), and step(command, dt) or send(command).")
        if self.source == "sim" and own.step is OwnRobot.step:
            raise InputError(f'{own.__name__} has source = "sim", but no step(command, dt). Define it.')
        self.reset(self.episode)
        self.episode += 1
        held = np.asarray(self.read(), dtype=np.float64)
        self._session = _Session(held if self.command == "position" else np.zeros_like(held))

    def disconnect(self) -> None:
        """End the episode."""
        if self._session is not None:
            self._session = None
            self.close()

    @property
    def clock(self) -> Clock:
        """Clock of the robot: of the simulation since `reset`, or the computer's."""
        if not self._is_stepped:
            return WallClock()
        return (_BlockingClock if self.source == "real" else _SteppedClock)(self.require_session, self.step)

    def get_observation(self) -> dict[str, Any]:
        """Return the present readings, tracked values and images by key."""
        self.require_session()
        values = [
            *np.asarray(self.read(), dtype=np.float64).tolist(),
            *np.asarray(self.track(), dtype=np.float64).tolist(),
        ]
        keys = [key for key, kind in self.observation_features.items() if kind is float]
        if len(values) != len(keys):
            raise InputError(
                f"{type(self).__name__}: read() and track() return {len(values)} values, and joints and tracked have "
                f"{len(keys)} names ({', '.join(keys)})."
            )
        return {**dict(zip(keys, values, strict=True)), **self.see()}

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command, which a simulator holds until the next one; return it as sent.

        Raises:
            UnknownNameError: If the robot has no such action key.
            InputError: If a joint is missing or its command is not finite.
        """
        session, keys = self.require_session(), list(self.action_features)
        command = read_command(action, keys, origin=self.origin)
        if self._is_stepped:
            session.command, session.is_new = command, True
            return dict(zip(keys, command.tolist(), strict=True))
        sent = self.send(command)
        return dict(zip(keys, (command if sent is None else np.asarray(sent)).tolist(), strict=True))

    def require_session(self) -> _Session:
        """Return the running episode or session.

        Raises:
            NotConnectedError: If none is running.
        """
        if self._session is None:
            raise NotConnectedError(f"{self.origin} is not connected. Call connect() first.")
        return self._session


@cache  # an observation needs the units, and a robot keeps them while it is open
def _read_units(twin: str) -> UnitMap:
    return load_twin(twin).units


@dataclass
class _Session:
    """Running episode of a simulator, or session of a robot.

    Attributes:
        command: Command that `OwnRobot.step` gets; at first the readings, or no velocity or torque.
        now: Simulated time since the beginning in s; of a real robot, the last moment waited for.
        is_new: Whether `step` has not had this command yet.
        period: Smallest time between two moments waited for in s, of a real robot.
    """

    command: NDArray[np.float64]
    now: float = 0.0
    is_new: bool = False
    period: float = np.inf


@dataclass(frozen=True)
class _SteppedClock:
    """Clock of a user's simulator: waiting simulates.

    Attributes:
        session: Function that returns the running episode.
        step: Function that simulates, see `OwnRobot.step`.
    """

    session: Callable[[], _Session]
    step: Callable[[NDArray[np.float64], float], None]

    def now(self) -> float:
        """Return the simulated time since the beginning of the episode, in s."""
        return self.session().now

    def wait_until(self, moment: float) -> None:
        """Simulate until a moment; return at once if it has passed."""
        session = self.session()
        if moment > session.now:
            self.step(session.command, moment - session.now)
            session.now = moment


_LONGEST_MINIMUM_S = 0.1


@dataclass(frozen=True)
class _BlockingClock:
    """The computer's clock for a real robot that is moved by a blocking call: waiting calls `OwnRobot.step`.

    ``step`` gets the time that is left. A new command gets at least half of the usual time between two moments waited
    for, at most 0.1 s, even if the moment has passed. If ``step`` returns early, the clock sleeps.

    Attributes:
        session: Function that returns the running session.
        step: Function that moves the robot, see `OwnRobot.step`.
    """

    session: Callable[[], _Session]
    step: Callable[[NDArray[np.float64], float], None]

    def now(self) -> float:
        """Return the time of the computer's monotonic clock, in s."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Move the robot until a moment; return at once if it has passed and there is no new command."""
        session = self.session()
        if moment > session.now:
            session.now, session.period = moment, min(session.period, moment - session.now)
        least = min(0.5 * session.period, _LONGEST_MINIMUM_S) if session.is_new else 0.0
        duration = max(moment - self.now(), least)
        if duration > 0.0:
            session.is_new = False
            self.step(session.command, duration)
            time.sleep(max(0.0, moment - self.now()))
