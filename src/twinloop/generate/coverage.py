"""Measure how well a dataset covers its parameter space, how many draws are accepted, and importance weights.

The drawn parameters of the attempts are computed again from the plan and the episode numbers. Those of the stored
episodes are read from the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.params import ParamTable
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet, require_columns
from twinloop.dataset.lerobot.progress import WriteProgress
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.batches import adaptive_history, read_known_rounds, with_known_rounds
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.generate.replay import read_root_config
from twinloop.randomize import Plan
from twinloop.randomize.axes import UnitCubeAxis, plan_axes, to_unit_cube
from twinloop.randomize.coverage import MARGINAL_CELLS, PAIR_CELLS, TRIPLE_CELLS, CoverageCounter
from twinloop.stats import wilson

_CHUNK = 4096  # episodes drawn at once; limits memory
_NUMBER = "provenance/number"


def measure_coverage(plan: Plan, root: Path, *, episodes: int, strength: int = 2) -> dict[str, Any]:
    """Measure the coverage of the parameter space by all attempts and by the stored episodes.

    Args:
        plan: plan of the run; if its ranges are adaptive, with the ranges of every round that was simulated.
        root: folder of the dataset.
        episodes: number of attempts of the run.
        strength: number of parameters whose combinations of cells are counted, as in covering arrays: 2 counts pairs; 3
            also counts triples.

    Returns:
        The content of ``twinloop/coverage.json``: the axes, the numbers of cells, and the coverage by ``attempted`` and
            by ``kept`` episodes.
    """
    axes = plan_axes(plan)
    attempted, kept = CoverageCounter(axes, strength=strength), CoverageCounter(axes, strength=strength)
    if axes:
        for start in range(0, episodes, _CHUNK):
            attempted.add(to_unit_cube(axes, plan.draw(range(start, min(start + _CHUNK, episodes)))))
        for _, table in _read_draws(root, axes):
            kept.add(to_unit_cube(axes, table))
    return {
        "schema": 1,
        "plan_hash": plan.hash,
        "cells": {"marginal": MARGINAL_CELLS, "pair": PAIR_CELLS, "triple": TRIPLE_CELLS},
        "axes": [_axis_json(axis) for axis in axes],
        "attempted": attempted.result(),
        "kept": kept.result(),
    }


def measure_draws(plan: Plan, root: Path, *, episodes: int) -> dict[str, Any]:
    """Return statistics of a run's draws, as a JSON-compatible dictionary.

    ``acceptance`` is the acceptance rate of the draws; it is given if the plan has constraints. ``importance`` has the
    effective sample sizes of all attempts and of the stored episodes; it is given if the plan has importance weights.

    Args:
        plan: plan of the run.
        root: folder of the dataset.
        episodes: number of attempts of the run.
    """
    metrics: dict[str, Any] = {}
    if not plan.constraints and not plan.has_weights:
        return metrics
    redraws, weights = [], []
    for start in range(0, episodes, _CHUNK):
        drawn = plan.draw_worlds(range(start, min(start + _CHUNK, episodes)))
        redraws.append(drawn.redraws)
        weights.append(drawn.weight)
    if plan.constraints:
        candidates = episodes + int(np.concatenate(redraws).sum())
        interval = wilson(episodes, candidates)
        metrics["acceptance"] = {
            "constraints": [constraint.name for constraint in plan.constraints],
            "candidates": candidates,
            "accepted": episodes,
            "rate": episodes / candidates,
            "interval": [float(interval.low), float(interval.high)],
        }
    if plan.has_weights:
        weight = np.concatenate(weights)
        numbers = [numbers for numbers, _ in _read_draws(root, [])]
        kept = weight[np.concatenate(numbers)] if numbers else np.empty(0)
        metrics["importance"] = {
            "effective_attempted": effective_size(weight),
            "effective_kept": effective_size(kept),
            "largest_weight": float(weight.max()),
        }
    return metrics


def measure_run_draws(
    config: GenerateConfig, plan: Plan, root: Path, outcomes: Sequence[Mapping[str, int]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Measure a finished run's coverage of the parameter space, and the share of draws that its constraints accept.

    If the ranges are adaptive (changed during the run according to the success rate), their history is included.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        root: folder of the dataset.
        outcomes: counts of every block, see `generate.batches`.

    Returns:
        Metrics for the result of the run, and the content of further JSON files by file name.
    """
    known = with_known_rounds(config, plan, outcomes)
    coverage = measure_coverage(known, root, episodes=config.episodes)
    documents = {layout.COVERAGE: coverage}
    metrics = {"coverage": summarize_coverage(coverage), **measure_draws(known, root, episodes=config.episodes)}
    record = adaptive_history(config, plan, outcomes)
    if record is not None:
        documents[layout.ADAPTIVE] = record
        metrics["adaptive"] = {"rounds": len(record["rounds"]), "ranges": record["ranges"]}
    return metrics, documents


def summarize_coverage(coverage: Mapping[str, Any]) -> dict[str, Any]:
    """Select the coverage metrics that the result of a run contains.

    Args:
        coverage: result of `measure_coverage`.
    """
    kept = coverage["kept"]
    pairs = kept.get("pairs", {})
    return {
        "axes": len(coverage["axes"]),
        "marginal_occupied": _smallest([row["occupied"] for row in kept["marginals"]]),
        "pair_occupied": pairs.get("occupied"),
        "pair_expected": pairs.get("expected"),
        "largest_hole": pairs.get("hole"),
    }


def _smallest(values: list[float]) -> float | None:
    return min(values) if values else None


def effective_size(weights: NDArray[np.float64]) -> float:
    """Return the effective sample size of weighted draws, (Σw)² / Σw² for weights w (Kish, "Survey Sampling", 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def dataset_coverage(root: Path, *, strength: int = 2) -> dict[str, Any]:
    """Compute again which share of the parameter space the episodes of a generated or rendered dataset cover.

    The ranges of the drawn parameters are divided into cells; the coverage is the share of cells with an episode.

    Args:
        root: folder of the dataset.
        strength: 2 counts cells of parameter pairs; 3 also counts those of triples.

    Raises:
        InputError: If the dataset was not generated by twinloop, or with another version of the twin.
    """
    return _measure_source(root, root, strength)


def rendered_documents(source: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON files for coverage and adaptive ranges of a dataset that was rendered from ``source``.

    Args:
        source: folder of the dataset with the states.
        root: folder of the rendered dataset.

    Returns:
        The content of each file by its name.
    """
    record = dataset_history(source)
    coverage = _reuse_coverage(source, root) or _measure_source(source, root, 2)
    return {layout.COVERAGE: coverage, **({} if record is None else {layout.ADAPTIVE: record})}


def _reuse_coverage(source: Path, root: Path) -> dict[str, Any] | None:
    """Return the stored coverage of the source if all its episodes were rendered, else None.

    Coverage is the share of the cells of the parameter space that have an episode.

    Args:
        source: folder of the dataset with the states.
        root: folder of the rendered dataset, which has the numbers of the rendered episodes.
    """
    path = source / layout.COVERAGE
    if not path.is_file() or not np.array_equal(DatasetReader(source).numbers, DatasetReader(root).numbers):
        return None
    return read_json(path)


def dataset_history(root: Path) -> dict[str, Any] | None:
    """Return the history of a dataset's adaptive ranges; None if it has none."""
    path = root / layout.ADAPTIVE
    return read_json(path) if path.is_file() else None


def _measure_source(source: Path, root: Path, strength: int) -> dict[str, Any]:
    """Measure the coverage of the dataset ``root`` with the plan that is stored in the dataset ``source``.

    Args:
        source: folder of the generated dataset; it is equal to ``root``, or ``root`` was rendered from it.
        root: folder of the dataset to measure.
        strength: number of parameters whose combinations of cells are counted, 2 or 3.
    """
    reader = DatasetReader(source)
    config = read_root_config(reader) if reader.written_by_twinloop else {}
    if "generate" not in config:
        raise InputError(f"{source} was not generated from a randomization, so there is no parameter space to cover.")
    resolved = GenerateConfig.model_validate(config["generate"])
    plan = load_plan(resolved)
    if plan.twin.hash != reader.spec.twin_hash:
        raise InputError(
            f"The twin {plan.twin.name} is not the one that {source} was made with, so its draws cannot be repeated. "
            f"The stored coverage is in {root / layout.COVERAGE}."
        )
    return measure_coverage(
        _read_known_plan(source, resolved, plan), root, episodes=resolved.episodes, strength=strength
    )


def _read_known_plan(root: Path, config: GenerateConfig, plan: Plan) -> Plan:
    record = dataset_history(root)
    if record is None:
        return with_known_rounds(config, plan, [entry.outcome for entry in WriteProgress.load(root).blocks])
    return plan.with_rounds(read_known_rounds(record))


def _axis_json(axis: UnitCubeAxis) -> dict[str, Any]:
    ends = axis.to_si(np.array([1e-3, 1 - 1e-3]))
    return {"name": axis.name, "names": list(axis.names), "unit": axis.unit, "range": ends.tolist()}


def _read_draws(root: Path, axes: list[UnitCubeAxis]) -> Iterator[tuple[NDArray[np.int64], ParamTable]]:
    """Yield the episode numbers and the drawn values of a dataset, one file at a time."""
    names = tuple(axis.names[0] for axis in axes)
    columns = [_NUMBER, *(f"provenance/rand.{name.replace('/', '.')}" for name in names)]
    for path in sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        with open_parquet(path) as file:
            require_columns(columns, file.schema_arrow.names, where=str(path))
            table = file.read(columns=columns)
        if table[_NUMBER].null_count:
            raise DatasetError(f"{path} holds episodes that another program appended; they have no drawn values.")
        values = [table[name].to_numpy().astype(np.float64) for name in columns[1:]]
        rows = np.stack(values, axis=-1) if values else np.empty((table.num_rows, 0))
        yield table[_NUMBER].to_numpy(), ParamTable(names=names, values=rows)
