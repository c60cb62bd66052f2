"""What worlds a policy's demonstrations are given in: nominal, hand-written ranges, or what a robot's log told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twinloop.core.distribution import ParamDistribution
from twinloop.core.files import read_json, write_json
from twinloop.core.params import ParamTable
from twinloop.hardware import hidden_cell, virtual_log
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.loop.transfer_study.settings import DEMONSTRATIONS, TWIN, Recipe
from twinloop.loop.transfer_study.showing import Worlds
from twinloop.randomize import Draw, JointDraw, Plan, default_draws, identified_draws
from twinloop.rollout import Tracker
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin

_SECONDS = 8.0  # of each episode of a log
_REPLAY = ReplayOptions(compare=("position", "place/tcp"))  # the tool site of the twin
_ITERATIONS = 8  # of the fit: from the ninth on estimates move by less than a tenth of their error


def placed(twin: Twin) -> list[Draw]:
    """The draws of where things lie."""
    return [draw for draw in default_draws(twin) if twin.params[draw.names[0]].quantity.stage == "reset"]


def log_and_identify(twin: Twin, robot: int, episodes: int, file: Path) -> None:
    """Let a virtual robot be teleoperated, fit the twin to its log, and store what was found.

    The tracker that will tell policies where things lie watches the tool meanwhile: joint readings alone do not say
    where the zeros of the joints are, and a centimetre at the tool is a grasp.
    """
    tracker = hidden_cell(twin, robot).tracker
    log = virtual_log(robot, twin=TWIN, episodes=episodes, seconds=_SECONDS, nthread=1, tracker=tracker)
    config = FitConfig(iterations=_ITERATIONS, polish=0, replay=_REPLAY)
    backend = open_backend("threads", nthread=1)
    found = identify(twin, log, backend=backend, holdout=HoldoutSpec(kind="none"), config=config)
    write_json(file, found.distribution.to_json())


def worlds_of(kind: str, twin: Twin, recipe: Recipe, identified: Path | None = None) -> Worlds:
    """The worlds of a condition.

    Args:
        kind: see `conditions.Condition.worlds`.
        twin: the nominal one.
        recipe: says how the tracker of randomized worlds errs.
        identified: what `log_and_identify` stored of the robot, for ``point`` and ``posterior``.
    """
    noisy = Tracker(noise=recipe.tracker_noise)
    if kind == "nominal":
        return Worlds(twin=twin, plan=_plan(twin, placed(twin)))
    if kind == "ranges":
        return Worlds(twin=twin, plan=_plan(twin, default_draws(twin)), tracker=noisy)
    assert identified is not None  # noqa: S101 - given to both
    distribution = ParamDistribution.from_json(read_json(identified))
    if kind == "posterior":
        return Worlds(twin=twin, plan=_plan(twin, identified_draws(twin, distribution)), tracker=noisy)
    estimate = {name: value for name, value in distribution.estimate.items() if name in _determined(distribution)}

    def as_estimated(table: ParamTable) -> ParamTable:
        own = {name: table[name] for draw in placed(twin) for name in draw.names}
        return replace(twin.table(table.nworld, {**estimate, **own}), seeds=table.seeds)

    return Worlds(twin=twin, plan=_plan(twin, placed(twin)), become=as_estimated)


def _determined(distribution: ParamDistribution) -> set[str]:
    pairs = zip(distribution.names, distribution.determined, strict=True)
    return {name for name, determined in pairs if determined}


def _plan(twin: Twin, draws: list[Draw] | list[Draw | JointDraw]) -> Plan:
    return Plan(twin=twin, run_seed=DEMONSTRATIONS, draws=tuple(draws))
