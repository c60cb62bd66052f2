"""Read trials of policies from a table, from a dataset with recorded outcomes, or from a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.errors import DatasetError, InputError
from twinloop.core.trials import DOMAINS, Domain, Trials
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.trials_table import read_rows, rows_to_trials

_TABLES = (".csv", ".json")


def read_trials(path: Path | str, *, domain: Domain | None = None, policy: str | None = None) -> Trials:
    """Read trials of policies from a table, a dataset, or a folder with one table or dataset per policy.

    Args:
        path: One of three sources. A CSV or JSON table has the columns in `twinloop.dataset.trials_table`. A
            LeRobotDataset v3.0 folder has the outcome of each episode in ``provenance/success`` if twinloop wrote it,
            else in ``next.success``. Any other folder has one table or dataset per policy, named after the policy.
        domain: Domain of the trials for which the file states none.
        policy: Policy of the trials of a dataset, and of table rows that name no policy. By default, the policy of a
            dataset is its recorded actor (source of the commands), and that of a file in a folder is the file's name.

    Raises:
        InputError: If the path does not exist or is neither table, dataset nor folder of them, or a table is
            invalid.
        DatasetError: If a dataset is damaged or has no outcomes.
    """
    path = Path(path)
    if path.is_file() and path.suffix.lower() in _TABLES:
        return rows_to_trials(read_rows(path), where=str(path), domain=domain, policy=policy)
    if (path / layout.INFO).is_file():
        return _read_dataset_trials(path, domain, policy)
    if not path.exists():
        raise InputError(f"{path} does not exist. Give a table of trials (CSV, JSON), a dataset, or a folder of them.")
    inside = (
        sorted(p for p in path.iterdir() if p.suffix in _TABLES or (p / layout.INFO).is_file()) if path.is_dir() else []
    )
    if not inside:
        if path.is_file():
            raise InputError(f"{path} is not a table of trials: its name ends neither in .csv nor in .json. Rename it.")
        raise InputError(
            f"{path} has no trials: give a table (CSV or JSON with policy, domain, success or score), a LeRobot "
            "dataset, or a folder with one of them per policy."
        )
    return Trials.concatenate_trials(read_trials(part, domain=domain, policy=policy or part.stem) for part in inside)


def read_both_domains(real: Path | str | None, sim: Path | str | None, both: Path | str | None = None) -> Trials:
    """Read real and simulated trials, from one file that states the domain of each trial or from one file per domain.

    Args:
        real: Path of the real trials, as for `read_trials`.
        sim: Path of the simulated trials.
        both: Path of trials that state their domain.

    Raises:
        InputError: If `read_trials` refuses a file, a file of one domain has trials of the other, or a domain has
            no trials.
    """
    parts = [] if both is None else [read_trials(both)]
    sides: tuple[tuple[Domain, Path | str | None], ...] = (("real", real), ("sim", sim))
    for domain, path in sides:
        if path is not None:
            part = read_trials(path, domain=domain)
            if other := len(part) - len(part.where(domain=domain)):
                turn = (
                    f"It is the --{part.domain[0]} file."
                    if other == len(part)
                    else "It has both domains: give it alone."
                )
                raise InputError(
                    f"{path} was given as {domain}, but {other} of its {len(part)} trials have another domain. {turn}"
                )
            parts.append(part)
    trials = Trials.concatenate_trials(parts)
    for domain in DOMAINS:
        if not len(trials.where(domain=domain)):
            raise InputError(
                f"{trials.origin or 'No file given'}: there are no {domain} trials. Both domains are needed; give the "
                f"others as --{domain} FILE."
            )
    return trials


def _read_dataset_trials(path: Path, domain: Domain | None, policy: str | None) -> Trials:
    reader = DatasetReader(path)
    ends = [_read_success(reader, index) for index in range(len(reader))]
    rows = [reader.row(index) for index in range(len(reader))]
    return Trials(
        policy=tuple(policy or str(row.get("provenance/actor") or path.name) for row in rows),
        domain=tuple(_find_domain(row, domain, path) for row in rows),
        score=np.array(ends, dtype=np.float64),
        success=tuple(ends),
        task=tuple(", ".join(row.get("tasks") or []) for row in rows),
        origin=str(path),
    )


def _read_success(reader: DatasetReader, index: int) -> bool:
    """Return whether an episode succeeded, from ``provenance/success`` or from its last ``next.success``."""
    stored = reader.row(index).get("provenance/success")
    if stored is not None:
        return bool(stored)
    if "next.success" not in reader.info["features"]:
        raise DatasetError(
            f"{reader.path}: episode {index} has no outcome (neither provenance/success nor "
            "next.success). Give the outcomes as a table: policy,domain,success."
        )
    values = reader.frames_table(index, ["next.success"])["next.success"].to_pylist()
    last = values[-1]
    return bool(last[0] if isinstance(last, list) else last)


def _find_domain(row: dict[str, Any], default: Domain | None, path: Path) -> Domain:
    source = str(row.get("provenance/source") or default or "")
    if source not in DOMAINS:
        raise InputError(
            f"{path}: the source of an episode is '{source}', neither real nor sim. Give the dataset as "
            "--real or --sim."
        )
    return source  # pyright: ignore[reportReturnType]
