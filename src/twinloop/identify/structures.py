"""Define physics that a twin may lack, as lists of parameters to free or to fix; `compare` tests them.

A structure names parameters by patterns and gives the ``neutral`` values at which its physics is absent. It also has
start values and priors for the fit. With ``gears`` the twin is compiled with a motor side for every joint. A user's own
table is a YAML list of the same fields::

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
    """One hypothesis about missing physics.

    Attributes:
        name: short name.
        meaning: the physics in words.
        frees: patterns of the parameters that it adds.
        neutral: values by pattern at which the physics is absent, SI; other parameters are absent at their nominal
            value.
        start: start values of the fit by pattern, SI; away from the neutral value, where slopes may vanish.
        priors: priors by pattern, see `Prior`.
        gears: gears to compile into the twin: none, with ``play``, or ``elastic``.
        needs: ``contacts`` if the replay must keep contacts.
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
        """Return the twin with this physics enabled: gears compiled in, parameters declared.

        Raises:
            InputError: the twin cannot have this physics; the message gives the reason.
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
            raise InputError(f"the twin {twin.name} has no part for {' or '.join(self.frees)}")
        return twin

    def names(self, twin: Twin) -> tuple[str, ...]:
        """Return the parameters that the structure adds to ``twin``, the result of `applied`."""
        found = [name for pattern in self.frees for name in fnmatch.filter(twin.params, pattern)]
        return tuple(dict.fromkeys(found))

    def values(self, twin: Twin, which: Literal["neutral", "start"]) -> dict[str, float]:
        """Return neutral or start values of the added parameters by name, as far as the structure defines them."""
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
    """Return the initial no-load speed of the torque-speed curve, rad/s or m/s; None for a log without movement."""
    if twin.spec.robot is None or not episodes:
        return None
    units = episodes[0].units if episodes[0].units.known else twin.unit_map([u.unit for u in episodes[0].units.joints])
    speeds = [np.abs(np.gradient(units.to_si(e.state), e.time, axis=0)).max() for e in episodes if len(e) > 1]
    fastest = max(speeds, default=0.0)
    return float(_NO_LOAD * fastest) if fastest > 0 else None


def _make_builtin(name: str, meaning: str, **how: Any) -> Structure:
    """Return the structure of all quantities whose declarations name it."""
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
    """Return the structures with these names, built-in or from a user's file; without names all of both.

    Raises:
        UnknownNameError: a name is in neither table.
        InputError: the file is invalid.
    """
    table = {structure.name: structure for structure in BUILTIN}
    table |= {structure.name: structure for structure in (read_structures(file) if file else ())}
    for name in names:
        if name not in table:
            raise UnknownNameError("structure", name, table)
    return tuple(table[name] for name in (names or table))


def read_structures(path: Path) -> tuple[Structure, ...]:
    """Read the structures in a YAML file.

    Raises:
        InputError: the file is missing or no list, or it has a wrong key or value; the message names it.
    """
    value = load_yaml(path)
    if not isinstance(value, list):
        raise InputError(f"{path} is not a list of structures. Write `- {{name: …, meaning: …, frees: […]}}`.")
    try:
        return TypeAdapter(tuple[Structure, ...]).validate_python(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(path), model=Structure)) from error
