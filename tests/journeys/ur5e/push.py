"""Push the puck to a place on the table."""

import numpy as np

from twinloop.tasks import OwnTask, Waypoint, WaypointExpert, set_height
from twinloop.tasks.predicates import in_disc

TARGET = np.array([0.1, 0.55, 0.03])


class Push(OwnTask):
    """Push the puck to the target, in two pushes: the second one corrects the first."""

    instruction, seconds = "Push the puck to the target.", 10.0

    def success(self, states):
        return in_disc(self.position(states, "puck"), TARGET, 0.04)

    def expert(self, initial):
        puck = self.objects["puck"]

        def goal(height, distance, centre=None):
            def place(now):
                thing = now.body(puck.qpos)
                line = (TARGET - (thing if centre is None else now.tool)) * [1, 1, 0]
                way = line / np.linalg.norm(line, axis=1, keepdims=True)
                point = set_height((thing if centre is None else centre) - distance * way, height)
                return np.where(in_disc(thing, TARGET, 0.015)[:, None], now.tool, point)

            return place

        return WaypointExpert(
            self.arm,
            initial,
            2
            * [
                Waypoint(name="over", position=goal(0.2, 0.12)),
                Waypoint(name="down", position=goal(0.04, 0.12)),
                Waypoint(name="push", position=goal(0.04, 0.05, TARGET), pace=0.5),
                Waypoint(name="up", position=lambda now: set_height(now.tool, 0.2)),
            ],
        )
