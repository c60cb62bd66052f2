"""Define the plan of a run: everything that varies between its worlds, as reproducible random draws.

The values of an episode depend only on the plan, the episode number and the attempt, not on other episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.seeds import uniforms
from twinloop.randomize.adaptive import AdaptiveDraw, Ranges
from twinloop.randomize.boxes import BoxesDraw
from twinloop.randomize.constraints import PROBE, Constraint, RejectionCounter
from twinloop.randomize.designs import INDEPENDENT, Design, Grid, Independent, Stratified, design_json, is_named
from twinloop.randomize.draws import Draw, JointDraw, Operation, Scope
from twinloop.twin import Twin
from twinloop.twin.panoramas import Panorama
from twinloop.twin.places import ROOM, Scenery

__all__ = ["AnyDraw", "Draw", "DrawnWorlds", "JointDraw", "Operation", "Plan", "Scope"]


AnyDraw: TypeAlias = Draw | JointDraw | AdaptiveDraw | BoxesDraw


def check_no_duplicates(draws: Sequence[AnyDraw]) -> None:
    """Check that no parameter is in two draws.

    Raises:
        InputError: If a parameter is in two draws.
    """
    seen: dict[str, int] = {}
    for index, draw in enumerate(draws):
        for name in draw.names:
            if seen.setdefault(name, index) != index:
                raise InputError(f"{name} is drawn twice. Keep one of the two lines that name it.")


def check_design(design: Design, draws: Sequence[AnyDraw]) -> None:
    """Check that a sampling design fits the draws of a plan.

    Some parameters cannot have separate levels or strata: parameters of a joint distribution (in a grid or a stratified
    design), and parameters with adaptive ranges or in boxes (in a grid).

    Raises:
        InputError: If no parameter is drawn per episode, or the design names a parameter that cannot have separate
            levels or strata.
        UnknownNameError: If the design names a parameter that is not drawn.
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
    reason = ""
    if isinstance(draw, JointDraw):
        reason = "is drawn together with other identified parameters, so it has no separate levels or strata"
    elif isinstance(draw, AdaptiveDraw) and isinstance(design, Grid):
        reason = "has adaptive ranges, so its levels would move"
    elif isinstance(draw, BoxesDraw) and isinstance(design, Grid):
        reason = "is drawn in boxes, so its levels would differ between boxes"
    if name and reason:
        raise InputError(
            f"{name} is named by the design {design.kind}, but {reason}. Remove it from the design's names."
        )


def check_constraints(constraints: Sequence[Constraint], draws: Sequence[AnyDraw], design: Design) -> None:
    """Check that drawing again can change whether a constraint is met.

    Raises:
        InputError: If no parameter of a constraint is drawn per episode, or one of its parameters changes at every
            control step, has adaptive ranges, or is on the grid of the design.
    """
    drawn = {name: draw for draw in draws for name in draw.names}
    for constraint in constraints:
        own_draws = {name: drawn[name] for name in constraint.names if name in drawn}
        if not any(draw.scope == "episode" for draw in own_draws.values()):
            raise InputError(
                f"The constraint {constraint.name!r} contains no parameter that is drawn per episode, so all "
                "worlds of the run meet it or none. Remove it, or randomize one of its parameters."
            )
        for name, draw in own_draws.items():
            _check_redrawable(constraint, name, draw, design)


def _check_redrawable(constraint: Constraint, name: str, draw: AnyDraw, design: Design) -> None:
    reason = ""
    if draw.scope == "step":
        reason = "which changes at every control step, while a constraint is checked once per world"
    elif isinstance(draw, AdaptiveDraw):
        reason = "whose ranges are adaptive: the episodes that evaluate a boundary cannot be drawn again"
    elif isinstance(design, Grid) and is_named(design, name):
        reason = "which is on the grid: a level that the constraint rejects could never be visited"
    if reason:
        raise InputError(
            f"The constraint {constraint.name!r} contains {name}, {reason}. Remove the "
            f"constraint or change how {name} is drawn."
        )


# Keys in Provenance.extra.
IMPORTANCE_WEIGHT = "importance_weight"  # density of the distribution over density of the proposal
CONSTRAINT_REDRAWS = "constraint_redraws"  # candidates that a constraint rejected before this world
ADAPTIVE_BOUNDARY = "adaptive_boundary"  # the boundary that the episode evaluates
_PROBED = -1  # number of the redraw in the test of acceptance, which no episode uses
_Values: TypeAlias = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class DrawnWorlds:
    """Drawn worlds: parameter table, and facts about each world, ``(nworld,)`` each.

    Attributes:
        table: Parameter values, one row per world.
        weight: Importance weight: density of the distribution over density of the proposal; 1 if there is no proposal.
        redraws: Number of candidates that constraints rejected.
        boundary: Index of the boundary (end of an adaptive range) to which a parameter of the world is set, to test the
            policy there; -1 for no boundary.
    """

    table: ParamTable
    weight: NDArray[np.float64]
    redraws: NDArray[np.int64]
    boundary: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a run: everything that varies between its worlds; all other parameters have their nominal value.

    Attributes:
        twin: The twin of all worlds.
        run_seed: Seed of the run.
        draws: The random draws; each parameter is in at most one of them.
        texture_pool: Number of generated textures, from which ``texture/*`` parameters select by index.
        panoramas: Backgrounds of half of the random rooms.
        design: Sampling design of the draws with scope ``episode``.
        constraints: Conditions on the parameters; worlds that violate one are drawn again.

    Raises:
        UnknownNameError: If the twin does not have a parameter.
        BoundsError: If a range leaves a parameter's physical bounds.
        InputError: If draws, design and constraints do not fit together, or constraints reject almost all draws.
    """

    twin: Twin
    run_seed: int
    draws: tuple[AnyDraw, ...]
    texture_pool: int = 0
    panoramas: tuple[Panorama, ...] = ()
    design: Design = INDEPENDENT
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        for draw in self.draws:
            draw.check(self.twin)
        check_no_duplicates(self.draws)
        check_design(self.design, self.draws)
        check_constraints(self.constraints, self.draws, self.design)
        self._check_acceptance()

    @cached_property
    def hash(self) -> str:
        """Hash of the plan; equal hashes give equal values for an episode."""
        return sha256_json(self.to_json())

    @property
    def adaptive(self) -> AdaptiveDraw | None:
        """Draw with adaptive ranges, or None."""
        return next((draw for draw in self.draws if isinstance(draw, AdaptiveDraw)), None)

    @property
    def scenery(self) -> Scenery:
        """Random textures and rooms of the images."""
        rooms = any(ROOM in draw.names for draw in self.draws)
        return Scenery(texture_pool=self.texture_pool, rooms=rooms, panoramas=self.panoramas, seed=self.run_seed)

    @property
    def has_weights(self) -> bool:
        """Whether some values are drawn from a proposal, so that episodes have importance weights."""
        return any(isinstance(draw, Draw) and draw.proposal is not None for draw in self.draws)

    def with_rounds(self, rounds: Mapping[int, Ranges]) -> Plan:
        """Return a copy whose adaptive draw has other parameter ranges.

        Args:
            rounds: Ranges by number of the round (a fixed number of episodes).
        """
        draws = tuple(draw.with_rounds(rounds) if isinstance(draw, AdaptiveDraw) else draw for draw in self.draws)
        return replace(self, draws=draws)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes."""
        value: dict[str, Any] = {
            "twin_hash": self.twin.hash,
            "run_seed": self.run_seed,
            "texture_pool": self.texture_pool,
            "draws": [draw.to_json() for draw in self.draws],
        }
        if self.panoramas:
            value["panoramas"] = [panorama.sha256 for panorama in self.panoramas]
        if not isinstance(self.design, Independent):
            value["design"] = design_json(self.design)
        if self.constraints:
            value["constraints"] = [constraint.name for constraint in self.constraints]
        return value

    def draw(self, episodes: Sequence[int], *, attempt: ArrayLike = 0, nstep: int = 0) -> ParamTable:
        """Draw the parameters of these episodes, one row per episode.

        A row depends only on the plan, the episode number and the attempt.

        Args:
            episodes: Episode numbers.
            attempt: Number of the attempt, one for all or one per episode; each attempt has new values of scope
                ``episode`` and ``step``.
            nstep: Number of control steps for which parameters of scope ``step`` are drawn.

        Raises:
            InputError: If constraints reject almost all candidates, or the ranges of an adaptive round are not known.
        """
        return self.draw_worlds(episodes, attempt=attempt, nstep=nstep).table

    def draw_worlds(self, episodes: Sequence[int], *, attempt: ArrayLike = 0, nstep: int = 0) -> DrawnWorlds:
        """Draw parameters as `draw` does, and return further facts about each world.

        These are importance weights, numbers of rejected candidates, and adaptive boundaries.
        """
        numbers = np.asarray(episodes, dtype=np.int64)
        attempts = np.broadcast_to(np.asarray(attempt, dtype=np.int64), numbers.shape)
        once = [draw for draw in self.draws if draw.scope != "step"]
        values, weights = self._draw_candidates(once, numbers, attempts, 0)
        redraws = self._redraw_rejected(values, weights, numbers, attempts)
        steps: _Values = {}
        for draw in self.draws:
            if isinstance(draw, Draw) and draw.scope == "step":
                steps |= self._draw_steps(draw, numbers, attempts, nstep)
        table = self.twin.table(len(numbers), values).with_steps(steps)
        boundary = np.full(len(numbers), -1)
        if self.adaptive is not None:
            boundary = self.adaptive.find_boundary(self.run_seed, numbers)
        return DrawnWorlds(
            table=table.with_seeds(SeedPath.of(self.run_seed, numbers, attempts)),
            weight=np.exp(sum(weights.values(), np.zeros(len(numbers)))),
            redraws=redraws,
            boundary=boundary,
        )

    def world_notes(self, drawn: DrawnWorlds) -> list[dict[str, Any]]:
        """Return additional provenance of each drawn world.

        It is the importance weight, the number of redraws, and the end of an adaptive range to which a parameter was
        set. The list is empty if the plan has neither proposal distributions nor constraints nor adaptive ranges.
        """
        if not (self.has_weights or self.constraints or self.adaptive):
            return []
        notes: list[dict[str, Any]] = [{} for _ in range(drawn.table.nworld)]
        for world, note in enumerate(notes):
            if self.has_weights:
                note[IMPORTANCE_WEIGHT] = float(drawn.weight[world])
            if self.constraints:
                note[CONSTRAINT_REDRAWS] = int(drawn.redraws[world])
            if self.adaptive is not None and drawn.boundary[world] >= 0:
                note[ADAPTIVE_BOUNDARY] = self.adaptive.boundaries[drawn.boundary[world]]
        return notes

    def _check_acceptance(self) -> None:
        """Check on test draws, which no episode uses, that the constraints do not reject almost all candidates.

        Raises:
            InputError: If they reject almost all candidates.
        """
        if not self.constraints:
            return
        numbers = np.arange(PROBE)
        fixed = [draw for draw in self.draws if draw.scope != "step" and not isinstance(draw, AdaptiveDraw)]
        values, _ = self._draw_candidates(fixed, numbers, np.zeros_like(numbers), _PROBED)
        rejection = RejectionCounter(self.constraints, PROBE)
        rejection.find_rejected(self.twin.table(PROBE, values), numbers)
        rejection.check_rate()

    @cached_property
    def _episode_draws(self) -> list[AnyDraw]:
        return [draw for draw in self.draws if draw.scope == "episode"]

    def _draw_candidates(
        self, draws: Sequence[AnyDraw], numbers: NDArray[np.int64], attempts: NDArray[np.int64], redraw: int
    ) -> tuple[_Values, _Values]:
        """Draw candidates of n worlds, before constraints are checked.

        Args:
            draws: The draws.
            numbers: Episode numbers, ``(n,)``.
            attempts: Attempt of each episode, ``(n,)``.
            redraw: Number of the redraw, 0 for the first candidate.

        Returns:
            Values by parameter, and logarithms of importance weights by the first name of each draw with a proposal.
        """
        placed = {} if redraw else self._place_first_attempts(numbers, attempts)
        values: _Values = {}
        weights: _Values = {}
        for draw in draws:
            u = placed.get(draw.names)
            if u is None:
                u = self._draw_uniforms(draw, numbers, attempts, redraw=redraw)
            if isinstance(draw, JointDraw):
                values |= self._draw_joint(draw, u, numbers, attempts, redraw)
            elif isinstance(draw, AdaptiveDraw | BoxesDraw):
                values |= draw.values(u, self.run_seed, numbers)
            else:
                values |= draw.values(self.twin, u)
                if draw.proposal is not None:
                    weights[draw.names[0]] = draw.log_weight(u)
        return values, weights

    def _place_first_attempts(
        self, numbers: NDArray[np.int64], attempts: NDArray[np.int64]
    ) -> dict[tuple[str, ...], NDArray[np.float64]]:
        """Return the uniform random numbers of all draws, by the parameter names of each draw.

        For first attempts the sampling design chooses them. For repeated attempts they are independent. The result is
        empty if the design is `Independent`.

        Args:
            numbers: Episode numbers, ``(n,)``.
            attempts: Attempt of each episode from 0, ``(n,)``.

        Returns:
            Arrays ``(n, size)``, where ``size`` is the number of random numbers of the draw.
        """
        if isinstance(self.design, Independent):
            return {}
        free = [self._draw_uniforms(draw, numbers, attempts) for draw in self._episode_draws]
        axes = [axis for draw in self._episode_draws for axis in draw.axes]
        u = np.hstack(free)
        first = attempts == 0
        u[first] = self.design.place(u[first], axes, self.run_seed, numbers[first])
        ends = np.cumsum([draw.size for draw in self._episode_draws])
        return {draw.names: u[:, end - draw.size : end] for draw, end in zip(self._episode_draws, ends, strict=True)}

    def _redraw_rejected(
        self, values: _Values, weights: _Values, numbers: NDArray[np.int64], attempts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Draw again in place the constrained parameters of worlds that violate a constraint.

        Args:
            values: Values by parameter, changed in place.
            weights: Logarithms of importance weights, changed in place.
            numbers: Episode numbers, ``(n,)``.
            attempts: Attempt of each episode, ``(n,)``.

        Returns:
            The number of rejected candidates of each world, ``(n,)``.
        """
        rejection = RejectionCounter(self.constraints, len(numbers))
        if not self.constraints:
            return rejection.redraws
        touched = [draw for draw in self._episode_draws if set(draw.names) & rejection.names]
        waiting = rejection.find_rejected(self.twin.table(len(numbers), values), np.arange(len(numbers)))
        while len(waiting):
            redraw = rejection.next_redraw()
            new_values, new_weights = self._draw_candidates(touched, numbers[waiting], attempts[waiting], redraw)
            for name, column in new_values.items():
                values[name][waiting] = column
            for name, column in new_weights.items():
                weights[name][waiting] = column
            table = self.twin.table(len(waiting), {name: column[waiting] for name, column in values.items()})
            waiting = rejection.find_rejected(table, waiting)
        return rejection.redraws

    def _draw_uniforms(
        self,
        draw: AnyDraw,
        numbers: NDArray[np.int64],
        attempt: ArrayLike,
        *,
        step: ArrayLike = 0,
        redraw: int = 0,
    ) -> NDArray[np.float64]:
        if draw.scope == "run":
            numbers, attempt, redraw = np.zeros_like(numbers), 0, 0
        stream = (f"redraw/{redraw}/" if redraw else "") + "draw/" + "+".join(draw.names)
        return uniforms(self.run_seed, stream, numbers, size=draw.size, attempt=attempt, step=step)

    def _draw_steps(
        self, draw: Draw, numbers: NDArray[np.int64], attempts: NDArray[np.int64], nstep: int
    ) -> dict[str, NDArray[np.float64]]:
        rows = np.repeat(numbers, nstep)
        step = np.tile(np.arange(1, nstep + 1), len(numbers))
        flat = draw.values(self.twin, self._draw_uniforms(draw, rows, np.repeat(attempts, nstep), step=step))
        return {name: column.reshape(len(numbers), nstep) for name, column in flat.items()}

    def _draw_joint(
        self,
        draw: JointDraw,
        first: NDArray[np.float64],
        numbers: NDArray[np.int64],
        attempts: NDArray[np.int64],
        redraw: int,
    ) -> _Values:
        def u(trial: int, rows: NDArray[np.intp]) -> NDArray[np.float64]:
            if trial == 0:
                return first[rows]
            return self._draw_uniforms(draw, numbers[rows], attempts[rows], step=trial, redraw=redraw)

        return draw.values(self.twin, len(numbers), u)
