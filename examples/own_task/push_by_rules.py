"""Push the cube to the target by rules on the present state: an expert that can teach policies on-policy.

    twinloop tasks check examples/own_task/push_by_rules.py:PushByRules --twin so101_tabletop
    twinloop distill push.yaml --output policies/push    # with `task: push_by_rules.py:PushByRules`

The first rule that holds gives the goal of the tool. Lengths are for the SO-101, as in push.py.
"""

import numpy as np

from twinloop.tasks import BearingFrame, OwnTask, Rule, set_height
from twinloop.tasks.predicates import in_disc


class PushByRules(OwnTask):
    """Push the cube to the target."""

    instruction, seconds = "Push the cube to the target.", 15.0
    behind, touch, low, high = 0.05, 0.024, 0.018, 0.06  # m: jaws to cube before and during the push, and heights
    jaws = 0.010  # m: from the tool site to the centre of the closed jaws, against the site's z axis

    def success(self, states):
        return in_disc(self.position(states, "cube"), self.position(states, "target"), 0.03)

    def rules(self, initial):
        target, cube = self.start(initial, "target"), self.objects["cube"]
        frame = BearingFrame(self.arm.chain, self.arm.home)

        def way(now):
            line = (target - now.body(cube.qpos)) * [1, 1, 0]
            return line / np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-6)

        def point(now, distance, height):  # of the tool, whose jaws are behind the cube
            there = set_height(now.body(cube.qpos) - distance * way(now), height)
            return there + self.jaws * frame.tool_axes(there, np.zeros(len(there)))[2]

        def is_near(now, distance, within):
            return np.linalg.norm((point(now, distance, 0.0) - now.tool)[:, :2], axis=1) < within

        def is_behind(now):  # low, and on the line through the cube
            gap = (point(now, 0.0, 0.0) - now.tool) * [1, 1, 0]
            along = (gap * way(now)).sum(axis=1)
            beside = np.linalg.norm(gap - along[:, None] * way(now), axis=1)
            low = now.tool[:, 2] < self.low + 0.02
            return low & (beside < 0.012) & (along > 0.012) & (along < self.behind + 0.012)

        def over(now):  # upwards first, then above the place behind the cube
            there = point(now, self.behind, self.high)
            raised = now.tool[:, 2:] > self.high - 0.015
            return np.where(raised, there, set_height(now.tool, self.high))

        return [
            Rule(
                name="done",
                when=lambda now: in_disc(now.body(cube.qpos), target, 0.012),
                position=lambda now: set_height(now.tool, self.high),
                grip=0.0,
            ),
            Rule(
                name="push",
                when=is_behind,
                position=lambda now: point(now, self.touch - 0.02, self.low),
                grip=0.0,
                pace=0.5,
            ),
            Rule(
                name="down",
                when=lambda now: is_near(now, self.behind, 0.012),
                position=lambda now: point(now, self.behind, self.low),
                grip=0.0,
            ),
            Rule(name="over", when=lambda now: np.ones(len(now.tool), dtype=bool), position=over, grip=0.0),
        ]
