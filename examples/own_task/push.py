"""Push the cube to the target: a task of one's own with a scripted expert, for any arm with a tool that points down.

    twinloop tasks check examples/own_task/push.py:Push --twin so101_tabletop

Lengths are for the SO-101; for another arm derive a class that has others.
"""

import numpy as np

from twinloop.tasks import BearingFrame, OwnTask, Waypoint, WaypointExpert, set_height
from twinloop.tasks.predicates import in_disc


class Push(OwnTask):
    """Push the cube to the target."""

    instruction, seconds = "Push the cube to the target.", 15.0
    behind, touch, low, high = 0.05, 0.024, 0.018, 0.06  # m: jaws to cube before and during the push, and heights
    jaws = 0.010  # m: from the tool site to the centre of the closed jaws, against the site's z axis

    def success(self, states):
        return in_disc(self.position(states, "cube"), self.position(states, "target"), 0.03)

    def expert(self, initial):
        target, cube = self.start(initial, "target"), self.objects["cube"]
        frame = BearingFrame(self.arm.chain, self.arm.home)

        def goal(height, distance, centre=None):  # behind the cube or another centre, as seen from the target
            def place(now):
                thing = now.body(cube.qpos)
                line = (target - (thing if centre is None else now.tool)) * [1, 1, 0]
                way = line / np.linalg.norm(line, axis=1, keepdims=True)
                point = set_height((thing if centre is None else centre) - distance * way, height)
                point = point + self.jaws * frame.tool_axes(point, np.zeros(len(point)))[2]
                return np.where(in_disc(thing, target, 0.015)[:, None], now.tool, point)

            return place

        push = [
            Waypoint(name="over", position=goal(self.high, self.behind), gripper="closed"),
            Waypoint(name="down", position=goal(self.low, self.behind)),
            Waypoint(name="push", position=goal(self.low, self.touch, target), pace=0.5),
            Waypoint(name="up", position=lambda now: set_height(now.tool, self.high)),
        ]
        return WaypointExpert(self.arm, initial, 3 * push)  # later pushes correct the first
