"""Write episodes of a running robot as a LeRobotDataset v3.0 that is complete after each episode.

Frames hold observations and, as ``action``, the issued commands. Three side tables hold further data for people and
monitors: ``run/steps`` (requested command, decision of the envelope, latencies), ``run/events`` and ``run/scores``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, Contract
from twinloop.core.records import Episode, Provenance, SimEpisode, Source
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.side_tables import SideTable
from twinloop.dataset.spec import CameraSpec, DatasetSpec, ReadingSpec
from twinloop.release.running_robot import EpisodeRun

STEPS, EVENTS, SCORES = "run/steps", "run/events", "run/scores"
_NO_STATES = np.empty((0, 0))


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that all episodes of a run share: the robot, its contract, the twin of its envelope, the task.

    ``judged`` is true if the success of the task is known at each step. ``success_version`` names the judge.
    """

    origin: str
    source: Source
    offered: Contract
    twin: str
    twin_hash: str
    task: str
    judged: bool = False
    success_version: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class RunWriter:
    """Writer of a dataset that grows by one episode at a time.

    Args:
        path: an absent or empty folder; it is created with the first episode.
        facts: see `RunFacts`.

    Raises:
        DatasetError: as in `DatasetWriter`.
    """

    def __init__(self, path: Path, facts: RunFacts) -> None:
        self.path, self._facts = path, facts
        self._writer: DatasetWriter | None = None

    @property
    def episodes(self) -> int:
        """Number of episodes written."""
        return 0 if self._writer is None else self._writer.episodes

    def add(
        self, ran: EpisodeRun, *, policy_hash: str, success: bool | None, notes: Mapping[str, Any] | None = None
    ) -> int:
        """Write an episode that has frames to the disk and return its ``episode_index``.

        Args:
            ran: the episode.
            policy_hash: hash of the policy that acted.
            success: whether the episode succeeded; None if unknown.
            notes: further facts for its provenance.
        """
        if self._writer is None:
            self._writer = DatasetWriter.open(self.path, self._make_spec())
        number = self._writer.next_block
        log = self._make_log(ran)
        record = self._make_provenance(ran, policy_hash, success, notes or {})
        episode = SimEpisode(
            number=number,
            commands=_NO_STATES,
            states=_NO_STATES,
            action=log.action,
            observation=log.state,
            next_success=np.array([bool(step.success) for step in ran.steps]),
            provenance=record,
            readings=self._stack_environment(ran),
        )
        frames = [self._stack_images(ran)] if self._facts.offered.cameras else None
        outcome = {"recorded": 1, "success": int(success is True)}
        tables = _make_side_tables(number, ran, self._facts.offered.action.names)
        self._writer.commit_block(number, [episode], logs=[log], frames=frames, outcome=outcome, tables=tables)
        return number

    def finish(self, result: Mapping[str, Any]) -> None:
        """Complete the statistics and store the metrics of the run."""
        if self._writer is not None:
            self._writer.finish(result)

    def close(self) -> None:
        """Release the dataset for other writers."""
        if self._writer is not None:
            self._writer.close()

    def _make_spec(self) -> DatasetSpec:
        offered = self._facts.offered
        name, seen = ENVIRONMENT.removeprefix("observation."), offered.environment
        return DatasetSpec(
            name=self.path.name,
            robot_type=offered.robot_type,
            fps=max(1, round(offered.control_hz)),
            joints=offered.action.names,
            units=offered.action,
            cameras=tuple(CameraSpec(name=name, height=h, width=w) for name, (h, w) in offered.cameras.items()),
            config={"run": dict(self._facts.config)},
            block_size=1,
            success=self._facts.judged,
            readings=(ReadingSpec(name=name, columns=seen, units=tuple(map(_infer_unit, seen))),) if seen else (),
        )

    def _make_log(self, ran: EpisodeRun) -> Episode:
        facts = self._facts
        return Episode(
            index=ran.episode,
            time=np.array([step.time_s for step in ran.steps]),
            action=np.array([step.issued for step in ran.steps]),
            state=_fill_forward(np.array([step.seen.reading for step in ran.steps])),
            units=facts.offered.action,
            task=facts.task,
            source=facts.source,
            origin=facts.origin,
            robot_type=facts.offered.robot_type,
            command=facts.offered.command,
        )

    def _make_provenance(
        self, ran: EpisodeRun, policy_hash: str, success: bool | None, notes: Mapping[str, Any]
    ) -> Provenance:
        facts = self._facts
        run = {"policy": ran.policy, "policy_hash": policy_hash, "trip": ran.trip or ""}
        run |= {"envelope": ran.ruling_counts, "unsent": ran.unsent_count}
        return Provenance(
            source=facts.source,
            twin=facts.twin,
            twin_hash=facts.twin_hash,
            config_hash="",
            params={},
            seed_path=(0, ran.episode, 0),
            versions={"twinloop": version("twinloop")},
            actor=f"policy:{ran.policy}",
            task=facts.task or "unnamed task",
            units=facts.offered.action.to_json(),
            success=success,
            success_version=facts.success_version if success is not None else "",
            extra={
                "origin": facts.origin,
                "log_episode": ran.episode,
                "task": facts.offered.task,
                "run": {**run, "reason": ran.reason},
                **notes,
            },
        )

    def _stack_environment(self, ran: EpisodeRun) -> dict[str, NDArray[np.float64]]:
        if not self._facts.offered.environment:
            return {}
        return {ENVIRONMENT: _fill_forward(np.array([step.seen.arrays[ENVIRONMENT] for step in ran.steps]))}

    def _stack_images(self, ran: EpisodeRun) -> dict[str, NDArray[np.uint8]]:
        return {
            name: np.stack([step.seen.arrays[f"{IMAGES}{name}"] for step in ran.steps])
            for name in self._facts.offered.cameras
        }


def _fill_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows ``(T, n)`` with each non-finite value replaced by the last finite one, or 0 before the first.

    The robot held its position in these frames; `run/steps` contains the reason.
    """
    good = np.isfinite(values)
    last = np.maximum.accumulate(np.where(good, np.arange(len(values))[:, None], 0), axis=0)
    return np.nan_to_num(np.take_along_axis(values, last, axis=0), nan=0.0, posinf=0.0, neginf=0.0)


def _infer_unit(name: str) -> str:
    """Return the unit of a tracker's column: m for positions, 1 for cosine and sine of headings, "" if unknown."""
    return {"x": "m", "y": "m", "z": "m", "cos": "1", "sin": "1"}.get(name.rpartition(".")[2], "")


def _make_side_tables(number: int, ran: EpisodeRun, joints: tuple[str, ...]) -> dict[str, SideTable]:
    steps = ran.steps
    columns = {
        "time_s": pa.array([step.time_s for step in steps], pa.float64()),
        "ruling": pa.array([step.ruling.kind for step in steps], pa.string()),
        "reason": pa.array([step.ruling.reason for step in steps], pa.string()),
        "cut_joints": pa.array([[cut.joint for cut in step.ruling.cuts] for step in steps], pa.list_(pa.string())),
        "cut_rules": pa.array([[cut.rule for cut in step.ruling.cuts] for step in steps], pa.list_(pa.string())),
        "latency_s": pa.array([_finite_or_none(step.latency_s) for step in steps], pa.float64()),
        "age_s": pa.array([step.age_s for step in steps], pa.float64()),
        "sent": pa.array([step.sent for step in steps], pa.bool_()),
    }
    for j, joint in enumerate(joints):
        columns[f"wanted/{joint}"] = pa.array([_finite_or_none(step.wanted[j]) for step in steps], pa.float64())
        columns[f"issued/{joint}"] = pa.array([float(step.issued[j]) for step in steps], pa.float64())
    events = {
        "time_s": pa.array([event.time_s for event in ran.events], pa.float64()),
        "kind": pa.array([event.kind for event in ran.events], pa.string()),
        "message": pa.array([event.message for event in ran.events], pa.string()),
    }
    rows = [(frame, name, value) for frame, step in enumerate(steps) for name, value in step.scores.items()]
    scores = {
        "name": pa.array([name for _, name, _ in rows], pa.string()),
        "value": pa.array([_finite_or_none(value) for *_, value in rows], pa.float64()),
    }
    return {
        STEPS: _make_side_table(number, range(len(steps)), columns),
        EVENTS: _make_side_table(number, [event.frame for event in ran.events], events),
        SCORES: _make_side_table(number, [frame for frame, *_ in rows], scores),
    }


def _make_side_table(number: int, frames: Sequence[int], columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a side table: the episode's number and the frame of every row, then its columns."""
    first = {"number": pa.array([number] * len(frames), pa.int64()), "frame": pa.array(frames, pa.int64())}
    return pa.table({**first, **columns})


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
