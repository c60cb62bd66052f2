"""Links of a robot: mass and its distribution, and what hangs at their tool site."""

from __future__ import annotations

import mujoco

from twinloop.twin.quantities.bodies import inertial
from twinloop.twin.quantities.kinds import Quantity, assign
from twinloop.twin.quantities.log_cholesky import INERTIAL_FIELDS, link_log_cholesky, log_cholesky
from twinloop.twin.quantities.rigid import link_body

PAYLOAD = "payload/{}"  # the body that holds a link's payload, see `preparation.add_payload_bodies`


def _no_payload(model: mujoco.MjModel, name: str) -> str:
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, PAYLOAD.format(name))
    return (
        "" if found >= 0 else "it has no site, and a payload hangs at the link's first site. Give it one in the model"
    )


LINKS: tuple[Quantity, ...] = (
    *inertial("link", link_body, mass_writes=("body_mass", "body_inertia", "body_gravcomp")),
    *log_cholesky("link", link_log_cholesky, fields=(*INERTIAL_FIELDS, "body_gravcomp")),
    Quantity(
        family="link",
        quantity="payload",
        unit="kg",
        low=0.0,
        high=100.0,
        slots=assign("body_mass"),
        lacks=_no_payload,
        set_const=True,
        meaning="point mass at the link's first site, as a tool hung there; no controller compensates for it",
    ),
)
