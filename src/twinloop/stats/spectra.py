"""Power spectra of short records, and how high they stand in bands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

_FEWEST = 16  # samples, below which a record has hardly a band


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """One-sided power spectral density ``density`` ``(m,)`` in unit²/Hz at ``frequency`` ``(m,)`` in Hz."""

    frequency: NDArray[np.float64]
    density: NDArray[np.float64]

    def level(self, low: float, high: float) -> float:
        """Mean density between two frequencies; NaN where no line of the spectrum lies there."""
        inside = (self.frequency >= low) & (self.frequency < high)
        return float(self.density[inside].mean()) if inside.any() else float("nan")


def spectrum(values: ArrayLike, hz: float, *, segment: int = 256) -> Spectrum:
    """Welch's estimate from overlapping Hann windows of a record ``(n,)`` at a steady rate, the median of the windows.

    P. Welch, IEEE Trans. Audio Electroacoust. 15 (1967). The median over windows, corrected for its bias (Allen et
    al., Phys. Rev. D 85, 122006, 2012, appendix B), passes over the few in which something knocked.

    Raises:
        InputError: fewer than 16 samples, or one that is not finite.
    """
    from scipy.signal import welch  # slow to load

    record = np.asarray(values, dtype=np.float64)
    if record.ndim != 1 or len(record) < _FEWEST or not np.isfinite(record).all():
        raise InputError(
            f"A spectrum needs a row of at least {_FEWEST} finite numbers; given {record.shape}. Give a longer record, "
            "without gaps."
        )
    length = min(segment, len(record))
    frequency, density = welch(record, fs=hz, window="hann", nperseg=length, detrend="linear", average="median")
    return Spectrum(frequency=frequency[1:], density=np.asarray(density[1:], dtype=np.float64))


def octaves(low: float, high: float) -> NDArray[np.float64]:
    """Edges of bands of one octave down from ``high``, as many as reach down to ``low``, rising."""
    count = max(1, int(np.floor(np.log2(high / low))))
    return high * 2.0 ** -np.arange(count, -1, -1, dtype=np.float64)
