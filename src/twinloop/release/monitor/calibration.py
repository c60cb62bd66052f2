"""Calibrate a monitor on successful episodes, and store the calibration as a hashed folder without code.

Some episodes fit the scorers and envelopes, the others set the thresholds. The promised rate of false alarms therefore
holds for scorers of any quality (see `stats.functional`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.documents import read_arrays, read_bytes, read_json
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, sha256_bytes, write_bytes, write_json
from twinloop.core.plain import to_plain_value
from twinloop.core.seeds import generator
from twinloop.release.monitor.faults import FaultHypothesis, list_hypothesis_names
from twinloop.release.monitor.images import LEAST, LOOKS, ImageReference
from twinloop.release.monitor.scorers import (
    JUDGES,
    DriveScorer,
    Kind,
    MagnitudeScorer,
    MahalanobisScorer,
    Scorer,
    ScorerSet,
    fit_outlier_scorer,
)
from twinloop.stats.conformal import CurveBand, JointBand, estimate_curve_band, joint_band, least_curves

Array = NDArray[np.float64]
Rows = Mapping[str, Array]  # by stream, (episode, time, d), NaN where an episode has ended
RATE = 0.05  # false alarms per episode, of all signals together: one in twenty (our choice)
SHAPE = 0.4  # of the episodes fit the scorers; the rest set thresholds (our choice)
_LEAST_LIMIT = 1.0  # spreads: smallest limit of a signal, even if the successes are very similar (our choice)
_SKIP_S = 0.5  # of an episode before coefficients are meaningful
_FEWEST = 8  # episodes to fit the scorers: a covariance of fewer is useless
_KINDS: Mapping[str, Kind] = {"observation": "density", "latent": "density"}  # measured, see docs/evidence/release.md


@dataclass(frozen=True, kw_only=True)
class CalibrationOrigin:
    """Origin of a calibration: policy and twin with their hashes, the contract, and the source of its episodes.

    ``params`` are the parameters of the twin that are not nominal. ``success_rate`` and ``intervention_rate`` are the
    rates expected at calibration, None if unknown.
    """

    policy: str
    policy_hash: str
    twin: str
    twin_hash: str
    contract: Contract
    source: str
    params: Mapping[str, float] = field(default_factory=dict[str, float])
    episodes: int = 0
    success_rate: float | None = None
    intervention_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Calibration of a monitor. ``levels`` are the mean standardized scores of each calibration episode, by signal."""

    origin: CalibrationOrigin
    scorer: ScorerSet
    envelopes: Mapping[str, CurveBand]
    band: JointBand
    levels: Mapping[str, Array]
    pictures: Mapping[str, ImageReference]

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals, in order."""
        return tuple(self.envelopes)

    def standardize(self, scores: Mapping[str, Array], step: Any) -> dict[str, Array]:
        """Return scores in spreads above the usual score at their step; a score above ``band.together`` is an alarm."""
        return {name: self.envelopes[name].standardize(values, step) for name, values in scores.items()}


def fit_calibration(
    rows: Rows,
    commands: Array,
    origin: CalibrationOrigin,
    *,
    hypotheses: Sequence[FaultHypothesis],
    signature: Array,
    arm: NDArray[np.intp],
    pictures: Mapping[str, ImageReference] | None = None,
    rate: float = RATE,
    kinds: Mapping[str, Kind] = _KINDS,
    seed: int = 0,
) -> Calibration:
    """Fit a calibration to the streams of successful episodes.

    Args:
        rows: see `streams`.
        commands: commands of the same episodes ``(m, T, k)`` in the dataset's units; their standard deviation is the
            unit for disagreements between chunks.
        origin: origin of the calibration; the number of episodes is filled in.
        hypotheses, signature: see `signatures`.
        arm: joints whose coefficients are in ``drives``.
        pictures: references of the cameras.
        rate: false alarms per episode.
        kinds: method of the outlier score, by stream.
        seed: seed of the split.

    Raises:
        InputError: too few episodes; gives the number that the rate needs.
    """
    count = len(commands)
    shape, rest = _split_episodes(count, rate, seed)
    hz = origin.contract.control_hz
    ways = signature[:, :, arm].reshape(len(signature), signature.shape[1], -1)
    part = {name: values[shape] for name, values in rows.items()}
    judges, columns = _fit_scorers(part, commands[shape], hypotheses, ways, kinds, hz)
    scorer = ScorerSet(judges=judges, columns=columns, control_hz=hz)
    shaped = scorer.compute_curves(part) | _cross_score(part, kinds, hz)
    envelopes = {name: _widen_camera_envelope(name, estimate_curve_band(values)) for name, values in shaped.items()}
    calibrated = scorer.compute_curves({name: values[rest] for name, values in rows.items()})
    band = joint_band(
        {name: np.maximum(envelopes[name].largest_deviations(values), _LEAST_LIMIT) for name, values in shaped.items()},
        {name: envelopes[name].largest_deviations(values) for name, values in calibrated.items()},
        rate=rate,
    )
    return Calibration(
        origin=replace(origin, episodes=count),
        scorer=scorer,
        envelopes=envelopes,
        band=band,
        levels={name: compute_level(envelopes[name], values) for name, values in calibrated.items()},
        pictures=dict(pictures or {}),
    )


def compute_level(usual: CurveBand, curves: Array) -> Array:
    """Return the mean standardized score of each curve ``(n, T)``."""
    return np.nanmean(usual.standardize(curves, np.arange(curves.shape[1])[None]), axis=1)


def count_needed_episodes(rate: float) -> int:
    """Return the number of successful episodes that a calibration needs for a rate of false alarms."""
    count = _FEWEST + least_curves(rate)
    while count - max(_FEWEST, round(SHAPE * count)) < least_curves(rate):
        count += 1
    return count


def require_enough(count: int, rate: float) -> None:
    """Check that there are enough successful episodes for a rate; InputError gives the number that it needs."""
    if count < count_needed_episodes(rate):
        raise InputError(
            f"{count} successful episodes are too few: a false-alarm rate of {100 * rate:g} % needs at least "
            f"{count_needed_episodes(rate)}, of which {least_curves(rate)} set the thresholds. Record more, or give a "
            "higher --rate."
        )


def _split_episodes(count: int, rate: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    require_enough(count, rate)
    order = generator(seed, "monitor/split").permutation(count)
    shaping = max(_FEWEST, round(SHAPE * count))
    return np.sort(order[:shaping]), np.sort(order[shaping:])


def _fit_scorers(
    rows: Rows,
    commands: Array,
    hypotheses: Sequence[FaultHypothesis],
    signature: Array,
    kinds: Mapping[str, Kind],
    control_hz: float,
) -> tuple[dict[str, Scorer], dict[str, tuple[int, ...]]]:
    skip = round(_SKIP_S * control_hz)
    judges: dict[str, Scorer] = {
        "drives": DriveScorer.fit(rows["drives"], signature, list_hypothesis_names(hypotheses), skip=skip)
    }
    columns: dict[str, tuple[int, ...]] = {}
    for name, values in rows.items():
        if name == "grip":
            judges[name] = MahalanobisScorer.fit(values, skip=skip)
        elif name == "tracker":
            judges[name] = MahalanobisScorer.fit(values)
        elif name == "chunk":
            judges[name] = MagnitudeScorer(
                unit=np.maximum(np.nanstd(commands.reshape(-1, commands.shape[-1]), axis=0), 1e-9)
            )
        elif name in kinds:
            judges[name] = fit_outlier_scorer(_flatten_rows(values), kinds[name])
        elif name.startswith("camera/"):
            for kind, which in LOOKS.items():
                if np.isnan(values[..., list(which)]).all():
                    continue  # a camera without static pixels in its images
                columns[f"{name}/{kind}"] = which
                judges[f"{name}/{kind}"] = MahalanobisScorer.fit(values[..., list(which)], least=LEAST[kind])
    return judges, columns


def _cross_score(rows: Rows, kinds: Mapping[str, Kind], control_hz: float) -> dict[str, Array]:
    """Return score curves of streams with outlier scores, each episode scored by references from other episodes."""
    crossed: dict[str, Array] = {}
    for name in [name for name in rows if name in kinds]:
        values = rows[name]
        half = np.arange(len(values)) % 2
        curves = np.full(values.shape[:2], np.nan)
        for side in (0, 1):
            judge = fit_outlier_scorer(_flatten_rows(values[half != side]), kinds[name])
            scorer = ScorerSet(judges={name: judge}, columns={}, control_hz=control_hz)
            curves[half == side] = scorer.compute_curves({name: values[half == side]})[name]
        crossed[name] = curves
    return crossed


def _widen_camera_envelope(name: str, usual: CurveBand) -> CurveBand:
    """Return a camera's envelope with a width of at least 1, because images of one scene may be identical."""
    if not name.startswith("camera/"):
        return usual
    return CurveBand(centre=usual.centre, width=np.maximum(usual.width, 1.0))


def _flatten_rows(values: Array) -> Array:
    rows = values.reshape(-1, values.shape[-1])
    return rows[np.isfinite(rows).all(axis=1)]


SCHEMA = 2
_MOST_BYTES = 2 << 30  # of the arrays: a thousand images at the resolution of a camera
META, ARRAYS = "monitor.json", "monitor.npz"


def save_monitor_calibration(calibration: Calibration, folder: Path) -> str:
    """Write a calibration to a folder and return its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, **_collect_arrays(calibration))  # pyright: ignore[reportArgumentType]
    meta = {
        "schema": SCHEMA,
        "origin": to_plain_value(calibration.origin),
        "signals": list(calibration.envelopes),
        "judges": {name: judge.kind for name, judge in calibration.scorer.judges.items()},
        "columns": {name: list(which) for name, which in calibration.scorer.columns.items()},
        "control_hz": calibration.scorer.control_hz,
        "band": to_plain_value(calibration.band),
        "cameras": list(calibration.pictures),
        "arrays": sha256_bytes(buffer.getvalue()),
    }
    write_bytes(folder / ARRAYS, buffer.getvalue())
    whole = sha256_bytes(dumps(meta).encode())
    write_json(folder / META, {**meta, "hash": whole})
    return whole


def read_monitor_calibration(folder: Path) -> tuple[Calibration, str]:
    """Read a calibration and its hash.

    Raises:
        InputError: the folder has no calibration, or it is newer or damaged; names the file.
    """
    path = folder / META
    if not path.is_file():
        raise InputError(f"{folder} has no monitor ({META} is missing). Create one: twinloop monitor calibrate.")
    meta = _read_meta(path)
    values = _read_stored_arrays(folder / ARRAYS, meta["arrays"])
    whole = meta.pop("hash")
    if sha256_bytes(dumps(meta).encode()) != whole:
        raise InputError(
            f"{path} has changed since it was written: its hash differs. Copy it again, or calibrate again."
        )
    origin = CalibrationOrigin(**{**meta["origin"], "contract": Contract.from_json(meta["origin"]["contract"])})
    judges = {
        name: JUDGES[kind].from_arrays(_select_arrays(values, f"judge:{name}")) for name, kind in meta["judges"].items()
    }
    columns = {name: tuple(which) for name, which in meta["columns"].items()}
    calibration = Calibration(
        origin=origin,
        scorer=ScorerSet(judges=judges, columns=columns, control_hz=float(meta["control_hz"])),
        envelopes={name: CurveBand(**_select_arrays(values, f"envelope:{name}")) for name in meta["signals"]},
        band=JointBand(**meta["band"]),
        levels={name: _select_arrays(values, "levels")[name] for name in meta["signals"]},
        pictures={name: _make_reference(_select_arrays(values, f"picture:{name}")) for name in meta["cameras"]},
    )
    return calibration, whole


def _collect_arrays(calibration: Calibration) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, judge in calibration.scorer.judges.items():
        found |= {f"judge:{name}:{key}": values for key, values in judge.to_arrays().items()}
    for name, one in calibration.envelopes.items():
        found |= {f"envelope:{name}:centre": one.centre, f"envelope:{name}:width": one.width}
    found |= {f"levels:{name}": values for name, values in calibration.levels.items()}
    for name, one in calibration.pictures.items():
        found |= {f"picture:{name}:background": one.background.astype(np.float32), f"picture:{name}:still": one.still}
    return found


def _select_arrays(values: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(f"{prefix}:"): array for key, array in values.items() if key.startswith(f"{prefix}:")}


def _make_reference(arrays: Mapping[str, NDArray[Any]]) -> ImageReference:
    return ImageReference(background=arrays["background"].astype(np.float64), still=arrays["still"])


def _read_meta(path: Path) -> dict[str, Any]:
    meta = read_json(path)
    if not isinstance(meta, dict) or "schema" not in meta or "hash" not in meta:
        raise InputError(f"{path} does not belong to a monitor: it has no schema and hash. Copy the file again.")
    if meta["schema"] > SCHEMA:
        raise InputError(f"{path} has schema {meta['schema']}; this version reads {SCHEMA}. Update twinloop.")
    if meta["schema"] < SCHEMA:
        raise InputError(
            f"{path} has schema {meta['schema']}, of an older monitor with fewer signals; this version reads {SCHEMA}. "
            "Calibrate it again: twinloop monitor calibrate."
        )
    return meta


def _read_stored_arrays(path: Path, wanted: str) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"{path} is missing. Copy the whole folder of the monitor, or calibrate again.")
    data = read_bytes(path, _MOST_BYTES)
    if sha256_bytes(data) != wanted:
        raise InputError(
            f"{path} has changed since it was written: its hash differs. Copy it again, or calibrate again."
        )
    return read_arrays(data, most=_MOST_BYTES, where=str(path))
