"""Write the notes that qualify the result of a fit: what limits it, and which values and episodes to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.optimization import UNNOTICED
from twinloop.identify.result import Estimate
from twinloop.identify.uncertainty import Uncertainty
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import Interval

# Distance from the optimum, in standard errors, above which a note is given.
_UNFINISHED = 0.3
_FEW_DF = 3.0
_ROUNDING = 1e-9
# Least training episodes, and error relative to their median, for a note on one episode; our choice.
_FEW_EPISODES, _DOMINANT = 4, 5.0
_WORSE = 1.5  # times the nominal twin's held-out error from which the identified twin is far worse; our choice
_HEAVY = 5.0  # Huber widths: root mean square residual of a channel; 1.5 for normal noise; our choice
_NO_CALIBRATION = (
    "The log has no calibration. The twin's joint ranges are used instead; sensor offset and scale are identified."
)
_NOT_HELD_OUT = "Nothing was held out: all errors are training errors."


def collect_notes(
    logs: ReplayLogs,
    scales: Mapping[str, float],
    holdout: Sequence[int],
    names: Sequence[str],
    uncertainty: Uncertainty,
) -> tuple[str, ...]:
    """Return notes for the user about limitations of the result, such as missing calibration or too few iterations.

    Args:
        logs: The windows of the log.
        scales: Encoder scales by parameter name.
        holdout: Numbers of the held-out episodes.
        names: Names of the free parameters.
        uncertainty: Uncertainty of the estimate.
    """
    notes = []
    if not logs.calibrated:
        notes.append(_NO_CALIBRATION)
    if scales:
        notes.append(f"Scale of {len(scales)} joints computed from the encoder steps in the log, not fitted.")
    if not holdout:
        notes.append(_NOT_HELD_OUT)
    known = np.array([not reason for reason in uncertainty.reasons])
    distance = np.where(known, np.nan_to_num(uncertainty.distance_to_optimum), 0.0)
    if distance.max(initial=0.0) > _UNFINISHED:
        worst = int(np.argmax(distance))
        notes.append(
            f"The optimization ended {distance[worst]:.1f} standard errors from its optimum in {names[worst]}. The "
            "intervals reach to the optimum. Raise polish in the fit file to come closer."
        )
    weak = [
        n for n, df, why in zip(names, uncertainty.df, uncertainty.reasons, strict=True) if not why and df < _FEW_DF
    ]
    if weak and uncertainty.clusters is not None and uncertainty.clusters.count > 2 * _FEW_DF:
        many = uncertainty.clusters.count
        notes.append(f"Only two or three of {many} clusters determine {', '.join(weak)}. Excite it in more of them.")
    return tuple(notes)


def note_kept_values(estimates: Sequence[Estimate]) -> tuple[str, ...]:
    """Return a note on undetermined parameters whose values are outside 95 % of their prior."""
    kept = [row.name for row in estimates if not row.determined and _is_outside_prior(row)]
    if not kept:
        return ()
    note = (
        f"Not determined, but outside 95 % of the prior: {', '.join(kept)}. At the mean of the prior the loss would "
        f"rise by more than {100 * UNNOTICED:g} %, because the other parameters cannot make up for it, so the fitted "
        "value is kept. Do not take it as measured."
    )
    return (note,)


def _is_outside_prior(row: Estimate) -> bool:
    if row.prior_low is None or row.prior_high is None:
        return False
    nearest = min(max(row.value, row.prior_low), row.prior_high)
    return not math.isclose(row.value, nearest, rel_tol=_ROUNDING)


def warn_of_worse_channels(
    nominal: NDArray[np.float64] | None, identified: Interval | None, channels: Sequence[str]
) -> str:
    """Return a warning of channels in which the identified twin is far worse than the nominal one; "" if none is.

    The errors are those of held-out episodes.

    Args:
        nominal: Held-out error of the nominal twin in each channel, ``(nchannel,)``; None without held-out episodes.
        identified: The same of the identified twin.
        channels: Names of the channels.
    """
    if nominal is None or identified is None:
        return ""
    ratios = np.divide(identified.estimate, nominal, out=np.zeros_like(nominal), where=nominal > 0)
    worse = [f"{name} ({ratio:.1f} times)" for name, ratio in zip(channels, ratios, strict=True) if ratio > _WORSE]
    if not worse:
        return ""
    return (
        "DO NOT TRUST THIS FIT: on held-out episodes the identified twin is worse than the nominal one in "
        f"{', '.join(worse)}, so that its intervals may not hold. In a log with contacts, a replay that grasps or "
        "strikes differently than the robot makes contact parameters wrong: leave them out of `free`, or fit shorter "
        "windows."
    )


def note_resting_channels(residual: NDArray[np.float64], channels: Sequence[str]) -> tuple[str, ...]:
    """Return a note on channels of which a few frames have far larger residuals than most frames.

    Args:
        residual: Residuals in Huber widths, ``(nwindow, nframe, nchannel)``; those that are not finite are ignored.
        channels: Names of the channels.
    """
    known = np.isfinite(residual)
    size = np.sum(np.where(known, residual, 0.0) ** 2, axis=(0, 1)) / np.maximum(known.sum(axis=(0, 1)), 1)
    heavy = np.sqrt(size) > _HEAVY
    named = [name for name, chosen in zip(channels, heavy, strict=True) if chosen]
    if not named:
        return ()
    note = (
        f"Most residuals of {', '.join(named)} are far smaller than the rest, which counts as outliers. If such a "
        "channel rests most of the time, as a scale does until it is touched, set the accuracy of its sensor: accuracy "
        "in the fit file."
    )
    return (note,)


def note_dominant_episode(
    errors: NDArray[np.float64], episodes: Sequence[int], channels: Sequence[str]
) -> tuple[str, ...]:
    """Return a note on the training episode whose error in a channel is far larger than that of the others.

    Args:
        errors: Mean absolute error of each training episode, ``(nepisode, nchannel)``.
        episodes: Numbers of the episodes.
        channels: Names of the channels.
    """
    if len(errors) < _FEW_EPISODES:
        return ()
    usual = np.median(errors, axis=0)
    ratios = np.divide(errors, usual, out=np.zeros_like(errors), where=usual > 0)
    row, column = np.unravel_index(np.argmax(ratios), ratios.shape)
    if ratios[row, column] < _DOMINANT:
        return ()
    number = episodes[int(row)]
    note = (
        f"The training error of episode {number} in {channels[int(column)]} is {ratios[row, column]:.1f} times the "
        f"median of the training episodes. If its recording is wrong (see twinloop curate), fit without it: "
        f"twinloop edit delete DATASET --episodes {number} --output FOLDER."
    )
    return (note,)
