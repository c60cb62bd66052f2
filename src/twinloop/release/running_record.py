"""Write the episodes of a running robot to a LeRobotDataset v3.0, which is complete after each episode.

Frames contain observations and, as ``action``, the issued commands. Three side tables contain further data for people
and monitors: ``run/steps`` (requested command, decision of the envelope, latencies), ``run/events`` and ``run/scores``.
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

from twinloop.core.assignment import Assignment
from twinloop.core.contract import ENVIRONMENT, IMAGES, Contract
from twinloop.core.records import Episode, Provenance, SimEpisode, Source
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.side_tables import SideTable
from twinloop.dataset.signals import tracked_unit
from twinloop.dataset.spec import CameraSpec, DatasetSpec, ReadingSpec
from twinloop.release.running_robot import EpisodeRun

STEPS, EVENTS, SCORES = "run/steps", "run/events", "run/scores"
_NO_STATES = np.empty((0, 0))


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that are the same for all episodes of a run.

    Attributes:
        origin: description of the robot, recorded as the origin of the episodes.
        source: kind of the data, for example ``real`` or ``sim``.
        contract: contract that the robot offers.
        twin: name of the twin from which the envelope is computed.
        twin_hash: hash of this twin.
        task: task in words, recorded as the instruction of the episodes.
        is_success_known: whether the success of the task is known at each step.
        success_version: version of the definition of success.
        config: settings of the run.
        assignment: twin and task for which the policy was trained; None if they are unknown.
        sources: files of this twin and task, by their path in a folder.
    """

    origin: str
    source: Source
    contract: Contract
    twin: str
    twin_hash: str
    task: str
    is_success_known: bool = False
    success_version: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    assignment: Assignment | None = None
    sources: Mapping[str, Path] = field(default_factory=dict[str, Path])


class RunWriter:
    """Writer of a dataset to which one episode at a time is added.

    Args:
        path: folder of the dataset, absent or empty; it is created with the first episode.
        facts: facts that are the same for all episodes.

    Raises:
        DatasetError: If the folder cannot be used; see `DatasetWriter`.
    """

    def __init__(self, path: Path, facts: RunFacts) -> None:
        self.path, self._facts = path, facts
        self._writer: DatasetWriter | None = None

    @property
    def episodes(self) -> int:
        """Number of episodes written so far."""
        return 0 if self._writer is None else self._writer.episodes

    def add(
        self, record: EpisodeRun, *, policy_hash: str, success: bool | None, notes: Mapping[str, Any] | None = None
    ) -> int:
        """Write an episode with at least one control step to the disk, and return its ``episode_index``.

        Args:
            record: record of the episode.
            policy_hash: hash of the policy that acted.
            success: whether the episode succeeded; None if unknown.
            notes: further facts for the provenance of the episode.
        """
        if self._writer is None:
            self._writer = DatasetWriter.open(self.path, self._make_spec())
        number = self._writer.next_block
        log = self._make_log(record)
        provenance = self._make_provenance(record, policy_hash, success, notes or {})
        episode = SimEpisode(
            number=number,
            commands=_NO_STATES,
            states=_NO_STATES,
            action=log.action,
            observation=log.state,
            next_success=np.array([bool(step.success) for step in record.steps]),
            provenance=provenance,
            readings=self._stack_environment(record),
        )
        frames = [self._stack_images(record)] if self._facts.contract.cameras else None
        outcome = {"recorded": 1, "success": int(success is True)}
        tables = _make_side_tables(number, record, self._facts.contract.action.names)
        self._writer.commit_block(number, [episode], logs=[log], frames=frames, outcome=outcome, tables=tables)
        return number

    def finish(self, result: Mapping[str, Any]) -> None:
        """Complete the statistics of the dataset, and store the metrics of the run in it."""
        if self._writer is not None:
            self._writer.finish(result)

    def close(self) -> None:
        """Unlock the dataset, so that other processes can write to it."""
        if self._writer is not None:
            self._writer.close()

    def _make_spec(self) -> DatasetSpec:
        contract = self._facts.contract
        name, columns = ENVIRONMENT.removeprefix("observation."), contract.environment
        made = self._facts.assignment
        return DatasetSpec(
            name=self.path.name,
            robot_type=contract.robot_type,
            fps=max(1, round(contract.control_hz)),
            joints=contract.action.names,
            units=contract.action,
            cameras=tuple(CameraSpec(name=name, height=h, width=w) for name, (h, w) in contract.cameras.items()),
            config={
                "run": dict(self._facts.config),
                **({} if made is None else {"assignment": made.to_json()}),
            },
            sources=self._facts.sources,
            block_size=1,
            success=self._facts.is_success_known,
            readings=(ReadingSpec(name=name, columns=columns, units=tuple(map(tracked_unit, columns))),)
            if columns
            else (),
        )

    def _make_log(self, record: EpisodeRun) -> Episode:
        facts = self._facts
        return Episode(
            index=record.episode,
            time=np.array([step.time_s for step in record.steps]),
            action=np.array([step.issued for step in record.steps]),
            state=_fill_forward(np.array([step.observation.reading for step in record.steps])),
            units=facts.contract.action,
            task=facts.task,
            source=facts.source,
            origin=facts.origin,
            robot_type=facts.contract.robot_type,
            command=facts.contract.command,
        )

    def _make_provenance(
        self, record: EpisodeRun, policy_hash: str, success: bool | None, notes: Mapping[str, Any]
    ) -> Provenance:
        facts = self._facts
        run = {"policy": record.policy, "policy_hash": policy_hash, "trip": record.end_kind or ""}
        run |= {"envelope": record.decision_counts, "unsent": record.unsent_count}
        return Provenance(
            source=facts.source,
            twin=facts.twin,
            twin_hash=facts.twin_hash,
            config_hash="",
            params={},
            seed_path=(0, record.episode, 0),
            versions={"twinloop": version("twinloop")},
            actor=f"policy:{record.policy}",
            task=facts.task or "unnamed task",
            units=facts.contract.action.to_json(),
            success=success,
            success_version=facts.success_version if success is not None else "",
            extra={
                "origin": facts.origin,
                "log_episode": record.episode,
                "task": facts.contract.task,
                "run": {**run, "reason": record.reason},
                **notes,
            },
        )

    def _stack_environment(self, record: EpisodeRun) -> dict[str, NDArray[np.float64]]:
        if not self._facts.contract.environment:
            return {}
        return {ENVIRONMENT: _fill_forward(np.array([step.observation.arrays[ENVIRONMENT] for step in record.steps]))}

    def _stack_images(self, record: EpisodeRun) -> dict[str, NDArray[np.uint8]]:
        return {
            name: np.stack([step.observation.arrays[f"{IMAGES}{name}"] for step in record.steps])
            for name in self._facts.contract.cameras
        }


def _fill_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace each value that is not finite by the last finite value of its column, or by 0 before the first one.

    The robot held its position in these frames; the side table ``run/steps`` contains the reason.

    Args:
        values: values of n columns over T frames, shape ``(T, n)``.
    """
    good = np.isfinite(values)
    last = np.maximum.accumulate(np.where(good, np.arange(len(values))[:, None], 0), axis=0)
    return np.nan_to_num(np.take_along_axis(values, last, axis=0), nan=0.0, posinf=0.0, neginf=0.0)


def _make_side_tables(number: int, record: EpisodeRun, joints: tuple[str, ...]) -> dict[str, SideTable]:
    steps = record.steps
    columns = {
        "time_s": pa.array([step.time_s for step in steps], pa.float64()),
        "ruling": pa.array([step.decision.kind for step in steps], pa.string()),
        "reason": pa.array([step.decision.reason for step in steps], pa.string()),
        "cut_joints": pa.array([[cut.joint for cut in step.decision.changes] for step in steps], pa.list_(pa.string())),
        "cut_rules": pa.array([[cut.rule for cut in step.decision.changes] for step in steps], pa.list_(pa.string())),
        "latency_s": pa.array([_finite_or_none(step.latency_s) for step in steps], pa.float64()),
        "age_s": pa.array([step.age_s for step in steps], pa.float64()),
        "sent": pa.array([step.sent for step in steps], pa.bool_()),
    }
    for j, joint in enumerate(joints):
        columns[f"wanted/{joint}"] = pa.array([_finite_or_none(step.requested[j]) for step in steps], pa.float64())
        columns[f"issued/{joint}"] = pa.array([float(step.issued[j]) for step in steps], pa.float64())
    events = {
        "time_s": pa.array([event.time_s for event in record.events], pa.float64()),
        "kind": pa.array([event.kind for event in record.events], pa.string()),
        "message": pa.array([event.message for event in record.events], pa.string()),
    }
    rows = [(frame, name, value) for frame, step in enumerate(steps) for name, value in step.scores.items()]
    scores = {
        "name": pa.array([name for _, name, _ in rows], pa.string()),
        "value": pa.array([_finite_or_none(value) for *_, value in rows], pa.float64()),
    }
    return {
        STEPS: _make_side_table(number, range(len(steps)), columns),
        EVENTS: _make_side_table(number, [event.frame for event in record.events], events),
        SCORES: _make_side_table(number, [frame for frame, *_ in rows], scores),
    }


def _make_side_table(number: int, frames: Sequence[int], columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a side table with the episode's number and the frame of every row, followed by other columns.

    Args:
        number: number of the episode.
        frames: frame of each row.
        columns: other columns by name.
    """
    first = {"number": pa.array([number] * len(frames), pa.int64()), "frame": pa.array(frames, pa.int64())}
    return pa.table({**first, **columns})


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
