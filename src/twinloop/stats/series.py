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
    """Return the sample autocorrelation at lags 0 … ``nlags`` (biased form, Box & Jenkins), ``(nlags + 1,)``.

    A constant series has 1 at every lag.

    Raises:
        InputError: the series is not longer than the lags.
    """
    values = np.asarray(series, dtype=np.float64)
    if len(values) <= nlags:
        raise InputError(f"A series of {len(values)} has no autocorrelation at lag {nlags}.")
    centred = values - values.mean()
    power = centred @ centred
    if power == 0:
        return np.ones(nlags + 1)
    return np.array([centred[: len(centred) - lag] @ centred[lag:] / power for lag in range(nlags + 1)])


def pooled_autocorrelation(clips: Sequence[ArrayLike], lag: int = 1) -> float:
    """Return the correlation of values at a distance of ``lag`` frames, over clips of one series of mean zero.

    Clips are not centred individually, so a constant part of a clip, for example the error of its first state, counts
    as correlated. Series of zeros have 1.

    Raises:
        InputError: no clip is longer than the lag.
    """
    rows = [np.asarray(clip, dtype=np.float64) for clip in clips]
    pairs = [(row[:-lag], row[lag:]) for row in rows if len(row) > lag]
    if not pairs:
        raise InputError(f"Clips of {max(map(len, rows), default=0)} frames have no autocorrelation at lag {lag}.")
    first, later = (np.concatenate(side) for side in zip(*pairs, strict=True))
    power = np.sqrt((first @ first) * (later @ later))
    return float(first @ later / power) if power > 0 else 1.0


def effective_size(n: float, rho: float) -> float:
    """Return how many independent samples equal ``n`` of lag-1 correlation ρ: n (1 − ρ) / (1 + ρ) (AR(1))."""
    within = min(max(rho, 0.0), 1.0)
    return max(1.0, n * (1 - within) / (1 + within))


@dataclass(frozen=True, kw_only=True)
class LjungBox:
    """The portmanteau test for whiteness: a small ``p_value`` means that the residuals are correlated in time."""

    statistic: float
    lags: int
    p_value: float


def ljung_box(clips: Sequence[ArrayLike], *, lags: int = 10, fitted: int = 0) -> LjungBox:
    """Return Q = n (n + 2) Σ_k ρ_k² / (n − k), with its chi-square p-value (Ljung & Box, Biometrika 65, 1978).

    The degrees of freedom are ``lags − fitted`` for one clip.

    Args:
        clips: residuals of one clip or of several independent ones, whose statistics and degrees of freedom are summed.
        lags: number of lags.
        fitted: number of model parameters that were fitted to the same series.
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
    """Return the frames per independent frame, τ = 1 + 2 Σ ρ_k, of clips ``(nframe, …)`` of one stationary series.

    The series has mean zero. Autocovariances are pooled over clips and not centred in each, so that a constant part of
    a clip counts as correlated. The sum ends where pairs of lags become negative (Geyer, Statistical Science 7, 1992).

    Returns:
        ``(…)``, at least 1; a series of zeros has 1.
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
    """Return the length of a block in frames, for correlation time ``tau``; None if there are too few frames."""
    independent = frames / tau
    if independent < _FEWEST_BLOCKS * _SHORTEST:
        return None
    longest = frames / max(_FEW, independent / max(_BLOCK, independent ** (1 / 3)))
    return max(_SHORTEST * tau, longest)


def time_blocks(starts: ArrayLike, frames: int, dt: float, episodes: ArrayLike, length: float) -> NDArray[np.intp]:
    """Return the block of every frame of windows, numbered from 0, ``(nwindow, frames)``.

    Each episode is cut into equal parts of about ``length``. A window shorter than two of them is not cut, because its
    frames share the error of its first state; it is assigned to the block at its middle.

    Args:
        starts: begin of each window, s, ``(nwindow,)``.
        frames: number of frames per window.
        dt: time between frames, s.
        episodes: number of each window's episode.
        length: target length of a block, s.
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
    """One-sided power spectral density ``density`` ``(m,)`` in unit²/Hz at ``frequency`` ``(m,)`` in Hz."""

    frequency: NDArray[np.float64]
    density: NDArray[np.float64]

    def mean_density(self, low: float, high: float) -> float:
        """Return the mean density between two frequencies in Hz; NaN if the spectrum has no line between them."""
        inside = (self.frequency >= low) & (self.frequency < high)
        return float(self.density[inside].mean()) if inside.any() else float("nan")


def spectrum(values: ArrayLike, hz: float, *, segment: int = 256) -> Spectrum:
    """Return Welch's spectrum of a record ``(n,)`` at a constant rate: the median over overlapping Hann windows.

    P. Welch, IEEE Trans. Audio Electroacoust. 15 (1967). The median over windows, corrected for its bias (Allen et
    al., Phys. Rev. D 85, 122006, 2012, appendix B), ignores a few windows with disturbances.

    Raises:
        InputError: fewer than 16 samples, or one that is not finite.
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
    """Return ascending edges of one-octave bands from ``high`` down to about ``low``."""
    count = max(1, int(np.floor(np.log2(high / low))))
    return high * 2.0 ** -np.arange(count, -1, -1, dtype=np.float64)


_LEAST_VALUES = 40
_ROUND_OFF = 1e-9
_TOLERANCE = 0.05


def quantization_step(values: ArrayLike) -> float | None:
    """Return the step of which all ``values`` are integer multiples, up to a common shift; None if there is none.

    The smallest gaps between distinct values give an initial step; a least-squares line of the sorted values over their
    integers refines it. The step is accepted if the values are then within 5 % of a step (RMS) of integers and occur
    often enough, so that continuous noise is not mistaken for steps.
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
    """Return whether ``values`` are within 5 % of a step (RMS) of integer multiples of it, up to a common shift."""
    levels = np.unique(np.asarray(values, dtype=np.float64))
    counts = (levels - levels[0]) / step
    shift = np.angle(np.mean(np.exp(2j * np.pi * counts))) / (2 * np.pi)
    return bool(np.sqrt(np.mean((counts - shift - np.round(counts - shift)) ** 2)) < _TOLERANCE)


def _fit_step(levels: NDArray[np.float64], step: float) -> float:
    """Return the least-squares step of levels; their integers are counted gap by gap with the initial ``step``."""
    counts = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(np.diff(levels) / step), 1.0))])
    return float(np.polyfit(counts, levels, 1)[0])


# Balasubramanian et al. 2015, "Spectral arc length": frequencies up to 10 Hz, the limit of voluntary human
# motion; the spectrum ends where it stays below 5 % of its value at rest; padded with zeros to 16 times its length.
MOST_HZ, FLOOR, _PADDING = 10.0, 0.05, 4
_LEAST_FRAMES = 4  # two differences of a velocity, and one more to compare them


def spectral_arc_length(speed: ArrayLike, rate_hz: float) -> Array:
    """Return SPARC, the negative arc length of the speed's amplitude spectrum: about −1.4 for one smooth reach.

    V(f) is the spectrum divided by V(0). Frequencies up to the cut-off f_c are scaled to 0 … 1 on the abscissa; f_c is
    the last frequency, up to `MOST_HZ`, at which V reaches `FLOOR`.

    Args:
        speed: ``(…, T)``, not negative, in any unit.
        rate_hz: samples per second.

    Returns:
        ``(…,)``; NaN without motion.

    Raises:
        InputError: too few samples.
    """
    values = np.asarray(speed, dtype=np.float64)
    nframe = _check_length(values.shape[-1])
    padded = 2 ** (math.ceil(math.log2(nframe)) + _PADDING)
    spectrum = np.abs(np.fft.rfft(values, padded))
    frequency = np.fft.rfftfreq(padded, 1.0 / rate_hz)
    kept = frequency <= MOST_HZ
    still = spectrum[..., :1] <= 0.0
    curve = spectrum[..., kept] / np.where(still, 1.0, spectrum[..., :1])
    last = kept.sum() - 1 - np.argmax(curve[..., ::-1] >= FLOOR, axis=-1)
    steps = np.arange(kept.sum() - 1)
    along = 1.0 / np.maximum(last, 1)
    length = np.hypot(along[..., None], np.diff(curve, axis=-1)) * (steps < last[..., None])
    return np.where(still[..., 0], np.nan, -length.sum(axis=-1))


def log_dimensionless_jerk(velocity: ArrayLike, rate_hz: float) -> Array:
    """Return LDLJ = −ln(T³ / v² · ∫ |d²v/dt²|² dt) with duration T and peak speed v; −ln 204.8 at minimum jerk.

    Args:
        velocity: ``(…, T, k)``, in any unit.
        rate_hz: samples per second.

    Returns:
        ``(…,)``; NaN without motion, infinite for motion without jerk.

    Raises:
        InputError: too few samples.
    """
    values = np.asarray(velocity, dtype=np.float64)
    nframe = _check_length(values.shape[-2])
    peak = np.max(np.sum(values**2, axis=-1), axis=-1)
    jerk = np.sum(np.diff(values, n=2, axis=-2) ** 2, axis=(-2, -1)) * rate_hz**3
    still = peak <= 0.0
    with np.errstate(divide="ignore"):
        found = -np.log((nframe / rate_hz) ** 3 * jerk / np.where(still, 1.0, peak))
    return np.where(still, np.nan, found)


def _check_length(count: int) -> int:
    if count < _LEAST_FRAMES:
        raise InputError(f"{count} samples are too few; smoothness needs at least {_LEAST_FRAMES}.")
    return count
