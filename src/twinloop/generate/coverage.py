"""Measure a dataset's coverage of its parameter space, the acceptance of its draws, and importance weights.

Attempts are drawn again from the plan by their episode numbers; stored episodes are read from the dataset.
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
from twinloop.randomize.axes import MarginAxis, plan_axes, to_unit_cube
from twinloop.randomize.coverage import MARGINAL_CELLS, PAIR_CELLS, TRIPLE_CELLS, CoverageCounter
from twinloop.stats import wilson

_CHUNK = 4096  # episodes drawn at once; limits memory
_NUMBER = "provenance/number"


def measure_coverage(plan: Plan, root: Path, *, episodes: int, strength: int = 2) -> dict[str, Any]:
    """Return the coverage by attempts and by stored episodes.

    Args:
        plan: plan with the ranges of every started round.
        root: folder of the dataset.
        episodes: number of attempts of the run.
        strength: 2 counts pairs of parameters, 3 triples too.

    Returns:
        The content of ``twinloop/coverage.json``.
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
    """Return acceptance by constraints and effective sample sizes, if the plan has constraints or weights; else {}."""
    figures: dict[str, Any] = {}
    if not plan.constraints and not plan.has_weights:
        return figures
    redraws, weights = [], []
    for start in range(0, episodes, _CHUNK):
        drawn = plan.draw_worlds(range(start, min(start + _CHUNK, episodes)))
        redraws.append(drawn.redraws)
        weights.append(drawn.weight)
    if plan.constraints:
        candidates = episodes + int(np.concatenate(redraws).sum())
        interval = wilson(episodes, candidates)
        figures["acceptance"] = {
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
        figures["importance"] = {
            "effective_attempted": effective_size(weight),
            "effective_kept": effective_size(kept),
            "largest_weight": float(weight.max()),
        }
    return figures


def measure_run_draws(
    config: GenerateConfig, plan: Plan, root: Path, outcomes: Sequence[Mapping[str, int]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return metrics of the draws for a finished run's result, and the content of further JSON files by name.

    Args:
        outcomes: counts of every block, see `generate.batches`.
    """
    known = with_known_rounds(config, plan, outcomes)
    coverage = measure_coverage(known, root, episodes=config.episodes)
    documents = {layout.COVERAGE: coverage}
    figures = {"coverage": summarize_coverage(coverage), **measure_draws(known, root, episodes=config.episodes)}
    record = adaptive_history(config, plan, outcomes)
    if record is not None:
        documents[layout.ADAPTIVE] = record
        figures["adaptive"] = {"rounds": len(record["rounds"]), "ranges": record["ranges"]}
    return figures, documents


def summarize_coverage(coverage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a coverage that a result shows."""
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
    """Return the effective number of weighted draws, (Σw)² / Σw² (Kish, "Survey Sampling", 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def dataset_coverage(root: Path, *, strength: int = 2) -> dict[str, Any]:
    """Measure the coverage of a generated dataset again; also of a rendered one.

    Raises:
        InputError: the dataset was not generated by twinloop, or with another version of the twin.
    """
    return _measure_source(root, root, strength)


def rendered_documents(source: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Return the files of `measure_run_draws` for a dataset that was rendered from ``source``."""
    record = dataset_history(source)
    coverage = _reuse_coverage(source, root) or _measure_source(source, root, 2)
    return {layout.COVERAGE: coverage, **({} if record is None else {layout.ADAPTIVE: record})}


def _reuse_coverage(source: Path, root: Path) -> dict[str, Any] | None:
    """Return the stored coverage of the source, if all its episodes were rendered."""
    path = source / layout.COVERAGE
    if not path.is_file() or not np.array_equal(DatasetReader(source).numbers, DatasetReader(root).numbers):
        return None
    return read_json(path)


def dataset_history(root: Path) -> dict[str, Any] | None:
    """Return the history of a dataset's adaptive ranges, or None."""
    path = root / layout.ADAPTIVE
    return read_json(path) if path.is_file() else None


def _measure_source(source: Path, root: Path, strength: int) -> dict[str, Any]:
    """Return the coverage of the dataset ``root`` under the plan of ``source``, from which it was made."""
    reader = DatasetReader(source)
    config = read_root_config(reader) if reader.ours else {}
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


def _axis_json(axis: MarginAxis) -> dict[str, Any]:
    ends = axis.to_si(np.array([1e-3, 1 - 1e-3]))
    return {"name": axis.name, "names": list(axis.names), "unit": axis.unit, "range": ends.tolist()}


def _read_draws(root: Path, axes: list[MarginAxis]) -> Iterator[tuple[NDArray[np.int64], ParamTable]]:
    """Yield episode numbers and drawn values of a dataset, file by file."""
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
