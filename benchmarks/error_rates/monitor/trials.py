"""Run episodes of virtual robots under a policy, and evaluate a monitor on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.monitor.settings import (
    CALIBRATED,
    CAMERA,
    FAULTS,
    FAULTY,
    HELD,
    TASK,
    TWIN,
    WITH_IMAGES,
    Fault,
    MonitorSettings,
)
from twinloop.core.contract import IMAGES
from twinloop.core.errors import CheckFailedError
from twinloop.hardware import make_hidden_cell
from twinloop.policies import PolicyLoop, open_policy
from twinloop.release.monitor.calibration import Calibration
from twinloop.release.monitor.live import LiveMonitor
from twinloop.release.monitor.recorded import MonitorVerdict, RecordedEpisodes, concatenate_episodes, monitor_recorded
from twinloop.release.monitor.scorers import Kind, ScorerSet, fit_outlier_scorer
from twinloop.rollout import PolicyActor, run_batch
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import open_backend
from twinloop.stats.conformal import conformal_threshold
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.deploy.monitor import calibrate_monitor

_HEIGHT, _WIDTH, _EVERY = 72, 96, 6  # image size in px, and control steps per image (5 images per second)
_ATTEMPTS = 6  # largest number of episodes per required success
OUTLIER_KINDS: tuple[Kind, ...] = ("neighbours", "density", "random_network")


@dataclass(frozen=True, kw_only=True)
class EpisodeGroup:
    """A group of episodes with the same planted fault.

    Attributes:
        robot: Number of the virtual robot.
        name: Name of the fault, or of the outcome if there is none.
        verdicts: Verdicts of the monitor, one per episode.
        outlier_alarms: For each outlier measure alone, whether it raises an alarm in each episode.
    """

    robot: int
    name: str
    verdicts: tuple[MonitorVerdict, ...]
    outlier_alarms: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Robot:
    """All groups of episodes of one virtual robot.

    Attributes:
        groups: Groups of episodes.
        evaluation_ms: Median CPU time of one evaluation of the monitor, without the policy, ms.
        calibration_s: CPU time of the calibration, s.
        count: Number of successful episodes that set the thresholds.
        rate: Nominal rate of false alarms.
    """

    groups: tuple[EpisodeGroup, ...]
    evaluation_ms: float
    calibration_s: float
    count: int
    rate: float


def evaluate_robot(item: tuple[int, MonitorSettings, str, int]) -> Robot:
    """Calibrate a monitor on one robot's successful episodes and run it on all other episodes.

    ``item`` is robot number, settings, policy folder and run seed.
    """
    number, settings, folder, seed = item
    twin, policy = load_twin(TWIN), open_policy(Path(folder))
    known = successes(number, policy, settings.calibration, seed)
    began = time.process_time()
    calibration = calibrate_monitor(known, twin, policy.contract, policy=policy, rate=settings.rate, seed=seed)
    spent = time.process_time() - began
    judge = _OutlierMeasures(known, policy, calibration)
    monitor = LiveMonitor(calibration, twin)
    held = episodes(number, policy, range(HELD, HELD + settings.held), seed)
    groups = [
        _evaluate_group(number, "success", held.take(held.success == 1.0), monitor, policy, judge),
        _evaluate_group(number, "failure", held.take(held.success == 0.0), monitor, policy, judge),
    ]
    for place, fault in enumerate(FAULTS):
        first = FAULTY + 1000 * place
        faulty = episodes(number, policy, range(first, first + settings.faulty), seed, fault)
        groups.append(_evaluate_group(number, fault.name, faulty, LiveMonitor(calibration, twin), policy, judge))
    return Robot(
        groups=tuple(groups),
        evaluation_ms=_evaluation_ms(LiveMonitor(calibration, twin), held, policy),
        calibration_s=spent,
        count=calibration.band.count,
        rate=settings.rate,
    )


def evaluate_images(item: tuple[int, MonitorSettings, str, int]) -> Robot:
    """Do the same with images of the front camera for the monitor; the policy does not observe them."""
    number, settings, folder, seed = item
    twin, policy = load_twin(TWIN), open_policy(Path(folder))
    n = settings.has_images
    good = successes(number, policy, n, seed, images=True)
    began = time.process_time()
    calibration = calibrate_monitor(
        good, twin, policy.contract, policy=policy, cameras=(CAMERA,), rate=settings.rate, seed=seed
    )
    spent = time.process_time() - began
    monitor, groups = LiveMonitor(calibration, twin), []
    for fault in (Fault(name="success, with images"), *WITH_IMAGES):
        taken = episodes(number, policy, range(HELD, HELD + n), seed, fault, images=True)
        groups.append(_evaluate_group(number, fault.name, taken.take(taken.success == 1.0), monitor, policy, None))
    return Robot(
        groups=tuple(groups),
        evaluation_ms=_evaluation_ms(LiveMonitor(calibration, twin), good, policy),
        calibration_s=spent,
        count=calibration.band.count,
        rate=settings.rate,
    )


def successes(number: int, policy: Any, wanted: int, seed: int, *, images: bool = False) -> RecordedEpisodes:
    """Return the first ``wanted`` successful episodes of virtual robot ``number``, without a fault.

    Raises:
        CheckFailedError: If the policy does not succeed often enough.
    """
    found: list[RecordedEpisodes] = []
    for first in range(CALIBRATED, CALIBRATED + _ATTEMPTS * wanted, wanted):
        attempted = episodes(number, policy, range(first, first + wanted), seed, images=images)
        found.append(attempted.take(attempted.success == 1.0))
        if sum(map(len, found)) >= wanted:
            return concatenate_episodes(found).take(np.arange(wanted))
    raise CheckFailedError(
        f"The policy succeeded in {sum(map(len, found))} of {_ATTEMPTS * wanted} episodes of robot {number}, and "
        f"{wanted} successes are needed. Train it longer, or on more demonstrations."
    )


def episodes(
    number: int, policy: Any, numbers: Sequence[int], seed: int, fault: Fault | None = None, *, images: bool = False
) -> RecordedEpisodes:
    """Run the policy on virtual robot ``number`` and return the episodes as observed.

    Args:
        number: Number of the virtual robot.
        policy: The policy.
        numbers: Episode numbers, which select the worlds.
        seed: Run seed.
        fault: Planted fault; None for none.
        images: Whether to add images of the front camera.
    """
    fault = fault or Fault(name="")
    cell = make_hidden_cell(load_twin(TWIN), number, fault=fault.cell or fault.images or None)
    x, y, z = cell.tracker.offset
    tracker = replace(cell.tracker, offset=(x, y + fault.tracker, z))
    task, seen, commands = open_task(TASK, cell.twin), list[dict[str, Any]](), list[NDArray]()

    def record_step(observation: dict[str, Any], _: object, command: NDArray) -> None:
        seen.append({name: np.array(values) for name, values in observation.items()})
        commands.append(np.array(command))

    actor = PolicyActor(policy=policy, task=task, twin=cell.twin, tracker=tracker, step_callback=record_step)
    params = cell.table(cell.plan(seed).draw(list(numbers)))
    batch = run_batch(
        cell.twin, task, params, run_seed=seed, episodes=list(numbers), actor=actor,
        backend=open_backend("threads", nthread=1),
    )  # fmt: skip
    observation = {name: np.stack([step[name] for step in seen], axis=1) for name in seen[0]}
    if images:
        observation[IMAGES + CAMERA] = _images(cell.twin, batch.trajectories.states, params)
    return RecordedEpisodes(
        observation=observation,
        commands=np.stack(commands, axis=1),
        lengths=np.full(len(numbers), task.nstep),
        success=batch.success.astype(np.float64),
        names=tuple(str(one) for one in numbers),
        source=f"virtual:{TWIN}?seed={number}&task={TASK}",
    )


def _images(twin: Any, states: NDArray[np.float64], params: Any) -> NDArray[np.uint8]:
    """Render images ``(m, T, h, w, 3)`` of m episodes; each image is repeated for `_EVERY` control steps."""
    camera = WorldCamera(twin, [CAMERA], height=_HEIGHT, width=_WIDTH)
    length = states.shape[1] - 1
    taken = [camera.take_images(states[:, step], params)[CAMERA] for step in range(0, length, _EVERY)]
    camera.close()
    return np.stack(taken, axis=1)[:, np.arange(length) // _EVERY]


class _OutlierMeasures:
    """Outlier measures that each raise an alarm alone, at the same rate of false alarms."""

    def __init__(self, good: RecordedEpisodes, policy: Any, calibration: Calibration) -> None:
        self._policy, self._rate = policy, calibration.band.rate
        rows = self.rows(good)
        half = np.arange(len(good)) % 2 == 0
        self._judges: dict[str, tuple[ScorerSet, float]] = {}
        for stream in ("observation", "latent"):
            for kind in OUTLIER_KINDS:
                flat = rows[stream][half].reshape(-1, rows[stream].shape[-1])
                scorer = ScorerSet(
                    scorers={stream: fit_outlier_scorer(flat, kind)},
                    columns={},
                    control_hz=calibration.scorer.control_hz,
                )
                worst = scorer.compute_curves({stream: rows[stream][~half]})[stream].max(axis=1)
                self._judges[f"{stream}, {kind}"] = scorer, conformal_threshold(worst, 1.0 - self._rate)

    def rows(self, recorded: RecordedEpisodes) -> dict[str, NDArray[np.float64]]:
        """Compute observations and latent features of the policy, ``(m, T, n)`` each."""
        acting, seen = PolicyLoop(self._policy, len(recorded)), []
        for step in range(recorded.commands.shape[1]):
            now = recorded.get_step_observation(step)
            acting.act(now)
            acting.set_sent_commands(recorded.commands[:, step])
            seen.append((np.concatenate(list(now.values()), axis=1), acting.features.copy()))
        return {name: np.stack([row[i] for row in seen], axis=1) for i, name in enumerate(("observation", "latent"))}

    def find_outliers(self, recorded: RecordedEpisodes) -> dict[str, NDArray[np.bool_]]:
        """Return for each measure in which episodes it raises an alarm, ``(m,)``."""
        rows, found = self.rows(recorded), {}
        for name, (scorer, limit) in self._judges.items():
            stream = name.partition(",")[0]
            found[name] = scorer.compute_curves({stream: rows[stream]})[stream].max(axis=1) > limit
        return found


def _evaluate_group(
    robot: int, name: str, recorded: RecordedEpisodes, monitor: LiveMonitor, policy: Any, judge: _OutlierMeasures | None
) -> EpisodeGroup:
    if not len(recorded):
        return EpisodeGroup(robot=robot, name=name, verdicts=(), outlier_alarms={})
    verdicts = monitor_recorded(recorded, monitor, policy)
    return EpisodeGroup(
        robot=robot, name=name, verdicts=tuple(verdicts), outlier_alarms=judge.find_outliers(recorded) if judge else {}
    )


def _evaluation_ms(monitor: LiveMonitor, recorded: RecordedEpisodes, policy: Any) -> float:
    """Measure the CPU time of one evaluation of the monitor for one robot, in ms: the median over an episode."""
    one = recorded.take(np.array([0]))
    monitor.begin(1)
    acting, spent = PolicyLoop(policy, 1), []
    for step in range(one.commands.shape[1]):
        seen = one.get_step_observation(step)
        acting.act(seen)
        began = time.thread_time()
        monitor.score_step(seen, acting, one.commands[:, step])
        spent.append(time.thread_time() - began)
    return 1000.0 * float(np.median(spent[5:]))
