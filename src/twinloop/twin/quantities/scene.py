"""The scene: how many things of a group there are, and which shape each has.

What a scene holds is written into the model as texts ``scene/count/<group>`` and ``scene/shape/<body>`` when it is
built (`twin.scene_build`), so that a model alone says which of these parameters it has. Both are whole numbers: the
whole part of a value counts, and the upper bound stands for the number below it, so that a uniform draw over the
bounds gives every number the same chance.
"""

from __future__ import annotations

import mujoco

from twinloop.twin.quantities.kinds import Quantity

SCENE: tuple[Quantity, ...] = (
    Quantity(
        family="scene",
        quantity="count",
        unit="1",
        low=0.0,
        high=1e3,
        default=0.0,
        stage="scene",
        meaning="how many things of a group there are; its whole part counts",
    ),
    Quantity(
        family="scene",
        quantity="shape",
        unit="1",
        low=0.0,
        high=1e6,
        default=0.0,
        stage="scene",
        meaning="which of its shapes a thing has; its whole part counts",
    ),
)


def scene_members(model: mujoco.MjModel, quantity: str) -> list[str]:
    """Groups that have a count, or bodies that have a shape to choose."""
    prefix = f"scene/{quantity}/"
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
