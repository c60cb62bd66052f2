"""Define the task to press soft tissue with a given force, which a spring scale below it shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.simulate import InitialState
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import running_maximum
from twinloop.tasks.reaching import BearingFrame
from twinloop.tasks.reactive import PresentState, Rule
from twinloop.tasks.waypoints import set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_TOUCHED = 0.1  # share of the force from which the tissue counts as touched
_NEAR = 0.01  # m: horizontal distance from the tissue's middle within which the expert goes down
_STEP = 0.004  # m: largest correction of the height at a time, and the one before the tissue is touched


@dataclass(frozen=True, kw_only=True)
class PressSettings:
    """Settings of the task, in m, N and s; our choice, no published values.

    Attributes:
        stand: name of the stand's mocap body, whose origin is below the middle of the tissue.
        scale: name of the sliding joint between stand and scale, with a spring; its position is positive downwards.
        force: force with which to press.
        tolerance: allowed error of the force, as a share.
        hold: time for which the force must be kept.
        high: height of the tool site above the tissue, without contact.
        gain: correction of the tool's height per newton that is missing, m/N.
        fingers: centre of the closed fingers in the frame of the tool site.
        duration: length of an episode.
    """

    stand: str
    scale: str
    force: float
    high: float
    gain: float
    tolerance: float = 0.15
    hold: float = 0.5
    fingers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    duration: float = 8.0


class Press(MilestonePhases, OwnTask):
    """Task to press soft tissue with a given force and keep that force."""

    name = "press"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            UnknownNameError: If the twin has no such stand or joint. See `settings.read_settings` for others.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(PressSettings)
        self.instruction = f"Press the tissue with {settings.force:g} newtons."
        self.require_bodies(targets=[settings.stand])
        joints = [one for one in (twin.model.joint(i).name for i in range(twin.model.njnt)) if one]
        if settings.scale not in joints:
            raise UnknownNameError("joint", settings.scale, joints, where=f"the twin {twin.name}, task.{self.name}")
        joint = twin.model.joint(settings.scale)
        self._row, self._stiffness = int(joint.qposadr[0]), float(joint.stiffness[0])

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the force has been within its tolerance for long enough, for each recorded state."""
        settings = self.settings
        right = np.abs(self.force(states) - settings.force) <= settings.tolerance * settings.force
        return self.kept(right, settings.hold)

    def progress(self, states: Array) -> Array:
        """Return the share of the way to the tissue and of the force so far, half each; 1 is success."""
        force, gap = self.force(states), np.linalg.norm(self._way(states), axis=-1)
        near = running_maximum(1.0 - gap / np.maximum(gap[:, :1], 1e-3))
        pressed = running_maximum(1.0 - np.abs(force - self.settings.force) / self.settings.force)
        return np.where(self.success(states), 1.0, 0.475 * (np.nan_to_num(near) + np.nan_to_num(pressed)))

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: tissue touched, and pressed as asked for."""
        settings, force = self.settings, self.force(states)
        most = f"the largest force was {np.nanmax(force):.2f} N"
        ended = f"{most}, the last one {force[-1]:.2f} N; {settings.force:g} N were asked for"
        return [
            Milestone(phase="grasp", passed=force > _TOUCHED * settings.force, failure="never_reached", reason=most),
            Milestone(phase="place", passed=self.success(states[None])[0], failure="timeout", reason=ended),
        ]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: those of every task, and the force that the scale shows in N."""
        return (*super().environment_names, f"{self.settings.scale}.force")

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        return np.concatenate([super().environment(states), np.nan_to_num(self.force(states))[..., None]], axis=-1)

    def force(self, states: Array) -> Array:
        """Return the force that the scale shows, ``(…)`` in N: its spring's stiffness times its position."""
        return self._stiffness * self.qpos(states)[..., self._row]

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules: above the middle of the tissue, and down until the force is right."""
        settings, frame = self.settings, BearingFrame(self.arm.chain, self.arm.home)
        middle = self.start(initial, settings.stand)

        def above(now: PresentState) -> Array:  # now.tool is only used for its number of worlds
            there = set_height(middle + 0.0 * now.tool, settings.high)
            axes = frame.tool_axes(there, np.zeros(len(there)))
            return there - sum(part * axis for part, axis in zip(settings.fingers, axes, strict=True)) * [1.0, 1.0, 0.0]

        def is_above(now: PresentState) -> NDArray[np.bool_]:
            return np.linalg.norm((above(now) - now.tool)[:, :2], axis=1) < _NEAR

        def pressing(now: PresentState) -> Array:
            force = self._stiffness * now.qpos[:, self._row]
            down = np.clip(settings.gain * (settings.force - force), -_STEP, _STEP)
            free = np.maximum(now.tool[:, 2] - settings.high, _STEP)  # the tool may begin above the middle, but higher
            return set_height(above(now), now.tool[:, 2] - np.where(force < _TOUCHED * settings.force, free, down))

        return [
            Rule(name="press", when=is_above, position=pressing, grip=0.0),
            Rule(name="over", when=lambda now: np.ones(len(now.tool), dtype=bool), position=above, grip=0.0),
        ]

    def _way(self, states: Array) -> Array:
        return (self.position(states, "tool") - self.position(states, self.settings.stand)) * [1.0, 1.0, 0.0]
