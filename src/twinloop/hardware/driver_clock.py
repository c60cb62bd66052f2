"""The clock of a robot's driver, replaced by the computer's own once it fails or goes back."""

from __future__ import annotations

import math
import time

from twinloop.core.extension import raised
from twinloop.hardware.protocol import Clock

_ROUND_OFF_S = 1e-6
_FASTEST = 2.0  # how much faster than the computer's clock that of a real robot may run
_LONGEST_PAUSE_S = 0.5


class CheckedClock:
    """A clock that never fails, goes back, or lets a real robot's commands follow each other too quickly.

    Attributes:
        fault: why the driver's clock is no longer used, or ""; the computer's clock continues from its last time.

    Args:
        clock: the driver's.
        real: whether the robot is a real one, whose time cannot pass faster than the computer's.
    """

    def __init__(self, clock: Clock, *, real: bool) -> None:
        self._clock, self._real, self.fault = clock, real, ""
        self._last, self._last_wall = -math.inf, time.perf_counter()
        self._woken: tuple[float, float] | None = None

    def now(self) -> float:
        """Return seconds since some fixed moment; never less than before."""
        if not self.fault:
            self._read()
        if not self.fault:
            return self._last
        return self._last + time.perf_counter() - self._last_wall

    def wait_until(self, moment: float) -> None:
        """Return at ``moment`` or a little later."""
        self.now()  # a clock that has gone back would sleep for as long
        if not self.fault:
            try:
                self._clock.wait_until(moment)
            except KeyboardInterrupt:  # Ctrl-C, while it sleeps
                raise
            except BaseException as error:  # noqa: BLE001  # whatever a driver raises, SystemExit included
                self._fail(f"its clock does not wait: {raised(error)}")
        if self.now() < moment - _ROUND_OFF_S:
            self._fail(f"its clock returns {moment - self._last:.3g} s before the moment waited for")
            time.sleep(max(0.0, moment - self.now()))
        self._pace()

    def _read(self) -> None:
        try:
            value = float(self._clock.now())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # as above
            self._fail(f"its clock does not answer: {raised(error)}")
            return
        if not math.isfinite(value) or value < self._last - _ROUND_OFF_S:
            self._fail(f"its clock went from {self._last:g} to {value:g} s")
            return
        self._last, self._last_wall = max(value, self._last), time.perf_counter()

    def _fail(self, reason: str) -> None:
        if not self.fault:
            self.fault, self._last = reason, self._last if math.isfinite(self._last) else 0.0

    def _pace(self) -> None:
        """Sleep where a real robot's time has passed faster than time does."""
        now, wall = self.now(), time.perf_counter()
        if self._real and self._woken is not None:
            needed = (now - self._woken[0]) / _FASTEST - (wall - self._woken[1])
            time.sleep(min(max(needed, 0.0), _LONGEST_PAUSE_S))
        self._woken = now, time.perf_counter()
