"""What one channel's readings say of its sensor, episode by episode: clock, losses, counts, noise, lag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.sensors.channels import SensorChannel
from twinloop.stats import AllanCurve, Spectrum, allan_curve, following_lag, quantum, spectrum

Array = NDArray[np.float64]

_FEWEST = 16  # samples of an episode that say anything
_GAP = 1.5  # usual steps: longer, and a sample is missing
_MOVING = 3  # counts from one sample to the next on both sides of a repeated one: slower, it repeats itself rightly
_LONGEST_LAG = 0.5  # s; actuators and networks of the field are faster (see docs/evidence/real_data.md)
_LEAST_CORRELATION = 0.5  # of slopes, below which a channel does not follow its leader enough to tell a lag
_LEAST_REST = 200  # samples at rest for an Allan deviation over two decades
_UPPER_HALF = 0.5  # of the band: what is there is hardly motion
_ROUND_OFF = 1e-9  # of a period: times are sums of floating-point steps


@dataclass(frozen=True, kw_only=True)
class EpisodeMetrics:
    """Figures of each episode of one channel, ``(nepisode,)`` by name, NaN where an episode does not tell.

    ``period`` and ``jitter`` (standard deviation of the steps that are no gaps) in s; ``missing``, the part of samples
    that a steady clock would have had besides; ``repeated``, the part of samples in motion that equal the one before;
    ``lag`` behind the leader in s; ``noise``, the standard deviation that white noise of the density found in the
    upper half of the band common to both logs would have, in the channel's unit; its density is
    noise²/(half the rate). ``spectra`` are in unit²/Hz. ``step`` is the size of one count over all episodes, 0 where
    none is seen; ``allan`` the longest stretch at rest, where one is long enough.
    """

    values: dict[str, Array]
    spectra: tuple[Spectrum | None, ...]
    step: float
    allan: AllanCurve | None
    hz: float


def episode_figures(channel: SensorChannel, *, highest: float) -> EpisodeMetrics:
    """Everything of one channel.

    Args:
        channel: the readings.
        highest: end of the band in Hz that this log and the one it is compared with have in common.
    """
    count = len(channel.values)
    step = quantum(np.concatenate(channel.values)) or 0.0
    values = {n: np.full(count, np.nan) for n in ("period", "jitter", "missing", "repeated", "lag", "noise")}
    spectra: list[Spectrum | None] = []
    for episode in range(count):
        time, readings = channel.time[episode], channel.values[episode]
        if len(time) < _FEWEST:
            spectra.append(None)
            continue
        steady, hz = _steady(time, readings)
        found = spectrum(steady, hz)
        spectra.append(found)
        values["period"][episode], values["jitter"][episode], values["missing"][episode] = _clock(time)
        values["repeated"][episode] = _repeated(readings, step)
        values["lag"][episode] = _lag(channel, episode)
        density = found.level(_UPPER_HALF * highest, highest * (1 + 1e-9))
        values["noise"][episode] = np.sqrt(density * hz / 2.0)
    hz = 1.0 / float(np.nanmedian(values["period"])) if np.isfinite(values["period"]).any() else float("nan")
    return EpisodeMetrics(values=values, spectra=tuple(spectra), step=step, allan=_allan(channel), hz=hz)


def rate(channel: SensorChannel) -> float:
    """The usual samples per second; NaN where no episode has enough of them."""
    steps = [float(np.median(np.diff(time))) for time in channel.time if len(time) >= _FEWEST]
    return 1.0 / float(np.median(steps)) if steps else float("nan")


def _clock(time: Array) -> tuple[float, float, float]:
    """Period, jitter, and the part that is missing."""
    steps = np.diff(time)
    period = float(np.median(steps))
    usual = steps[steps <= _GAP * period]
    absent = float(np.sum(np.maximum(np.round(steps / period) - 1.0, 0.0)))
    jitter = float(np.std(usual))
    return period, jitter if jitter > _ROUND_OFF * period else 0.0, absent / (len(time) + absent)


def _repeated(readings: Array, step: float) -> float:
    """Part of the samples in motion that equal the one before; NaN where nothing moves."""
    size = np.abs(np.diff(readings))
    grain = step or (float(size[size > 0].min()) if (size > 0).any() else 0.0)
    moving = np.zeros(len(size), dtype=np.bool_)
    moving[1:-1] = np.minimum(size[:-2], size[2:]) >= _MOVING * grain
    return float(np.mean(size[moving] == 0)) if grain and moving.any() else float("nan")


def _steady(time: Array, readings: Array) -> tuple[Array, float]:
    """The readings at even times, and how many per second."""
    period = float(np.median(np.diff(time)))
    even = np.arange(time[0], time[-1] + 0.5 * period, period)
    return np.interp(even, time, readings), 1.0 / period


def _lag(channel: SensorChannel, episode: int) -> float:
    """How late the channel's slope follows its leader's, in s; NaN where there is none or they hardly agree."""
    leader, time = channel.leader[episode], channel.time[episode]
    if leader is None:
        return float("nan")
    following, hz = _steady(time, channel.values[episode])
    leading, _ = _steady(time, leader)
    lag, correlation = following_lag(np.diff(leading), np.diff(following), longest=_LONGEST_LAG * hz)
    return lag / hz if correlation >= _LEAST_CORRELATION else float("nan")


def _allan(channel: SensorChannel) -> AllanCurve | None:
    """The Allan deviation of the longest stretch at rest."""
    stretches = [(rows[1] - rows[0], episode) for episode, rows in enumerate(channel.rest) if rows is not None]
    length, episode = max(stretches, default=(0, 0))
    if length < _LEAST_REST:
        return None
    first, last = channel.rest[episode] or (0, 0)
    readings, hz = _steady(channel.time[episode][first:last], channel.values[episode][first:last])
    return allan_curve(readings, 1.0 / hz) if np.ptp(readings) > 0 else None
