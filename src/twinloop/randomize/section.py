"""Parse the ``randomization:`` section of a YAML file into a plan of draws.

A key is a parameter path (``joint/*/damping``, in SI units) or a short name of a quantity with its unit as a suffix
(``object_mass_kg``). A value is a range ``[low, high]`` or a mapping::

    joint/*/damping: {scale: [0.8, 1.25], tied: true}
    object_mass_g: {distribution: truncated_normal, mean: 50, std: 10, low: 20, high: 100}
    object_mass_g: {low: 20, high: 100, proposal: {distribution: log_uniform, low: 20, high: 100}}

If there is a ``proposal``, values are drawn from it, and each episode records the importance weight that corrects
for it. `options` parses the other options of the section.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnitsError, UnknownNameError
from twinloop.core.units import SUFFIXES, split_unit
from twinloop.randomize.boxes import parse_boxes
from twinloop.randomize.constraints import Constraint
from twinloop.randomize.designs import INDEPENDENT, make_design
from twinloop.randomize.distributions import Choice, Distribution, make_distribution
from twinloop.randomize.draws import Draw, Scope
from twinloop.randomize.options import OPTIONS, parse_adaptive, parse_constraints
from twinloop.randomize.plan import AnyDraw, Plan
from twinloop.randomize.sources import default_draws, identified_draws
from twinloop.twin import Twin
from twinloop.twin.panoramas import Panorama, find_panoramas
from twinloop.twin.places import LAST, ROOM
from twinloop.twin.quantities import QUANTITIES, Quantity
from twinloop.twin.quantities.kinds import Alias, Operation

PANORAMAS = "panoramas"
SECTIONS = ("visual", "physics", "timing", "params")
_VALUE_KEYS = ("low", "high", "mean", "std", "values", "samples")


def _aliases() -> dict[str, list[tuple[Quantity, Alias]]]:
    """Return the quantities of every short name in the ``randomization:`` section.

    Each quantity comes with its `Alias`, which defines the meaning of the values and the objects that they apply to.
    """
    words: dict[str, list[tuple[Quantity, Alias]]] = {}
    for kind in QUANTITIES:
        if kind.alias:
            words.setdefault(kind.alias.name, []).append((kind, kind.alias))
    return words


def parse_randomization(
    section: Mapping[str, Any], twin: Twin, *, where: str, skip: frozenset[str] = frozenset({"target"})
) -> tuple[list[Draw], int]:
    """Parse the ranges of a ``randomization:`` section.

    Args:
        section: The YAML mapping, excluding its options.
        twin: The twin whose parameters are drawn.
        where: Name of the file, for error messages.
        skip: Objects to which short names of object quantities do not apply, such as the target of a task.

    Returns:
        The draws, and the number of textures from which ``texture/*`` parameters select; 0 if textures are not drawn.

    Raises:
        UnknownNameError: If a section, short name or parameter does not exist.
        UnitsError: If a short name has no unit, or a unit of another dimension.
        InputError: If a value has the wrong form.
    """
    draws: list[Draw] = []
    pool = 0
    for name, entries in section.items():
        if name not in SECTIONS:
            raise UnknownNameError("section", name, (*SECTIONS, *OPTIONS), where=f"{where}: randomization")
        for key, value in _parse_entries(entries, f"{where}: randomization.{name}").items():
            place = f"{where}: randomization.{name}.{key}"
            if key == "texture_pool":
                pool = _parse_pool_size(value, place)
                draws.append(_texture_draw(twin, pool, place))
            elif key == "rooms":
                draws.append(_room_draw(twin, value, place))
            elif key != PANORAMAS and "/" in key:
                draws.append(_path_draw(twin, key, value, place))
            elif key != PANORAMAS:
                draws.append(_alias_draw(twin, key, value, place, skip))
    return draws, pool


def _parse_entries(value: Any, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"{where}: lines of `name: [low, high]` are expected; given {value!r:.60}.")
    return {str(key): entry for key, entry in (value or {}).items()}


def _parse_pool_size(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where}: a texture pool is a whole number of textures, at least 1; given {value!r}.")
    return value


def _texture_draw(twin: Twin, pool: int, where: str) -> Draw:
    names = _match_names(twin, ("texture/*",), where)
    return Draw(names=names, distribution=Choice(values=tuple(float(i) for i in range(1, pool + 1))), source=where)


def _room_draw(twin: Twin, value: Any, where: str) -> Draw:
    """Return the draw of a room's number: from 1 to a number, or from a pair of first and last number."""
    pair = value if isinstance(value, list) else [1, value]
    whole = len(pair) == 2 and all(isinstance(end, int) and not isinstance(end, bool) for end in pair)
    if not whole or not 1 <= pair[0] <= pair[1] <= LAST:
        raise InputError(
            f"{where}: rooms are numbered from 1 to {LAST:,}. Give how many are drawn, at least 1, or [first, last]; "
            f"given {value!r:.60}."
        )
    values = tuple(float(number) for number in range(pair[0], pair[1] + 1))
    return Draw(names=_match_names(twin, (ROOM,), where), distribution=Choice(values=values), source=where)


def _path_draw(twin: Twin, key: str, value: Any, where: str) -> Draw:
    return _make_draw(_match_names(twin, (key,), where), value, 1.0, Alias(name=key), where)


def _alias_draw(twin: Twin, key: str, value: Any, where: str, skip: frozenset[str]) -> Draw:
    stem, unit, factor = split_unit(key)
    words = _aliases()
    if stem not in words:
        stem, unit, factor = (key, "1", 1.0) if key in words else (stem, unit, factor)
    if stem not in words:
        raise UnknownNameError("parameter", key, [*words, *twin.params], where=where)
    word = words[stem][0][1]
    matching = _match_names(twin, tuple(kind.path(alias.target) for kind, alias in words[stem]), where)
    names = tuple(name for name in matching if twin.params[name].target not in skip)
    if not names:
        raise UnknownNameError("parameter", key, twin.params, where=where)
    wanted = "1" if word.op == "scale" else twin.params[names[0]].unit
    if unit != wanted:
        fitting = " or ".join(f"{stem}_{suffix}" for suffix, (si, _) in SUFFIXES.items() if si == wanted) or stem
        given = "has no unit" if unit == "1" else f"is in {unit}"
        raise UnitsError(
            f"{where}: {key} {given}, but {names[0]} is in {wanted}. Which unit is meant? Write {fitting}."
        )
    return _make_draw(names, value, factor, word, where)


def _match_names(twin: Twin, patterns: tuple[str, ...], where: str) -> tuple[str, ...]:
    names = tuple(name for name in twin.params if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    if not names:
        raise UnknownNameError("parameter", patterns[0], twin.params, where=where)
    return names


def _make_draw(names: tuple[str, ...], value: Any, factor: float, word: Alias, where: str) -> Draw:
    op, tied, scope, proposal = word.op, word.tied, "episode", None
    if isinstance(value, Mapping):
        options = dict(value)
        proposal = options.pop("proposal", None)
        tied, scope = _parse_tied(options.pop("tied", tied), where), str(options.pop("scope", scope))
        op = cast("Operation", options.pop("op", op))
        relative = [name for name in ("scale", "add") if name in options]
        if relative:
            _check_single_form(value, relative, where)
            op = cast("Operation", relative[0])
            factor = 1.0 if op == "scale" else factor
            options["low"], options["high"] = _parse_pair(options.pop(op), where)
        distribution = _parse_distribution(options, factor, where)
    else:
        low, high = _parse_pair(value, where)
        distribution = make_distribution("uniform", {"low": low * factor, "high": high * factor}, where=where)
    if scope not in ("run", "episode", "step"):
        raise UnknownNameError("scope", scope, ("run", "episode", "step"), where=where)
    if op not in ("absolute", "scale", "add"):
        raise UnknownNameError("operation", op, ("absolute", "scale", "add"), where=where)
    return Draw(
        names=names,
        distribution=distribution,
        op=op,
        tied=tied,
        scope=cast("Scope", scope),
        source=where,
        proposal=None if proposal is None else _parse_proposal(proposal, factor, where),
    )


def _parse_tied(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}.tied: true or false is expected; given {value!r}.")
    return value


def _check_single_form(value: Mapping[str, Any], relative: list[str], where: str) -> None:
    """Check that a range given as ``scale:`` or ``add:`` is not given in another form too.

    Args:
        value: The YAML mapping.
        relative: The relative forms in it, ``scale`` or ``add`` or both.
        where: Place of the mapping, for error messages.

    Raises:
        InputError: If there is a second form.
    """
    also = [key for key in value if key in (*relative[1:], "op", "distribution", *_VALUE_KEYS)]
    if also:
        raise InputError(f"{where}: {relative[0]} gives the complete range. Remove {', '.join(also)}.")


def _parse_proposal(value: Any, factor: float, where: str) -> Distribution:
    if not isinstance(value, Mapping):
        low, high = _parse_pair(value, f"{where}.proposal")
        value = {"low": low, "high": high}
    return _parse_distribution(dict(value), factor, f"{where}.proposal")


def _parse_distribution(options: dict[str, Any], factor: float, where: str) -> Distribution:
    kind = str(options.pop("distribution", "uniform"))
    arguments = {
        key: _scale_value(item, factor, f"{where}.{key}") if key in _VALUE_KEYS else item
        for key, item in options.items()
    }
    return make_distribution(kind, arguments, where=where)


def _scale_value(value: Any, factor: float, where: str) -> Any:
    try:
        return [float(item) * factor for item in value] if isinstance(value, list) else float(value) * factor
    except (TypeError, ValueError):
        raise InputError(f"{where}: a number is expected, given {value!r}.") from None


def _parse_pair(value: Any, where: str) -> tuple[float, float]:
    pair = value if isinstance(value, list) and len(value) == 2 else [None]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in pair):
        raise InputError(f"{where}: a range is written [low, high] with two numbers; given {value!r}.")
    return float(value[0]), float(value[1])


def no_constraints() -> Mapping[str, Constraint]:
    """Return an empty mapping, the default for callers that have no task and therefore no named constraints."""
    return {}


def section_plan(
    section: Any,
    twin: Twin,
    *,
    run_seed: int,
    episodes: int,
    where: str,
    identified: ParamDistribution | None = None,
    kappa: float | None = None,
    named: Callable[[], Mapping[str, Constraint]] = no_constraints,
) -> Plan:
    """Make the complete plan of a ``randomization:`` section.

    Args:
        section: ``"default"``, or a mapping of ranges and `options.OPTIONS`.
        twin: The twin whose parameters are drawn.
        run_seed: Seed of the run.
        episodes: Number of attempts of the run.
        where: Name of the file, for error messages.
        identified: The identified distribution that ``identified:`` names; None without this option.
        kappa: Factor on the covariance of this distribution, see `identified_draws`.
        named: Function that returns the constraints of the task by name; called only if the section has constraints.

    Raises:
        TwinloopError: If a parameter or option of the section does not exist or has an invalid value, or options
            contradict each other.
    """
    given = {"default": True} if section == "default" else dict(section)
    options = {key: given.pop(key) for key in OPTIONS if key in given}
    if "kappa" in options and identified is None:
        raise InputError(f"{where}: randomization.kappa widens an identified distribution. Add identified: RUN.")
    parsed, pool = parse_randomization(given, twin, where=where)
    draws: list[AnyDraw] = list(parsed)
    if "boxes" in options:
        boxes = parse_boxes(options["boxes"], twin, where=where)
        draws = [boxes, *_remove_boxed(parsed, boxes.names)]
    if "adaptive" in options:
        draws.append(parse_adaptive(options["adaptive"], twin, where=where))
    taken = [name for draw in draws for name in draw.names]
    if identified is not None:
        draws += identified_draws(twin, identified, kappa=kappa, skip=taken)
    elif _parse_flag(options.get("default", False), where):
        draws += default_draws(twin, skip=taken)
    place = f"{where}: randomization.design"
    design = make_design(options["design"], episodes=episodes, where=place) if "design" in options else INDEPENDENT
    constraints = ()
    if "constraints" in options:
        constraints = parse_constraints(options["constraints"], twin, named=named(), where=where)
    return Plan(
        twin=twin,
        run_seed=run_seed,
        draws=tuple(draws),
        texture_pool=pool,
        panoramas=_find_panoramas(given, parsed, where),
        design=design,
        constraints=constraints,
    )


def _find_panoramas(section: Mapping[str, Any], draws: Sequence[Draw], where: str) -> tuple[Panorama, ...]:
    """Return the panoramas that the section ``visual`` names."""
    visual = section.get("visual") or {}
    if PANORAMAS not in visual:
        return ()
    place = f"{where}: randomization.visual.{PANORAMAS}"
    if not any(ROOM in draw.names for draw in draws):
        raise InputError(f"{place}: panoramas are backgrounds of random rooms. Add `rooms: 1000` to `visual`.")
    return find_panoramas(visual[PANORAMAS], where=place)


def _remove_boxed(draws: Sequence[Draw], names: Sequence[str]) -> list[Draw]:
    """Return the draws, excluding the parameters ``names`` that are drawn in boxes.

    Raises:
        InputError: If one of these parameters is tied to a parameter that is not in the boxes.
    """
    remaining = []
    for draw in draws:
        free = tuple(name for name in draw.names if name not in names)
        if free != draw.names and draw.tied and free:
            boxed = next(name for name in draw.names if name in names)
            raise InputError(
                f"{draw.source}: {boxed} is tied to {free[0]} and cannot be drawn in boxes alone. Untie them."
            )
        if free:
            remaining.append(replace(draw, names=free))
    return remaining


def _parse_flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: randomization.default is true or false; given {value!r}.")
    return value
