"""Compute metrics of one sensor channel per episode: sampling clock, lost samples, resolution, noise, lag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.sensors.channels import SensorChannel
from twinloop.stats import AllanCurve, Spectrum, allan_curve, following_lag, quantization_step, spectrum

Array = NDArray[np.float64]

_FEWEST = 16  # least samples of an episode
_GAP = 1.5  # times the median time step: after a longer step a sample is missing
_MOVING = 3  # counts per sample on both sides of a repeated one: a slower signal repeats values correctly
_LONGEST_LAG = 0.5  # s; actuators and networks of the field are faster (see docs/evidence/real_data.md)
_LEAST_CORRELATION = 0.5  # of slopes, below which a channel does not follow its leader well enough for a lag
_LEAST_REST = 200  # samples at rest for an Allan deviation over two decades
_UPPER_HALF = 0.5  # of the band: it contains little motion
_ROUND_OFF = 1e-9  # of a period: times are sums of floating-point steps


@dataclass(frozen=True, kw_only=True)
class EpisodeMetrics:
    """Metrics of one channel in each episode.

    Attributes:
        values: Metrics by name, shape ``(nepisode,)``, NaN if an episode cannot determine them. ``period``: median time
            step in s. ``jitter``: standard deviation of the time steps without gaps, in s. ``missing``: missing samples
            as a fraction of the samples that the episode would have without gaps. ``repeated``: fraction of samples in
            motion that equal the previous one. ``lag``: lag in s behind the signal that the channel follows, such as a
            joint's command. ``noise``: standard deviation of noise in the channel's unit, √(density · rate / 2), where
            the density is averaged over the upper half of the frequency band that the real and the simulated log have
            in common.
        spectra: Power spectral density of each episode in unit²/Hz; None if an episode is too short.
        step: Resolution (size of one count) over all episodes in the channel's unit; 0 if none is found.
        allan: Allan deviation of the longest part at rest; None if it is too short.
        hz: Median number of samples per second.
    """

    values: dict[str, Array]
    spectra: tuple[Spectrum | None, ...]
    step: float
    allan: AllanCurve | None
    hz: float


def compute_episode_metrics(channel: SensorChannel, *, highest: float) -> EpisodeMetrics:
    """Compute all metrics of one channel.

    Args:
        channel: The readings.
        highest: Highest frequency in Hz that this log and the compared log have in common.
    """
    count = len(channel.values)
    step = quantization_step(np.concatenate(channel.values)) or 0.0
    values = {n: np.full(count, np.nan) for n in ("period", "jitter", "missing", "repeated", "lag", "noise")}
    spectra: list[Spectrum | None] = []
    for episode in range(count):
        time, readings = channel.time[episode], channel.values[episode]
        if len(time) < _FEWEST:
            spectra.append(None)
            continue
        steady, hz = _resample_evenly(time, readings)
        found = spectrum(steady, hz)
        spectra.append(found)
        values["period"][episode], values["jitter"][episode], values["missing"][episode] = _measure_clock(time)
        values["repeated"][episode] = _repeated_fraction(readings, step)
        values["lag"][episode] = _estimate_lag(channel, episode)
        density = found.mean_density(_UPPER_HALF * highest, highest * (1 + 1e-9))
        values["noise"][episode] = np.sqrt(density * hz / 2.0)
    hz = 1.0 / float(np.nanmedian(values["period"])) if np.isfinite(values["period"]).any() else float("nan")
    return EpisodeMetrics(values=values, spectra=tuple(spectra), step=step, allan=_compute_allan(channel), hz=hz)


def sampling_rate(channel: SensorChannel) -> float:
    """Return the median number of samples per second; NaN if no episode has enough samples."""
    steps = [float(np.median(np.diff(time))) for time in channel.time if len(time) >= _FEWEST]
    return 1.0 / float(np.median(steps)) if steps else float("nan")


def _measure_clock(time: Array) -> tuple[float, float, float]:
    """Return the sampling period in s, its jitter in s, and the fraction of missing samples."""
    steps = np.diff(time)
    period = float(np.median(steps))
    usual = steps[steps <= _GAP * period]
    absent = float(np.sum(np.maximum(np.round(steps / period) - 1.0, 0.0)))
    jitter = float(np.std(usual))
    return period, jitter if jitter > _ROUND_OFF * period else 0.0, absent / (len(time) + absent)


def _repeated_fraction(readings: Array, step: float) -> float:
    """Return the fraction of samples in motion that equal the previous sample; NaN if nothing moves.

    ``step`` is the resolution of the readings, 0 if unknown.
    """
    size = np.abs(np.diff(readings))
    grain = step or (float(size[size > 0].min()) if (size > 0).any() else 0.0)
    moving = np.zeros(len(size), dtype=np.bool_)
    moving[1:-1] = np.minimum(size[:-2], size[2:]) >= _MOVING * grain
    return float(np.mean(size[moving] == 0)) if grain and moving.any() else float("nan")


def _resample_evenly(time: Array, readings: Array) -> tuple[Array, float]:
    """Interpolate readings at equally spaced times; return them and their number per second."""
    period = float(np.median(np.diff(time)))
    even = np.arange(time[0], time[-1] + 0.5 * period, period)
    return np.interp(even, time, readings), 1.0 / period


def _estimate_lag(channel: SensorChannel, episode: int) -> float:
    """Return the lag in s of a channel behind the signal that it follows (its reference), such as a joint's command.

    The slopes of both signals are correlated. NaN if the channel has no reference or the correlation is below 0.5.
    """
    reference, time = channel.reference[episode], channel.time[episode]
    if reference is None:
        return float("nan")
    following, hz = _resample_evenly(time, channel.values[episode])
    leading, _ = _resample_evenly(time, reference)
    lag, correlation = following_lag(np.diff(leading), np.diff(following), longest=_LONGEST_LAG * hz)
    return lag / hz if correlation >= _LEAST_CORRELATION else float("nan")


def _compute_allan(channel: SensorChannel) -> AllanCurve | None:
    """Return the Allan deviation of the longest part at rest.

    Returns None if this part has fewer than 200 samples or does not vary.
    """
    stretches = [(rows[1] - rows[0], episode) for episode, rows in enumerate(channel.rest) if rows is not None]
    length, episode = max(stretches, default=(0, 0))
    if length < _LEAST_REST:
        return None
    first, last = channel.rest[episode] or (0, 0)
    readings, hz = _resample_evenly(channel.time[episode][first:last], channel.values[episode][first:last])
    return allan_curve(readings, 1.0 / hz) if np.ptp(readings) > 0 else None
