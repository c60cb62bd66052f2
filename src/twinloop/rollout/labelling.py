"""Let a policy act in worlds while an expert labels every state with the command that it would issue there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.policies import Predictor
from twinloop.policies.policy_loop import CommandLimiter
from twinloop.policies.settings import CommonSettings
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.observing import (
    PERFECT,
    Observation,
    TrackerNoise,
    WorldImages,
    WorldObserver,
    offered_contract,
)
from twinloop.rollout.policy_actor import HashedPolicy, open_policy_loop, require_matching_contract
from twinloop.simulate import Controller, Simulation
from twinloop.tasks.protocol import StateExpert, Task, has_labels, has_tracked_values, require_expert
from twinloop.tasks.reaching import heading
from twinloop.twin import Twin

Array = NDArray[np.float64]


@dataclass
class LabelledSteps:
    """What a policy sees at each step, and the expert's command; arrays ``(nworld, nstep, k)`` in the dataset's units.

    Attributes:
        state: joint readings.
        environment: tracked values that the policy reads.
        held: command of the step before.
        label: command of the expert.
        images: images by camera at each step at which they are taken, ``(nworld, height, width, 3)``.
    """

    state: list[Array] = field(default_factory=list[Array])
    environment: list[Array] = field(default_factory=list[Array])
    held: list[Array] = field(default_factory=list[Array])
    label: list[Array] = field(default_factory=list[Array])
    images: dict[str, list[NDArray[np.uint8]]] = field(default_factory=dict[str, list[NDArray[np.uint8]]])

    def stack(self) -> dict[str, NDArray[Any]]:
        """Return each array by its name, ``(nworld, nstep, k)``, and images by ``observation.images.NAME``."""
        rows = {name: values for name, values in vars(self).items() if values and name != "images"}
        vectors = {name: np.stack(values, axis=1).astype(np.float32) for name, values in rows.items()}
        return vectors | {name: np.stack(values, axis=1) for name, values in self.images.items()}


class TeacherExpert:
    """Expert that labels states with the commands of a policy; see `tasks.protocol.StateExpert`.

    The policy's last command is the one that was issued, whoever issued it. Its first observation fills its history.

    Args:
        policy: the policy.
        twin: twin of the worlds.
        task: the task.
        worlds: the worlds.
    """

    def __init__(self, policy: HashedPolicy, twin: Twin, task: Task, worlds: EpisodeStart) -> None:
        names = offered_contract(twin, task).environment
        self._columns = [names.index(name) for name in policy.contract.environment]
        self._units, self._loop = policy.contract.command_units, open_policy_loop(policy, worlds)
        self._observer = WorldObserver(twin, task, worlds)

    def label(self, simulation: Simulation, held: Array, earlier: Array) -> Array:  # noqa: ARG002 - of the protocol
        """Return the commands of the policy in the present states, ``(nworld, nu)``."""
        seen = self._observer.observe_worlds(simulation.state, simulation.step_index)
        if self._columns:
            seen[ENVIRONMENT] = seen[ENVIRONMENT][:, self._columns]
        self._loop.set_sent_commands(self._units.from_si(held))
        return self._units.to_si(self._loop.act(seen))


def require_labels(task: Task, twin: Twin, teacher: HashedPolicy | None) -> str:
    """Return who labels the states of a task: the teacher if there is one, else the task's expert.

    Raises:
        InputError: If the teacher has another contract than twin and task offer, or nobody can label.
    """
    if teacher is not None:
        require_matching_contract(teacher, offered_contract(twin, task), twin, task)
        return f"policy {teacher.hash}"
    if not has_labels(task):
        require_expert(task)
        raise InputError(
            f"The task {task.name} has no expert that can label the states of a policy. Give it a method "
            "memoryless_expert (see twinloop.tasks.protocol.LabellingTask), give a trained policy as the teacher, or "
            "train from demonstrations."
        )
    return task.expert_version


@dataclass(kw_only=True)
class LabellingActor:
    """Actor whose every step an expert labels: a policy acts in some worlds, the expert in the others.

    Args:
        task: the task, with an expert that labels states unless there is a teacher.
        twin: twin of the worlds.
        contract: contract of the policy.
        settings: settings of the policy, whose command limits also hold for the expert.
        believed: values of parameters that the expert takes for true, by name: one number, or one per world
            ``(nworld,)``; the others are nominal.
        tracker: errors of the tracker. A task's expert labels the state that the tracker shows: free bodies are where
            it sees them, and mocap bodies are displaced like its frame. A policy could not learn labels of the true
            state, which it does not see: it would command the median of what might be right, and stall.
        policy: the policy; None if the expert acts in all worlds.
        teacher: policy that is the expert; None for the task's own.
        by_expert: worlds in which the expert acts, ``(nworld,)``; by default none, if there is a policy.
        images: source of images, needed if the policy has cameras. They are taken whenever the policy predicts.
        steps: the labelled steps of the last worlds.
    """

    task: Task
    twin: Twin
    contract: Contract
    settings: CommonSettings
    believed: Mapping[str, float | Array] = field(default_factory=dict[str, float | Array])
    tracker: TrackerNoise = PERFECT
    policy: Predictor | None = None
    teacher: HashedPolicy | None = None
    by_expert: Sequence[bool] | NDArray[np.bool_] | None = None
    images: WorldImages | None = None
    steps: LabelledSteps = field(default_factory=LabelledSteps)

    @property
    def name(self) -> str:
        """Name of the labelling expert, and of the actor."""
        return f"labelled by {require_labels(self.task, self.twin, self.teacher)}"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that acts in these worlds and adds to ``steps``."""
        expert = self._open_expert(worlds)
        observer = WorldObserver(self.twin, self.task, worlds, tracker=self.tracker, images=self.images)
        units, number = self.contract.command_units, len(worlds.numbers)
        names = offered_contract(self.twin, self.task).environment
        columns = [names.index(name) for name in self.contract.environment]
        loop = None if self.policy is None else open_policy_loop(self.policy, worlds)
        by_expert = np.zeros(number, dtype=bool) if self.by_expert is None else np.asarray(self.by_expert)
        limiter = CommandLimiter(self.contract, self.settings, number)
        held = earlier = np.array(worlds.initial.command)
        self.steps = steps = LabelledSteps()

        def command(simulation: Simulation) -> Array:
            nonlocal held, earlier
            looks = simulation.step_index % self.settings.steps_between_images == 0
            seen = observer.observe_worlds(simulation.state, simulation.step_index, seeing=np.full(number, looks))
            for name, frames in seen.items():
                if name.startswith(IMAGES) and looks:
                    steps.images.setdefault(name, []).append(frames)
            label = wanted = expert.label(self._show(simulation, names, seen), held, earlier)
            if columns:
                seen[ENVIRONMENT] = seen[ENVIRONMENT][:, columns]
                steps.environment.append(seen[ENVIRONMENT])
            steps.state.append(seen[STATE])
            steps.held.append(units.from_si(held))
            steps.label.append(units.from_si(label))
            if loop is not None:
                wanted = np.where(by_expert[:, None], label, units.to_si(loop.act(seen)))
            sent = limiter.limit(units.from_si(wanted), units.from_si(held))
            if loop is not None:
                loop.set_sent_commands(sent)
            acted = units.to_si(sent)
            held, earlier = acted, held
            return acted

        return command

    def _show(self, simulation: Simulation, names: Sequence[str], seen: Observation) -> Simulation:
        """Return the simulation as the tracker shows it to a task's expert."""
        if self.teacher is not None or self.tracker == PERFECT or ENVIRONMENT not in seen:
            return simulation
        return _ShownSimulation(simulation, move_free_bodies(self.twin, simulation.qpos, names, seen[ENVIRONMENT]))  # pyright: ignore[reportReturnType]

    def _open_expert(self, worlds: EpisodeStart) -> StateExpert:
        if self.teacher is not None:
            return TeacherExpert(self.teacher, self.twin, self.task, worlds)
        if not has_labels(self.task):
            require_labels(self.task, self.twin, None)
            raise AssertionError
        believed, initial = self.twin.table(len(worlds.numbers), self.believed), worlds.initial
        if self.tracker != PERFECT and has_tracked_values(self.task):
            initial = replace(initial, mocap_pos=initial.mocap_pos + self.tracker.draw_offset(worlds)[:, None])
        return self.task.memoryless_expert(initial, worlds.params, believed=believed)


class _ShownSimulation:
    """Simulation whose free bodies are elsewhere."""

    def __init__(self, simulation: Simulation, qpos: Array) -> None:
        self._simulation, self.qpos = simulation, qpos

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)


def move_free_bodies(twin: Twin, qpos: Array, names: Sequence[str], tracked: Array) -> Array:
    """Return positions ``(nworld, nq)`` in which free bodies are where tracked values say.

    Args:
        twin: twin of the worlds.
        qpos: positions, ``(nworld, nq)``.
        names: names of the n tracked values, such as ``cube.x`` and ``cube.heading.cos``.
        tracked: the tracked values, ``(nworld, n)``; a body keeps what they do not say.
    """
    moved, model, columns = qpos.copy(), twin.model, {name: i for i, name in enumerate(names)}
    for body in dict.fromkeys(name.partition(".")[0] for name in names):
        row = mujoco.mj_name2id(model, int(mujoco.mjtObj.mjOBJ_BODY), body)
        joint = int(model.body_jntadr[row]) if row >= 0 else -1
        if joint < 0 or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE:
            continue
        first = int(model.jnt_qposadr[joint])
        for i, axis in enumerate("xyz"):
            if f"{body}.{axis}" in columns:
                moved[:, first + i] = tracked[:, columns[f"{body}.{axis}"]]
        cos, sin = (columns.get(f"{body}.heading.{part}") for part in ("cos", "sin"))
        if cos is not None and sin is not None:
            turn = moved[:, first + 3 : first + 7]
            half = 0.5 * (np.arctan2(tracked[:, sin], tracked[:, cos]) - heading(turn))
            c, s = np.cos(half), np.sin(half)
            w, x, y, z = turn.T
            moved[:, first + 3 : first + 7] = np.stack([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w], 1)
    return moved
