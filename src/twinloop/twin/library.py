"""Names by which people and other tools call the built-in twins."""

from __future__ import annotations

# Robot names as other tools write them, and the built-in scene that stands for each.
ROBOTS = {
    "franka_panda": "panda_tabletop",
    "panda": "panda_tabletop",
    "so101": "so101_tabletop",
    "so101_follower": "so101_tabletop",
}
# Twins of arms, as the ids of Gymnasium environments write them.
ARMS = {"SO101": "so101_tabletop", "Panda": "panda_tabletop"}
