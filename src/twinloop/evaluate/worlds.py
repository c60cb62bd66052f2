"""Create the worlds of a suite on a twin: resolve its slices to parameters, and draw the parameters of each trial."""

from __future__ import annotations

import fnmatch
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.seeds import MAX_EPISODES
from twinloop.evaluate.suite import ENDS, End, SliceSpec, SuiteSpec
from twinloop.evaluate.variants import find_hand_body, with_object, with_scene
from twinloop.randomize import Plan
from twinloop.randomize.section import section_plan
from twinloop.randomize.sources import default_draws
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import list_scenarios, read_scenario
from twinloop.simulate import InitialState
from twinloop.tasks import Task
from twinloop.twin import Param, Twin, load_twin
from twinloop.twin.places import ROOM
from twinloop.twin.quantities import names_of_stage
from twinloop.twin.variant import declare_params

_LOOKS = ("camera", "depth", "lidar")  # kinds of devices whose parameters have no effect without images


@dataclass(frozen=True, kw_only=True)
class SuiteSlice:
    """One evaluation slice (condition of a suite) resolved on a twin.

    Attributes:
        name: Name of the slice.
        spec: The slice as written in YAML; its ``draw`` section gives the random draws.
        episodes: Number of trials.
        values: Fixed parameter values in SI units, by parameter name.
        variant: Name of the changed twin that the slice runs on, because it has another object, another scene or a
            scenario; "" for the suite's own twin.
        scenario: Stored scenario, which defines the whole world; None for all other slices.
    """

    name: str
    spec: SliceSpec
    episodes: int
    values: Mapping[str, float]
    variant: str = ""
    scenario: Scenario | None = None

    def get_episode_numbers(self, trials: ArrayLike) -> NDArray[np.int64]:
        """Return the episode numbers of trials, which seed their random draws.

        They depend only on the slice's name and the trial number. Different slices have different episode numbers, so
        that their draws are independent.
        """
        return (zlib.crc32(self.name.encode()) + np.asarray(trials, dtype=np.int64)) % MAX_EPISODES

    def get_trial_name(self, number: int) -> str:
        """Return the name ``SLICE#NUMBER`` of a trial, by which trials of different policies are paired."""
        return f"{self.name}#{number}"


@dataclass(frozen=True, kw_only=True)
class InitialWorlds:
    """Parameters, episode numbers and initial states of the worlds of a batch of trials.

    Attributes:
        params: Parameter table with one row per world.
        numbers: Episode number of each world, shape ``(nworld,)``.
        run_seed: Seed of the random draws.
        attempt: Number of the attempt; with run seed and episode number it determines the random effects in a world.
        initial: Initial simulator states, for stored scenarios; None if the task's reset creates them from ``params``.
    """

    params: ParamTable
    numbers: NDArray[np.int64]
    run_seed: int
    attempt: int = 0
    initial: InitialState | None = None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite whose patterns are resolved to the parameters of one twin.

    Attributes:
        spec: The suite as written in YAML.
        twin: The twin, including the parameters that the suite declares.
        slices: The evaluation slices.
        object: Name of the task's object; "" if it has none.
        left_out: One line with the reason for each slice that was left out.
        pairs: Entries of the suite's ``pairs`` that exist in the twin and therefore have slices, in order.
        limited_by: Twin whose motion limits the trials must keep; None for the twin of the trials. A virtual robot's
            envelope comes from the nominal twin, as a real robot's does.
    """

    spec: SuiteSpec
    twin: Twin
    slices: tuple[SuiteSlice, ...]
    object: str = ""
    left_out: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    limited_by: Twin | None = None

    @property
    def name(self) -> str:
        """Name of the suite."""
        return self.spec.name

    @property
    def episodes(self) -> int:
        """Total number of trials in all slices."""
        return sum(item.episodes for item in self.slices)

    @property
    def trials(self) -> list[tuple[SuiteSlice, int]]:
        """Slice and trial number of every trial."""
        return [(item, number) for item in self.slices for number in range(item.episodes)]

    def select_slices(self, patterns: Sequence[str]) -> Suite:
        """Return the suite with only the slices whose names match a pattern; if ``patterns`` is empty, with all slices.

        Raises:
            UnknownNameError: If a pattern matches no slice.
        """
        names = [item.name for item in self.slices]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise UnknownNameError("slice", pattern, names, where=f"the suite {self.name} on {self.twin.name}")
        chosen = [item for item in self.slices if any(fnmatch.fnmatchcase(item.name, p) for p in patterns)]
        return replace(self, slices=tuple(chosen)) if patterns else self

    def with_episodes(self, count: int | None) -> Suite:
        """Return the suite with ``count`` trials per slice; if ``count`` is None, return it unchanged.

        Raises:
            InputError: If ``count`` is below one.
        """
        if count is None:
            return self
        if count < 1:
            raise InputError(f"{count} episodes per slice are too few. Give at least one.")
        return replace(self, slices=tuple(replace(item, episodes=count) for item in self.slices))

    def open_variant(self, item: SuiteSlice) -> Twin:
        """Return the twin on which a slice runs.

        It is the suite's twin, with the slice's object and scene if it has them. A slice with a stored scenario runs on
        the scenario's twin.
        """
        if item.variant not in self._variants:
            twin = (
                self.twin if item.scenario is None else item.scenario.open(self._open_scenario_twin(item.scenario))[0]
            )
            if item.spec.object is not None:
                twin = with_object(twin, self.object, item.spec.object)
            if item.spec.scene is not None:
                twin = with_scene(twin, item.spec.scene)
            self._variants[item.variant] = twin
        return self._variants[item.variant]

    def create_worlds(
        self, item: SuiteSlice, trials: NDArray[np.int64], *, twin: Twin, task: Task, run_seed: int
    ) -> InitialWorlds:
        """Return the initial worlds of some trials of a slice.

        Args:
            item: The slice.
            trials: Trial numbers, counted from 0, shape ``(nworld,)``.
            twin: The twin that `open_variant` returns for the slice.
            task: The task on that twin.
            run_seed: Seed of the random draws.
        """
        if item.scenario is not None:
            stored = item.scenario.make_worlds(int(trials.max()) + 1, twin=twin, task=task)
            return InitialWorlds(
                params=stored.params.take(trials),
                numbers=stored.numbers[trials],
                run_seed=stored.run_seed,
                attempt=stored.attempt,
                initial=stored.initial.take(trials),
            )
        numbers = item.get_episode_numbers(trials)
        return InitialWorlds(
            params=self.draw_table(item, numbers, run_seed=run_seed, nstep=task.nstep),
            numbers=numbers,
            run_seed=run_seed,
        )

    def draw_table(self, item: SuiteSlice, numbers: NDArray[np.int64], *, run_seed: int, nstep: int) -> ParamTable:
        """Draw the parameters of some episodes of a slice, one row per episode.

        A row depends only on the slice, the run seed and the episode number.

        Args:
            item: The slice.
            numbers: Episode numbers, shape ``(nepisode,)``.
            run_seed: Seed of the random draws.
            nstep: Number of control steps, for parameters that vary during an episode.
        """
        twin, plan = self.open_variant(item), self._make_plan(item, run_seed)
        table = plan.draw(numbers.tolist(), nstep=nstep)
        values = table.values.copy()
        for name, value in item.values.items():
            values[:, table.names.index(name)] = value
            twin.find_param(name).check(value, where=f"slice {item.name}")
        return replace(table, values=values)

    def _open_scenario_twin(self, scenario: Scenario) -> Twin:
        """Return the suite's twin if the scenario was stored with it, else load the twin with the scenario's name."""
        return self.twin if scenario.twin_hash == self.twin.hash else load_twin(scenario.twin_reference)

    def _make_plan(self, item: SuiteSlice, run_seed: int) -> Plan:
        if (item.name, run_seed) in self._plans:
            return self._plans[item.name, run_seed]
        twin = self.open_variant(item)
        where = f"slice {item.name} of {self.name}"
        section = {key: _fill_names(value, self._places) for key, value in item.spec.draw.items()}
        drawn = section_plan(section, twin, run_seed=run_seed, episodes=item.episodes, where=where)
        taken = {name for draw in drawn.draws for name in draw.names} | set(item.values)
        scene = set(names_of_stage(twin.params, "scene") if item.spec.scene else ())
        chosen = {
            "none": set[str](),
            "placement": {param.name for param in twin.params.values() if param.quantity.stage == "reset"},
            "default": set(twin.params),
        }[self.spec.base] | scene
        base = default_draws(twin, skip=[name for name in twin.params if name in taken or name not in chosen])
        self._plans[item.name, run_seed] = replace(drawn, draws=(*drawn.draws, *base))
        return self._plans[item.name, run_seed]

    @cached_property
    def _plans(self) -> dict[tuple[str, int], Plan]:
        return {}

    @cached_property
    def _places(self) -> dict[str, str]:
        return {"object": self.object, "hand": find_hand_body(self.twin) or ""}

    @cached_property
    def _variants(self) -> dict[str, Twin]:
        return {"": self.twin}


@dataclass(frozen=True, kw_only=True)
class PlannedSuite(Suite):
    """Suite of one slice, whose worlds a randomization plan draws.

    Attributes:
        plan: The plan; the run seed of an evaluation replaces its own.
    """

    plan: Plan

    @classmethod
    def of(cls, plan: Plan, *, name: str, episodes: int) -> PlannedSuite:
        """Return the suite.

        Args:
            plan: The plan, with the twin.
            name: Name of the suite and of its slice.
            episodes: Number of trials.
        """
        spec = SliceSpec(name=name, draw={"plan": plan.hash})
        item = SuiteSlice(name=name, spec=spec, episodes=episodes, values={})
        return cls(
            spec=SuiteSpec(name=name, base="none", episodes=episodes, slices=[spec]),
            twin=plan.twin,
            slices=(item,),
            plan=plan,
        )

    def draw_table(self, item: SuiteSlice, numbers: NDArray[np.int64], *, run_seed: int, nstep: int) -> ParamTable:  # noqa: ARG002
        """Draw the parameters of some episodes from the plan; see `Suite.draw_table`."""
        return replace(self.plan, run_seed=run_seed).draw(numbers.tolist(), nstep=nstep)


def expand_suite(
    spec: SuiteSpec, twin: Twin, task: Task, *, images: bool = False, scenarios: Path | None = None
) -> Suite:
    """Resolve the patterns and names of a suite to the parameters of a twin.

    In a lenient suite (`SuiteSpec.lenient`), a slice that does not match the twin or the task is left out; otherwise
    it raises an error.

    Args:
        spec: The suite as written in YAML.
        twin: The twin.
        task: The task on that twin.
        images: Whether the policy uses images; if not, slices that change only the appearance are left out.
        scenarios: Folder of stored scenarios, from which the suite's ``scenarios`` pattern selects.

    Raises:
        UnknownNameError: If the twin does not have a parameter of a slice and the suite is not lenient, or a pattern in
            ``axes`` matches no parameter with a default range.
        InputError: If a parameter has no default range or the task has no object to replace, and the suite is not
            lenient; or if no stored scenario matches.
    """
    places = {"object": getattr(getattr(task, "config", None), "object", ""), "hand": find_hand_body(twin) or ""}
    rows = [row.model_copy(update={"name": _fill_names(row.name, places)}) for row in spec.declare]
    extended = declare_params(twin, rows) if rows else twin
    slices: list[SuiteSlice] = []
    left_out: list[str] = []
    appearance_only = 0
    axes = [_fill_names(name, places) for name in spec.pairs]
    for item in [*spec.slices, *_axis_slices(spec.axes, extended, places), *_pair_slices(axes)]:
        if item.scenario:
            slices.append(_scenario_slice(item, read_scenario(Path(item.scenario)), spec.episodes))
            continue
        try:
            values = _resolve_values(item, extended, task, places)
        except (UnknownNameError, InputError) as error:
            if not spec.lenient:
                raise
            left_out.append(f"{item.name}: {error}")
            continue
        names = [*values, *_list_drawn_names(item, places)]
        if not images and names and not item.object and not item.scene and _is_appearance_only(names, extended):
            appearance_only += 1
            continue
        variant = item.name if item.object is not None or item.scene is not None else ""
        episodes = item.episodes or spec.episodes
        slices.append(SuiteSlice(name=item.name, spec=item, episodes=episodes, values=values, variant=variant))
    if appearance_only:
        left_out.append(f"{appearance_only} slices that change only the appearance, because the policy has no images")
    slices += _scenario_slices(spec, scenarios)
    pairs = tuple(axis for axis in axes if any(axis in item.spec.ends for item in slices))
    return Suite(
        spec=spec,
        twin=extended,
        slices=tuple(slices),
        object=places["object"],
        left_out=tuple(left_out),
        pairs=pairs,
    )


def concatenate_tables(tables: Sequence[ParamTable]) -> ParamTable:
    """Concatenate parameter tables with the same parameters and run seed.

    A parameter with values per control step in one table gets values per control step in the result; its constant
    values in other tables are repeated.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    names = dict.fromkeys(name for table in tables for name in table.steps)
    longest = {name: max(t.steps[name].shape[1] for t in tables if name in t.steps) for name in names}

    def steps(table: ParamTable, name: str) -> NDArray[np.float64]:
        if name in table.steps:
            return table.steps[name]
        return np.repeat(table[name][:, None], longest[name], axis=1)

    paths = [table.require_seeds("Trials of a suite happen") for table in tables]
    return ParamTable(
        names=first.names,
        values=np.concatenate([table.values for table in tables]),
        steps={name: np.concatenate([steps(table, name) for table in tables]) for name in names},
        seeds=SeedPath.of(
            paths[0].run_seed,
            np.concatenate([path.episodes for path in paths]),
            np.concatenate([path.attempts for path in paths]),
        ),
    )


def _axis_slices(patterns: Iterable[str], twin: Twin, places: Mapping[str, str]) -> Iterator[SliceSpec]:
    """Yield two slices, at the low and high end of the default range, for every parameter that matches a pattern.

    Args:
        patterns: Names or patterns of parameters.
        twin: The twin with the parameters.
        places: Names that replace ``{object}`` and ``{hand}`` in the patterns, by ``object`` and ``hand``.

    Raises:
        UnknownNameError: If a pattern matches no parameter with a default range.
    """
    given = [_fill_names(pattern, places) for pattern in patterns]
    ranged = [param.name for param in twin.params.values() if param.default_range is not None]
    for pattern in given:
        if not fnmatch.filter(ranged, pattern):
            raise UnknownNameError("axis", pattern, ranged, where=f"the parameters of {twin.name} with a default range")
    for name in ranged:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in given):
            for end in ENDS:
                yield SliceSpec(name=f"{name}:{end}", set={name: end}, ends={name: end})


def _pair_slices(axes: Sequence[str]) -> Iterator[SliceSpec]:
    """Yield four slices for every two axes: all combinations of the low and high ends of their parameters' ranges."""
    for a, b in itertools.combinations(axes, 2):
        for first, second in itertools.product(ENDS, ENDS):
            yield SliceSpec(name=f"{a}:{first}|{b}:{second}", set={a: first, b: second}, ends={a: first, b: second})


def _scenario_slices(spec: SuiteSpec, folder: Path | None) -> list[SuiteSlice]:
    """Return one slice for every stored scenario in ``folder`` whose name matches the suite's ``scenarios`` pattern."""
    if not spec.scenarios:
        return []
    stored = [] if folder is None else list_scenarios(folder)
    chosen = [path for path in stored if fnmatch.fnmatchcase(path.name, spec.scenarios)]
    if not chosen:
        there = "no scenarios" if folder is None else f"{len(stored)} scenarios in {folder}"
        there += "" if folder is None or folder.is_dir() else ", which does not exist,"
        raise InputError(
            f"The suite {spec.name} runs stored scenarios, and of {there} none matches {spec.scenarios!r}. Store one "
            "with `twinloop scenario from-failure`, or give --scenarios FOLDER."
        )
    rows = [SliceSpec(name=path.name, scenario=str(path)) for path in chosen]
    return [_scenario_slice(row, read_scenario(Path(row.scenario)), spec.episodes) for row in rows]


def _scenario_slice(item: SliceSpec, scenario: Scenario, episodes: int) -> SuiteSlice:
    return SuiteSlice(
        name=item.name,
        spec=item,
        episodes=item.episodes or episodes,
        values={},
        variant=f"scenario/{scenario.twin}/{scenario.twin_hash}",
        scenario=scenario,
    )


def _resolve_values(item: SliceSpec, twin: Twin, task: Task, places: Mapping[str, str]) -> dict[str, float]:
    """Return the values in SI units that a slice sets, by parameter name.

    Args:
        item: The slice.
        twin: The twin with the parameters.
        task: The task, for its object.
        places: Names that replace ``{object}`` and ``{hand}``.

    Raises:
        UnknownNameError: If no parameter matches a name in ``set`` or ``draw``.
        InputError: If a value is outside its bounds, a parameter has no default range, or the task has no object.
    """
    values: dict[str, float] = {}
    for key, value in item.set.items():
        pattern = _fill_names(key, places)
        names = fnmatch.filter(twin.params, pattern)
        if not names:
            raise UnknownNameError("parameter", pattern, twin.params, where=f"slice {item.name} on {twin.name}")
        for name in names:
            param = twin.params[name]
            values[name] = _resolve_end(param, value, item.name) if isinstance(value, str) else float(value)
            param.check(values[name], where=f"slice {item.name}")
    for pattern in _list_drawn_names(item, places):
        if "/" in pattern and not fnmatch.filter(twin.params, pattern):
            raise UnknownNameError("parameter", pattern, twin.params, where=f"slice {item.name} on {twin.name}")
    if item.object is not None and not places["object"]:
        raise InputError(
            f"Slice {item.name} replaces the object of the task, but the task {task.name} has none. "
            "Remove the key object from the slice."
        )
    return values


def _resolve_end(param: Param, end: End, where: str) -> float:
    if param.default_range is None:
        raise InputError(
            f"Slice {where}: {param.name} has no default range, so '{end}' has no value. Give a number in SI units."
        )
    return float(param.absolute(param.default_range[ENDS.index(end)], param.op))


def _list_drawn_names(item: SliceSpec, places: Mapping[str, str]) -> list[str]:
    """Return the keys in the ``draw`` sections of a slice.

    A key is a parameter name, a pattern of names, or a short name such as ``friction``.

    Args:
        item: The slice.
        places: Names that replace ``{object}`` and ``{hand}`` in the keys, by ``object`` and ``hand``.
    """
    sections = [section for section in item.draw.values() if isinstance(section, dict)]
    keys = [str(_fill_names(str(key), places)) for section in sections for key in section]
    drawn = {"texture_pool": "texture/*", "rooms": ROOM}
    return [drawn.get(key, key) for key in keys]


def _is_appearance_only(names: Iterable[str], twin: Twin) -> bool:
    """Return whether all names match only parameters that change images; False if a name matches no parameter.

    A policy without images cannot see the effect of such parameters.
    """
    quantities = ([twin.params[one].quantity for one in fnmatch.filter(twin.params, name)] for name in names)
    return all(kinds and all(kind.visual or kind.device in _LOOKS for kind in kinds) for kinds in quantities)


def _fill_names(value: Any, places: Mapping[str, str]) -> Any:
    """Return YAML content in which ``{object}`` and ``{hand}``, in keys and strings, are replaced by names.

    Args:
        value: The content; other types than mappings and strings are returned unchanged.
        places: Name by placeholder (``object`` or ``hand``). If a name is empty, only the braces are removed.
    """
    if isinstance(value, Mapping):
        return {_fill_names(key, places): _fill_names(item, places) for key, item in value.items()}
    if isinstance(value, str):
        for word, name in places.items():
            value = value.replace("{" + word + "}", name or word)
    return value
