"""Define model structures (optional physical effects that a twin may lack), which `compare` tests on real data.

A structure adds parameters to a fit. With ``gears`` the twin is compiled with two joints per robot joint: one before
the gear (motor) and one after it (link). A user's own structures are a YAML list with these keys:

- ``name``: a short name.
- ``meaning``: the physics in words.
- ``frees``: patterns of the parameters that the fit may change.
- ``neutral``: values at which the physics has no effect, SI.
- ``start`` and ``priors``: start values (SI) and priors of the fit. ``spread`` is the standard deviation, see `Prior`.
- ``gears`` and ``needs``: gears to add to the twin, and whether contacts are simulated, see `Structure`.

Example::

    - name: springs
      meaning: a spring in every joint
      frees: ["joint/*/stiffness"]
      neutral: {"joint/*/stiffness": 0.0}
      start: {"joint/*/stiffness": 0.1}
      priors: {"joint/*/stiffness": {spread: 0.5}}
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin import Twin
from twinloop.twin.gear import largest_gear_stiffness
from twinloop.twin.quantities import QUANTITIES, Prior, find_kind
from twinloop.twin.spec import GearSpec, ParamSpec, describe_errors
from twinloop.twin.variant import add_twin_gears, declare_params

# Start stiffness of elastic gears, as a part of the highest one that the physics step resolves; our choice.
_ELASTIC = 0.25
# Start no-load speed of the torque-speed curve, as a multiple of the fastest joint speed in the log; our choice.
_NO_LOAD = 2.0


class Structure(BaseModel):
    """Model structure: one physical effect that the twin may lack, as parameters that a fit may add.

    Attributes:
        name: Short name.
        meaning: The physics in words.
        frees: Name patterns, such as ``joint/*/stiffness`` (* and ? as for file names), of the parameters that the
            structure adds to the free parameters of a fit.
        neutral: Values by pattern at which the physics is absent, SI; for other parameters it is absent at their
            nominal value.
        start: Start values of the fit by pattern, SI. They must differ from the neutral values, because derivatives may
            be zero there.
        priors: Priors by pattern, see `Prior`.
        gears: Gears to compile into the twin: ``none``, ``play`` (rigid gears with backlash) or ``elastic``.
        needs: ``contacts`` if the replay must simulate contacts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    meaning: str
    frees: tuple[str, ...] = Field(min_length=1)
    neutral: Mapping[str, float] = {}
    start: Mapping[str, float] = {}
    priors: Mapping[str, Prior] = {}
    gears: Literal["none", "play", "elastic"] = "none"
    needs: Literal["nothing", "contacts"] = "nothing"

    def apply_to(self, twin: Twin, episodes: Sequence[Episode]) -> Twin:
        """Return the twin with this physics enabled: gears are compiled in, and its parameters are declared.

        Args:
            twin: The twin without the physics.
            episodes: Episodes of the log; their speeds give the initial no-load speed of motors.

        Raises:
            InputError: If the twin has no part to which the physics applies.
        """
        if self.gears != "none":
            twin = add_twin_gears(twin, _make_gear_spec(twin, elastic=self.gears == "elastic"))
        rows = []
        for pattern in self.frees:
            kind = find_kind(pattern)
            missing = kind.fit.missing if kind else None
            nominal = _initial_no_load_speed(twin, episodes) if missing and missing.above_speed else None
            if nominal is not None or not fnmatch.filter(twin.params, pattern):
                rows.append(ParamSpec(name=pattern, nominal=nominal, source=f"structure {self.name}"))
        twin = declare_params(twin, rows) if rows else twin
        if not any(fnmatch.filter(twin.params, pattern) for pattern in self.frees):
            raise InputError(f"the twin {twin.name} has no parameter that matches {' or '.join(self.frees)}")
        return twin

    def names(self, twin: Twin) -> tuple[str, ...]:
        """Return the names of the parameters that the structure adds to ``twin``, which is the result of `apply_to`."""
        matching = [name for pattern in self.frees for name in fnmatch.filter(twin.params, pattern)]
        return tuple(dict.fromkeys(matching))

    def values(self, twin: Twin, which: Literal["neutral", "start"]) -> dict[str, float]:
        """Return the neutral or start values of the added parameters by name, SI.

        Parameters for which the structure defines no such value are omitted.

        Args:
            twin: Result of `apply_to`.
            which: ``neutral`` for the values at which the added physics has no effect, ``start`` for the start values
                of the fit.
        """
        table = getattr(self, which)
        return {
            name: float(value) for pattern, value in table.items() for name in fnmatch.filter(self.names(twin), pattern)
        }


def _make_gear_spec(twin: Twin, *, elastic: bool) -> GearSpec:
    if not elastic:
        return GearSpec(backlash=0.0)
    joints = twin.robot.joints
    soft = {name: _ELASTIC * largest_gear_stiffness(twin.model, name, twin.model.opt.timestep) for name in joints}
    return GearSpec(backlash=0.0, stiffness=soft)


def _initial_no_load_speed(twin: Twin, episodes: Sequence[Episode]) -> float | None:
    """Return twice the highest joint speed in the episodes as the initial no-load speed of motors, rad/s or m/s.

    It is None for a twin without a robot and for episodes without movement.
    """
    if twin.spec.robot is None or not episodes:
        return None
    units = episodes[0].units if episodes[0].units.known else twin.unit_map([u.unit for u in episodes[0].units.joints])
    speeds = [np.abs(np.gradient(units.to_si(e.state), e.time, axis=0)).max() for e in episodes if len(e) > 1]
    fastest = max(speeds, default=0.0)
    return float(_NO_LOAD * fastest) if fastest > 0 else None


def _make_builtin(name: str, meaning: str, **how: Any) -> Structure:
    """Create a built-in structure (optional physical effect) from all quantities that belong to it.

    They are the quantities for which `FitDeclaration.missing` has the name of the structure.

    Args:
        name: Name of the structure.
        meaning: The physical effect in words.
        **how: Further fields of `Structure`, such as ``gears``.
    """
    kinds = {kind.path(): kind for kind in QUANTITIES if kind.fit.missing and kind.fit.missing.structure == name}
    missing = {path: kind.fit.missing for path, kind in kinds.items() if kind.fit.missing}
    return Structure(
        name=name,
        meaning=meaning,
        frees=tuple(kinds),
        # A gear that was compiled in is absent at its nominal value.
        neutral={} if "gears" in how else {p: kind.neutral for p, kind in kinds.items() if kind.neutral is not None},
        start={path: one.start for path, one in missing.items() if one.start is not None},
        priors={path: one.prior for path, one in missing.items() if one.prior is not None},
        **how,
    )


BUILTIN: tuple[Structure, ...] = (
    _make_builtin("delay", "commands reach the motor late"),
    _make_builtin("backlash", "play between motor and link", gears="play"),
    _make_builtin("stribeck", "friction at rest above friction in motion"),
    _make_builtin("load_friction", "dry friction that grows with the torque"),
    _make_builtin("quadratic_damping", "friction that grows with the square of speed"),
    _make_builtin("voltage_limit", "torque that falls with speed to nothing at the no-load speed"),
    _make_builtin("flexible_joint", "wind-up between motor and link", gears="elastic"),
    _make_builtin("contact_softness", "contacts softer or bouncier than the twin's", needs="contacts"),
)


def select_structures(names: Sequence[str] = (), file: Path | None = None) -> tuple[Structure, ...]:
    """Return the structures with these names from the built-in structures and a user's file.

    Args:
        names: Names of the structures; if empty, all built-in structures and all structures of the file.
        file: YAML file with the user's structures; they replace built-in structures of the same name.

    Raises:
        UnknownNameError: If a name is neither built-in nor in the file.
        InputError: If the file is invalid.
    """
    table = {structure.name: structure for structure in BUILTIN}
    table |= {structure.name: structure for structure in (read_structures(file) if file else ())}
    for name in names:
        if name not in table:
            raise UnknownNameError("structure", name, table)
    return tuple(table[name] for name in (names or table))


def read_structures(path: Path) -> tuple[Structure, ...]:
    """Read model structures from a YAML file, see the module for the format.

    Raises:
        InputError: If the file is missing or not a list, or an entry has a wrong key or value.
    """
    value = load_yaml(path)
    if not isinstance(value, list):
        raise InputError(f"{path} is not a list of structures. Write `- {{name: …, meaning: …, frees: […]}}`.")
    try:
        return TypeAdapter(tuple[Structure, ...]).validate_python(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(path), model=Structure)) from error
