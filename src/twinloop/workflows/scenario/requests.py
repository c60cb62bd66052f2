"""Define the flags of the ``twinloop scenario`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import (
    FailIfOption,
    LevelOption,
    RepeatedFlag,
    ReportedRequest,
    ScenarioFolderRequest,
    SeedOption,
    WorkersOption,
    request,
)

_Name = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME", help="Name of the scenario, or its folder.")]]


@request
class FromFailureRequest(SeedOption, ScenarioFolderRequest):
    """Rebuild a failed episode in simulation, measure how often it fails again, and store it as a scenario.

    A scenario is one stored world with its policy and outcome.
    """

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """The failed episode: beginning of its id in the workspace, or FOLDER:INDEX."""
    name: str = ""
    """Name of the scenario; by default its failure class and its origin."""
    policy: str = ""
    """Actor (source of the commands): a policy's folder or name, or expert; by default the episode's actor."""
    twin: str | None = None
    """For a robot's log: the twin of the robot; by default that of --policy, or of the workspace. For a simulated
    episode, the recorded twin is used.
    """
    task: str | None = None
    """For a robot's log: the task; by default that of --policy, or of the workspace."""
    identified: Path | None = None
    """For a robot's log: folder of a `twinloop identify` run, from whose distribution parameters are drawn; by default
    they are drawn from the twin's ranges.
    """
    tries: int = 32
    """Number of similar worlds in which the failure is repeated. They have new random numbers and, for a log, new draws
    of unknown parameters.
    """
    # our choice: below a tenth, the cause of the failure is more likely something that the twin does not model
    min_share: float = 0.1
    """Share of these worlds that must fail, so that the failure counts as reproduced."""
    reason: str = ""
    """Reason of the failure as a text; by default that of the task's rule."""
    meaning: str = ""
    """Why the scenario is stored, as a text."""
    force: bool = False
    """Store the scenario even if the failure does not happen again."""


@request
class CounterfactualRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Measure whether a scenario succeeds with a changed parameter, in the same worlds with the same randomness.

    A condition of --fail-if consists of a change and a limit on the success rate with the change minus that without it.
    For example, 'actuator/*/delay*=0.5 < 0.2' is true if the change actuator/*/delay*=0.5, which halves the delay of
    all actuators, adds less than 0.2.
    """

    name: _Name
    change: RepeatedFlag = ()
    """PARAMETER=0.05,0.1 sets it, PARAMETER*=2 scales it, PARAMETER+=0.01 shifts it, PARAMETER=0.02..0.2:7 takes seven
    values; * matches any name, units are SI; repeat the flag for each change.
    """
    policy: str = ""
    """Actor (source of the commands): a policy's folder or name, or expert; by default the actor stored with the
    scenario.
    """
    tries: int = 16
    """Number of worlds; the first is the stored one."""
    random_numbers: Literal["varied", "held"] = "varied"
    """Random numbers of the worlds: new in each world (varied), or those of the stored world (held). A changed world
    always has the random numbers of its unchanged one.
    """
    refine: int = 0
    """Number of bisections with which the value is found at which half of the worlds succeed; 0 for none."""


@request
class AblateRequest(FailIfOption, LevelOption, ReportedRequest, ScenarioFolderRequest):
    """Find the physical effects that cause a failure: switch off each effect alone, and all other effects together.

    Example condition of --fail-if: 'backlash > 0.5'. The metric of an effect is the success rate without it minus that
    with it.
    """

    name: _Name
    term: RepeatedFlag = ()
    """An effect to test; repeat the flag for each. By default all (docs/guides/scenarios.md lists them)."""
    policy: str = ""
    """Actor (source of the commands): a policy's folder or name, or expert; by default the actor stored with the
    scenario.
    """
    tries: int = 16
    """Number of worlds; the first is the stored one."""
    random_numbers: Literal["varied", "held"] = "varied"
    """Random numbers of the worlds: new in each world (varied), or those of the stored world (held)."""


@request
class RegressRequest(LevelOption, ScenarioFolderRequest):
    """Run every stored scenario with a policy or on another version of its twin; exit with 1 if one got worse."""

    names: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help="Name of the scenario, or its folder.")]
    ] = ()
    """Scenarios to run; by default all."""
    policy: str = ""
    """Actor (source of the commands): a policy's folder or name, or expert; by default the actor stored with each
    scenario.
    """
    twin: str = ""
    """Another version of the twin: a file or a name. A scenario whose parameters or state do not fit this twin is
    refused.
    """
    accept: bool = False
    """Store the present results and the present twin as the new expectation of later regressions."""
    alpha: float = 0.05
    """Probability that at least one scenario is reported as regressed although none is."""
    output: Path | None = None
    """Folder for result.json."""


@request
class AugmentRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """Generate demonstrations near a failure, in worlds whose parameters are drawn from a box around the scenario."""

    name: _Name
    output: Path
    """Folder for generate.yaml and data."""
    episodes: int = 64
    """Number of attempts; successful ones are kept."""
    width: float = 0.125
    """Half the width of the box, as a fraction of each parameter's default range."""
    only: RepeatedFlag = ()
    """Pattern of parameters in the box; repeat the flag for each. By default all that differ from the twin's nominal
    values; all others are drawn from their default ranges."""
    plan_only: bool = False
    """Write the generate file without running it."""


@request
class RetrainRequest(SeedOption, WorkersOption, ScenarioFolderRequest):
    """Retrain a policy from a failure: demonstrations around it, training, trials before and after, and the gate."""

    name: _Name
    policy: str
    """The current champion: a policy's folder or name. Training continues from its weights."""
    output: Path
    """Folder for the targeted data, the new policy, evaluations, result.json and report.html."""
    data: tuple[str, ...] = ()
    """Training data of the champion; by default the data recorded in its folder."""
    episodes: int = 64
    """Number of attempted demonstrations around the failure; for a policy of distill, worlds near it in each round."""
    width: float = 0.125
    """Half the width of the box of parameters for the demonstrations, as a fraction of each parameter's default range.
    """
    only: RepeatedFlag = ()
    """Pattern of parameters in the box; repeat the flag for each. By default all that differ from the twin's nominal
    values.
    """
    # our choice: half, so that both parts are learned, however small the targeted set is
    share: float = 0.5
    """Share of the training around the failure: of every batch, or of the worlds if the policy was taught by distill.
    """
    randomize_from: Path | None = None
    """Folder of the robot's identification run, for a policy of distill: the other worlds of its teaching, and those of
    the trials, are drawn around it. The expert then knows what was identified, such as the zeros of the encoders. By
    default these worlds are from the policy's distribution."""
    steps: int | None = None
    """Number of training steps; by default 2000, and 8000 for a policy of distill."""
    lr: float | None = None
    """Learning rate; by default a tenth of the champion's, and half of it for a policy of distill."""
    tries: int = 32
    """Number of trials of every stored scenario."""
    trials: int = 100
    """Number of nominal trials; if the policy was taught by distill, of trials in the worlds of its teaching."""
    within: float = 0.1
    """Gate: largest allowed decrease of the success rate in these trials."""
    alpha: float = 0.05
    """Gate: probability of a yes for a policy that violates a rule."""


@request
class ScenarioListRequest(ScenarioFolderRequest):
    """List the stored scenarios with their origin, twin and number of failures."""


@request
class ScenarioShowRequest(ScenarioFolderRequest):
    """Show a scenario: its origin, its parameters, and its measurements."""

    name: _Name


@request
class ScenarioSearchRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest, ScenarioFolderRequest):
    """Search for rare failures: estimate the failure rate, find where failures occur, and rank them by probability.

    Example condition of --fail-if: 'failure rate > 1e-3'.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE.yaml")]]
    """A generate file: twin, task, and the distribution that defines the failure rate."""
    policy: str = "expert"
    """Actor (source of the commands): a policy's folder or name, or expert."""
    worlds: int = 256
    """Number of worlds per round of the search."""
    rounds: int = 6
    """Maximum number of rounds of the search towards failures; 0 draws from the distribution only."""
    draws: int = 1024
    """Number of worlds for the estimate of the failure rate, drawn more often where the search found failures."""
    modes: int = 4
    """Maximum number of separate regions of failures in the search."""
    illuminate: int = 512
    """Number of additional worlds that fill the map of failures (a grid over two parameters); 0 for none."""
    simplify: int = 8
    """Number of rounds in which unnecessary parameters of a failure return to the middle of their range; 0 for none."""
    by: RepeatedFlag = ()
    """Axis (parameter) of the map; repeat the flag for the second. By default the parameters that failures depend on
    most.
    """
    keep: int = 0
    """Number of failures to store as scenarios, the most probable first, at most one for each cell of the map."""
