"""Where the factor between two series changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change at row ``index`` (the first one after it), or none (``index`` 0, ``before`` equals ``after``).

    ``gain`` is the part of the squared residuals of the fit without a change that the change explains, 0 to 1.
    """

    index: int
    before: float
    after: float
    gain: float


def slope_change(x: ArrayLike, y: ArrayLike, *, least: int) -> Change:
    """The row at which ``y = slope · x`` changes its slope, by least squares over all splits.

    Args:
        x: ``(n,)``, about zero: no intercept is fitted.
        y: ``(n,)``.
        least: fewest rows on either side.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    xx, xy = np.cumsum(a * a), np.cumsum(a * b)
    whole = _ratio(xy[-1:], xx[-1:])[0] if len(a) else 0.0
    residual = float(np.sum((b - whole * a) ** 2))
    splits = np.arange(least, len(a) - least + 1)
    if not len(splits) or residual == 0:
        return Change(index=0, before=float(whole), after=float(whole), gain=0.0)
    xx_left, xy_left = xx[splits - 1], xy[splits - 1]
    xx_right, xy_right = xx[-1] - xx_left, xy[-1] - xy_left
    explained = xy_left * _ratio(xy_left, xx_left) + xy_right * _ratio(xy_right, xx_right)
    best = int(np.argmax(explained))
    left, right = (
        float(_ratio(p[best : best + 1], q[best : best + 1])[0]) for p, q in ((xy_left, xx_left), (xy_right, xx_right))
    )
    gain = float((explained[best] - whole * xy[-1]) / residual)
    return Change(index=int(splits[best]), before=left, after=right, gain=gain)


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
