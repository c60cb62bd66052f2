"""The command ``twinloop scenario``: from a failure to a world that is kept, asked, searched, never forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, console

_Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class ScenarioSearch:
    """Find failures that nobody logged: how often they happen, even if rarely, where, and the most probable ones."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE.yaml")]]
    """A generate file: twin, task, and what is drawn, which the failure rate is asked about."""
    policy: str = "expert"
    """Who acts: a policy's folder or name, or expert."""
    worlds: int = 256
    """Worlds per round of the search."""
    rounds: int = 6
    """Most rounds of the search towards failures; 0 draws plainly."""
    draws: int = 1024
    """Worlds of the estimate, drawn afresh where failures were found."""
    modes: int = 4
    """Regions of failures that the search can hold at once."""
    illuminate: int = 512
    """Further worlds that fill the map of failures; 0 for none."""
    simplify: int = 8
    """Rounds in which what a failure does not need goes back to the middle of what is drawn; 0 for none."""
    by: _Texts = ()
    """A parameter that the map is drawn over; again for the second. By default those that failures depend on most."""
    keep: int = 0
    """How many failures to keep as scenarios, the most probable of each cell, most probable first."""
    seed: int = 0
    """Of the search."""
    level: float = 0.95
    """Of the interval."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: _Texts = ()
    """Exit with 1 if a figure is such, as in 'failure rate > 1e-3'."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Search."""
        from twinloop.scenario.rare import Search
        from twinloop.workflows.scenario.search import Hunt, run_search

        search = Search(round_size=self.worlds, rounds=self.rounds, modes=self.modes, draws=self.draws, seed=self.seed)
        asked = Hunt(
            file=self.file,
            policy=self.policy,
            search=search,
            illuminate=self.illuminate,
            simplify=self.simplify,
            by=self.by,
            keep=self.keep,
            level=self.level,
        )
        return run_search(asked, self.output, self.scenarios, fail_if=self.fail_if, console=console(json=self.json))


_Name = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME", help="Of the scenario, or its folder.")]]


@dataclass(frozen=True, kw_only=True)
class FromFailure:
    """Rebuild a failed episode, see whether the failure happens again in simulation and how often, and keep it."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """Beginning of its id in the workspace, or FOLDER:INDEX."""
    name: str = ""
    """What to call it; by default its failure class and where it comes from."""
    policy: str = ""
    """Who acts again: a policy's folder or name, or expert; by default whoever the episode says acted."""
    twin: str = "so101_tabletop"
    """Of a log: the twin of the robot. A simulated episode knows its own."""
    task: str = "pick_and_place"
    """Of a log: the task."""
    identified: Path | None = None
    """Of a log: a run of `twinloop identify` whose distribution parameters come from; else the twin's."""
    tries: int = 32
    """How many worlds like it are tried: with other chance and, of a log, other draws of what is not known."""
    least: float = 0.1
    """Share of tries that must fail for the failure to have happened again."""
    reason: str = ""
    """Why it failed, in words; by default what the task's rule says."""
    meaning: str = ""
    """Why it is kept, in words."""
    anyway: bool = False
    """Keep it even where the failure does not happen again."""
    seed: int = 0
    """Of a log: seed of draws and chance."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Rebuild, try, keep."""
        from twinloop.workflows.scenario.failure import Asked, run_from_failure

        asked = Asked(
            episode=self.episode,
            name=self.name,
            policy=self.policy,
            twin=self.twin,
            task=self.task,
            identified=self.identified,
            tries=self.tries,
            least=self.least,
            reason=self.reason,
            meaning=self.meaning,
            anyway=self.anyway,
            seed=self.seed,
        )
        return run_from_failure(asked, self.scenarios, console(json=self.json))


@dataclass(frozen=True, kw_only=True)
class Counterfactual:
    """Would it have succeeded, had something been different? Same worlds, same chance, with the change and without."""

    name: _Name
    what: _Texts = ()
    """PARAMETER=0.05,0.1 sets it, PARAMETER*=2 scales it, PARAMETER+=0.01 shifts it, PARAMETER=0.02..0.2:7 asks for
    seven values; * stands for any name, units are SI; again for each question."""
    policy: str = ""
    """Who acts: a policy's folder or name, or expert; by default whoever was stored with the scenario."""
    tries: int = 16
    """Worlds, the pinned one first."""
    chance: Literal["varied", "held"] = "varied"
    """Whether worlds differ in chance from each other; with a change and without it is the same either way."""
    refine: int = 0
    """How many times the doses between which half of the worlds turn are halved."""
    level: float = 0.95
    """Of intervals."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: _Texts = ()
    """Exit with 1 if a figure is such, as in 'actuator/*/delay*=0.5 < 0.2'."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Ask."""
        from twinloop.workflows.scenario.ask import run_counterfactual

        return run_counterfactual(
            self.name,
            self.what,
            self.policy,
            self.output,
            scenarios=self.scenarios,
            tries=self.tries,
            chance=self.chance,
            refine=self.refine,
            level=self.level,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class Ablate:
    """Which term of the physics does the failure need? Each is switched off alone, and all but each."""

    name: _Name
    term: _Texts = ()
    """Only these terms; again for each. See docs/scenarios.md for all."""
    policy: str = ""
    """Who acts: a policy's folder or name, or expert; by default whoever was stored with the scenario."""
    tries: int = 16
    """Worlds, the pinned one first."""
    chance: Literal["varied", "held"] = "varied"
    """Whether worlds differ in chance from each other."""
    level: float = 0.95
    """Of intervals."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: _Texts = ()
    """Exit with 1 if a figure is such, as in 'backlash > 0.5'."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Switch off."""
        from twinloop.workflows.scenario.ask import run_ablate

        return run_ablate(
            self.name,
            self.policy,
            self.output,
            terms=self.term,
            scenarios=self.scenarios,
            tries=self.tries,
            chance=self.chance,
            level=self.level,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class Regress:
    """Run every stored scenario under a policy, or on another version of its twin; exit code 1 on a regression."""

    names: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help="Of the scenario, or its folder.")]
    ] = ()
    """Scenarios; all of them by default."""
    policy: str = ""
    """Who acts: a policy's folder or name, or expert; by default whoever was stored with each scenario."""
    twin: str = ""
    """Another version of the twin: a file or a name. Scenarios are moved over, or refused with the difference."""
    accept: bool = False
    """What is found becomes what is expected, and the twin theirs."""
    alpha: float = 0.05
    """Chance that any scenario is called regressed where none is."""
    level: float = 0.95
    """Of intervals."""
    output: Path | None = None
    """Folder for result.json."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Run them."""
        from twinloop.workflows.scenario.regress import run_regress

        return run_regress(
            self.names,
            self.output,
            policy=self.policy,
            twin=self.twin,
            scenarios=self.scenarios,
            accept=self.accept,
            alpha=self.alpha,
            level=self.level,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Demonstrations around a failure: a generate file with a box around the scenario, and the data it makes."""

    name: _Name
    output: Path
    """Folder for generate.yaml and data."""
    episodes: int = 64
    """Attempts; those that succeed are kept."""
    width: float = 0.125
    """Half the width of the box, in parts of each parameter's default range."""
    only: _Texts = ()
    """Patterns of parameters that the box is about; all that the scenario departs in by default. All others are drawn
    from their default ranges. Again for each."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 for every core."""
    plan_only: bool = False
    """Write the file and run nothing."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Generate."""
        from twinloop.workflows.scenario.augment import run_augment

        figures = run_augment(
            self.name,
            self.output,
            episodes=self.episodes,
            width=self.width,
            only=self.only,
            seed=self.seed,
            scenarios=self.scenarios,
            workers=self.workers,
            run=not self.plan_only,
            console=console(json=self.json),
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The whole circle from a failure: demonstrations around it, training on, trials before and after, the gate."""

    name: _Name
    policy: str
    """The present champion: a policy's folder or name. Training goes on from its weights."""
    output: Path
    """Folder for the targeted data, the new policy, evaluations, result.json and report.html."""
    data: tuple[str, ...] = ()
    """What the champion was trained on; by default what its folder says."""
    episodes: int = 64
    """Attempts at demonstrations around the failure."""
    width: float = 0.125
    """Half the width of their box, in parts of each parameter's default range."""
    only: _Texts = ()
    """Patterns of parameters that the box is about; again for each."""
    share: float = 0.5
    """Part of every batch that comes from around the failure."""
    steps: int = 2000
    """Steps of training."""
    lr: float | None = None
    """Learning rate; by default a tenth of the champion's."""
    tries: int = 32
    """Trials of every stored scenario."""
    trials: int = 100
    """Nominal trials."""
    within: float = 0.1
    """The gate: nominal success must not be lower by that much."""
    alpha: float = 0.05
    """The gate: chance of a wrong yes."""
    seed: int = 0
    """Run seed of data, training and trials."""
    workers: int = 0
    """Processes that generate; 0 for every core."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Go round."""
        from twinloop.workflows.scenario.circle import Circle, run_circle

        apart = ("output", "workers", "scenarios", "json")
        circle = Circle(**{key: value for key, value in vars(self).items() if key not in apart})
        return run_circle(
            circle, self.output, scenarios=self.scenarios, workers=self.workers, console=console(json=self.json)
        )


@dataclass(frozen=True, kw_only=True)
class ScenarioList:
    """The scenarios that there are."""

    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.workflows.scenario.places import run_list

        return run_list(self.scenarios, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class ScenarioShow:
    """All that is known of a scenario."""

    name: _Name
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.workflows.scenario.places import run_show

        return run_show(self.name, self.scenarios, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Failures that are kept: rebuilt, asked what they need, turned into data, and run again for ever."""

    action: (
        Annotated[FromFailure, tyro.conf.subcommand("from-failure", prefix_name=False)]
        | Annotated[Counterfactual, tyro.conf.subcommand("counterfactual", prefix_name=False)]
        | Annotated[Ablate, tyro.conf.subcommand("ablate", prefix_name=False)]
        | Annotated[Regress, tyro.conf.subcommand("regress", prefix_name=False)]
        | Annotated[Augment, tyro.conf.subcommand("augment", prefix_name=False)]
        | Annotated[Loop, tyro.conf.subcommand("loop", prefix_name=False)]
        | Annotated[ScenarioSearch, tyro.conf.subcommand("search", prefix_name=False)]
        | Annotated[ScenarioList, tyro.conf.subcommand("list", prefix_name=False)]
        | Annotated[ScenarioShow, tyro.conf.subcommand("show", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()
