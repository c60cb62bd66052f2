"""Declare all quantities, which are the kinds of parameters of a twin, and find them by name.

A parameter name such as ``joint/shoulder_lift/damping`` has a family (``joint``), an object's name and a quantity. The
tables of this package are the only mapping from parameter names to MuJoCo fields, and the only source of a quantity's
unit, bounds and other properties for fits, reports, scenarios and the monitor.
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
from twinloop.twin.quantities.kinds import FieldSlot, FitDeclaration, ObjectWriter, Prior, Quantity, Rule, Stage
from twinloop.twin.quantities.lookup import find_members, find_rows, has_quantity, model_field, nominal_value
from twinloop.twin.quantities.sensing import SENSING
from twinloop.twin.quantities.soft import SOFT
from twinloop.twin.quantities.world import PLACEMENT, PUSHES, RESIDUAL, SCENE, WORLD

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
    """Return the declaration for a parameter name or pattern, or None if there is none."""
    family, target, quantity = split_path(path)
    kinds = find_quantities(family, quantity)
    return next((kind for kind in kinds if kind.member == target), kinds[0] if kinds else None)


def names_of_stage(names: Iterable[str], stage: Stage) -> list[str]:
    """Return the parameter names that one part of the program uses, in the given order.

    Args:
        names: Parameter names.
        stage: Part of the program, a value of `Quantity.stage`, for example ``encoder`` for the simulation of joint
            encoders.
    """
    return [name for name in names if (kind := find_kind(name)) is not None and kind.stage == stage]


def path_patterns(kinds: Sequence[Quantity]) -> tuple[str, ...]:
    """Return patterns of parameter names for some quantities, as few as possible.

    Names that differ only in their last part become one pattern that ends with ``*``, if ``kinds`` has all quantities
    that match this pattern.
    """
    patterns = []
    for kind in kinds:
        stem = kind.path().rpartition("/")[0] + "/*"
        siblings = [other for other in QUANTITIES if fnmatch.fnmatchcase(other.path(), stem)]
        whole = "/" in kind.quantity and all(other in kinds for other in siblings)
        patterns.append(stem if whole else kind.path())
    return tuple(dict.fromkeys(patterns))


def find_quantities(family: str, quantity: str) -> list[Quantity]:
    """Return the declarations of a quantity from the first and the last part of its parameters' names.

    For ``timing/command/jitter`` these are the family ``timing`` and the quantity ``jitter``. There is usually one
    declaration. Quantities that belong to no object of the model may have several, which differ in the middle part of
    the name (`Quantity.member`, here ``command``).
    """
    return list(_KINDS.get((family, quantity), ()))


def default_value(family: str, quantity: str) -> float:
    """Return the default value of a quantity that is not in the model.

    Args:
        family: First part of the names of its parameters, for example ``timing``.
        quantity: Last part of these names, for example ``jitter``.

    Raises:
        ValueError: If the quantity has no default, because the model gives its value.
    """
    (default,) = {kind.default for kind in find_quantities(family, quantity)}
    if default is None:
        raise ValueError(f"{family}/*/{quantity} has the value that the model gives it")
    return default


def declare_quantities(kinds: Iterable[Quantity]) -> None:
    """Add declarations of quantities to the global list `QUANTITIES`, after the existing ones."""
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
        *SOFT,
        *CONTACT,
        *PLACEMENT,
        *WORLD,
        *PUSHES,
        *RESIDUAL,
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
    "ObjectWriter",
    "Prior",
    "Quantity",
    "Rule",
    "Stage",
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
