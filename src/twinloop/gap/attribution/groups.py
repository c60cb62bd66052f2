"""Group the parameters of an attribution by physical cause, by joint, or as a user defines."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin import Twin
from twinloop.twin.quantities import find_kind, split_path
from twinloop.twin.quantities.kinds import CAUSES

By = Literal["quantity", "joint", "quantity and joint", "parameter"]


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that change from nominal to identified together, under one name."""

    name: str
    params: tuple[str, ...]

    def text(self) -> str:
        """Return the group's name and parameters as text; ``*`` replaces the parts of names that differ."""
        return f"{self.name}: {', '.join(_abbreviate_names(self.params))}"


def changed_params(twin: Twin, values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names of the parameters whose identified value differs from the nominal one, in the twin's order.

    Args:
        twin: The twin.
        values: Identified values in SI units, by name.

    Raises:
        UnknownNameError, BoundsError: If the twin has no such parameter, or a value is outside its bounds.
        InputError: If all values are nominal, so that there is no difference to attribute.
    """
    for name, value in values.items():
        twin.find_param(name).check(value, where="the identified parameters")
    changed = tuple(name for name in twin.params if name in values and values[name] != twin.params[name].nominal)
    if not changed:
        raise InputError(
            f"The identified parameters are the nominal ones of {twin.name}: there is no difference to attribute. "
            "Give the result of an identify run."
        )
    return changed


def parameter_groups(
    twin: Twin, names: Sequence[str], *, by: By = "quantity", own: Mapping[str, Sequence[str]] | None = None
) -> tuple[ParameterGroup, ...]:
    """Divide parameters into groups, each parameter into exactly one.

    Args:
        twin: The twin of the parameters.
        names: Names of the parameters, usually `changed_params`.
        by: How parameters outside ``own`` are grouped. ``quantity``: by physical cause, such as ``dry friction`` (a
            kind of parameter that has no declared cause is a group of its kind). ``joint``: by the joint or object to
            which they belong. ``quantity and joint``: by both. ``parameter``: every parameter is a group.
        own: Patterns of a user's groups, by name of the group, such as ``{"arm gains": ["actuator/shoulder*/kp"]}``. A
            group without any parameter in ``names`` is left out.

    Raises:
        UnknownNameError: If ``by`` has another value, or a pattern fits no parameter of the twin.
        InputError: If two groups of ``own`` contain the same parameter.
    """
    if by not in get_args(By):
        raise UnknownNameError("grouping", by, get_args(By))
    given = own or {}
    labels, owners = _assign_user_groups(twin, given), _map_actuators_to_joints(twin)
    members: dict[str, list[str]] = {name: [] for name in given}
    for name in sorted(names, key=list(twin.params).index):
        members.setdefault(labels.get(name) or _label(name, by, owners), []).append(name)
    order = [*given, *(cause for cause in CAUSES if cause not in given)]
    ranked = sorted(members, key=lambda label: order.index(label) if label in order else len(order))
    return tuple(ParameterGroup(name=label, params=tuple(members[label])) for label in ranked if members[label])


def read_groups(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse groups of a command line, such as ``arm gains=actuator/shoulder*/kp,actuator/elbow*/kp``.

    Returns:
        Patterns of each group, by name of the group.

    Raises:
        InputError: If a text is not ``NAME=PATTERN,…``, or a name occurs twice.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, patterns = text.partition("=")
        parts = tuple(part.strip() for part in patterns.split(",") if part.strip())
        if not equals or not name.strip() or not parts:
            raise InputError(f"--group '{text}' is not a group. Write NAME=PATTERN,…, such as 'gains=actuator/*/kp'.")
        if name.strip() in groups:
            raise InputError(f"--group {name.strip()} is given twice. Put all its patterns into one.")
        groups[name.strip()] = parts
    return groups


def find_cause(name: str) -> str:
    """Return the physical cause to which a parameter belongs, such as ``servo gain``.

    If the parameter's kind declares no cause, return the name of the kind.
    """
    kind = find_kind(name)
    if kind is not None and kind.cause:
        return kind.cause
    family, _, quantity = split_path(name)
    return f"{family} {quantity.replace('_', ' ')}".strip()


def _label(name: str, by: By, owners: Mapping[tuple[str, str], str]) -> str:
    family, target, _ = split_path(name)
    owner = owners.get((family, target), target)
    return {
        "quantity": find_cause(name),
        "joint": owner,
        "quantity and joint": f"{find_cause(name)}, {owner}",
        "parameter": name,
    }[by]


def _map_actuators_to_joints(twin: Twin) -> dict[tuple[str, str], str]:
    """Return the joint that each actuator drives; a key is ``("actuator", name of the actuator)``."""
    if twin.spec.robot is None:
        return {}
    return {("actuator", name): joint for name, joint in zip(twin.robot.actuator_names, twin.robot.joints, strict=True)}


def _assign_user_groups(twin: Twin, own: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the name of the user's group that contains each parameter, by name of the parameter."""
    claimed: dict[str, str] = {}
    for label, patterns in own.items():
        for pattern in patterns:
            found = fnmatch.filter(twin.params, pattern)
            if not found:
                raise UnknownNameError("parameter", pattern, twin.params, where=f"group '{label}'")
            for name in found:
                other = claimed.setdefault(name, label)
                if other != label:
                    raise InputError(f"The groups '{other}' and '{label}' both contain {name}. Keep it in one of them.")
    return claimed


def _abbreviate_names(names: Sequence[str]) -> list[str]:
    """Return parameter names, in which ``*`` replaces the joint or object if several names share the rest."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        family, target, quantity = split_path(name)
        kinds.setdefault("/".join(part for part in (family, "*", quantity) if part), []).append(target)
    counted = {kind: len(np.unique(targets)) for kind, targets in kinds.items()}
    return [kind if counted[kind] > 1 else kind.replace("*", targets[0], 1) for kind, targets in kinds.items()]
