"""How a fit walks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twinloop.identify.space import Prior
from twinloop.simulate.replay_logs import ReplayOptions


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a fit walks; the defaults suit arms of six joints logged at 30 Hz.

    Attributes:
        replay: how the log is cut into windows, and what is compared.
        free: parameters that are free, as patterns with ``*``; None for those of the robot that a log can speak of.
        quantities: of these, only those of such quantities (``kp``, ``damping``, …); None for all.
        fixed: parameters known beforehand, SI.
        priors: by pattern, before the built-in ones (see `space.PRIORS`).
        start: where to start from, SI, in place of the nominal values.
        walk: training windows (whole episodes where none are cut) that the walk sees, evenly spread; the last steps see
            them all.
        physics_hz: rate of the physics during the fit, at most the twin's own. On the SO-101 log 240 Hz changes the
            error by 1 % against 480 Hz and halves the time.
        iterations: most iterations of the walk.
        polish: iterations on all training windows afterwards.
        level: confidence level of the intervals.
        coupled: one Jacobian of all joints (True) or one block per joint; None chooses by their number.
        width: where the loss turns from square to linear, by a factor on the median residual of each channel at the
            beginning of a walk.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    free: tuple[str, ...] | None = None
    quantities: tuple[str, ...] | None = None
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    priors: Mapping[str, Prior] = field(default_factory=dict[str, Prior])
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    walk: int = 12
    physics_hz: float = 240.0
    iterations: int = 20
    polish: int = 1
    level: float = 0.95
    coupled: bool | None = None
    width: float = 1.0
