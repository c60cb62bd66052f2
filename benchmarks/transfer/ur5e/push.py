"""Push a puck to a target with a rod, by rules on the present state.

Check it, in this folder, with ``twinloop tasks check push.py:Push --twin cell.yaml``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState
from twinloop.tasks import OwnTask, Rule, set_height
from twinloop.tasks.predicates import in_disc
from twinloop.tasks.reactive import PresentState

Array = NDArray[np.float64]

_TOUCH = 0.052  # m: from the centre of the puck to the axis of the rod when they touch
_BEHIND = 0.085  # m: the same before the push
_LOW, _HIGH = 0.032, 0.12  # m: heights of the tip during the push, and above the puck
_AHEAD = 0.05  # m: the goal of a push is so far beyond the place of touch, but not farther than the target
_ABOVE = 0.015  # m: largest distance of the rod from its place behind the puck when it goes down
_ASIDE = 0.022  # m: largest distance of the rod from the line through puck and target during the push


class Push(OwnTask):
    """Push the puck to the target."""

    instruction, seconds = "Push the puck to the target.", 9.0

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the puck is within 3 cm of the target, for each recorded state."""
        return in_disc(self.position(states, "puck"), self.position(states, "target"), 0.03)

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules: behind the puck, down, along the line to the target, and up at the end."""
        target, puck = self.start(initial, "target"), self.objects["puck"].qpos

        def way(now: PresentState) -> Array:
            line = (target - now.body(puck)) * [1.0, 1.0, 0.0]
            return line / np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-6)

        def point(now: PresentState, distance: float | Array, height: float) -> Array:
            return set_height(now.body(puck) - distance * way(now), height)

        def pushed(now: PresentState) -> Array:
            left = np.linalg.norm((target - now.body(puck))[:, :2], axis=1, keepdims=True)
            return point(now, _TOUCH - np.minimum(left, _AHEAD), _LOW)

        def is_above(now: PresentState) -> NDArray[np.bool_]:
            return np.linalg.norm((point(now, _BEHIND, 0.0) - now.tool)[:, :2], axis=1) < _ABOVE

        def is_behind(now: PresentState) -> NDArray[np.bool_]:
            gap = (now.body(puck) - now.tool) * [1.0, 1.0, 0.0]
            along = (gap * way(now)).sum(axis=1)
            aside = np.linalg.norm(gap - along[:, None] * way(now), axis=1)
            return (now.tool[:, 2] < _LOW + 0.02) & (aside < _ASIDE) & (along > 0.03) & (along < _BEHIND + 0.015)

        def over(now: PresentState) -> Array:
            raised = now.tool[:, 2:] > _HIGH - 0.02
            return np.where(raised, point(now, _BEHIND, _HIGH), set_height(now.tool, _HIGH))

        return [
            Rule(
                name="done",
                when=lambda now: in_disc(now.body(puck), target, 0.01),
                position=lambda now: set_height(now.tool, _HIGH),
            ),
            Rule(name="push", when=is_behind, position=pushed, pace=0.4),
            Rule(name="down", when=is_above, position=lambda now: point(now, _BEHIND, _LOW)),
            Rule(name="over", when=lambda now: np.ones(len(now.tool), dtype=bool), position=over),
        ]
