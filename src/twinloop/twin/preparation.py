"""What has to be said of a model before it is compiled, because a parameter will move it afterwards."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import mujoco

from twinloop.twin.params import split_path
from twinloop.twin.quantities.links import PAYLOAD
from twinloop.twin.spec import ParamSpec


def prepare(mjspec: mujoco.MjSpec, specs: Iterable[ParamSpec]) -> None:
    """Make room in a model for the parameters that will be declared of it."""
    declared = [split_path(spec.name) for spec in specs]
    moved = ("com/", "log_cholesky/")
    _free_centres_of_mass(mjspec, [target for _, target, quantity in declared if quantity.startswith(moved)])
    _add_payload_bodies(mjspec, [target for _, target, quantity in declared if quantity == "payload"])


def _free_centres_of_mass(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """A body whose centre of mass lies in its origin is compiled as simple, and MuJoCo refuses another centre later.

    The part of the mass matrix that belongs to a simple body is stored as a diagonal.
    """
    for body in _bodies(mjspec, patterns):
        body.simple = False


def _add_payload_bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """A body without mass at the first site of each link: a payload is no part of what a controller compensates."""
    for body in _bodies(mjspec, patterns):
        if body.sites:
            site = body.sites[0]
            holder = body.add_body(name=PAYLOAD.format(body.name), pos=site.pos, ipos=[0, 0, 0], explicitinertial=True)
            if site.frame is not None:
                holder.set_frame(site.frame)


def _bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> list[mujoco.MjsBody]:
    named = [body for body in mjspec.bodies if body.name and body.name != "world"]
    return [body for body in named if any(fnmatch.fnmatchcase(body.name, pattern) for pattern in patterns)]
