"""What tests of several files share: serve."""

from __future__ import annotations

import numpy as np

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.twin import load_twin

UNITS = load_twin("so101_tabletop").units


CONTRACT = Contract(
    robot_type="so101_follower",
    control_hz=30.0,
    action=UNITS,
    state=UNITS,
    environment=("cube_x", "cube_y"),
    cameras={"front": (24, 32)},
)


TOKEN = "a-token-of-some-length"


class Adding:
    """A decider with a memory: the sum of its observations in this episode."""

    name, hash, contract = "adding", "0" * 64, CONTRACT

    def __init__(self) -> None:
        self.total = np.zeros(6)

    def restart(self, episode: int) -> None:
        self.total = np.zeros(6)

    def act(self, observation) -> np.ndarray:
        self.total = self.total + observation[STATE] + float(observation[f"{IMAGES}front"].mean())
        return self.total

    def report_sent(self, command: np.ndarray) -> None:
        self.total = np.array(command)

    def close(self) -> None:
        pass


def observation(value: float = 1.0) -> dict[str, np.ndarray]:
    image = np.full((24, 32, 3), 2, dtype=np.uint8)
    return {STATE: np.full(6, value), ENVIRONMENT: np.array([0.2, 0.1]), f"{IMAGES}front": image}
