"""Record logs of a virtual robot while its task's scripted expert, in the place of a person, performs the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.demonstrations import PerturbedExpert
from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.records import Episode, LoggedSignal
from twinloop.hardware import HiddenCell
from twinloop.hardware.record import TRACKER, add_tracked_poses
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task

Signals = Callable[[LoggedSignal], dict[str, LoggedSignal]]


def record_task_log(
    cell: HiddenCell,
    task: str,
    numbers: Sequence[int],
    *,
    run_seed: int,
    seconds: float,
    shake: float,
    extra: Signals | None,
) -> list[Episode]:
    """Return episodes of the scripted expert on a virtual robot, as a robot with a tracker would record them.

    Args:
        cell: the virtual robot.
        task: name of the task.
        numbers: numbers of the episodes, which determine where objects and targets are.
        run_seed: seed of the places and of the noise.
        seconds: length of an episode.
        shake: standard deviation of the noise on the expert's commands in rad.
        extra: function that returns further signals of an episode from its tracked values; None for none.
    """
    opened, params = open_task(task, cell.twin), cell.table(cell.plan(run_seed).draw(numbers))
    expert = PerturbedExpert(task=opened, twin=cell.twin, tracker=cell.tracker, shake=shake)
    backend = open_backend("threads")
    batch = run_batch(cell.twin, opened, params, run_seed=run_seed, episodes=numbers, actor=expert, backend=backend)
    length = round(seconds * cell.twin.control_hz)
    time = np.arange(length) / cell.twin.control_hz
    seen = {key: np.stack([step[key] for step in expert.observations], axis=1) for key in (STATE, ENVIRONMENT)}
    episodes = list[Episode]()
    for row, number in enumerate(numbers):
        tracked = LoggedSignal(
            time=time, values=seen[ENVIRONMENT][row, :length], columns=tuple(opened.environment_names), unit=""
        )
        episode = Episode(
            index=number,
            time=time,
            action=batch.action[row, :length],
            state=seen[STATE][row, :length],
            units=cell.twin.units,
            task=opened.instruction,
            source="sim",
            origin=f"virtual robot {cell.seed} of {cell.twin.name}",
            robot_type=cell.twin.robot.type,
            signals={TRACKER: tracked, **(extra(tracked) if extra else {})},
        )
        episodes.append(add_tracked_poses(episode, cell.twin))
    return episodes
