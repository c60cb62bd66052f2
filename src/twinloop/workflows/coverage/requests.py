"""Requests of ``twinloop coverage`` and ``plan``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import FailIfOption, LevelOption, Request, SeedOption, request


@request
class ComparedSides(LevelOption, SeedOption):
    """What stands for reality, what for simulation, and how their clips are compared."""

    real: tuple[str, ...] = ()
    """Real episodes: logs, dataset folders or public sets."""
    sim: tuple[str, ...] = ()
    """Simulated episodes: dataset folders. The first that was generated says which parameters were drawn."""
    workspace: Path | None = None
    """Take both from this workspace instead, which keeps embeddings so that only new episodes are encoded; by default
    the nearest upwards, where nothing is named."""
    real_where: str = "source = 'real'"
    """Which of its episodes are real: a condition in SQL over the view episodes."""
    sim_where: str = "source = 'sim'"
    """Which are simulated."""
    embedding: str = "waypoints"
    """waypoints, trajectory or convolutions of motion; classical, onnx:FILE, torch:FILE or policy:FOLDER of pictures;
    my_file.py:ClipEncoder; parameters for the space that was drawn from."""
    clip: float = 2.0
    """Length of a clip in s."""
    camera: str | None = None
    """Camera of the pictures; by default each episode's first."""
    ranges: str | None = None
    """A twin whose joint ranges stand in for the calibration of a log that has none; in a workspace by default its
    twin."""
    real_params: Path | None = None
    """What is known of the real episodes' parameters: a CSV file (a column episode, one per parameter, in SI), or the
    folder of an identify run."""
    axes: tuple[str, ...] = ()
    """Parameters to look at, such as 'object/*/position/*'; by default all that were drawn."""
    fit: Literal["union", "real"] = "union"
    """Whose clips whitening is fitted on."""
    k: int = 5
    """The neighbour that says how near real clips lie to each other."""
    failure_weight: float = 1.0
    """How much failures count in the rank of a hole: mass × (1 + weight × failure rate)."""


@request
class CoverageRequest(FailIfOption, Request):
    """What simulation covers: of reality (--real and --sim, or a workspace), or of its own parameter space (DIR).

    Example conditions of --fail-if: 'coverage < 0.9' and 'largest_hole > 0.05'.
    """

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DIR")]] = None
    """A generated dataset alone: each of its parameters, pairs of them, the largest hole."""
    sides: ComparedSides = field(default_factory=ComparedSides)
    output: Path | None = None
    """Folder for result.json and report.html; of a DIR alone, the file of a page."""
    projection: Literal["pca", "umap"] = "pca"
    """The map of clips on the page."""
    like: Annotated[str | None, tyro.conf.arg(metavar="EPISODE[:FRAME]")] = None
    """Instead: the clips of the workspace nearest to this one, EPISODE or EPISODE:FRAME; an episode is named by the
    beginning of its id or by BATCH:INDEX."""
    most: int = 5
    """How many of them."""
    triples: bool = False
    """Of a DIR alone: count triples of parameters too."""


@request
class PlanRequest(Request):
    """What to generate next: the holes of simulation, by reality's mass and failures, as a generate file."""

    sides: ComparedSides = field(default_factory=ComparedSides)
    output: Path | None = None
    """The generate file to write; by default it is printed."""
    base: Path | None = None
    """The generate file to go on from; by default what the first simulated dataset was generated from."""
    episodes: int = 128
    """Attempts of the next run, shared out over the holes by their weight."""
    holes: int = 5
    """The most holes that are filled."""
