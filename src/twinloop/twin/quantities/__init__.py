"""What can be a parameter: for each kind of path its unit, bounds, and the one place in the model it is written to.

A path reads like ``joint/shoulder_lift/damping``: a family (``joint``), an object's name, a quantity. The tables
of this package are the only mapping from paths to MuJoCo fields.
"""

from twinloop.twin.quantities.actuators import ACTUATORS, ROTORS, TIMING
from twinloop.twin.quantities.appearance import APPEARANCE
from twinloop.twin.quantities.bodies import BODIES, LINKS
from twinloop.twin.quantities.contact import CONTACT
from twinloop.twin.quantities.joints import GEARS, JOINTS
from twinloop.twin.quantities.kinds import Quantity, Rule, Slot, Stage, Target
from twinloop.twin.quantities.lookup import has_quantity, members, model_field, nominal_value, rows
from twinloop.twin.quantities.sensing import SENSING
from twinloop.twin.quantities.world import PLACEMENT, PUSHES, SCENE, WORLD

QUANTITIES: tuple[Quantity, ...] = (
    *JOINTS,
    *ACTUATORS,
    *GEARS,
    *ROTORS,
    *LINKS,
    *BODIES,
    *CONTACT,
    *PLACEMENT,
    *WORLD,
    *PUSHES,
    *SCENE,
    *TIMING,
    *APPEARANCE,
    *SENSING,
)


_KINDS: dict[tuple[str, str], list[Quantity]] = {}
for _kind in QUANTITIES:
    _KINDS.setdefault((_kind.family, _kind.quantity), []).append(_kind)


def find_quantities(family: str, quantity: str) -> list[Quantity]:
    """The kinds of parameter of that family and quantity: one, or one for each member that has its own."""
    return list(_KINDS.get((family, quantity), ()))


def default_value(family: str, quantity: str) -> float:
    """The value that a kind of parameter has in worlds that do not vary it; only where no model says it."""
    (default,) = {kind.default for kind in find_quantities(family, quantity)}
    if default is None:
        raise ValueError(f"{family}/*/{quantity} has the value that the model gives it")
    return default


__all__ = [
    "QUANTITIES",
    "Quantity",
    "Rule",
    "Slot",
    "Stage",
    "Target",
    "default_value",
    "find_quantities",
    "has_quantity",
    "members",
    "model_field",
    "nominal_value",
    "rows",
]
