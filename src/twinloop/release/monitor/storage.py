"""A calibration as a folder: ``monitor.json`` and ``monitor.npz``, hashed, without pickles."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.documents import read_arrays, read_bytes, read_json
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, sha256_bytes, write_bytes, write_json
from twinloop.release.monitor.calibration import Calibration, Origin
from twinloop.release.monitor.pictures import PictureReference
from twinloop.release.monitor.scorer import KINDS, Scorer
from twinloop.stats.conformal import Envelope, JointBand

SCHEMA = 2
_MOST_BYTES = 2 << 30  # of the arrays: a thousand pictures at the resolution of a camera
META, ARRAYS = "monitor.json", "monitor.npz"


def save(calibration: Calibration, folder: Path) -> str:
    """Write a calibration; returns its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(calibration)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    origin = calibration.origin
    told = {**asdict(origin), "contract": origin.contract.to_json(), "params": dict(origin.params)}
    meta = {
        "schema": SCHEMA,
        "origin": told,
        "signals": list(calibration.envelopes),
        "judges": {name: judge.kind for name, judge in calibration.scorer.judges.items()},
        "columns": {name: list(which) for name, which in calibration.scorer.columns.items()},
        "control_hz": calibration.scorer.control_hz,
        "band": asdict(calibration.band),
        "cameras": list(calibration.pictures),
        "arrays": sha256_bytes(buffer.getvalue()),
    }
    write_bytes(folder / ARRAYS, buffer.getvalue())
    whole = sha256_bytes(dumps(meta).encode())
    write_json(folder / META, {**meta, "hash": whole})
    return whole


def read(folder: Path) -> tuple[Calibration, str]:
    """A calibration and its hash.

    Raises:
        InputError: no calibration lies there, or it is newer or damaged; names the file.
    """
    path = folder / META
    if not path.is_file():
        raise InputError(f"{folder} holds no monitor ({META} is missing). Make one: twinloop monitor calibrate.")
    meta = _checked(path)
    values = _loaded(folder / ARRAYS, meta["arrays"])
    whole = meta.pop("hash")
    if sha256_bytes(dumps(meta).encode()) != whole:
        raise InputError(f"{path} is not what was written: its hash does not fit. Calibrate again, or copy it again.")
    origin = Origin(**{**meta["origin"], "contract": Contract.from_json(meta["origin"]["contract"])})
    judges = {name: KINDS[kind].from_arrays(_part(values, f"judge:{name}")) for name, kind in meta["judges"].items()}
    columns = {name: tuple(which) for name, which in meta["columns"].items()}
    calibration = Calibration(
        origin=origin,
        scorer=Scorer(judges=judges, columns=columns, control_hz=float(meta["control_hz"])),
        envelopes={name: Envelope(**_part(values, f"envelope:{name}")) for name in meta["signals"]},
        band=JointBand(**meta["band"]),
        levels={name: _part(values, "levels")[name] for name in meta["signals"]},
        pictures={name: _picture(_part(values, f"picture:{name}")) for name in meta["cameras"]},
    )
    return calibration, whole


def _arrays(calibration: Calibration) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, judge in calibration.scorer.judges.items():
        found |= {f"judge:{name}:{key}": values for key, values in judge.to_arrays().items()}
    for name, one in calibration.envelopes.items():
        found |= {f"envelope:{name}:centre": one.centre, f"envelope:{name}:width": one.width}
    found |= {f"levels:{name}": values for name, values in calibration.levels.items()}
    for name, one in calibration.pictures.items():
        found |= {f"picture:{name}:background": one.background.astype(np.float32), f"picture:{name}:still": one.still}
    return found


def _part(values: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(f"{prefix}:"): array for key, array in values.items() if key.startswith(f"{prefix}:")}


def _picture(arrays: Mapping[str, NDArray[Any]]) -> PictureReference:
    return PictureReference(background=arrays["background"].astype(np.float64), still=arrays["still"])


def _checked(path: Path) -> dict[str, Any]:
    meta = read_json(path)
    if not isinstance(meta, dict) or "schema" not in meta or "hash" not in meta:
        raise InputError(f"{path} is not a monitor's: it has no schema and hash.")
    if meta["schema"] > SCHEMA:
        raise InputError(f"{path} has schema {meta['schema']}; this version reads {SCHEMA}. Update twinloop.")
    if meta["schema"] < SCHEMA:
        raise InputError(
            f"{path} has schema {meta['schema']}, of a monitor that looked at less; this version reads {SCHEMA}. "
            "Calibrate it again: twinloop monitor calibrate."
        )
    return meta


def _loaded(path: Path, wanted: str) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"{path} is missing. Copy the whole folder of the monitor, or calibrate again.")
    data = read_bytes(path, _MOST_BYTES)
    if sha256_bytes(data) != wanted:
        raise InputError(f"{path} is not what was written: its hash does not fit. Calibrate again, or copy it again.")
    return read_arrays(data, most=_MOST_BYTES, where=str(path))
