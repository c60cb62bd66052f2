"""How smooth a movement is, whatever its size and length: spectral arc length and log dimensionless jerk.

Both are dimensionless, and nearer to zero for a smoother movement (Balasubramanian, Melendez-Calderon, Roby-Brami &
Burdet, "On the analysis of movement smoothness", J. NeuroEng. Rehabil. 12, 2015). They are measures of one movement; of
a recording that holds several, take windows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

Array = NDArray[np.float64]

# Balasubramanian et al. 2015, "Spectral arc length": frequencies up to 10 Hz, beyond which people move nothing on
# purpose; the spectrum ends where it stays below 5 % of its value at rest; padded with zeros to 16 times its length.
MOST_HZ, FLOOR, _PADDING = 10.0, 0.05, 4
_LEAST_FRAMES = 4  # two differences of a velocity, and one more to tell them apart


def spectral_arc_length(speed: ArrayLike, rate_hz: float, *, most_hz: float = MOST_HZ, floor: float = FLOOR) -> Array:
    """SPARC, the negative length of the curve of the speed's amplitude spectrum: −1.4 or so for one smooth reach.

    With V(f) the spectrum over V(0), frequencies up to the cut-off f_c are 0 … 1 on the abscissa, where f_c is the last
    one, up to ``most_hz``, at which V reaches ``floor``.

    Args:
        speed: ``(…, T)``, not negative, in any unit.
        rate_hz: samples per second.
        most_hz: upper end of the cut-off.
        floor: share of V(0) below which the spectrum ends.

    Returns:
        ``(…,)``; NaN where nothing moves.

    Raises:
        InputError: too few samples.
    """
    values = np.asarray(speed, dtype=np.float64)
    nframe = _frames(values.shape[-1])
    padded = 2 ** (math.ceil(math.log2(nframe)) + _PADDING)
    spectrum = np.abs(np.fft.rfft(values, padded))
    frequency = np.fft.rfftfreq(padded, 1.0 / rate_hz)
    kept = frequency <= most_hz
    still = spectrum[..., :1] <= 0.0
    curve = spectrum[..., kept] / np.where(still, 1.0, spectrum[..., :1])
    last = kept.sum() - 1 - np.argmax(curve[..., ::-1] >= floor, axis=-1)
    steps = np.arange(kept.sum() - 1)
    along = 1.0 / np.maximum(last, 1)
    length = np.hypot(along[..., None], np.diff(curve, axis=-1)) * (steps < last[..., None])
    return np.where(still[..., 0], np.nan, -length.sum(axis=-1))


def log_dimensionless_jerk(velocity: ArrayLike, rate_hz: float) -> Array:
    """LDLJ = −ln(T³ / v² · ∫ |d²v/dt²|² dt) with the movement's duration T and peak speed v; −ln 204.8 at minimum jerk.

    Args:
        velocity: ``(…, T, k)``, in any unit.
        rate_hz: samples per second.

    Returns:
        ``(…,)``; NaN where nothing moves, infinite where it moves without any jerk.

    Raises:
        InputError: too few samples.
    """
    values = np.asarray(velocity, dtype=np.float64)
    nframe = _frames(values.shape[-2])
    peak = np.max(np.sum(values**2, axis=-1), axis=-1)
    jerk = np.sum(np.diff(values, n=2, axis=-2) ** 2, axis=(-2, -1)) * rate_hz**3
    still = peak <= 0.0
    with np.errstate(divide="ignore"):
        found = -np.log((nframe / rate_hz) ** 3 * jerk / np.where(still, 1.0, peak))
    return np.where(still, np.nan, found)


def _frames(count: int) -> int:
    if count < _LEAST_FRAMES:
        raise InputError(f"{count} samples are no movement; its smoothness needs at least {_LEAST_FRAMES}.")
    return count
