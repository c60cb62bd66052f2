"""Which parts of a plan go together; what does not is refused before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from twinloop.core.errors import InputError
from twinloop.randomize.adaptive import AdaptiveDraw
from twinloop.randomize.boxes import BoxesDraw
from twinloop.randomize.constraints import Constraint
from twinloop.randomize.designs import Design, Grid, Independent, Stratified, is_named
from twinloop.randomize.draws import Draw, JointDraw

AnyDraw: TypeAlias = Draw | JointDraw | AdaptiveDraw | BoxesDraw


def check_single(draws: Sequence[AnyDraw]) -> None:
    """Refuse a parameter that two draws name.

    Raises:
        InputError: names it.
    """
    seen: dict[str, int] = {}
    for index, draw in enumerate(draws):
        for name in draw.names:
            if seen.setdefault(name, index) != index:
                raise InputError(f"{name} is drawn twice. Keep one of the two lines that name it.")


def check_design(design: Design, draws: Sequence[AnyDraw]) -> None:
    """Refuse a design that has nothing to place, or levels and crossed strata of what has none.

    Raises:
        InputError, UnknownNameError: see the message.
    """
    if isinstance(design, Independent):
        return
    axes = [axis for draw in draws if draw.scope == "episode" for axis in draw.axes]
    if not axes:
        raise InputError(
            f"The design {design.kind} places nothing, because no parameter is drawn per episode. Add "
            "`default: true`, or ranges."
        )
    design.check(axes)
    if isinstance(design, Grid | Stratified):
        for draw in draws:
            _check_levels(design, draw)


def _check_levels(design: Grid | Stratified, draw: AnyDraw) -> None:
    name = next((name for name in draw.names if is_named(design, name)), None)
    why = ""
    if isinstance(draw, JointDraw):
        why = "is drawn together with other identified parameters, so it has no levels or strata of its own"
    elif isinstance(draw, AdaptiveDraw) and isinstance(design, Grid):
        why = "has adaptive ranges, so its levels would move"
    elif isinstance(draw, BoxesDraw) and isinstance(design, Grid):
        why = "is drawn in boxes, so its levels would be others in each"
    if name and why:
        raise InputError(f"{name} is named by the design {design.kind}, but {why}. Take it out of the design's names.")


def check_constraints(constraints: Sequence[Constraint], draws: Sequence[AnyDraw], design: Design) -> None:
    """Refuse constraints that no redraw can meet.

    Raises:
        InputError: nothing that a constraint reads is drawn per episode, or it reads what a redraw cannot change.
    """
    drawn = {name: draw for draw in draws for name in draw.names}
    for constraint in constraints:
        read = {name: drawn[name] for name in constraint.names if name in drawn}
        if not any(draw.scope == "episode" for draw in read.values()):
            raise InputError(
                f"The constraint {constraint.name!r} reads nothing that is drawn per episode, so it holds always or "
                "never. Remove it, or randomize one of its parameters."
            )
        for name, draw in read.items():
            _check_redrawable(constraint, name, draw, design)


def _check_redrawable(constraint: Constraint, name: str, draw: AnyDraw, design: Design) -> None:
    why = ""
    if draw.scope == "step":
        why = "which changes at every step, while a world is accepted as a whole"
    elif isinstance(draw, AdaptiveDraw):
        why = "whose ranges are adaptive: an evaluation at its boundary cannot be drawn again"
    elif isinstance(design, Grid) and is_named(design, name):
        why = "which is on the grid: a level that it refuses could not be visited"
    if why:
        raise InputError(f"The constraint {constraint.name!r} reads {name}, {why}. Take it out of one of the two.")
