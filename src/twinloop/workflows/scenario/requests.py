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

_Name = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME", help="Name of the scenario, or its folder.")]]


@request
class FromFailureRequest(SeedOption, ScenarioFolderRequest):
    """Rebuild a failed episode in simulation, measure how often it fails again, and store it as a scenario."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """Beginning of its id in the workspace, or FOLDER:INDEX."""
    name: str = ""
    """Name of the scenario; by default its failure class and its origin."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the episode's actor."""
    twin: str = DEFAULT_TWIN
    """For a robot's log: the twin of the robot. A simulated episode records its own."""
    task: str = DEFAULT_TASK
    """For a robot's log: the task."""
    identified: Path | None = None
    """For a robot's log: a run of `twinloop identify` from which parameters are drawn; by default the twin's ranges."""
    tries: int = 32
    """Number of similar worlds: with new random numbers and, for a log, new draws of unknown parameters."""
    # our choice: below a tenth, the cause of the failure is more likely something that the twin does not model
    min_share: float = 0.1
    """Share of tries that must fail for the failure to have happened again."""
    reason: str = ""
    """Reason of the failure as a text; by default that of the task's rule."""
    meaning: str = ""
    """Why the scenario is stored, as a text."""
    force: bool = False
    """Store the scenario even if the failure does not happen again."""


@request
class CounterfactualRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Measure whether a scenario succeeds with a changed parameter, in the same worlds with the same randomness.

    Example condition of --fail-if: 'actuator/*/delay*=0.5 < 0.2'.
    """

    name: _Name
    change: Texts = ()
    """PARAMETER=0.05,0.1 sets it, PARAMETER*=2 scales it, PARAMETER+=0.01 shifts it, PARAMETER=0.02..0.2:7 takes seven
    values; * matches any name, units are SI; repeat the flag for each change.
    """
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with the scenario."""
    tries: int = 16
    """Number of worlds; the first is the stored one."""
    random_numbers: Literal["varied", "held"] = "varied"
    """Random numbers of the worlds: varied or the same (held). They never differ between with and without a change."""
    refine: int = 0
    """Number of bisections of the interval of values in which half of the worlds change their outcome."""


@request
class AblateRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Find the physical effects that a failure needs: each is switched off alone, and all others are.

    Example condition of --fail-if: 'backlash > 0.5'.
    """

    name: _Name
    term: Texts = ()
    """An effect to test; repeat the flag for each. By default all (docs/guides/scenarios.md lists them)."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with the scenario."""
    tries: int = 16
    """Number of worlds; the first is the stored one."""
    random_numbers: Literal["varied", "held"] = "varied"
    """Random numbers of the worlds: varied, or the same (held)."""


@request
class RegressRequest(LevelOption, ScenarioFolderRequest):
    """Run every stored scenario under a policy, or on another version of its twin; exit code 1 on a regression."""

    names: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help="Name of the scenario, or its folder.")]
    ] = ()
    """Scenarios to run; by default all."""
    policy: str = ""
    """Actor: a policy's folder or name, or expert; by default the actor stored with each scenario."""
    twin: str = ""
    """Another version of the twin: a file or a name. Scenarios are moved over, or refused with the difference."""
    accept: bool = False
    """Store the current results and the current twin as the new expectation."""
    alpha: float = 0.05
    """Probability that any scenario is reported as regressed if none is."""
    output: Path | None = None
    """Folder for result.json."""


@request
class AugmentRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """Generate demonstrations around a failure, from a generate file with a box around the scenario."""

    name: _Name
    output: Path
    """Folder for generate.yaml and data."""
    episodes: int = 64
    """Number of attempts; successful ones are kept."""
    width: float = 0.125
    """Half the width of the box, as a fraction of each parameter's default range."""
    only: Texts = ()
    """Pattern of parameters in the box; repeat the flag for each. By default all that differ from the twin's nominal
    values; all others are drawn from their default ranges."""
    plan_only: bool = False
    """Write the generate file without running it."""


@request
class LoopRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """Retrain a policy from a failure: demonstrations around it, training, trials before and after, and the gate."""

    name: _Name
    policy: str
    """The current champion: a policy's folder or name. Training continues from its weights."""
    output: Path
    """Folder for the targeted data, the new policy, evaluations, result.json and report.html."""
    data: tuple[str, ...] = ()
    """Training data of the champion; by default those recorded in its folder."""
    episodes: int = 64
    """Number of attempted demonstrations around the failure."""
    width: float = 0.125
    """Half the width of their box, as a fraction of each parameter's default range."""
    only: Texts = ()
    """Pattern of parameters in the box; repeat the flag for each."""
    # our choice: half, so that both parts are learned, however small the targeted set is
    share: float = 0.5
    """Share of every batch that is from the demonstrations around the failure."""
    steps: int = 2000
    """Number of training steps."""
    lr: float | None = None
    """Learning rate; by default a tenth of the champion's."""
    tries: int = 32
    """Number of trials of every stored scenario."""
    trials: int = 100
    """Number of nominal trials."""
    within: float = 0.1
    """Gate: largest allowed decrease of nominal success."""
    alpha: float = 0.05
    """Gate: probability of a wrong yes."""


@request
class ScenarioListRequest(ScenarioFolderRequest):
    """List the stored scenarios."""


@request
class ScenarioShowRequest(ScenarioFolderRequest):
    """Show a scenario: its origin, its parameters, and its measurements."""

    name: _Name


@request
class ScenarioSearchRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest, ScenarioFolderRequest):
    """Search for rare failures: their rate, their region, and the most probable ones.

    Example condition of --fail-if: 'failure rate > 1e-3'.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE.yaml")]]
    """A generate file: twin, task, and the distribution that defines the failure rate."""
    policy: str = "expert"
    """Actor: a policy's folder or name, or expert."""
    worlds: int = 256
    """Number of worlds per round of the search."""
    rounds: int = 6
    """Maximum number of rounds of the search towards failures; 0 draws from the distribution only."""
    draws: int = 1024
    """Number of worlds for the estimate of the rate, newly drawn where failures were found."""
    modes: int = 4
    """Maximum number of separate regions of failures in the search."""
    illuminate: int = 512
    """Number of additional worlds that fill the map of failures; 0 for none."""
    simplify: int = 8
    """Number of rounds in which unnecessary parameters of a failure return to the middle of their range; 0 for none."""
    by: Texts = ()
    """An axis of the map; repeat the flag for the second. By default the parameters that failures depend on most."""
    keep: int = 0
    """Number of failures to store as scenarios: the most probable one of each cell, most probable first."""
