"""Checks of a simulated episode's states: penetration, energy, objects that teleport or float, and the next state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measured
from twinloop.curate.judging import KnownLimitCheck
from twinloop.curate.motion import longest
from twinloop.curate.physics.account import Account, account_of
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins

Array = NDArray[np.float64]

_FALLS = 0.5  # of g: less of it in the velocity's change, and something holds it up
_BEFORE_MM = 30.0  # a step of a logged pose that follows steps so long is a fast motion


class StateCheck(KnownLimitCheck):
    """A check of the whole world's states, made with the episode's own drawn parameters."""

    reads = frozenset({"states"})

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def account(self, recording: Recording) -> Account:
        """See `account_of`."""
        return account_of(recording, self._twins)


class Penetration(StateCheck):
    """Bodies that lie deeper within each other than their contact gives way.

    A MuJoCo contact stiffens over the ``width`` of its ``solimp`` and is as stiff as it gets from there on. The figure
    is the deepest contact in widths.
    """

    name = "physics/penetration"
    meaning = "bodies lie within each other deeper than a soft contact gives way"
    unit = "widths"
    limit, bad = 4.0, 8.0
    source = "widths of the contact's solimp; a firm grasp takes one or two (docs/quality.md)"

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        found = self.account(recording)
        ratio = found.depth / np.maximum(found.norm, 1e-6)
        if not found.depth.any():
            return [Measured(value=0.0, said="Nothing touches.")]
        at = int(np.argmax(ratio))
        said = f"{found.pair[at]} lie {1e3 * found.depth[at]:.2f} mm within each other at frame {at}"
        said += f", {ratio[at]:.2f} times the contact's width."
        return [Measured(value=float(ratio[at]), said=said, first_frame=at, last_frame=at)]


class EnergyJumps(StateCheck):
    """Mechanical energy that rises faster than drives at their force limits can have worked.

    The figure is the rise in one control step that no drive explains, over the episode's range of energy.
    """

    name = "physics/energy"
    meaning = "mechanical energy rises faster than the drives can work"
    unit = "J"
    limit, bad = 0.01, 0.05
    source = "what soft contacts give back stays below (docs/quality.md)"

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        found = self.account(recording)
        if not np.isfinite(found.work).any():
            return [Measured(value=None, said="A drive without a force limit, or pushes, could add any energy.")]
        excess = np.diff(found.energy) - found.work
        at = int(np.argmax(excess))
        said = f"Energy rises by {found.energy[at + 1] - found.energy[at]:.4f} J after frame {at}, where the drives "
        said += f"could do {found.work[at]:.4f} J."
        return [Measured(value=max(float(excess[at]), 0.0), said=said, first_frame=at, last_frame=at + 1)]


class Teleports(KnownLimitCheck):
    """Objects that go further in one step than their speed before or after it, and a fall, carry them."""

    name = "physics/teleport"
    meaning = "an object goes further in one step than its speed and gravity carry it"
    unit = "mm"
    limit, bad = 3.0, 10.0
    source = "further than the faster of its two speeds and a free fall carry it"

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        made = [self._row(name, _steps(p, t), None, _gravity(t)) for name, t, p in _logged(recording)]
        if recording.states is None:
            return made or [Measured(value=None, said="It holds neither states nor poses of objects.")]
        found = account_of(recording, self._twins)
        speed = np.linalg.norm(found.velocity, axis=2)
        for place, name in enumerate(found.objects):
            carried = np.maximum(speed[1:, place], speed[:-1, place]) * np.diff(found.time)
            made.append(self._row(name, _steps(found.position[:, place], found.time), carried, _gravity(found.time)))
        return made or [Measured(value=None, said="Nothing moves freely.")]

    @staticmethod
    def _row(name: str, gone: Array, carried: Array | None, falls: Array) -> Measured:
        if carried is None:  # no speeds were logged: the steps before and after tell them
            wide = np.concatenate([gone[:1], gone, gone[-1:]])
            carried = np.maximum(wide[:-2], wide[2:]) + _BEFORE_MM * 1e-3
        excess = gone - carried - falls
        at = int(np.argmax(excess)) if len(excess) else 0
        value = max(float(excess[at]), 0.0) if len(excess) else 0.0
        said = f"{name} goes {1e3 * gone[at]:.1f} mm after frame {at}, {1e3 * value:.1f} mm further than its speed and "
        said += "gravity carry it."
        return Measured(value=1e3 * value, channel=name, said=said, first_frame=at, last_frame=at + 1)


def _logged(recording: Recording) -> list[tuple[str, Array, Array]]:
    """Poses of bodies that a log holds: name, times and positions."""
    signals = recording.raw.signals.items()
    return [(n.removeprefix("pose/"), s.time, s.values[:, :3]) for n, s in signals if n.startswith("pose/") and len(s)]


def _steps(position: Array, _time: Array) -> Array:
    return np.linalg.norm(np.diff(position, axis=0), axis=1)


def _gravity(time: Array) -> Array:
    return 0.5 * 9.81 * np.diff(time) ** 2


class Floating(StateCheck):
    """Objects that touch nothing and do not fall."""

    name = "physics/float"
    meaning = "an object rests or glides in the air, touching nothing"
    unit = "s"
    limit, bad = 0.08, 0.2
    source = "a contact that is open for a moment lasts a step or two"

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        found = self.account(recording)
        dt = np.diff(found.time)
        pull = float(np.linalg.norm(found.fall))
        if not found.objects or pull == 0:
            return [Measured(value=None, said="Nothing moves freely under gravity.")]
        gained = np.diff(found.velocity, axis=0) / dt[:, None, None]
        falls = gained @ (found.fall / pull)
        made = []
        for place, name in enumerate(found.objects):
            held = ~found.touched[:, place] & (falls[:, place] < _FALLS * pull)
            first, stop = longest(held)
            seconds = float(dt[first:stop].sum())
            said = f"{name} touches nothing from frame {first} to {stop} ({seconds:.2f} s) and does not fall."
            made.append(Measured(value=seconds, channel=name, said=said, first_frame=first, last_frame=stop))
        return made


class NextState(StateCheck):
    """States that do not follow from those before them under the recorded commands and the drawn parameters.

    Every control step is made again from its stored state, and compared with the next stored one.
    """

    name = "physics/next_state"
    meaning = "a state does not follow from the one before it, by the twin with the episode's own parameters"
    unit = "rad or m"
    limit, bad = 1e-4, 1e-3
    source = "backends in single precision stay within 2e-6 in a second (docs/architecture.md)"

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        found = self.account(recording)
        at = int(np.argmax(found.miss))
        wrong = np.flatnonzero(found.miss > self.limit)
        said = (
            f"The state of {found.miss_joint[at]} after frame {at} is {found.miss[at]:.3g} rad or m from the one that "
        )
        said += f"follows; {len(wrong)} of {len(found.miss)} steps do not follow."
        first, last = (int(wrong[0]), int(wrong[-1] + 1)) if len(wrong) else (at, at + 1)
        return [Measured(value=float(found.miss[at]), said=said, first_frame=first, last_frame=last)]
