"""Read trials on a real robot as evaluations, from a table or from a dataset whose episodes have outcomes.

A table (CSV or JSON) has one row per trial and the columns of `dataset.trials_table`: ``policy``, ``success`` or
``score`` (the progress), ``task``, ``slice`` or ``condition``, ``trial`` or ``pair``. Optional further columns are
``time_s``, ``smoothness``, ``peak_force_n``, ``violations``, ``latency_s``, ``valid`` (1 or 0; an empty cell means 1),
``reason`` and ``episode_id``, as in `core.evaluation.TRIAL_SCHEMA`. Columns may be in any order. Values of missing
columns are unknown. The ``time_s`` of a failed trial is ignored, because it is the duration of the trial and not a time
to success.

The outcome of an episode in a LeRobot dataset is ``provenance/success`` or the last ``next.success``. The time to
success follows from ``next.success`` per frame. Smoothness and violated limits are computed from the joint readings, by
the functions that score simulated trials. Joint speeds are finite differences of the readings; accelerations are those
of the commands (with torque control, of the readings).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import InputError
from twinloop.core.evaluation import TRIAL_SCHEMA, Evaluation
from twinloop.core.trials import Trials
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.trials import read_trials
from twinloop.dataset.trials_table import TrialRow, parse_bool, parse_number, read_rows, rows_to_trials
from twinloop.evaluate.scores import compute_arm_limits, compute_tool_smoothness, find_joint_violations
from twinloop.twin import Twin

SUITE = "real"
_SMOOTHNESS, _COUNT = "smoothness", "violations"  # the only score that is negative, and the only count
_NUMBERS = ("time_s", _SMOOTHNESS, "peak_force_n", _COUNT, "latency_s")
_NEXT_SUCCESS = "next.success"
_LEAST_FRAMES = 5  # fewest frames for the smoothness of a speed

Columns = dict[str, list[Any]]


def read_real_trials(
    path: Path | str,
    *,
    policy: str | None = None,
    twin: Twin | None = None,
    suite: str = SUITE,
    outcomes: Mapping[int, bool] | None = None,
) -> tuple[Evaluation, ...]:
    """Read real trials from a table or dataset, and return one evaluation per policy, task and domain.

    Args:
        path: A CSV or JSON table, a LeRobotDataset v3.0 folder, or a folder with one table or dataset per policy.
        policy: Policy of the trials that do not name one; by default the name of the file or folder.
        twin: The robot's twin. It is needed to compute smoothness and violated limits of a dataset's episodes.
        suite: Name of the set of conditions, for the evaluations.
        outcomes: Success by ``episode_index``, for example from labels; it replaces the outcomes stored in a dataset.

    Raises:
        InputError: If there are no trials, a row cannot be read, or a trial has no outcome.
        DatasetError: If the dataset is damaged, or its episodes have no outcomes.
    """
    path = Path(path)
    if (path / layout.INFO).is_file():
        parts = [_read_dataset(path, policy, twin, outcomes or {})]
    elif path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.suffix in (".csv", ".json") or (p / layout.INFO).is_file())
        if not inside:
            raise InputError(
                f"{path} contains no trials: no table and no dataset. See docs/guides/evaluation.md for the columns."
            )
        return tuple(e for p in inside for e in read_real_trials(p, policy=policy or p.stem, twin=twin, suite=suite))
    else:
        parts = [_read_table(path, policy)]
    return tuple(made for trials, columns in parts for made in _make_evaluations(trials, columns, suite, twin, path))


def _read_table(path: Path, policy: str | None) -> tuple[Trials, Columns]:
    rows = read_rows(path) if path.is_file() else []
    if not rows:
        raise InputError(f"{path} does not exist. Give a table of trials (CSV, JSON), a LeRobot dataset, or a folder.")
    trials = rows_to_trials(rows, where=str(path), domain="real", policy=policy or path.stem)
    columns: Columns = {}
    if len(trials) == len(rows) and "successes" not in rows[0]:
        places = [f"{path}, row {at}" for at in range(1, len(rows) + 1)]
        for name in _NUMBERS:
            columns[name] = [_read_score(row, name, place) for row, place in zip(rows, places, strict=True)]
        valid = [parse_bool(row, "valid", place) for row, place in zip(rows, places, strict=True)]
        columns["valid"] = [one is not False for one in valid]
        for name in ("reason", "episode_id"):
            columns[name] = [row.get(name) or None for row in rows]
        if trials.has_outcomes:
            won = trials.select_measure("success")
            columns["time_s"] = [time if ok else None for time, ok in zip(columns["time_s"], won, strict=True)]
        if "score" in rows[0]:
            columns["progress"] = trials.score.tolist()
    return trials, columns


def _read_score(row: TrialRow, name: str, place: str) -> float | None:
    """Return the value of a score in a row of a table; None if the cell is empty.

    Args:
        row: The row.
        name: Name of the score.
        place: File and row number, for error messages.

    Raises:
        InputError: If the cell is not a finite number, is below 0 (allowed for smoothness only), or is a count with a
            fraction.
    """
    if not row.get(name):
        return None
    value = parse_number(row, name, place)
    if not math.isfinite(value):
        raise InputError(
            f"{place}: {row.original_name(name)} is '{row[name]}', not a finite number. Leave the cell empty if it is "
            "unknown."
        )
    if name != _SMOOTHNESS and value < 0:
        raise InputError(
            f"{place}: {row.original_name(name)} is {row[name]}, which is below 0. Leave the cell empty if it is "
            "unknown."
        )
    if name == _COUNT and not value.is_integer():
        raise InputError(f"{place}: {row.original_name(name)} is {row[name]}. Give a whole number of control steps.")
    return value


def _read_dataset(
    path: Path, policy: str | None, twin: Twin | None, outcomes: Mapping[int, bool]
) -> tuple[Trials, Columns]:
    reader = DatasetReader(path)
    indices = range(len(reader))
    complete = set(outcomes) >= set(indices)
    if complete:
        won = [outcomes[index] for index in indices]
        trials = _make_trials(reader, path, won, policy)
    else:
        trials = read_trials(path, domain="real", policy=policy)
        won = [outcomes.get(index, bool(trials.success[index])) for index in indices]
    units = _find_units(reader, twin)
    rows = [_score_episode(reader, index, won[index], twin, units) for index in indices]
    columns: Columns = {key: [row.get(key) for row in rows] for key in ("time_s", "smoothness", "violations")}
    columns["episode_id"] = (
        [name or None for name in reader.episode_ids] if reader.written_by_twinloop else [None] * len(reader)
    )
    columns["success"] = won
    return trials, columns


def _make_trials(reader: DatasetReader, path: Path, won: Sequence[bool], policy: str | None) -> Trials:
    rows = [reader.row(index) for index in range(len(reader))]
    return Trials(
        policy=tuple(policy or str(row.get("provenance/actor") or path.name) for row in rows),
        domain=tuple("sim" if row.get("provenance/source") == "sim" else "real" for row in rows),
        score=np.array(won, dtype=np.float64),
        success=tuple(won),
        task=tuple(", ".join(row.get("tasks") or []) for row in rows),
        origin=str(path),
    )


def _find_units(reader: DatasetReader, twin: Twin | None) -> UnitMap | None:
    """Return the units that convert the dataset's joint readings to the twin's joint positions in SI units.

    None if there is no twin, no joint reading or command, or the joints of dataset and twin differ.
    """
    if twin is None or not {STATE, ACTION} <= reader.info["features"].keys():
        return None
    units = reader.units or twin.units
    fits = all(len(reader.feature_names(key)) == len(units.names) for key in (STATE, ACTION))
    return units if fits and units.names == twin.units.names else None


def _score_episode(
    reader: DatasetReader, index: int, won: bool, twin: Twin | None, units: UnitMap | None
) -> dict[str, Any]:
    """Compute the scores of an episode for which its dataset has the required columns.

    Args:
        reader: The dataset.
        index: Index of the episode.
        won: Whether the episode is a success.
        twin: The robot's twin; None if unknown.
        units: Units from `_find_units`; None if unknown.

    Returns:
        ``time_s``: time of success in s. ``violations``: number of frames in which a joint exceeds its range or its
            limit of speed or acceleration. ``smoothness``: spectral arc length of the tool's speed, without unit,
            nearer to 0 is smoother; None if it cannot be computed. A key is missing if the episode has no such score.
    """
    scores: dict[str, Any] = {}
    if won and _NEXT_SUCCESS in reader.info["features"]:
        values = reader.frames_table(index, [_NEXT_SUCCESS])[_NEXT_SUCCESS].to_pylist()
        done = np.array([bool(value[0] if isinstance(value, list) else value) for value in values])
        if done[-1]:
            last = int(np.argmin(np.append(done[::-1], False)))  # frames of the last interval in which it was done
            scores["time_s"] = (len(done) - last + 1) / reader.fps
    if twin is None or units is None:
        return scores
    joints = units.to_si(reader.array(index, STATE))
    commands = units.of_commands(twin.robot.control).to_si(reader.array(index, ACTION))
    if len(joints) < _LEAST_FRAMES or not np.isfinite([joints, commands]).all():
        return scores
    speed = np.gradient(joints, 1.0 / reader.fps, axis=0)
    broken = find_joint_violations(twin, compute_arm_limits(twin), joints, speed, commands, reader.fps)
    smoothness = float(compute_tool_smoothness(twin, _fill_positions(twin, joints)[None], reader.fps)[0])
    scores["violations"] = int(broken.any(axis=-1).sum())
    scores["smoothness"] = smoothness if math.isfinite(smoothness) else None
    return scores


def _fill_positions(twin: Twin, joints: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positions of all joints of the twin: the robot's as measured, the others as in the home pose.

    Args:
        twin: The twin.
        joints: Measured positions of the robot's joints, shape ``(T, njoint)`` for T frames.

    Returns:
        Shape ``(T, nq)``.
    """
    qpos = np.tile(twin.home()[0], (len(joints), 1))
    qpos[:, twin.joint_qpos] = joints
    return qpos


def _make_evaluations(trials: Trials, columns: Columns, suite: str, twin: Twin | None, path: Path) -> list[Evaluation]:
    """Return one evaluation per policy, task and domain, in order of first appearance.

    Args:
        trials: The trials.
        columns: Further columns by name, one value per trial.
        suite: Name of the set of conditions, for trials that name none.
        twin: The robot's twin; None if unknown.
        path: File or folder of the trials.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at, key in enumerate(zip(trials.policy, trials.task, trials.domain, strict=True)):
        groups.setdefault(key, []).append(at)
    won = columns.get("success") or [bool(x) for x in trials.select_measure("success")]
    evaluations: list[Evaluation] = []
    for (policy, task, domain), rows in groups.items():
        table: Columns = {
            "slice": [trials.condition[at] or suite for at in rows],
            "trial": [trials.pair[at] or f"{path.stem}#{at}" for at in rows],
            "success": [won[at] for at in rows],
            "valid": [True] * len(rows),
        }
        table |= {key: [values[at] for at in rows] for key, values in columns.items()}
        known = {key: pa.array(values, TRIAL_SCHEMA.field(key).type) for key, values in table.items()}
        evaluations.append(
            Evaluation(
                policy=policy,
                suite=suite,
                domain="sim" if domain == "sim" else "real",
                task=task,
                twin=twin.name if twin is not None else "",
                trials=pa.table(known),
                extra={"source": str(path)},
            )
        )
    return evaluations
