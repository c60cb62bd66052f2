"""Calibrate a monitor on successful episodes, and store the calibration as a folder of data without code.

One part of the episodes fits the scorers, and the usual score (centre and spread) at each step of an episode. The other
episodes set the alarm thresholds. The rate of false alarms is therefore at most the chosen rate, for scorers of any
quality (see `stats.conformal`).
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
from twinloop.release.monitor.images import COLUMNS, LEAST, ImageReference
from twinloop.release.monitor.scorers import (
    SCORERS,
    DriveScorer,
    Kind,
    MagnitudeScorer,
    MahalanobisScorer,
    Scorer,
    ScorerSet,
    fit_outlier_scorer,
)
from twinloop.stats.conformal import CurveBand, JointBand, estimate_curve_band, joint_band, min_curve_count

Array = NDArray[np.float64]
Rows = Mapping[str, Array]  # by stream, shape (episode, time, d), NaN after the end of an episode
RATE = 0.05  # false alarms per episode, of all signals together: one in twenty (our choice)
FIT_SHARE = 0.4  # share of the episodes that fit the scorers; the others set thresholds (our choice)
_LEAST_LIMIT = 1.0  # smallest limit of a signal in spreads, even if all successes are very similar (our choice)
_SKIP_S = 0.5  # time from the start of an episode until coefficients are meaningful
_FEWEST = 8  # smallest number of episodes to fit the scorers: fewer give no useful covariance
_KINDS: Mapping[str, Kind] = {"observation": "density", "latent": "density"}  # measured, see docs/evidence/release.md


@dataclass(frozen=True, kw_only=True)
class CalibrationOrigin:
    """Origin of a monitor's calibration.

    Attributes:
        policy: name of the policy.
        policy_hash: hash of the policy.
        twin: name of the twin that predicts the robot's motion.
        twin_hash: hash of the twin.
        contract: contract of the observations and commands.
        source: dataset or robot from which the episodes come.
        params: values of the twin's parameters that differ from their nominal values, in SI units.
        episodes: number of calibration episodes.
        success_rate: success rate at calibration, 0 to 1; None if unknown.
        intervention_rate: share of episodes with a human intervention at calibration; None if unknown.
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
    """Calibration of a monitor.

    Attributes:
        origin: policy, twin and episodes from which it was computed.
        scorer: scorers that convert measurements to scores.
        usual_curves: centre and width of each signal's usual scores at each step of an episode, by signal.
        band: alarm thresholds of the standardized scores, by signal.
        levels: standardized scores of the episodes that set thresholds, averaged over each episode, by signal, shape
            ``(nepisode,)``.
        images: reference images by camera.
    """

    origin: CalibrationOrigin
    scorer: ScorerSet
    usual_curves: Mapping[str, CurveBand]
    band: JointBand
    levels: Mapping[str, Array]
    images: Mapping[str, ImageReference]

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals, in the order of the stored file."""
        return tuple(self.usual_curves)

    def standardize(self, scores: Mapping[str, Array], step: Any) -> dict[str, Array]:
        """Return standardized scores: (score − mean) / standard deviation of successful episodes at the same step.

        A standardized score above the signal's threshold ``band.together[signal]`` is an alarm. These thresholds give
        the chosen rate of false alarms for all signals together.

        Args:
            scores: scores by signal, shape ``(…,)``.
            step: step of the episode at which each score was measured, shape ``(…,)``.
        """
        return {name: self.usual_curves[name].standardize(values, step) for name, values in scores.items()}


def fit_calibration(
    rows: Rows,
    commands: Array,
    origin: CalibrationOrigin,
    *,
    hypotheses: Sequence[FaultHypothesis],
    signature: Array,
    arm: NDArray[np.intp],
    images: Mapping[str, ImageReference] | None = None,
    rate: float = RATE,
    kinds: Mapping[str, Kind] = _KINDS,
    seed: int = 0,
) -> Calibration:
    """Fit a calibration to measurements of successful episodes.

    The stream ``drives`` has one regression coefficient per arm joint and fault, which estimates the size of the fault.

    Args:
        rows: streams of m episodes by name, shape ``(m, T, d)`` for T steps and d columns, see `streams`; NaN after the
            end of an episode.
        commands: commands of the same episodes, shape ``(m, T, k)`` for k joints, in the dataset's units. Their
            standard deviation is the unit for differences between action chunks.
        origin: origin of the calibration; its number of episodes is set here.
        hypotheses: the nfault possible faults of the drives, see `faults.compute_signatures`.
        signature: effect of each fault on the regression coefficients of all faults, shape ``(nfault, T, n, nfault)``
            for n joints, see `faults.compute_signatures`.
        arm: indices of the arm's joints, whose coefficients are in the stream ``drives``.
        images: reference images by camera.
        rate: probability of a false alarm per episode, for all signals together.
        kinds: name of the method that scores outliers, such as ``density`` or ``neighbours``, by stream.
        seed: seed for splitting the episodes.

    Raises:
        InputError: If there are too few episodes for the rate.
    """
    count = len(commands)
    shape, rest = _split_episodes(count, rate, seed)
    hz = origin.contract.control_hz
    ways = signature[:, :, arm].reshape(len(signature), signature.shape[1], -1)
    part = {name: values[shape] for name, values in rows.items()}
    scorers, columns = _fit_scorers(part, commands[shape], hypotheses, ways, kinds, hz)
    scorer = ScorerSet(scorers=scorers, columns=columns, control_hz=hz)
    shaped = scorer.compute_curves(part) | _cross_score(part, kinds, hz)
    usual_curves = {name: _widen_camera_curve(name, estimate_curve_band(values)) for name, values in shaped.items()}
    calibrated = scorer.compute_curves({name: values[rest] for name, values in rows.items()})
    band = joint_band(
        {
            name: np.maximum(usual_curves[name].largest_deviations(values), _LEAST_LIMIT)
            for name, values in shaped.items()
        },
        {name: usual_curves[name].largest_deviations(values) for name, values in calibrated.items()},
        rate=rate,
    )
    return Calibration(
        origin=replace(origin, episodes=count),
        scorer=scorer,
        usual_curves=usual_curves,
        band=band,
        levels={name: compute_level(usual_curves[name], values) for name, values in calibrated.items()},
        images=dict(images or {}),
    )


def compute_level(usual: CurveBand, curves: Array) -> Array:
    """Return the mean standardized score of each of n curves, shape ``(n,)``.

    Args:
        usual: usual course of the score.
        curves: scores at each of T steps, shape ``(n, T)``; NaN after the end of an episode.
    """
    return np.nanmean(usual.standardize(curves, np.arange(curves.shape[1])[None]), axis=1)


def count_needed_episodes(rate: float) -> int:
    """Return the number of successful episodes that a calibration needs.

    Args:
        rate: probability of a false alarm per episode.
    """
    count = _FEWEST + min_curve_count(rate)
    while count - max(_FEWEST, round(FIT_SHARE * count)) < min_curve_count(rate):
        count += 1
    return count


def require_enough(count: int, rate: float) -> None:
    """Check that there are enough successful episodes for a calibration.

    Args:
        count: number of successful episodes.
        rate: probability of a false alarm per episode.

    Raises:
        InputError: If there are too few episodes for the rate; the message gives the needed number.
    """
    if count < count_needed_episodes(rate):
        raise InputError(
            f"{count} successful episodes are too few: a false-alarm rate of {100 * rate:g} % needs at least "
            f"{count_needed_episodes(rate)}, of which {min_curve_count(rate)} set the thresholds. Record more, or give "
            "a higher --rate."
        )


def _split_episodes(count: int, rate: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    require_enough(count, rate)
    order = generator(seed, "monitor/split").permutation(count)
    shaping = max(_FEWEST, round(FIT_SHARE * count))
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
    scorers: dict[str, Scorer] = {
        "drives": DriveScorer.fit(rows["drives"], signature, list_hypothesis_names(hypotheses), skip=skip)
    }
    columns: dict[str, tuple[int, ...]] = {}
    for name, values in rows.items():
        if name == "grip":
            scorers[name] = MahalanobisScorer.fit(values, skip=skip)
        elif name == "tracker":
            scorers[name] = MahalanobisScorer.fit(values)
        elif name == "chunk":
            scorers[name] = MagnitudeScorer(
                unit=np.maximum(np.nanstd(commands.reshape(-1, commands.shape[-1]), axis=0), 1e-9)
            )
        elif name in kinds:
            scorers[name] = fit_outlier_scorer(_flatten_rows(values), kinds[name])
        elif name.startswith("camera/"):
            for kind, which in COLUMNS.items():
                if np.isnan(values[..., list(which)]).all():
                    continue  # a camera without static pixels in its images
                columns[f"{name}/{kind}"] = which
                scorers[f"{name}/{kind}"] = MahalanobisScorer.fit(values[..., list(which)], least=LEAST[kind])
    return scorers, columns


def _cross_score(rows: Rows, kinds: Mapping[str, Kind], control_hz: float) -> dict[str, Array]:
    """Return the score curves of the streams with outlier scores by two-fold cross-validation.

    Each half of the episodes is scored by a scorer that was fitted to the other half, because a scorer gives too low
    scores to the rows to which it was fitted.

    Args:
        rows: streams (measurements per step) of m episodes by name, shape ``(m, T, d)``.
        kinds: method of the outlier score, by stream.
        control_hz: control steps per second.

    Returns:
        Scores by stream, shape ``(m, T)``.
    """
    crossed: dict[str, Array] = {}
    for name in [name for name in rows if name in kinds]:
        values = rows[name]
        half = np.arange(len(values)) % 2
        curves = np.full(values.shape[:2], np.nan)
        for side in (0, 1):
            scorer = fit_outlier_scorer(_flatten_rows(values[half != side]), kinds[name])
            scorers = ScorerSet(scorers={name: scorer}, columns={}, control_hz=control_hz)
            curves[half == side] = scorers.compute_curves({name: values[half == side]})[name]
        crossed[name] = curves
    return crossed


def _widen_camera_curve(name: str, usual: CurveBand) -> CurveBand:
    """Set the spread of a camera's scores to at least 1, because identical images would give the spread 0.

    Args:
        name: name of the signal; only signals that begin with ``camera/`` are changed.
        usual: mean and standard deviation of the signal's scores in successful episodes at each step, in the unit of
            the scores.
    """
    if not name.startswith("camera/"):
        return usual
    return CurveBand(centre=usual.centre, width=np.maximum(usual.width, 1.0))


def _flatten_rows(values: Array) -> Array:
    rows = values.reshape(-1, values.shape[-1])
    return rows[np.isfinite(rows).all(axis=1)]


SCHEMA = 2
_MOST_BYTES = 2 << 30  # largest size of the stored arrays: a thousand images of a camera
META, ARRAYS = "monitor.json", "monitor.npz"


def save_monitor_calibration(calibration: Calibration, folder: Path) -> str:
    """Write a calibration to a folder, and return its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, **_collect_arrays(calibration))  # pyright: ignore[reportArgumentType]
    meta = {
        "schema": SCHEMA,
        "origin": to_plain_value(calibration.origin),
        "signals": list(calibration.usual_curves),
        "judges": {name: scorer.kind for name, scorer in calibration.scorer.scorers.items()},
        "columns": {name: list(which) for name, which in calibration.scorer.columns.items()},
        "control_hz": calibration.scorer.control_hz,
        "band": to_plain_value(calibration.band),
        "cameras": list(calibration.images),
        "arrays": sha256_bytes(buffer.getvalue()),
    }
    write_bytes(folder / ARRAYS, buffer.getvalue())
    whole = sha256_bytes(dumps(meta).encode())
    write_json(folder / META, {**meta, "hash": whole})
    return whole


def read_monitor_calibration(folder: Path) -> tuple[Calibration, str]:
    """Read a calibration from a folder, and return it with its hash.

    Raises:
        InputError: If the folder has no calibration, or the calibration is damaged or of another schema version.
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
    scorers = {
        name: SCORERS[kind].from_arrays(_select_arrays(values, f"judge:{name}"))
        for name, kind in meta["judges"].items()
    }
    columns = {name: tuple(which) for name, which in meta["columns"].items()}
    calibration = Calibration(
        origin=origin,
        scorer=ScorerSet(scorers=scorers, columns=columns, control_hz=float(meta["control_hz"])),
        usual_curves={name: CurveBand(**_select_arrays(values, f"envelope:{name}")) for name in meta["signals"]},
        band=JointBand(**meta["band"]),
        levels={name: _select_arrays(values, "levels")[name] for name in meta["signals"]},
        images={name: _make_reference(_select_arrays(values, f"picture:{name}")) for name in meta["cameras"]},
    )
    return calibration, whole


def _collect_arrays(calibration: Calibration) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, scorer in calibration.scorer.scorers.items():
        found |= {f"judge:{name}:{key}": values for key, values in scorer.to_arrays().items()}
    for name, one in calibration.usual_curves.items():
        found |= {f"envelope:{name}:centre": one.centre, f"envelope:{name}:width": one.width}
    found |= {f"levels:{name}": values for name, values in calibration.levels.items()}
    for name, one in calibration.images.items():
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
    return read_arrays(data, max_bytes=_MOST_BYTES, where=str(path))
