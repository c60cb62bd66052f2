"""What a twin's bodies weigh and how, whatever parameters say so: mass, centre of mass, inertia in SI."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin.quantities.log_cholesky import Inertial
from twinloop.twin.quantities.rotation import matrix
from twinloop.twin.twin import Twin


def body_inertial(twin: Twin, table: ParamTable, name: str) -> Inertial:
    """One body in every world of a table.

    Raises:
        UnknownNameError: the twin has no such body.
    """
    names = [twin.model.body(i).name for i in range(1, twin.model.nbody)]
    if name not in names:
        raise UnknownNameError("body", name, names, where=f"twin {twin.name}")
    written, body = twin.fields(table).arrays, twin.model.body(name).id

    def column(field: str) -> NDArray[np.float64]:
        own = np.asarray(getattr(twin.model, field))
        return np.asarray(written[field] if field in written else np.repeat(own[None], table.nworld, axis=0))[:, body]

    return Inertial(
        mass=column("body_mass"),
        com=column("body_ipos"),
        quat=column("body_iquat"),
        inertia=column("body_inertia"),
    )


def inertia_matrix(body: Inertial) -> NDArray[np.float64]:
    """Inertia about the centre of mass in the body's axes, ``(n, 3, 3)`` kg·m²."""
    turn = matrix(body.quat)
    return np.einsum("nij,nj,nkj->nik", turn, body.inertia, turn)


def inertial_text(body: Inertial, world: int = 0) -> str:
    """One world's body in a line: mass, centre of mass, and the inertia about it along the body's axes."""
    com, inertia = body.com[world], inertia_matrix(body)[world]
    along = ", ".join(f"{inertia[i, i]:.4g}" for i in range(3))
    place = ", ".join(f"{value:.4g}" for value in com)
    return f"mass {body.mass[world]:.4g} kg, centre of mass ({place}) m, inertia about it ({along}) kg·m²"
