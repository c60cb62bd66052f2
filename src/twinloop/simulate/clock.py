"""When control steps begin: a nominal period, a loop that is slower than it says, and one that oversleeps by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.twin import Twin

Array = Any  # of the library that `AsArray` makes: NumPy's on the host, a device's on a device
AsArray = Callable[[NDArray[Any]], Array]

PERIOD, JITTER = "timing/control/period", "timing/control/jitter"


class ControlClock:
    """Beginning and length of the control steps of every world, in nominal physics steps since a world began.

    A control step always has the same number of physics steps; a longer period makes each of them longer
    (``opt.timestep`` of that world), so that worlds of unlike clocks run in one batch. Control step t lasts
    period · ``timing/control/period`` + ``timing/control/jitter`` · u, u uniform in (0, 1): a loop that sleeps until
    its next tick wakes up late, never early.
    """

    def __init__(self, twin: Twin, params: ParamTable, *, as_array: AsArray = np.asarray) -> None:
        self._nominal, self._dt, self._as_array = twin.substeps, twin.dt, as_array
        self._time = self.began = as_array(np.zeros(params.nworld))
        self.steady = True
        self._load(params)

    def _load(self, params: ParamTable) -> None:
        scale = params.get(PERIOD, np.ones(params.nworld))
        self._jitter = params.get(JITTER, np.zeros(params.nworld))
        self._seeds = params.seed_path(f"{JITTER} happens") if np.any(self._jitter > 0) else None
        self.shortest = float(scale.min(initial=1.0))
        # Once unsteady, always: a world that begins anew must be given the nominal physics step back.
        self.steady = self.steady and bool(np.all(scale == 1.0)) and self._seeds is None
        self._scale = self._as_array(scale)
        self.ratio = self._scale

    def begin(self, step: NDArray[np.int64]) -> tuple[Array, Array]:
        """When the coming control step begins in each world, and the length of its physics steps over the nominal.

        Args:
            step: number of the control step in each world, ``(nworld,)``.
        """
        began = self.began = self._time
        if self._seeds:
            chance = self._seeds.uniforms("simulate/clock", step=step)[:, 0]
            late = self._as_array(self._jitter * chance / (self._nominal * self._dt))
            self.ratio = self._scale + late
        self._time = began + self._nominal * self.ratio
        return began, self.ratio

    @property
    def timestep(self) -> Array:
        """Physics step of every world in the control step begun last, ``(nworld,)`` in s."""
        return self._dt * self.ratio

    def restart(self, worlds: NDArray[np.intp], params: ParamTable) -> None:
        """Set the time of some worlds to zero; ``params`` are the rows of all."""
        fresh = np.zeros(params.nworld, dtype=bool)
        fresh[worlds] = True
        xp = array_namespace(self._time)
        self._time = xp.where(self._as_array(fresh), 0.0 * self._time, self._time)
        self._load(params)
