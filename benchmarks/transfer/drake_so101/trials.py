"""Record logs of an SO-101 in Drake, and run trials of policies and experts on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.drake_so101.hidden import DrakeRobot, draw_robot
from benchmarks.transfer.drake_so101.simulation import SUBSTEPS, DrakeBackend, DrakeSimulation
from benchmarks.transfer.settings import PLACES
from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.seeds import uniforms
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.policies import open_policy
from twinloop.rollout import BatchResult, EpisodeStart, ExpertActor, WorldObserver, run_batch
from twinloop.rollout.actor import Actor
from twinloop.rollout.observing import WorldImages
from twinloop.rollout.policy_actor import HashedPolicy, PolicyActor, open_policy_loop
from twinloop.simulate import Backend, Controller, InitialState, Simulation
from twinloop.tasks import open_task
from twinloop.tasks.pick_and_place import PickAndPlace
from twinloop.twin import Twin, load_twin

TWIN, TASK = "so101_tabletop", "pick_and_place"
_SETTLE_S = 1.2  # time that an arm gets to come to rest before a session begins
_SESSIONS = "pick and place, teleoperated"


def record_log(seed: int, episodes: int | Sequence[int], seconds: float) -> list[Episode]:
    """Record episodes of teleoperation-like motion of one robot, without a cube, for `twinloop.identify.identify`.

    Commands are those of `hardware.teleop_motion`. Each episode contains commands, joint readings in the twin's units,
    their times, and the tool's position as a tracker measures it (signal ``place/tcp``, in m).

    Args:
        seed: number of the robot, which also seeds noise and motions.
        episodes: number of episodes, or a list of their numbers.
        seconds: duration of each episode.

    Raises:
        MissingDependencyError: If Drake is not installed.
    """
    robot, numbers = draw_robot(load_twin(TWIN), seed), range(episodes) if isinstance(episodes, int) else episodes
    commands = teleop_commands(robot.twin, seed=seed, episodes=numbers, seconds=seconds, hz=robot.twin.control_hz)
    return [record_episode(robot, number, rows) for number, rows in zip(numbers, commands, strict=True)]


def record_episode(
    robot: DrakeRobot, number: int, commands: NDArray[np.float64], *, substeps: int = SUBSTEPS
) -> Episode:
    """Record one episode under commands ``(T, n)`` in the twin's units; see `record_log`.

    Args:
        robot: the robot.
        number: number of the episode, from which its noise is drawn.
        commands: one row per control step.
        substeps: time steps of Drake per control step.
    """
    twin, home, nstep = robot.twin, InitialState.home(robot.twin, 1), len(commands)
    backend = DrakeBackend(robot=robot, numbers=[number], substeps=substeps, free=False)
    simulation = backend.start(twin, twin.table(1), home, nstep)
    simulation.run(round(_SETTLE_S / backend.step))
    begin = simulation.ticks
    late = robot.drives.loop_jitter * uniforms(robot.seed, "drake/oversleep", [number], size=nstep)[0]
    time, state, qpos = np.zeros(nstep), np.zeros_like(commands), np.zeros((nstep, twin.model.nq))
    for step, command in enumerate(commands):
        due = begin + round((step / twin.control_hz + late[step]) / backend.step)
        simulation.run(max(0, due - simulation.ticks))
        time[step] = (simulation.ticks - begin) * backend.step
        state[step], qpos[step] = twin.units.from_si(simulation.read_joints()[0]), simulation.qpos[0]
        simulation.send(twin.units.to_si(command[None]))
    return Episode(
        index=number,
        time=time,
        action=commands,
        state=state,
        units=twin.units,
        task=_SESSIONS,
        source="sim",
        origin=f"drake:{TWIN}?seed={robot.seed}",
        robot_type=twin.robot.type,
        command="position",
        signals={f"place/{twin.robot.tcp}": _track_tool(robot, number, time, qpos)},
    )


def _track_tool(robot: DrakeRobot, number: int, time: NDArray[np.float64], qpos: NDArray[np.float64]) -> LoggedSignal:
    chance = uniforms(robot.seed, f"drake/tracker/{number}", np.arange(len(time)), size=3)
    true = _open_task(robot).chain.tool_position(qpos)
    seen = robot.tracker.add_errors(true, ["tool.x", "tool.y", "tool.z"], chance)
    return LoggedSignal(time=time, values=seen, columns=("x", "y", "z"), unit="m")


def run_trials(
    seed: int,
    policy: str | Path | HashedPolicy,
    numbers: Sequence[int],
    *,
    twin: Twin | None = None,
    images: WorldImages | None = None,
    change: Callable[[ParamTable], ParamTable] = lambda table: table,
) -> BatchResult:
    """Run a policy on one robot from numbered initial conditions; ``.success`` ``(ntrial,)`` has the outcomes.

    Equal numbers give equal poses of cube and target on every robot and for every policy; they are those of
    the other families of robots. The policy receives joint readings and the values of the tracker.

    Args:
        seed: number of the robot.
        policy: folder of the policy, or an opened policy.
        numbers: numbers of the initial conditions.
        twin: the nominal twin, with other camera models; by default as shipped.
        images: source of images, for a policy with cameras.
        change: function from the parameters of the trials to those that images are taken with.

    Raises:
        InputError: If the contract of the policy does not match twin and task, or the policy needs images.
        MissingDependencyError: If Drake is not installed.
    """
    robot = draw_robot(twin or load_twin(TWIN), seed)
    opened = open_policy(policy) if isinstance(policy, str | Path) else policy
    actor = _DrakePolicyActor(
        policy=opened, task=_open_task(robot), twin=robot.twin, tracker=robot.tracker, images=images
    )
    return run_actor(robot, numbers, actor, change=change)


def run_expert(seed: int, numbers: Sequence[int], *, memoryless: bool = False) -> BatchResult:
    """Run the task's scripted expert on one robot from numbered initial conditions; see `run_trials`.

    Args:
        seed: number of the robot.
        numbers: numbers of the initial conditions.
        memoryless: whether to run the memoryless expert, which reads the joints as a policy does but knows the true
            poses of the objects.

    Raises:
        MissingDependencyError: If Drake is not installed.
    """
    robot = draw_robot(load_twin(TWIN), seed)
    task = _open_task(robot)
    return run_actor(robot, numbers, _MemorylessActor(task=task) if memoryless else ExpertActor(task=task))


@dataclass(frozen=True, kw_only=True)
class _MemorylessActor:
    """Actor that runs the memoryless expert of the task."""

    task: PickAndPlace

    @property
    def name(self) -> str:
        """Name of the actor."""
        return f"{self.task.expert_version}, memoryless"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return the expert for these worlds."""
        nominal = self.task.twin.table(len(worlds.numbers))
        return self.task.memoryless_expert(worlds.initial, worlds.params, believed=nominal)


class _DrakePolicyActor(PolicyActor):
    """Actor that runs a policy on the encoder readings of the robot in Drake and on the values of its tracker."""

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that reads the encoders and the tracker and runs the policy."""
        contract, loop = self.policy.contract, open_policy_loop(self.policy, worlds, domain=self.domain)
        observer = WorldObserver(
            self.twin,
            self.task,
            worlds,
            tracker=self.tracker,
            images=self.images,
            parts=("environment",) if contract.environment else (),
        )

        def command(simulation: Simulation) -> NDArray[np.float64]:
            assert isinstance(simulation, DrakeSimulation)
            seeing = loop.find_seeing_worlds()
            seen = observer.observe_worlds(simulation.state, simulation.step_index, seeing=seeing)
            if self._columns:
                seen[ENVIRONMENT] = seen[ENVIRONMENT][:, self._columns]
            seen[STATE] = self.twin.units.from_si(simulation.read_joints())
            return contract.action.to_si(loop.act(seen))

        return command


def _open_task(robot: DrakeRobot) -> PickAndPlace:
    task = open_task(TASK, robot.twin)
    assert isinstance(task, PickAndPlace)
    return task


def run_actor(
    robot: DrakeRobot,
    numbers: Sequence[int],
    actor: Actor,
    *,
    substeps: int = SUBSTEPS,
    change: Callable[[ParamTable], ParamTable] = lambda table: table,
) -> BatchResult:
    """Run any actor on a robot from numbered initial conditions.

    Args:
        robot: the robot.
        numbers: numbers of the initial conditions.
        actor: the actor.
        substeps: time steps of Drake per control step.
        change: see `run_trials`.
    """
    backend = DrakeBackend(robot=robot, numbers=numbers, substeps=substeps)
    return run_batch(
        robot.twin,
        _open_task(robot),
        change(robot.draw_params(PLACES, numbers)),
        run_seed=PLACES,
        episodes=numbers,
        actor=actor,
        backend=cast("Backend", backend),  # see `DrakeSimulation` for the parts that it lacks
    )
