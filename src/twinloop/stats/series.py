"""Describe time series: autocorrelation, independent blocks, power spectra, quantization, smoothness.

Intervals from few long blocks with t quantiles keep their level even if the number of blocks does not grow (Bester,
Conley & Hansen, "Inference with dependent data using cluster covariance estimators", Journal of Econometrics 165,
2011).

Both measures of smoothness, spectral arc length and log dimensionless jerk, are dimensionless and nearer to zero for a
smoother movement (Balasubramanian, Melendez-Calderon, Roby-Brami & Burdet, "On the analysis of movement smoothness", J.
NeuroEng. Rehabil. 12, 2015). They are measures of one movement; cut a recording with several movements into windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

from twinloop.core.errors import InputError

Array = NDArray[np.float64]


def autocorrelation(series: ArrayLike, nlags: int = 1) -> NDArray[np.float64]:
    """Return the sample autocorrelation at lags 0 to ``nlags`` (biased form, Box & Jenkins), shape ``(nlags + 1,)``.

    A constant series has 1 at every lag.

    Raises:
        InputError: If the series is not longer than ``nlags``.
    """
    values = np.asarray(series, dtype=np.float64)
    if len(values) <= nlags:
        raise InputError(
            f"A series of {len(values)} values has no autocorrelation at lag {nlags}. Give a longer series."
        )
    centred = values - values.mean()
    power = centred @ centred
    if power == 0:
        return np.ones(nlags + 1)
    return np.array([centred[: len(centred) - lag] @ centred[lag:] / power for lag in range(nlags + 1)])


def pooled_autocorrelation(clips: Sequence[ArrayLike], lag: int = 1) -> float:
    """Return the autocorrelation at ``lag`` frames of a series of mean zero that is given as several clips.

    The mean of a clip is not subtracted, so a constant offset of a clip, for example the error of its first state,
    increases the autocorrelation. The result is 1 for a series of zeros.

    Raises:
        InputError: If no clip is longer than the lag.
    """
    rows = [np.asarray(clip, dtype=np.float64) for clip in clips]
    pairs = [(row[:-lag], row[lag:]) for row in rows if len(row) > lag]
    if not pairs:
        raise InputError(f"Clips of {max(map(len, rows), default=0)} frames have no autocorrelation at lag {lag}.")
    first, later = (np.concatenate(side) for side in zip(*pairs, strict=True))
    power = np.sqrt((first @ first) * (later @ later))
    return float(first @ later / power) if power > 0 else 1.0


def effective_size(n: float, rho: float) -> float:
    """Return the number of independent samples that have as much information as ``n`` correlated samples.

    For an AR(1) process it is n (1 − ρ) / (1 + ρ), with the correlation ρ (``rho``) of neighbouring samples; at least
    1.
    """
    within = min(max(rho, 0.0), 1.0)
    return max(1.0, n * (1 - within) / (1 + within))


@dataclass(frozen=True, kw_only=True)
class LjungBox:
    """Result of the Ljung-Box test for whiteness; a small p-value means that the residuals are correlated in time.

    Attributes:
        statistic: Test statistic Q.
        lags: Number of lags.
        p_value: P-value of the hypothesis that the residuals are uncorrelated.
    """

    statistic: float
    lags: int
    p_value: float


def ljung_box(clips: Sequence[ArrayLike], *, lags: int = 10, fitted: int = 0) -> LjungBox:
    """Test whether residuals are uncorrelated in time (Ljung & Box, Biometrika 65, 1978).

    The statistic is Q = n (n + 2) Σ_k ρ_k² / (n − k), with the autocorrelation ρ_k at lag k of n residuals. Its p-value
    is that of chi-square, with ``lags − fitted`` degrees of freedom for one clip.

    Args:
        clips: Residuals of one clip, or of several independent clips whose statistics and degrees of freedom are
            summed.
        lags: Number of lags.
        fitted: Number of model parameters that were fitted to the same series.

    Raises:
        InputError: If no degree of freedom is left.
    """
    if fitted >= lags * len(clips):
        raise InputError(f"{fitted} fitted parameters leave no degree of freedom in {lags} lags; use more lags.")
    statistic = 0.0
    for clip in clips:
        n, rho = len(np.asarray(clip)), autocorrelation(clip, lags)[1:]
        statistic += float(n * (n + 2) * np.sum(rho**2 / (n - np.arange(1, lags + 1))))
    return LjungBox(statistic=statistic, lags=lags, p_value=float(chdtrc(lags * len(clips) - fitted, statistic)))


# Sums over blocks of L frames miss a share τ / (2 L) of the variance under AR(1): 6 % at eight times τ. With much
# data blocks grow as the cube root of their number, which is the best rate (Künsch, Annals of Statistics 17, 1989).
_BLOCK = 8.0
# Blocks are shortened to _SHORTEST to get _FEW of them; with fewer than _FEWEST_BLOCKS there is no interval.
_SHORTEST, _FEW, _FEWEST_BLOCKS = 4.0, 8, 4


def integrated_time(series: Sequence[ArrayLike]) -> Array:
    """Return the integrated autocorrelation time τ = 1 + 2 Σ ρ_k in frames, from the autocorrelations ρ_k at lags k.

    n frames have the information of n / τ independent frames.

    The series must be stationary with mean zero. Autocovariances are pooled over clips. The mean of a clip is not
    subtracted, so that a constant offset of a clip increases τ. The sum over lags k ends where the sum of two
    neighbouring lags becomes negative (Geyer, Statistical Science 7, 1992).

    Args:
        series: Clips of the series, shape ``(nframe, …)`` each.

    Returns:
        Shape ``(…)``, at least 1; 1 for a series of zeros.
    """
    clips = [np.asarray(clip, dtype=np.float64) for clip in series]
    longest = max(len(clip) for clip in clips)
    size = 2 * longest
    shape = clips[0].shape[1:]
    padded = np.stack([np.concatenate([clip, np.zeros((longest - len(clip), *shape))]) for clip in clips])
    power = np.abs(np.fft.rfft(padded, n=size, axis=1)) ** 2
    covariance = np.fft.irfft(power.sum(axis=0), n=size, axis=0)[:longest]
    rho = covariance / np.where(covariance[:1] > 0, covariance[:1], 1.0)
    pairs = rho[: 2 * (longest // 2)].reshape(longest // 2, 2, *shape).sum(axis=1)
    initial = np.logical_and.accumulate(pairs > 0, axis=0)
    falling = np.minimum.accumulate(pairs, axis=0)  # the monotone sequence, for noise at long lags
    return np.maximum(1.0, 2.0 * np.sum(np.where(initial, falling, 0.0), axis=0) - 1.0)


def block_frames(frames: float, tau: float) -> float | None:
    """Return a length in frames for blocks of a time series that are nearly independent of each other.

    Blocks are at least 4 τ long, and longer in long series.

    Args:
        frames: Number of frames of the series.
        tau: Integrated autocorrelation time in frames, see `integrated_time`.

    Returns:
        The length; None if there are too few frames for four blocks of 4 τ.
    """
    independent = frames / tau
    if independent < _FEWEST_BLOCKS * _SHORTEST:
        return None
    longest = frames / max(_FEW, independent / max(_BLOCK, independent ** (1 / 3)))
    return max(_SHORTEST * tau, longest)


def time_blocks(starts: ArrayLike, frames: int, dt: float, episodes: ArrayLike, length: float) -> NDArray[np.intp]:
    """Assign every frame of windows to a time block of its episode, for block-wise statistics.

    Each episode is cut into blocks of equal duration, about ``length``. Windows shorter than two blocks are not cut,
    because the frames of a window share the error of its first state; such a window is assigned to the block at its
    middle.

    Args:
        starts: Start time of each window in s, shape ``(nwindow,)``.
        frames: Number of frames per window.
        dt: Time between frames in s.
        episodes: Episode number of each window, shape ``(nwindow,)``.
        length: Target duration of a block in s.

    Returns:
        Number of each frame's block from 0, shape ``(nwindow, frames)``.
    """
    begins, owner = np.asarray(starts, dtype=np.float64), np.asarray(episodes)
    times = begins[:, None] + dt * np.arange(frames)
    if frames * dt < 2 * length:
        times = np.repeat(times.mean(axis=1, keepdims=True), frames, axis=1)
    labels, number = np.zeros(times.shape, dtype=np.intp), 0
    for episode in np.unique(owner):
        rows = owner == episode
        first = begins[rows].min()
        span = begins[rows].max() + frames * dt - first
        count = max(1, int(span / length))
        labels[rows] = number + np.clip((times[rows] - first) / span * count, 0, count - 1).astype(np.intp)
        number += count
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape)


_FEWEST_SAMPLES = 16  # fewer samples give almost no frequency resolution


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """One-sided power spectral density of a record.

    Attributes:
        frequency: Frequencies in Hz in ascending order, excluding 0, shape ``(nfrequency,)``.
        density: Power spectral density in unit²/Hz, same shape.
    """

    frequency: NDArray[np.float64]
    density: NDArray[np.float64]

    def mean_density(self, low: float, high: float) -> float:
        """Return the mean density from ``low`` to below ``high`` in Hz; NaN if no frequency is in this range."""
        inside = (self.frequency >= low) & (self.frequency < high)
        return float(self.density[inside].mean()) if inside.any() else float("nan")


def spectrum(values: ArrayLike, hz: float, *, segment: int = 256) -> Spectrum:
    """Return the power spectral density of a record by Welch's method, with the median over Hann windows.

    P. Welch, IEEE Trans. Audio Electroacoust. 15 (1967). The median over overlapping windows, corrected for its bias
    (Allen et al., Phys. Rev. D 85, 122006, 2012, appendix B), ignores a few windows with disturbances.

    Args:
        values: Samples at a constant rate, shape ``(n,)``.
        hz: Samples per second.
        segment: Number of samples per window.

    Raises:
        InputError: If there are fewer than 16 samples, or one is not finite.
    """
    from scipy.signal import welch  # slow to load

    record = np.asarray(values, dtype=np.float64)
    if record.ndim != 1 or len(record) < _FEWEST_SAMPLES or not np.isfinite(record).all():
        raise InputError(
            f"A spectrum needs a series of at least {_FEWEST_SAMPLES} finite numbers; given {record.shape}. Give a "
            "longer record, without gaps."
        )
    length = min(segment, len(record))
    frequency, density = welch(record, fs=hz, window="hann", nperseg=length, detrend="linear", average="median")
    return Spectrum(frequency=frequency[1:], density=np.asarray(density[1:], dtype=np.float64))


def octave_edges(low: float, high: float) -> NDArray[np.float64]:
    """Return the ascending edges in Hz of one-octave frequency bands from ``high`` down to about ``low``."""
    count = max(1, int(np.floor(np.log2(high / low))))
    return high * 2.0 ** -np.arange(count, -1, -1, dtype=np.float64)


_LEAST_VALUES = 40
_ROUND_OFF = 1e-9
_TOLERANCE = 0.05


def quantization_step(values: ArrayLike) -> float | None:
    """Return the quantization step of a signal: every value is a common offset plus an integer multiple of the step.

    The smallest gaps between distinct values give an initial step, which a least-squares line of the values over their
    integers refines. The step is accepted if the values are then within 5 % of a step (RMS) of the grid. Values must
    also occur repeatedly, so that continuous noise is not mistaken for steps.

    Returns:
        The step in the unit of the values; None if no step is found.
    """
    samples = np.asarray(values, dtype=np.float64).ravel()
    levels = np.unique(np.round(samples, 5))
    if len(levels) < _LEAST_VALUES or len(levels) > len(samples) / 2:
        return None
    gaps = np.diff(levels)
    step = float(np.median(gaps[gaps < 1.5 * np.quantile(gaps, 0.1)]))
    if step <= _ROUND_OFF:
        return None
    for reach in (20, 200, len(levels)):  # extending the line gradually keeps the integers correct
        step = _fit_step(levels[:reach], step)
    return step if is_on_grid(levels, step) else None


def is_on_grid(values: ArrayLike, step: float) -> bool:
    """Return whether values are integer multiples of ``step``, up to a common offset and 5 % of a step (RMS)."""
    levels = np.unique(np.asarray(values, dtype=np.float64))
    counts = (levels - levels[0]) / step
    shift = np.angle(np.mean(np.exp(2j * np.pi * counts))) / (2 * np.pi)
    return bool(np.sqrt(np.mean((counts - shift - np.round(counts - shift)) ** 2)) < _TOLERANCE)


def _fit_step(levels: NDArray[np.float64], step: float) -> float:
    """Return the quantization step of sorted distinct values by least squares.

    Differences of neighbouring values are rounded to multiples of the initial ``step`` (at least one) and summed. The
    result is the slope of the values over these multiples.
    """
    counts = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(np.diff(levels) / step), 1.0))])
    return float(np.polyfit(counts, levels, 1)[0])


# Balasubramanian et al. 2015, "Spectral arc length": frequencies up to 10 Hz, the limit of voluntary human
# motion; the spectrum ends where it stays below 5 % of its value at rest; padded with zeros to 16 times its length.
MOST_HZ, FLOOR, _PADDING = 10.0, 0.05, 4
_LEAST_FRAMES = 4  # two differences of a velocity, and one more to compare them


def spectral_arc_length(speed: ArrayLike, rate_hz: float) -> Array:
    """Return the spectral arc length (SPARC) of a speed profile, a measure of smoothness: −1.4 for one smooth reach.

    It is the negative arc length of the curve V(f), the amplitude spectrum divided by its value at frequency 0.
    Frequencies up to the cut-off f_c are scaled to 0 … 1 on the abscissa. f_c is the last frequency up to 10 Hz
    (`MOST_HZ`) at which V is at least 0.05 (`FLOOR`).

    Args:
        speed: Speed at T times, shape ``(…, T)``, not negative, in any unit.
        rate_hz: Samples per second.

    Returns:
        Shape ``(…,)``; NaN if there is no motion.

    Raises:
        InputError: If there are fewer than four samples.
    """
    values = np.asarray(speed, dtype=np.float64)
    nframe = _check_length(values.shape[-1])
    padded = 2 ** (math.ceil(math.log2(nframe)) + _PADDING)
    spectrum = np.abs(np.fft.rfft(values, padded))
    frequency = np.fft.rfftfreq(padded, 1.0 / rate_hz)
    kept = frequency <= MOST_HZ
    motionless = spectrum[..., :1] <= 0.0
    curve = spectrum[..., kept] / np.where(motionless, 1.0, spectrum[..., :1])
    last = kept.sum() - 1 - np.argmax(curve[..., ::-1] >= FLOOR, axis=-1)
    steps = np.arange(kept.sum() - 1)
    along = 1.0 / np.maximum(last, 1)
    length = np.hypot(along[..., None], np.diff(curve, axis=-1)) * (steps < last[..., None])
    return np.where(motionless[..., 0], np.nan, -length.sum(axis=-1))


def log_dimensionless_jerk(velocity: ArrayLike, rate_hz: float) -> Array:
    """Return the log dimensionless jerk (LDLJ) of a movement, a measure of smoothness: nearer to 0 is smoother.

    It is −ln(D³ / p² · ∫ |d²v/dt²|² dt) with the duration D, the velocity v(t), and the peak speed p. A minimum-jerk
    movement has −ln 204.8 = −5.3.

    Args:
        velocity: Velocity vectors of k components at T times, shape ``(…, T, k)``, in any unit.
        rate_hz: Samples per second.

    Returns:
        Shape ``(…,)``; NaN if there is no motion, infinite for a motion without jerk.

    Raises:
        InputError: If there are fewer than four samples.
    """
    values = np.asarray(velocity, dtype=np.float64)
    nframe = _check_length(values.shape[-2])
    peak = np.max(np.sum(values**2, axis=-1), axis=-1)
    jerk = np.sum(np.diff(values, n=2, axis=-2) ** 2, axis=(-2, -1)) * rate_hz**3
    motionless = peak <= 0.0
    with np.errstate(divide="ignore"):
        smoothness = -np.log((nframe / rate_hz) ** 3 * jerk / np.where(motionless, 1.0, peak))
    return np.where(motionless, np.nan, smoothness)


def _check_length(count: int) -> int:
    if count < _LEAST_FRAMES:
        raise InputError(f"{count} samples are too few; smoothness needs at least {_LEAST_FRAMES}.")
    return count
