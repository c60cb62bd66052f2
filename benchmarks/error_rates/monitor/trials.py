"""Episodes of virtual robots under a policy, and what a monitor says of them."""

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
    PICTURED,
    TASK,
    TWIN,
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

_HEIGHT, _WIDTH, _EVERY = 72, 96, 6  # of pictures, and control steps from one to the next: 5 per second
_ATTEMPTS = 6  # episodes per success that is wanted, at most
OUTLYING: tuple[Kind, ...] = ("neighbours", "density", "random_network")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One group of episodes: what was planted and what the monitor said, and which unlikeness saw them."""

    robot: int
    name: str
    told: tuple[MonitorVerdict, ...]
    unlike: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Robot:
    """All groups of one robot; the time of one look at one robot in ms, without the policy; the promised rate."""

    groups: tuple[Tried, ...]
    look_ms: float
    calibration_s: float
    count: int
    rate: float


def try_robot(item: tuple[int, MonitorSettings, str, int]) -> Robot:
    """Calibrate a monitor on one robot's successes and show it everything else."""
    number, settings, folder, seed = item
    twin, policy = load_twin(TWIN), open_policy(Path(folder))
    known = successes(number, policy, settings.calibration, seed)
    began = time.process_time()
    calibration = calibrate_monitor(known, twin, policy.contract, policy=policy, rate=settings.rate, seed=seed)
    spent = time.process_time() - began
    judge = _Unlike(known, policy, calibration)
    monitor = LiveMonitor(calibration, twin)
    held = episodes(number, policy, range(HELD, HELD + settings.held), seed)
    groups = [
        _tried(number, "success", held.take(held.success == 1.0), monitor, policy, judge),
        _tried(number, "failure", held.take(held.success == 0.0), monitor, policy, judge),
    ]
    for place, fault in enumerate(FAULTS):
        first = FAULTY + 1000 * place
        faulty = episodes(number, policy, range(first, first + settings.faulty), seed, fault)
        groups.append(_tried(number, fault.name, faulty, LiveMonitor(calibration, twin), policy, judge))
    return Robot(
        groups=tuple(groups),
        look_ms=_look_ms(LiveMonitor(calibration, twin), held, policy),
        calibration_s=spent,
        count=calibration.band.count,
        rate=settings.rate,
    )


def try_pictures(item: tuple[int, MonitorSettings, str, int]) -> Robot:
    """The same with pictures of the front camera, of which the policy sees nothing."""
    number, settings, folder, seed = item
    twin, policy = load_twin(TWIN), open_policy(Path(folder))
    n = settings.pictured
    good = successes(number, policy, n, seed, pictures=True)
    began = time.process_time()
    calibration = calibrate_monitor(
        good, twin, policy.contract, policy=policy, cameras=(CAMERA,), rate=settings.rate, seed=seed
    )
    spent = time.process_time() - began
    monitor, groups = LiveMonitor(calibration, twin), []
    for fault in (Fault(name="success, with pictures"), *PICTURED):
        taken = episodes(number, policy, range(HELD, HELD + n), seed, fault, pictures=True)
        groups.append(_tried(number, fault.name, taken.take(taken.success == 1.0), monitor, policy, None))
    return Robot(
        groups=tuple(groups),
        look_ms=_look_ms(LiveMonitor(calibration, twin), good, policy),
        calibration_s=spent,
        count=calibration.band.count,
        rate=settings.rate,
    )


def successes(number: int, policy: Any, wanted: int, seed: int, *, pictures: bool = False) -> RecordedEpisodes:
    """The first successes of a virtual robot without a fault, so many of them.

    Raises:
        CheckFailedError: the policy does not succeed often enough to be watched.
    """
    found: list[RecordedEpisodes] = []
    for first in range(CALIBRATED, CALIBRATED + _ATTEMPTS * wanted, wanted):
        tried = episodes(number, policy, range(first, first + wanted), seed, pictures=pictures)
        found.append(tried.take(tried.success == 1.0))
        if sum(map(len, found)) >= wanted:
            return concatenate_episodes(found).take(np.arange(wanted))
    raise CheckFailedError(
        f"The policy succeeded in {sum(map(len, found))} of {_ATTEMPTS * wanted} episodes of robot {number}, and "
        f"{wanted} successes are needed. Train it longer, or on more demonstrations."
    )


def episodes(
    number: int, policy: Any, numbers: Sequence[int], seed: int, fault: Fault | None = None, *, pictures: bool = False
) -> RecordedEpisodes:
    """Episodes of a virtual robot under the policy, as they were observed."""
    fault = fault or Fault(name="")
    cell = make_hidden_cell(load_twin(TWIN), number, fault=fault.cell or fault.pictures or None)
    x, y, z = cell.tracker.offset
    tracker = replace(cell.tracker, offset=(x, y + fault.tracker, z))
    task, seen, commands = open_task(TASK, cell.twin), list[dict[str, Any]](), list[NDArray]()

    def keep(observation: dict[str, Any], _: object, command: NDArray) -> None:
        seen.append({name: np.array(values) for name, values in observation.items()})
        commands.append(np.array(command))

    actor = PolicyActor(policy=policy, task=task, twin=cell.twin, tracker=tracker, watch=keep)
    params = cell.table(cell.plan(seed).draw(list(numbers)))
    batch = run_batch(
        cell.twin, task, params, run_seed=seed, episodes=list(numbers), actor=actor,
        backend=open_backend("threads", nthread=1),
    )  # fmt: skip
    observation = {name: np.stack([step[name] for step in seen], axis=1) for name in seen[0]}
    if pictures:
        observation[IMAGES + CAMERA] = _pictures(cell.twin, batch.trajectories.states, params)
    return RecordedEpisodes(
        observation=observation,
        commands=np.stack(commands, axis=1),
        lengths=np.full(len(numbers), task.nstep),
        success=batch.success.astype(np.float64),
        names=tuple(str(one) for one in numbers),
        source=f"virtual:{TWIN}?seed={number}&task={TASK}",
    )


def _pictures(twin: Any, states: NDArray[np.float64], params: Any) -> NDArray[np.uint8]:
    """Pictures ``(m, T, h, w, 3)``, each shown for `_EVERY` steps."""
    camera = WorldCamera(twin, [CAMERA], height=_HEIGHT, width=_WIDTH)
    length = states.shape[1] - 1
    taken = [camera.take_images(states[:, step], params)[CAMERA] for step in range(0, length, _EVERY)]
    camera.close()
    return np.stack(taken, axis=1)[:, np.arange(length) // _EVERY]


class _Unlike:
    """What each way of measuring unlikeness says by itself, at the same rate of false alarms."""

    def __init__(self, good: RecordedEpisodes, policy: Any, calibration: Calibration) -> None:
        self._policy, self._rate = policy, calibration.band.rate
        rows = self.rows(good)
        half = np.arange(len(good)) % 2 == 0
        self._judges: dict[str, tuple[ScorerSet, float]] = {}
        for stream in ("observation", "latent"):
            for kind in OUTLYING:
                flat = rows[stream][half].reshape(-1, rows[stream].shape[-1])
                scorer = ScorerSet(
                    judges={stream: fit_outlier_scorer(flat, kind)},
                    columns={},
                    control_hz=calibration.scorer.control_hz,
                )
                worst = scorer.compute_curves({stream: rows[stream][~half]})[stream].max(axis=1)
                self._judges[f"{stream}, {kind}"] = scorer, conformal_threshold(worst, 1.0 - self._rate)

    def rows(self, recorded: RecordedEpisodes) -> dict[str, NDArray[np.float64]]:
        """Observations and features."""
        acting, seen = PolicyLoop(self._policy, len(recorded)), []
        for step in range(recorded.commands.shape[1]):
            now = recorded.get_step_observation(step)
            acting.act(now)
            acting.set_sent_commands(recorded.commands[:, step])
            seen.append((np.concatenate(list(now.values()), axis=1), acting.latent.copy()))
        return {name: np.stack([row[i] for row in seen], axis=1) for i, name in enumerate(("observation", "latent"))}

    def look(self, recorded: RecordedEpisodes) -> dict[str, NDArray[np.bool_]]:
        """Which episodes each calls unlike."""
        rows, found = self.rows(recorded), {}
        for name, (scorer, limit) in self._judges.items():
            stream = name.partition(",")[0]
            found[name] = scorer.compute_curves({stream: rows[stream]})[stream].max(axis=1) > limit
        return found


def _tried(
    robot: int, name: str, recorded: RecordedEpisodes, monitor: LiveMonitor, policy: Any, judge: _Unlike | None
) -> Tried:
    if not len(recorded):
        return Tried(robot=robot, name=name, told=(), unlike={})
    told = monitor_recorded(recorded, monitor, policy)
    return Tried(robot=robot, name=name, told=tuple(told), unlike=judge.look(recorded) if judge else {})


def _look_ms(monitor: LiveMonitor, recorded: RecordedEpisodes, policy: Any) -> float:
    """CPU time of one look at one robot, in ms: the median over an episode."""
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
