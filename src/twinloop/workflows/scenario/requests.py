"""Requests of ``twinloop scenario``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.tasks import DEFAULT_TASK, DEFAULT_TWIN
from twinloop.workflows.run.request import (
    FailIfOption,
    LevelOption,
    ReportedRequest,
    ScenarioFolderRequest,
    SeedOption,
    Texts,
    WorkersOption,
    request,
)

_Name = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME", help="Of the scenario, or its folder.")]]


@request
class FromFailureRequest(SeedOption, ScenarioFolderRequest):
    """Rebuild a failed episode, see whether the failure happens again in simulation and how often, and keep it."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """Beginning of its id in the workspace, or FOLDER:INDEX."""
    name: str = ""
    """What to call it; by default its failure class and where it comes from."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the episode's actor."""
    twin: str = DEFAULT_TWIN
    """For a robot's log: the twin of the robot. A simulated episode records its own."""
    task: str = DEFAULT_TASK
    """Of a log: the task."""
    identified: Path | None = None
    """Of a log: a run of `twinloop identify` whose distribution parameters come from; else the twin's."""
    tries: int = 32
    """Number of similar worlds: with new random numbers and, for a log, new draws of unknown parameters."""
    # our choice: below a tenth, what made it fail out there is more likely what the twin lacks than these worlds
    least: float = 0.1
    """Share of tries that must fail for the failure to have happened again."""
    reason: str = ""
    """Reason of the failure as a text; by default that of the task's rule."""
    meaning: str = ""
    """Why it is kept, in words."""
    anyway: bool = False
    """Keep it even where the failure does not happen again."""


@request
class CounterfactualRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Would it have succeeded, had something been different? Same worlds, same chance, with the change and without.

    Example condition of --fail-if: 'actuator/*/delay*=0.5 < 0.2'.
    """

    name: _Name
    what: Texts = ()
    """PARAMETER=0.05,0.1 sets it, PARAMETER*=2 scales it, PARAMETER+=0.01 shifts it, PARAMETER=0.02..0.2:7 takes seven
    values; * matches any name, units are SI; repeat the flag for each change.
    """
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with the scenario."""
    tries: int = 16
    """Worlds, the pinned one first."""
    chance: Literal["varied", "held"] = "varied"
    """Whether worlds differ in chance from each other; with a change and without it is the same either way."""
    refine: int = 0
    """How many times the doses between which half of the worlds turn are halved."""


@request
class AblateRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Which term of the physics does the failure need? Each is switched off alone, and all but each.

    Example condition of --fail-if: 'backlash > 0.5'.
    """

    name: _Name
    term: Texts = ()
    """Only these terms; again for each. See docs/guides/scenarios.md for all."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with the scenario."""
    tries: int = 16
    """Worlds, the pinned one first."""
    chance: Literal["varied", "held"] = "varied"
    """Whether worlds differ in chance from each other."""


@request
class RegressRequest(LevelOption, ScenarioFolderRequest):
    """Run every stored scenario under a policy, or on another version of its twin; exit code 1 on a regression."""

    names: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help="Of the scenario, or its folder.")]
    ] = ()
    """Scenarios; all of them by default."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with each scenario."""
    twin: str = ""
    """Another version of the twin: a file or a name. Scenarios are moved over, or refused with the difference."""
    accept: bool = False
    """Store the current results and the current twin as the new expectation."""
    alpha: float = 0.05
    """Chance that any scenario is called regressed where none is."""
    output: Path | None = None
    """Folder for result.json."""


@request
class AugmentRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """Demonstrations around a failure: a generate file with a box around the scenario, and the data it makes."""

    name: _Name
    output: Path
    """Folder for generate.yaml and data."""
    episodes: int = 64
    """Attempts; those that succeed are kept."""
    width: float = 0.125
    """Half the width of the box, in parts of each parameter's default range."""
    only: Texts = ()
    """Patterns of parameters that the box is about; all that the scenario departs in by default. All others are drawn
    from their default ranges. Again for each."""
    plan_only: bool = False
    """Write the file and run nothing."""


@request
class LoopRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """The whole circle from a failure: demonstrations around it, training on, trials before and after, the gate."""

    name: _Name
    policy: str
    """The current champion: a policy's folder or name. Training continues from its weights."""
    output: Path
    """Folder for the targeted data, the new policy, evaluations, result.json and report.html."""
    data: tuple[str, ...] = ()
    """Training data of the champion; by default those recorded in its folder."""
    episodes: int = 64
    """Attempts at demonstrations around the failure."""
    width: float = 0.125
    """Half the width of their box, in parts of each parameter's default range."""
    only: Texts = ()
    """Patterns of parameters that the box is about; again for each."""
    # our choice: half, so that neither side can be forgotten, and small targeted sets still count
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


@request
class ScenarioListRequest(ScenarioFolderRequest):
    """The scenarios that there are."""


@request
class ScenarioShowRequest(ScenarioFolderRequest):
    """All that is known of a scenario."""

    name: _Name


@request
class ScenarioSearchRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest, ScenarioFolderRequest):
    """Search for rare failures: their rate, their region, and the most probable ones.

    Example condition of --fail-if: 'failure rate > 1e-3'.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE.yaml")]]
    """A generate file: twin, task, and the distribution that defines the failure rate."""
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
    """Rounds in which unnecessary parameters of a failure return to the middle of their range; 0 for none."""
    by: Texts = ()
    """A parameter that the map is drawn over; again for the second. By default those that failures depend on most."""
    keep: int = 0
    """How many failures to keep as scenarios, the most probable of each cell, most probable first."""
