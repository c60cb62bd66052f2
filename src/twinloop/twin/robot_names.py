"""Map robot names of other tools, such as LeRobot and Gymnasium, to the built-in twins."""

from __future__ import annotations

# Robot names in other tools, and the built-in twin of each.
ROBOTS = {
    "franka_panda": "panda_tabletop",
    "panda": "panda_tabletop",
    "so101": "so101_tabletop",
    "so101_follower": "so101_tabletop",
}
# Twins of arms by their names in the ids of Gymnasium environments.
ARMS = {"SO101": "so101_tabletop", "Panda": "panda_tabletop"}
