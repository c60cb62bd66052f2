"""The last good state of a long fit, in a file from which the same fit goes on to the same end.

A file belongs to one fit: data, twin, free parameters and settings. Its stages hold how far their walks had come;
numbers are written so that they read back bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.identify.solver import Descent

_SCHEMA = 1


class Checkpoint:
    """What stages of a fit had reached; kept in memory alone where there is no path."""

    def __init__(self, path: Path | None, fit: Mapping[str, str]) -> None:
        """Begin, or go on where the file at ``path`` ends.

        Args:
            path: the file; it is made when there is something to keep.
            fit: what the fit is made of, by name: data, twin, parameters, settings.

        Raises:
            InputError: the file is no checkpoint, or one of another fit; says what differs.
        """
        self._path, self._fit = path, dict(fit)
        self._stages: dict[str, Any] = {}
        if path is not None and path.exists():
            self._stages = _read(path, self._fit)

    def __contains__(self, stage: str) -> bool:
        return stage in self._stages

    def descents(self, stage: str) -> list[Descent]:
        """How far the walks of a stage had come; empty where it had not begun."""
        return [_descent(row) for row in self._stages.get(stage, [])]

    def told(self, stage: str) -> list[list[float]]:
        """Losses of every generation of a stage; empty where it had not begun."""
        return self._stages.get(stage, [])

    def keep_descents(self, stage: str, descents: Sequence[Descent]) -> None:
        """Keep how far the walks of a stage have come."""
        self._keep(stage, [_plain(descent) for descent in descents])

    def keep_told(self, stage: str, losses: Sequence[Sequence[float]]) -> None:
        """Keep the losses of every generation of a stage."""
        self._keep(stage, [list(row) for row in losses])

    def _keep(self, stage: str, value: list[Any]) -> None:
        self._stages[stage] = value
        if self._path is not None:
            write_json(self._path, {"schema": _SCHEMA, "fit": self._fit, "stages": self._stages})


def _read(path: Path, fit: Mapping[str, str]) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != _SCHEMA or not isinstance(value.get("stages"), dict):
        raise InputError(f"{path} is no checkpoint of a fit. Name another file, or remove it.")
    other = value.get("fit", {})
    differs = [name for name in fit if other.get(name) != fit[name]]
    if differs:
        raise InputError(
            f"The checkpoint {path} belongs to another fit: {', '.join(differs)} differ. Go on with the same, or name "
            "another file."
        )
    return dict(value["stages"])


def _plain(descent: Descent) -> dict[str, Any]:
    return {
        "point": descent.point.tolist(),
        "local": descent.local.tolist(),
        "local_shape": list(descent.local.shape),
        "damping": descent.damping.tolist(),
        "history": list(descent.history),
        "replays": descent.replays,
        "rejections": descent.rejections,
        "iteration": descent.iteration,
        "converged": descent.converged,
    }


def _descent(row: Mapping[str, Any]) -> Descent:
    return Descent(
        point=np.array(row["point"]),
        local=np.array(row["local"]).reshape(row["local_shape"]),
        damping=np.array(row["damping"]),
        history=tuple(row["history"]),
        replays=row["replays"],
        rejections=row["rejections"],
        iteration=row["iteration"],
        converged=row["converged"],
    )
