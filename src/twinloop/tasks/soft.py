"""Read the vertices of soft bodies (MuJoCo flexes), and place soft and free bodies together with a mocap body."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.simulate import InitialState
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors
from twinloop.twin.quantities.soft import find_flex, list_flexes

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SoftVertices:
    """Vertices of a soft body, each of which has three slide joints along the world's axes.

    Attributes:
        rest: positions of the n vertices where their joints are 0, ``(n, 3)`` in m.
        home: their positions in the home pose, ``(n, 3)`` in m.
        qpos: their indices in qpos, ``(n, 3)``.
        qvel: their indices in qvel, ``(n, 3)``.
    """

    rest: Array
    home: Array
    qpos: NDArray[np.intp]
    qvel: NDArray[np.intp]

    @classmethod
    def of(cls, twin: Twin, name: str) -> SoftVertices:
        """Return the vertices of a soft body of a twin.

        Raises:
            UnknownNameError: If the twin has no soft body of that name.
            InputError: If a vertex is pinned, belongs to a moving body, or has no joints of its own.
        """
        model = twin.model
        if name not in list_flexes(model):
            raise UnknownNameError("soft body", name, list_flexes(model), where=f"the twin {twin.name}")
        flex = find_flex(model, name)
        first, count = int(model.flex_vertadr[flex]), int(model.flex_vertnum[flex])
        bodies = model.flex_vertbodyid[first : first + count]
        if (model.body_jntnum[bodies] != 3).any() or model.body_parentid[bodies].any():
            raise InputError(
                f"The vertices of the soft body {name} of {twin.name} do not all move freely in the world. Give it "
                'dof="full" and no pins, as a child of the worldbody.'
            )
        joints = model.body_jntadr[bodies][:, None] + np.arange(3)
        rest, qpos = model.body_pos[bodies].copy(), model.jnt_qposadr[joints].astype(np.intp)
        home, _ = twin.home()
        return cls(rest=rest, home=rest + home[qpos], qpos=qpos, qvel=model.jnt_dofadr[joints].astype(np.intp))

    @property
    def corners(self) -> NDArray[np.intp]:
        """Indices of the four vertices that are furthest out in the home pose, counterclockwise, ``(4,)``."""
        directions = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
        return np.argmax(self.home[:, :2] @ directions.T, axis=0)

    def positions(self, qpos: Array) -> Array:
        """Return the positions of the vertices, ``(…, n, 3)`` in m, for positions of joints ``(…, nq)``."""
        return self.rest + qpos[..., self.qpos]

    def place(self, initial: InitialState, home: Array, base: int) -> InitialState:
        """Return initial states in which the soft body has its home shape, moved together with a mocap body.

        Args:
            initial: states of the worlds, in which the mocap body is at its place.
            home: position of the mocap body in the home pose, ``(3,)`` in m; it is not rotated there.
            base: row of the mocap body in ``mocap_pos``.
        """
        offsets = np.broadcast_to(self.home - home, (initial.nworld, *self.home.shape))
        moved = rotate_vectors(initial.mocap_quat[:, None, base], offsets)
        qpos = initial.qpos.copy()
        qpos[:, self.qpos] = initial.mocap_pos[:, None, base] + moved - self.rest
        return replace(initial, qpos=qpos)


def move_bodies(initial: InitialState, rows: NDArray[np.intp], home: Array, base: int) -> InitialState:
    """Return initial states in which free bodies are moved together with a mocap body, as one rigid body.

    Args:
        initial: states of the worlds, in which the mocap body is at its place.
        rows: first index in qpos of each of the n free bodies, ``(n,)``.
        home: their poses relative to the mocap body in the home pose, position and quaternion wxyz, ``(n, 7)``.
        base: row of the mocap body in ``mocap_pos``.
    """
    qpos, turn = initial.qpos.copy(), initial.mocap_quat[:, None, base]
    offsets = np.broadcast_to(home[:, :3], (initial.nworld, len(rows), 3))
    qpos[:, rows[:, None] + np.arange(3)] = initial.mocap_pos[:, None, base] + rotate_vectors(turn, offsets)
    qpos[:, rows[:, None] + np.arange(3, 7)] = quat_multiply(turn, home[:, 3:])
    return replace(initial, qpos=qpos)
