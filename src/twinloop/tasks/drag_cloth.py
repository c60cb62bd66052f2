"""Define the task to drag a cloth to a target with the closed hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.tasks.arm import mocap_row
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import in_disc, running_maximum
from twinloop.tasks.reaching import BearingFrame
from twinloop.tasks.reactive import PresentState, Rule
from twinloop.tasks.soft import SoftVertices
from twinloop.tasks.waypoints import set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_REST_S = 0.2  # s for which the cloth must stay on the target; our choice
_MOVED = 0.005  # m: a cloth whose centre has moved so far was dragged
_ABOVE = 0.008  # m: largest distance of the hand from the cloth's centre on the way down
_DONE, _STAYS = 0.4, 0.85  # shares of the radius at which the expert lets go, and beyond which it drags again
_DRAG = 0.05  # m: the expert aims at most so far ahead of the hand
_PRESSED = 0.008  # m: below this height above that of a press, the hand presses


@dataclass(frozen=True, kw_only=True)
class ClothSettings:
    """Settings of the task, in m and s; our choice, no published values.

    Attributes:
        cloth: name of the soft body.
        mat: name of the mocap body on which the cloth begins.
        target: name of the target's mocap body.
        radius: distance from the target within which the cloth's centre must be.
        press: height of the tool site above the cloth's centre while the closed hand presses on it.
        high: height of the tool site above the cloth's centre, without contact.
        away: height of the tool site above which the hand has let the cloth go.
        fingers: centre of the closed fingers in the frame of the tool site.
        duration: length of an episode.
    """

    cloth: str
    mat: str
    target: str
    radius: float
    press: float
    high: float
    away: float
    fingers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    duration: float = 8.0


class DragCloth(MilestonePhases, OwnTask):
    """Task to drag a cloth to a target with the closed hand, and to let it go."""

    name = "drag_cloth"
    instruction = "Drag the cloth to the target."

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask`, `settings.read_settings` and `SoftVertices.of` for errors."""
        super().__init__(twin)
        self.settings = self.read_settings(ClothSettings)
        self._mat, _ = (mocap_row(twin, name) for name in (self.settings.mat, self.settings.target))
        self._vertices = SoftVertices.of(twin, self.settings.cloth)

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states; see `OwnTask`. The cloth is flat on its mat."""
        initial = super().reset(params, run_seed=run_seed, episodes=episodes, attempt=attempt)
        home = InitialState.home(self.twin, 1).mocap_pos[0, self._mat]
        return self._vertices.place(initial, home, self._mat)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the cloth has been on the target for 0.2 s with the hand lifted, for each recorded state."""
        free = self.position(states, "tool")[..., 2] > self.settings.away
        return self.kept(self._is_there(states) & free, _REST_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the cloth's initial distance from the target that was covered so far."""
        away = np.linalg.norm(self._way(states), axis=-1) - self.settings.radius
        covered = running_maximum(1.0 - away / np.maximum(away[:, :1], self.settings.radius))
        return np.where(self.success(states), 1.0, 0.95 * np.nan_to_num(covered))

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: cloth dragged, on the target, and let go."""
        centre, radius = self.centre(states), 1000 * self.settings.radius
        moved = np.linalg.norm((centre - centre[0])[:, :2], axis=1)
        left = 1000 * np.nanmin(np.linalg.norm(self._way(states), axis=1))
        near = f"the cloth came within {left:.0f} mm of the target; {radius:.0f} mm are enough"
        last = "the cloth was on the target, but did not stay there with the hand lifted"
        return [
            Milestone(
                phase="transport", passed=moved > _MOVED, failure="never_reached", reason="the cloth never moved"
            ),
            Milestone(phase="release", passed=self._is_there(states), failure="placed_off_target", reason=near),
            Milestone(phase="retreat", passed=self.success(states[None])[0], failure="not_released", reason=last),
        ]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: those of every task, and the cloth's centre and corners."""
        points = ("centre", *(f"corner_{i}" for i in range(4)))
        return (
            *super().environment_names,
            *(f"{self.settings.cloth}.{one}.{axis}" for one in points for axis in "xyz"),
        )

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        corners = self._points(states)[..., self._vertices.corners, :].reshape(*states.shape[:-1], -1)
        return np.nan_to_num(np.concatenate([super().environment(states), self.centre(states), corners], axis=-1))

    def centre(self, states: Array) -> Array:
        """Return the mean position of the cloth's vertices, ``(…, 3)`` in m."""
        return self._points(states).mean(axis=-2)

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules: above the cloth's centre, down, along the line to the target, then up."""
        settings, frame = self.settings, BearingFrame(self.arm.chain, self.arm.home)
        target = self.start(initial, settings.target)

        def centre(now: PresentState) -> Array:
            return self._vertices.positions(now.qpos).mean(axis=1)

        def heights(now: PresentState, above: float) -> Array:
            return centre(now)[:, 2] + above  # the table may be higher or tilted

        def point(now: PresentState, above: float) -> Array:
            """Return the tool's position with the fingers over the cloth's centre."""
            place = set_height(centre(now), heights(now, above))
            axes = frame.tool_axes(place, np.zeros(len(place)))
            offset = sum(part * axis for part, axis in zip(settings.fingers, axes, strict=True))
            return set_height(place - offset, heights(now, above))

        def dragged(now: PresentState) -> Array:
            way = (target - centre(now)) * [1.0, 1.0, 0.0]
            length = np.linalg.norm(way, axis=1, keepdims=True)
            ahead = way * np.minimum(1.0, _DRAG / np.maximum(length, 1e-6))
            return set_height(now.tool + ahead, heights(now, settings.press))

        def lifted(now: PresentState) -> Array:
            return set_height(now.tool, heights(now, settings.high))

        def is_above(now: PresentState) -> NDArray[np.bool_]:
            return np.linalg.norm((point(now, settings.press) - now.tool)[:, :2], axis=1) < _ABOVE

        def is_low(now: PresentState) -> NDArray[np.bool_]:
            return now.tool[:, 2] < heights(now, settings.press) + _PRESSED

        def is_done(now: PresentState) -> NDArray[np.bool_]:
            share = np.where(is_low(now), _DONE, _STAYS)
            return np.linalg.norm((centre(now) - target)[:, :2], axis=1) <= share * settings.radius

        return [
            Rule(name="done", when=is_done, position=lifted, grip=0.0),
            Rule(name="drag", when=is_low, position=dragged, grip=0.0),
            Rule(name="down", when=is_above, position=lambda now: point(now, settings.press), grip=0.0),
            Rule(
                name="over",
                when=lambda now: np.ones(len(now.tool), dtype=bool),
                position=lambda now: point(now, settings.high),
                grip=0.0,
            ),
        ]

    def _points(self, states: Array) -> Array:
        return self._vertices.positions(self.qpos(states))

    def _way(self, states: Array) -> Array:
        return (self.centre(states) - self.position(states, self.settings.target)) * [1.0, 1.0, 0.0]

    def _is_there(self, states: Array) -> NDArray[np.bool_]:
        return in_disc(self.centre(states), self.position(states, self.settings.target), self.settings.radius)
