"""Group the parameters of an attribution: by physical cause, by joint, or as a user defines."""

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
    """Parameters that change together, under one name."""

    name: str
    params: tuple[str, ...]

    def text(self) -> str:
        """Format the group's name and parameters, with ``*`` for the parts of names that differ."""
        return f"{self.name}: {', '.join(_abbreviate_names(self.params))}"


def changed_params(twin: Twin, values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names of the parameters whose identified value is not the nominal one, in the twin's order.

    Raises:
        UnknownNameError, BoundsError: the twin has no such parameter, or a value is outside its bounds.
        InputError: all values are nominal, so that there is no difference to attribute.
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
    """Return groups that contain each of some parameters exactly once.

    Args:
        twin: the twin of the parameters.
        names: the parameters, usually `changed_params`.
        by: how parameters outside ``own`` are grouped: by their physical cause (a kind without a cause is a separate
            group), by the joint or object to which they belong, by both, or each alone.
        own: patterns by name of a group, such as ``{"arm gains": ["actuator/shoulder*/kp"]}``. A group without any
            parameter in ``names`` is left out.

    Raises:
        UnknownNameError: ``by`` has another value, or a pattern fits no parameter of the twin.
        InputError: two groups of ``own`` contain the same parameter.
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
    """Parse groups of a command line: ``arm gains=actuator/shoulder*/kp,actuator/elbow*/kp``.

    Raises:
        InputError: a text is not ``NAME=PATTERN,…``, or a name occurs twice.
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
    """Return the physical cause to which a parameter belongs, or the name of its kind if it declares no cause."""
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
    """Return the joint that each actuator drives, by family and name."""
    if twin.spec.robot is None:
        return {}
    return {("actuator", name): joint for name, joint in zip(twin.robot.actuator_names, twin.robot.joints, strict=True)}


def _assign_user_groups(twin: Twin, own: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the user's group of each parameter, by the parameter's name."""
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
    """Return the names with ``*`` as the target if several share the rest."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        family, target, quantity = split_path(name)
        kinds.setdefault("/".join(part for part in (family, "*", quantity) if part), []).append(target)
    counted = {kind: len(np.unique(targets)) for kind, targets in kinds.items()}
    return [kind if counted[kind] > 1 else kind.replace("*", targets[0], 1) for kind, targets in kinds.items()]
