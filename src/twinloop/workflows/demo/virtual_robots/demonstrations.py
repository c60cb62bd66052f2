"""Generate demonstrations to train policies: in randomized worlds, by a scripted expert with perturbed commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.core.errors import CheckFailedError
from twinloop.core.files import write_json
from twinloop.core.params import ParamTable
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import uniforms
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import CameraSpec, DatasetSpec, ReadingSpec
from twinloop.generate.readings import environment_spec
from twinloop.hardware import make_hidden_cell, virtual_log
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.randomize import Draw, JointDraw, Plan, default_draws, identified_draws
from twinloop.rollout import EpisodeStart, Observation, TrackerNoise, WorldObserver, run_batch
from twinloop.rollout.observing import PERFECT, RenderImages
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import Controller, Simulation, open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin
from twinloop.workflows.demo.virtual_robots.settings import CAMERA, DEMONSTRATIONS, TASK, TWIN, TransferRecipe

_BATCH, _BATCH_IMAGES = 64, 16  # worlds at a time; images of 16 episodes take 60 MB


@dataclass(frozen=True, kw_only=True)
class DemonstrationWorlds:
    """Worlds in which demonstrations are made.

    Attributes:
        twin: the twin.
        plan: randomization of its parameters.
        tracker: errors of the tracker that measures the objects.
        transform: function that changes the drawn parameters, for example to those of a virtual robot; None to keep
            them.
    """

    twin: Twin
    plan: Plan
    tracker: TrackerNoise = PERFECT
    transform: Callable[[ParamTable], ParamTable] | None = None

    def draw(self, numbers: Sequence[int]) -> ParamTable:
        """Return the worlds of the episodes with these numbers."""
        table = self.plan.draw(numbers)
        return table if self.transform is None else self.transform(table)


@dataclass(kw_only=True)
class PerturbedExpert:
    """Scripted expert of a task with correlated noise on its arm commands; implements `Actor`.

    Attributes:
        task: the task.
        recipe: size and correlation of the noise.
        tracker: errors of the tracker that measures the objects.
        render_images: function that renders the images of an observation; None for observations without images.
        unperturbed_commands: commands of the script without noise in the last batch: one array ``(nworld, njoint)`` per
            step, in SI units.
        observations: observations that a policy would have received in the last batch, one per step.
    """

    task: Task
    recipe: TransferRecipe
    tracker: TrackerNoise = PERFECT
    render_images: RenderImages | None = None
    unperturbed_commands: list[NDArray[np.float64]] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the expert: version of its script, and standard deviation of the noise in rad."""
        return f"{self.task.expert_version}, shaken by {self.recipe.shake:g} rad"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that adds noise to the scripted expert's commands.

        It appends the unperturbed commands to ``unperturbed_commands`` and the observations to ``observations``.
        """
        script = self.task.expert(worlds.initial)
        observer = WorldObserver(
            self.task.twin, self.task, worlds, tracker=self.tracker, render_images=self.render_images
        )
        self.unperturbed_commands, self.observations = [], []
        shake = np.zeros_like(worlds.initial.command)
        weight = np.array([float(joint != _gripper(self.task.twin)) for joint in self.task.twin.robot.joints])

        def act(simulation: Simulation) -> NDArray[np.float64]:
            step = simulation.step_index
            self.observations.append(observer.observe_worlds(simulation.state, step))
            command = np.array(script(simulation))
            self.unperturbed_commands.append(command)
            where = {"size": command.shape[1], "attempt": worlds.attempt, "step": step}
            chance = ndtri(uniforms(worlds.run_seed, "transfer/shake", worlds.numbers, **where))
            shake[...] = self.recipe.memory * shake + np.sqrt(1 - self.recipe.memory**2) * chance
            return command + self.recipe.shake * weight * shake

        return act


@dataclass(frozen=True, kw_only=True)
class _Demonstration:
    """An episode, and its images by camera, shape ``(nframe, height, width, 3)``."""

    episode: SimEpisode
    images: Mapping[str, NDArray[np.uint8]]


def write_demonstrations(
    worlds: DemonstrationWorlds,
    folder: Path,
    *,
    count: int,
    recipe: TransferRecipe,
    successes: int | None = None,
    images: bool = False,
) -> int:
    """Write successful demonstrations of the scripted expert as a LeRobotDataset.

    Args:
        worlds: the worlds of the demonstrations.
        folder: the new folder; it must not exist.
        count: number of attempts.
        recipe: noise on the script's commands.
        successes: number of successes after which to stop; None uses all attempts.
        images: whether to include images of the camera in `settings.CAMERA`.

    Returns:
        The number of written demonstrations.

    Raises:
        CheckFailedError: If no attempt succeeded.
    """
    camera, height, width = CAMERA
    photographer = WorldCamera(worlds.twin, [camera], height=height, width=width) if images else None
    kept, most = list[_Demonstration](), _BATCH_IMAGES if images else _BATCH
    at_once = most if successes is None else min(most, successes)
    try:
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            kept += _collect_demonstrations(worlds, numbers, recipe, photographer.take_images if photographer else None)
            if successes is not None and len(kept) >= successes:
                kept = kept[:successes]
                break
    finally:
        if photographer:
            photographer.close()
    if not kept:
        raise CheckFailedError(
            f"The scripted expert of {TASK} succeeded in none of {count} worlds of {worlds.twin.name}."
        )
    _write_dataset(worlds.twin, kept, folder, recipe)
    return len(kept)


def _tracker_columns(task: Task, recipe: TransferRecipe) -> ReadingSpec:
    """Return the columns of the tracker's measurements that demonstrations contain and policies observe."""
    whole = environment_spec(task)
    if recipe.sees == "tool":
        return whole
    rows = [i for i, name in enumerate(whole.columns) if not name.startswith("tool.")]
    return replace(whole, columns=tuple(whole.columns[i] for i in rows), units=tuple(whole.units[i] for i in rows))


def _gripper(twin: Twin) -> str:
    hand = twin.robot.gripper
    return "" if hand is None else hand.joint


def _collect_demonstrations(
    worlds: DemonstrationWorlds, numbers: Sequence[int], recipe: TransferRecipe, render_images: RenderImages | None
) -> list[_Demonstration]:
    """Simulate demonstrations and return the successful ones, with the unperturbed commands as their actions.

    Args:
        worlds: the worlds of the demonstrations.
        numbers: numbers of the attempted episodes.
        recipe: noise on the script's commands.
        render_images: function that renders images; None for no images.
    """
    task = open_task(TASK, worlds.twin)
    actor = PerturbedExpert(task=task, recipe=recipe, tracker=worlds.tracker, render_images=render_images)
    params, backend = worlds.draw(numbers), open_backend("threads", nthread=1)
    batch = run_batch(
        worlds.twin, task, params, run_seed=DEMONSTRATIONS, episodes=numbers, actor=actor, backend=backend
    )
    unperturbed = batch.units.from_si(np.stack(actor.unperturbed_commands, axis=1))
    observations = {key: np.stack([step[key] for step in actor.observations], axis=1) for key in actor.observations[0]}
    names = list(environment_spec(task).columns)
    columns = [names.index(name) for name in _tracker_columns(task, recipe).columns]
    none = np.empty((0, 0))
    return [
        _Demonstration(
            episode=replace(
                batch.episode(int(world)),
                action=unperturbed[world],
                observation=observations[STATE][world],
                readings={ENVIRONMENT: observations[ENVIRONMENT][world][:, columns]},
                commands=none,
                states=none,
            ),
            images={
                key.removeprefix(IMAGES): observations[key][world] for key in observations if key.startswith(IMAGES)
            },
        )
        for world in np.flatnonzero(batch.success)
    ]


def _write_dataset(twin: Twin, shown: Sequence[_Demonstration], folder: Path, recipe: TransferRecipe) -> None:
    task, first = open_task(TASK, twin), shown[0]
    spec = DatasetSpec(
        name=f"{twin.name} {task.name}",
        robot_type=twin.robot.type,
        fps=round(twin.control_hz),
        joints=tuple(twin.robot.joints),
        units=twin.units,
        cameras=tuple(
            CameraSpec(name=name, height=taken.shape[1], width=taken.shape[2]) for name, taken in first.images.items()
        ),
        twin_hash=twin.hash,
        block_size=max(one.episode.number for one in shown) + 1,
        readings=(_tracker_columns(task, recipe),),
    )
    frames = [one.images for one in shown] if first.images else None
    with DatasetWriter.open(folder, spec) as writer:
        writer.commit_block(0, [one.episode for one in shown], frames=frames, outcome={"kept": len(shown)})
        writer.finish()


_SECONDS = 8.0  # of each episode of a log
_REPLAY = ReplayOptions(compare=("position", "place/tcp"))  # the tool site of the twin
_ITERATIONS = 8  # of the fit: later ones change the estimates by less than a tenth of their error


def placement_draws(twin: Twin) -> list[Draw]:
    """Return the randomized parameters that are drawn at reset, that is the poses of objects."""
    return [draw for draw in default_draws(twin) if twin.params[draw.names[0]].quantity.stage == "reset"]


def log_and_identify(twin: Twin, robot: int, episodes: int, file: Path) -> None:
    """Simulate teleoperation of a virtual robot, identify the twin from this log, and store the distribution.

    During the log the tracker also measures the tool. Joint readings alone do not determine the zeros of the joints,
    and an error of a centimetre at the tool decides whether a grasp succeeds.

    Args:
        twin: the nominal twin.
        robot: seed of the virtual robot.
        episodes: number of episodes of the log.
        file: JSON file for the identified distribution.
    """
    tracker = make_hidden_cell(twin, robot).tracker
    log = virtual_log(robot, twin=TWIN, episodes=episodes, seconds=_SECONDS, nthread=1, tracker=tracker)
    config = FitConfig(iterations=_ITERATIONS, polish=0, replay=_REPLAY)
    backend = open_backend("threads", nthread=1)
    found = identify(twin, log, backend=backend, holdout=HoldoutSpec(kind="none"), config=config)
    write_json(file, found.distribution.to_json())


def training_worlds(
    kind: str, twin: Twin, recipe: TransferRecipe, identified: Path | None = None
) -> DemonstrationWorlds:
    """Return the worlds in which demonstrations are made for one of the compared kinds of training data.

    Args:
        kind: ``nominal``, ``ranges``, ``point`` or ``posterior``; see `settings.TransferCondition.worlds`.
        twin: the nominal twin.
        recipe: defines the tracker noise of randomized worlds.
        identified: file that `log_and_identify` wrote for the robot; required for ``point`` and ``posterior``.
    """
    noisy = TrackerNoise(noise=recipe.tracker_noise)
    if kind == "nominal":
        return DemonstrationWorlds(twin=twin, plan=_plan(twin, placement_draws(twin)))
    if kind == "ranges":
        return DemonstrationWorlds(twin=twin, plan=_plan(twin, default_draws(twin)), tracker=noisy)
    assert identified is not None  # noqa: S101 - the other kinds need it
    distribution = ParamDistribution.from_json(read_json(identified))
    if kind == "posterior":
        return DemonstrationWorlds(twin=twin, plan=_plan(twin, identified_draws(twin, distribution)), tracker=noisy)
    estimate = {name: value for name, value in distribution.estimate.items() if name in _determined_names(distribution)}

    def as_estimated(table: ParamTable) -> ParamTable:
        own = {name: table[name] for draw in placement_draws(twin) for name in draw.names}
        return replace(twin.table(table.nworld, {**estimate, **own}), seeds=table.seeds)

    return DemonstrationWorlds(twin=twin, plan=_plan(twin, placement_draws(twin)), transform=as_estimated)


def _determined_names(distribution: ParamDistribution) -> set[str]:
    pairs = zip(distribution.names, distribution.determined, strict=True)
    return {name for name, determined in pairs if determined}


def _plan(twin: Twin, draws: list[Draw] | list[Draw | JointDraw]) -> Plan:
    return Plan(twin=twin, run_seed=DEMONSTRATIONS, draws=tuple(draws))
