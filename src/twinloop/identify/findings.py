"""What a fit meets on its way that a person must know, with its parameter or channel and what to do about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.identify.solver import Solution
from twinloop.identify.space import Space
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_NEAR_BOUND = 1e-3  # standard deviations of the prior


def check_measured(logs: ReplayLogs) -> None:
    """Refuse a channel in which nothing was measured.

    Raises:
        LogError: there is one; names it.
    """
    for column, channel in enumerate(logs.channels):
        if np.isnan(logs.measured[..., column]).all():
            raise LogError(
                f"No number was measured of {channel.name} in the {len(logs)} training windows. Compare something "
                "else, or mend the log."
            )


def constant_channels(logs: ReplayLogs, space: Space) -> list[str]:
    """Channels that never move, and the parameters of which they therefore tell nothing."""
    said = []
    for column, channel in enumerate(logs.channels):
        values = logs.measured[..., column]
        family, _, joint = channel.name.partition("/")
        if family != "position" or np.nanmax(values) > np.nanmin(values):
            continue
        number = logs.joints.index(joint) if joint in logs.joints else None
        own = [p.name for p in space.free if p.joint is not None and p.joint == number]
        about = f"nothing of {', '.join(own)}" if own else "nothing"
        said.append(
            f"{channel.name} is {np.nanmin(values):g} {channel.unit} in every training frame: it tells {about}. Record "
            "a log in which it moves, or fix those parameters."
        )
    return said


def why_not(logs: ReplayLogs, space: Space, point: Array, residual: Array) -> str:
    """Where and when the twin cannot be replayed at a point; ``residual`` ``(nwindow, nframe, nchannel)`` there."""
    lost = np.asarray(np.isinf(residual).any(axis=-1))
    windows = np.flatnonzero(np.any(lost, axis=1))
    frame = np.argmax(lost[windows], axis=1)
    first = int(windows[np.argmin(frame)])
    when = float(frame.min()) / logs.twin.control_hz
    values = ", ".join(f"{name} {float(value):.4g}" for name, value in space.values(point).items())
    return (
        f"The twin {logs.twin.name} cannot be replayed where the fit starts: it diverges in {len(windows)} of "
        f"{len(logs)} windows, in episode {logs.numbers[first]} {when:.3f} s after its window begins at "
        f"{logs.begins[first]:.3f} s. The start: {values}. Give another start, raise physics_hz (now steps of "
        f"{1e3 * logs.twin.dt:.2g} ms) or the twin's substeps, or search from many starts (search: multistart)."
    )


def lost_starts(space: Space, points: Array, lost: NDArray[np.bool_]) -> str:
    """Starts from which the twin diverges, and where the first of them lies."""
    values = space.values(points[int(np.argmax(lost))])
    said = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    return (
        f"{int(lost.sum())} of {len(lost)} starts were left out, because the twin diverges there; the first: {said}. "
        "Bounds on what is implausible would keep starts away from there."
    )


def at_bounds(space: Space, point: Array) -> list[str]:
    """Parameters that end on a bound."""
    said = []
    for value, parameter in zip(point, space.free, strict=True):
        for side, bound in (("lower", parameter.low), ("upper", parameter.high)):
            if abs(value - bound) < _NEAR_BOUND * parameter.sd:
                limit = float(np.exp(bound)) if parameter.log else bound
                said.append(
                    f"{parameter.name} ends on its {side} bound, {limit:g} {parameter.param.unit}: the data ask for "
                    f"{'less' if side == 'lower' else 'more'}. Widen the bound if that is possible, else fix the "
                    "parameter there and look for physics that the twin lacks."
                )
    return said


def unfinished(solution: Solution) -> list[str]:
    """A walk that ran out of steps while its loss was still falling."""
    history = solution.history
    if solution.converged or len(history) < 3:
        return []
    fell = 1.0 - history[-1] / history[-3] if history[-3] > 0 else 0.0
    return [f"The walk ran out of steps while its loss still fell, by {fell:.1%} in the last two. Raise iterations."]
