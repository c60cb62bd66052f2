"""Compute external pushes: forces on bodies with start time and duration, independent of the commands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities import names_of_stage, split_path

_DEFAULTS = {"azimuth": 0.0, "elevation": 0.0, "time": 0.0, "duration": 0.1, "period": 0.0}
_ROUND_OFF = 1e-9  # of a physics step
_NEVER = 1e9  # s: a period longer than every episode


class Pushes:
    """External pushes on the bodies of a batch of worlds.

    A push of ``push/<body>/force`` acts at the body's centre of mass (``xfrc_applied``), in the direction (cos e
    cos a, cos e sin a, sin e) of the world frame for the azimuth a and the elevation e. It starts at ``time`` after
    the start of a world, lasts for ``duration``, and repeats after every ``period`` unless that is 0. A physics
    step that the push covers partly gets that fraction of the force, so the momentum is force · duration for any
    step size.

    Attributes:
        active: whether any world may be pushed.

    Raises:
        InputError: If a push lasts longer than its period.
    """

    def __init__(self, twin: Twin, params: ParamTable) -> None:
        """Read the pushes of all worlds from their parameters."""
        self._twin, self._params = twin, params
        names = dict.fromkeys(split_path(name)[1] for name in names_of_stage(params.names, "disturbance"))
        self._bodies = {name: twin.model.body(name).id for name in names}
        self._stepped = bool(names_of_stage(params.steps, "disturbance"))
        self._load(params)

    def _load(self, params: ParamTable) -> None:
        self._pushes = {body: _BodyPush(params, name) for name, body in self._bodies.items()}
        self.active = self._stepped or any(push.has_effect for push in self._pushes.values())

    def compute_wrenches(
        self, step: ArrayLike, began: NDArray[np.float64], ratio: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the forces and torques (``xfrc_applied``) for every physics step of a control step.

        Args:
            step: number of the control step in each world.
            began: start of the control step since the world's start, in units of the twin's nominal physics step, shape
                ``(nworld,)``.
            ratio: length of its physics steps divided by the nominal length, shape ``(nworld,)``.

        Returns:
            Wrenches, shape ``(nworld, substeps, nbody, 6)``; None if no world is ever pushed.
        """
        if not self.active:
            return None
        if self._stepped:
            self._load(self._params.at(step))
        substeps, dt = self._twin.substeps, self._twin.dt
        edges = (began[:, None] + np.arange(substeps + 1) * ratio[:, None]) * dt
        wrench = np.zeros((len(edges), substeps, self._twin.model.nbody, 6))
        for body, push in self._pushes.items():
            wrench[:, :, body, :3] = push.compute_share(edges)[..., None] * push.force[:, None]
        return wrench

    def restart(self, params: ParamTable) -> None:
        """Read the pushes again after some worlds have restarted.

        ``params`` are the parameters of all worlds. Times count from each world's own start.
        """
        self._params = params
        self._load(params)


class _BodyPush:
    """Push of one body in every world: a constant force during an interval of time, once or periodically.

    Its parameters are those of `Pushes`: ``force``, ``azimuth``, ``elevation``, ``time``, ``duration`` and ``period``.

    Attributes:
        force: force at the body's centre of mass, in world axes in N, shape ``(nworld, 3)``.

    Raises:
        InputError: If the push lasts longer than its period.
    """

    def __init__(self, params: ParamTable, body: str) -> None:
        def column(quantity: str) -> NDArray[np.float64]:
            return params.get(f"push/{body}/{quantity}", np.full(params.nworld, _DEFAULTS.get(quantity, 0.0)))

        strength, azimuth, elevation = column("force"), column("azimuth"), column("elevation")
        level = np.cos(elevation)
        direction = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=-1)
        self.force = strength[:, None] * direction
        self._begin, self._lasts, self._period = column("time"), column("duration"), column("period")
        too_long = (self._period > 0) & (self._lasts > self._period) & (strength > 0)
        if too_long.any():
            world = int(np.argmax(too_long))
            raise InputError(
                f"push/{body}/duration is {self._lasts[world]:g} s, longer than its period of "
                f"{self._period[world]:g} s. Shorten it, lengthen push/{body}/period, or set that to 0 for one push."
            )

    @property
    def has_effect(self) -> bool:
        """Return whether the body is pushed in any world."""
        return bool(np.any((self.force != 0.0).any(axis=1) & (self._lasts > 0.0)))

    def compute_share(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the fraction of each physics step during which the push acts, shape ``(nworld, n)``.

        ``edges`` are the starts and ends of the n steps in s, shape ``(nworld, n + 1)``.
        """
        on = self._compute_push_time(edges)
        share = np.diff(on, axis=1) / np.diff(edges, axis=1)
        return np.where(share > 1.0 - _ROUND_OFF, 1.0, np.where(share < _ROUND_OFF, 0.0, share))

    def _compute_push_time(self, moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the total time in s during which the push has acted up to each of the times ``(nworld, n)`` in s."""
        since = np.maximum(moments - self._begin[:, None], 0.0)
        period = np.where(self._period > 0.0, self._period, _NEVER)[:, None]
        rounds = np.floor(since / period)
        return rounds * self._lasts[:, None] + np.minimum(since - rounds * period, self._lasts[:, None])


def append_wrenches(controls: NDArray[np.float64], wrenches: NDArray[np.float64]) -> NDArray[np.float64]:
    """Concatenate controls and wrenches of each physics step, in the order of MuJoCo's state components.

    Args:
        controls: controls, shape ``(nworld, substeps, nu)``.
        wrenches: wrenches, shape ``(nworld, substeps, nbody, 6)``.

    Returns:
        Shape ``(nworld, substeps, nu + 6 · nbody)``.
    """
    return np.concatenate([controls, wrenches.reshape(*controls.shape[:2], -1)], axis=2)
