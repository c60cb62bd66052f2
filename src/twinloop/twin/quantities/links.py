"""Links of a robot: mass and its distribution, payload; bodies that stand still: where."""

from __future__ import annotations

from twinloop.twin.quantities.bodies import inertial
from twinloop.twin.quantities.kinds import Quantity
from twinloop.twin.quantities.rigid import link_body, no_payload

_MASS = ("body_mass", "body_inertia", "body_gravcomp")

LINKS: tuple[Quantity, ...] = (
    *inertial("link", link_body, mass_writes=_MASS),
    Quantity(
        family="link",
        quantity="payload",
        unit="kg",
        low=0.0,
        high=100.0,
        default=0.0,
        compute=link_body,
        writes=(*_MASS, "body_ipos", "body_iquat"),
        lacks=no_payload,
        set_const=True,
        meaning="point mass at the link's first site, as a tool hung there; no controller compensates for it",
    ),
)
