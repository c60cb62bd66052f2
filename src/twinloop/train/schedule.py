"""The learning rate over a run."""

from __future__ import annotations

import math


def learning_rate(step: int, *, steps: int, peak: float, warmup: float) -> float:
    """Rises linearly over the share ``warmup`` of the steps, then falls along half a cosine to zero.

    Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, equation 5 without restarts.
    ``step`` counts from 0.
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
