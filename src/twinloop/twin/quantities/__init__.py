"""Declare all quantities: unit, bounds, and the model field of every kind of parameter path.

A path such as ``joint/shoulder_lift/damping`` has a family (``joint``), an object's name and a quantity. The tables
of this package are the only mapping from paths to MuJoCo fields, and the only source of the properties of a quantity
for fits, reports, scenarios and the monitor.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from functools import cache

from twinloop.twin.quantities.actuators import ACTUATORS, ROTORS, TIMING
from twinloop.twin.quantities.appearance import APPEARANCE
from twinloop.twin.quantities.bodies import BODIES, LINKS
from twinloop.twin.quantities.contact import CONTACT
from twinloop.twin.quantities.joints import GEARS, JOINTS
from twinloop.twin.quantities.kinds import FieldSlot, FitDeclaration, Prior, Quantity, Rule, Stage, WriteTarget
from twinloop.twin.quantities.lookup import find_members, find_rows, has_quantity, model_field, nominal_value
from twinloop.twin.quantities.sensing import SENSING
from twinloop.twin.quantities.world import PLACEMENT, PUSHES, SCENE, WORLD

QUANTITIES: list[Quantity] = []
_KINDS: dict[tuple[str, str], list[Quantity]] = {}


def split_path(name: str) -> tuple[str, str, str]:
    """Split ``joint/elbow/damping`` into family, object and quantity; the quantity may contain slashes."""
    family, _, rest = name.partition("/")
    if family == "texture":
        return family, rest, ""
    target, _, quantity = rest.partition("/")
    return family, target, quantity


@cache
def find_kind(path: str) -> Quantity | None:
    """Return the kind of a parameter name or pattern, or None if none is declared."""
    family, target, quantity = split_path(path)
    kinds = find_quantities(family, quantity)
    return next((kind for kind in kinds if kind.member == target), kinds[0] if kinds else None)


def names_of_stage(names: Iterable[str], stage: Stage) -> list[str]:
    """Return the parameters that a stage consumes, in the given order."""
    return [name for name in names if (kind := find_kind(name)) is not None and kind.stage == stage]


def path_patterns(kinds: Sequence[Quantity]) -> tuple[str, ...]:
    """Return paths of kinds; ``*`` replaces the last part if all sibling quantities are among them."""
    found = []
    for kind in kinds:
        stem = kind.path().rpartition("/")[0] + "/*"
        beside = [other for other in QUANTITIES if fnmatch.fnmatchcase(other.path(), stem)]
        whole = "/" in kind.quantity and all(other in kinds for other in beside)
        found.append(stem if whole else kind.path())
    return tuple(dict.fromkeys(found))


def find_quantities(family: str, quantity: str) -> list[Quantity]:
    """Return the kinds of a family and quantity: one, or one per member if members have their own."""
    return list(_KINDS.get((family, quantity), ()))


def default_value(family: str, quantity: str) -> float:
    """Return the value of a kind of parameter in worlds that do not vary it, for quantities outside the model."""
    (default,) = {kind.default for kind in find_quantities(family, quantity)}
    if default is None:
        raise ValueError(f"{family}/*/{quantity} has the value that the model gives it")
    return default


def declare_quantities(kinds: Iterable[Quantity]) -> None:
    """Add kinds of parameter after the existing ones."""
    for kind in kinds:
        QUANTITIES.append(kind)
        _KINDS.setdefault((kind.family, kind.quantity), []).append(kind)
    find_kind.cache_clear()


declare_quantities(
    (
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
)

__all__ = [
    "QUANTITIES",
    "FieldSlot",
    "FitDeclaration",
    "Prior",
    "Quantity",
    "Rule",
    "Stage",
    "WriteTarget",
    "declare_quantities",
    "default_value",
    "find_kind",
    "find_members",
    "find_quantities",
    "find_rows",
    "has_quantity",
    "model_field",
    "names_of_stage",
    "nominal_value",
    "path_patterns",
    "split_path",
]
