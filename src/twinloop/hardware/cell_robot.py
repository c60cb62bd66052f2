"""Simulate a robot in its scene behind the robot protocol, step by step.

`hidden.HiddenCell` is the model of the scene: a twin with parameter values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import InputError
from twinloop.hardware.hidden import HiddenCell
from twinloop.hardware.protocol import POSITION, TRACKED_PREFIX, NotConnectedError, read_command
from twinloop.hardware.virtual import TwinRobot
from twinloop.randomize import Plan
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.observing import WorldObserver
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import Controller, Simulation, open_backend
from twinloop.tasks import Task
from twinloop.tasks.protocol import has_tracked_values, require_expert
from twinloop.twin.places import ROOM, Scenery

_LONGEST_S = 300.0  # longest session in s; all past states are kept in memory, because readings depend on them
_ROUND_OFF = 1e-6


class CellClock:
    """Clock of a `CellRobot`: the simulated time of its running episode, in whole control steps.

    Jitter of the control loop (`timing/control/jitter`) is simulated, but the times of this clock do not include it.
    """

    def __init__(self, session: Callable[[], CellSession]) -> None:
        self._session = session

    def now(self) -> float:
        """Return the time since the episode began, in s."""
        return self._session().now

    def wait_until(self, moment: float) -> None:
        """Simulate control steps under the last command until the time ``moment``, in s."""
        self._session().wait_until(moment)


ImageKind = Literal["clean", "device"]


@dataclass(frozen=True, kw_only=True)
class CellCameras:
    """Cameras whose images are part of a robot's observations.

    Attributes:
        names: names of the twin's cameras.
        height, width: size of an image in pixels.
        images: ``clean``, or ``device`` for images through the camera models of the twin's sensors.
        room: number of the random room in which the robot stands; 0 for the scene of the twin.
        renderer: name of the renderer.
    """

    names: tuple[str, ...] = ()
    height: int = 240
    width: int = 320
    images: ImageKind = "clean"
    room: int = 0
    renderer: str = "auto"


class CellSession:
    """One simulated episode of a robot in its scene; the episode's number determines the objects' poses.

    `wait_until` simulates control steps under the command of the last `send`. A session needs no closing.

    Args:
        cell: the robot cell: virtual robot and scene, with their true parameter values.
        task: the task.
        plan: randomization plan that draws the objects' poses.
        number: number of the episode.
        camera: cameras of the robot; None for none.
    """

    def __init__(self, cell: HiddenCell, task: Task, plan: Plan, number: int, camera: WorldCamera | None) -> None:
        self._hz, self._task, self._camera = cell.twin.control_hz, task, camera
        params = cell.table(plan.draw([number]))
        initial = task.reset(params, run_seed=plan.run_seed, episodes=[number])
        worlds = EpisodeStart(numbers=np.array([number]), params=params, initial=initial, run_seed=plan.run_seed)
        self._longest = round(_LONGEST_S * self._hz)
        if camera is not None:
            camera.begin_worlds(worlds, self._longest)
        self._observer = WorldObserver(cell.twin, task, worlds, tracker=cell.tracker, nstep=self._longest)
        backend = open_backend("threads", nthread=1)
        self._simulation: Simulation = backend.start(cell.twin, params, initial, task.nstep)
        self._command = np.array(initial.command)
        self._initial = initial
        self._expert: Controller | None = None
        self._states: list[NDArray[np.float64]] = []
        self._record_reading()

    @property
    def now(self) -> float:
        """Time since the start of the episode, in s."""
        return (len(self._states) - 1) / self._hz

    @property
    def states(self) -> NDArray[np.float64]:
        """Simulator states from the start to now, ``(nstep + 1, nstate)``."""
        return np.concatenate(self._states)

    def wait_until(self, moment: float) -> None:
        """Simulate control steps until the time ``moment``, in s.

        Raises:
            InputError: If the episode would be longer than 300 s.
        """
        while self.now < moment - _ROUND_OFF:
            if len(self._states) > self._longest:
                raise InputError(f"A session of a virtual robot ends after {_LONGEST_S:g} s. Connect it again.")
            self._simulation.advance(self._command)
            self._record_reading()

    def send(self, command: NDArray[np.float64]) -> None:
        """Set the command ``(nu,)`` that is held from now on, in rad or the actuator's unit."""
        self._command = command[None]

    def success(self) -> bool:
        """Return whether the task is solved now."""
        return bool(self._task.success(self.states[None])[0, -1])

    def expert_command(self) -> NDArray[np.float64]:
        """Return the next command ``(nu,)`` of the task's scripted expert; call it once per control step."""
        self._expert = self._expert or require_expert(self._task).expert(self._initial)
        return np.asarray(self._expert(self._simulation), dtype=np.float64)[0]

    def images(self) -> dict[str, NDArray[np.uint8]]:
        """Return the newest image ``(height, width, 3)`` of each camera by its name."""
        if self._camera is None:
            return {}
        return {name: rows[0] for name, rows in self._camera.take([0], len(self._states) - 1).items()}

    def _record_reading(self) -> None:
        state = np.array(self._simulation.state)
        self._states.append(state)
        if self._camera is not None:
            self._camera.watch(state)
        self.observation = self._observer.observe_worlds(state, len(self._states) - 1)


class CellRobot(TwinRobot):
    """Simulated robot in its scene; see `hardware.protocol.Robot`.

    Every connection starts a new episode from the home pose, in which objects have new poses. An observation holds the
    joints, the tracked objects as ``environment.NAME`` (positions in m, headings as cosine and sine), and the images of
    the chosen cameras.

    Args:
        cell: twin with its true parameter values.
        task: the task.
        origin: address that opens this robot again.
        session: episode number of the first connection; each later connection adds one.
        run_seed: seed of object poses and random effects within an episode.
        cameras: cameras of the observations.

    Raises:
        UnknownNameError: If the twin has no such camera.
        InputError: If images shall pass through camera models, and the twin has none for a camera.
    """

    def __init__(
        self,
        cell: HiddenCell,
        task: Task,
        *,
        origin: str,
        session: int = 0,
        run_seed: int = 0,
        cameras: CellCameras | None = None,
    ) -> None:
        super().__init__(cell.twin, origin)
        self.task, self._cameras = task, cameras or CellCameras()
        room = {ROOM: float(self._cameras.room)} if self._cameras.room else {}
        self.cell = cell = replace(cell, values={**cell.values, **room})
        self._plan, self._number = cell.plan(run_seed), session
        self._session: CellSession | None = None
        self._camera = self._open_cameras(run_seed) if self._cameras.names else None

    def _open_cameras(self, run_seed: int) -> WorldCamera:
        shown = self._cameras
        return WorldCamera(
            self.cell.twin, shown.names, height=shown.height, width=shown.width, renderer=shown.renderer,
            scenery=Scenery(rooms=shown.room > 0, seed=run_seed), sensors=shown.images == "device",
        )  # fmt: skip

    @property
    def observation_features(self) -> Mapping[str, Any]:
        """Keys and types of an observation: joints, tracked objects, and the image shapes of cameras."""
        seen = self.task.environment_names if has_tracked_values(self.task) else ()
        keys = [f"{joint}.{POSITION}" for joint in self.units.names] + [f"{TRACKED_PREFIX}{name}" for name in seen]
        shape = (self._cameras.height, self._cameras.width, 3)
        return {**dict.fromkeys(keys, float), **dict.fromkeys(self._cameras.names, shape)}

    @property
    def is_connected(self) -> bool:
        """Whether an episode is running."""
        return self._session is not None

    def connect(self, calibrate: bool = True) -> None:  # noqa: ARG002  # LeRobot's signature; see `calibrate`
        """Start the next episode. If one is already running, do nothing. ``calibrate`` is not used."""
        if self._session is None:
            self._session = CellSession(self.cell, self.task, self._plan, self._number, self._camera)
            self._number += 1

    def get_observation(self) -> dict[str, Any]:
        """Return the present readings of joints and tracked objects, and images, by key."""
        session = self._require_session()
        values = np.concatenate(
            [session.observation[name][0] for name in (STATE, ENVIRONMENT) if name in session.observation]
        )
        keys = [key for key, kind in self.observation_features.items() if kind is float]
        return {**dict(zip(keys, values.tolist(), strict=True)), **session.images()}

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; it is held from now on, and reaches the servo with latency.

        Raises:
            UnknownNameError: If the robot has no such action key.
            InputError: If a joint is missing or its command is not finite.
        """
        session, keys = self._require_session(), list(self.action_features)
        values = read_command(action, keys, origin=self.origin)
        session.send(self._twin.command_units.to_si(values))
        return dict(zip(keys, values.tolist(), strict=True))

    def expert_action(self) -> dict[str, float]:
        """Return the next action of the task's scripted expert, which uses the true state.

        Call it once per control step, from the start of an episode.
        """
        command = self._require_session().expert_command()
        values = self._twin.command_units.from_si(command)
        return dict(zip(self.action_features, values.tolist(), strict=True))

    def disconnect(self) -> None:
        """End the episode; the renderer of the cameras stays open for the next one."""
        self._session = None

    @property
    def clock(self) -> CellClock:
        """Clock of the simulated episode."""
        return CellClock(self._require_session)

    def success(self) -> bool | None:
        """Return whether the task is solved now, or None without a task; the robot itself cannot observe it."""
        return self._require_session().success() if self.task.name else None

    def states(self) -> NDArray[np.float64]:
        """Return the true simulator states of this episode up to now, ``(nstep + 1, nstate)``, for evaluation."""
        return self._require_session().states

    def _require_session(self) -> CellSession:
        if self._session is None:
            raise NotConnectedError(f"{self.origin} is not connected. Call connect() first.")
        return self._session
