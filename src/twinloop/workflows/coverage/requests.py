"""Define the options of ``twinloop coverage`` and ``twinloop plan``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import FailIfOption, LevelOption, Request, SeedOption, request


@request
class ComparedSides(LevelOption, SeedOption):
    """Flags that select the real and the simulated episodes, and set how their clips are compared."""

    real: tuple[str, ...] = ()
    """Real episodes: logs, dataset folders or public sets."""
    sim: tuple[str, ...] = ()
    """Simulated episodes: dataset folders. The first generated dataset defines which parameters were randomized."""
    workspace: Path | None = None
    """Take real and simulated episodes from this workspace, which stores embeddings so that only new episodes are
    encoded. By default the nearest one upwards, if neither --real nor --sim is given.
    """
    real_where: str = "source = 'real'"
    """Real episodes of the workspace: an SQL condition on the view episodes."""
    sim_where: str = "source = 'sim'"
    """Simulated episodes of the workspace: an SQL condition on the view episodes."""
    embedding: str = "waypoints"
    """Encoder of the clips. For motion: waypoints, trajectory or convolutions. For images: classical, onnx:FILE,
    torch:FILE or policy:FOLDER. Your own: my_file.py:ClipEncoder. The word parameters compares randomized parameters
    instead of clips.
    """
    clip: float = 2.0
    """Length in seconds of the clips into which episodes are cut."""
    camera: str | None = None
    """Camera whose images are encoded; by default the first of each episode."""
    ranges: str | None = None
    """Twin whose joint ranges replace the calibration of a log that has none; by default the twin of the workspace, if
    any.
    """
    real_params: Path | None = None
    """Known parameters of the real episodes: a CSV file (a column episode, and one column per parameter in SI units),
    or the folder of an identify run.
    """
    axes: tuple[str, ...] = ()
    """Randomized parameters to analyse, as names or patterns such as 'object/*/position/*'; by default all."""
    fit: Literal["union", "real"] = "union"
    """Clips from which the whitening of the feature vectors is computed: real and simulated ones (union), or real ones
    only.
    """
    k: int = 5
    """A real clip is covered if a simulated clip is as near as its k-th nearest real neighbour. This sets k."""
    failure_weight: float = 1.0
    """Weight w of failures in the order of the holes: share of reality × (1 + w × failure rate)."""


@request
class CoverageRequest(FailIfOption, Request):
    """Measure how much simulation covers of reality (--real and --sim, or a workspace) or of its parameter space (DIR).

    Example conditions of --fail-if: 'coverage < 0.9' and 'largest_hole > 0.05'.
    """

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DIR")]] = None
    """A generated dataset: measure how well it covers each parameter and pairs of parameters, and the largest hole."""
    sides: ComparedSides = field(default_factory=ComparedSides)
    output: Path | None = None
    """Folder for result.json and report.html; with DIR, the file of the page."""
    projection: Literal["pca", "umap"] = "pca"
    """Projection of the clips in the plot of the page."""
    nearest: Annotated[str | None, tyro.conf.arg(metavar="EPISODE[:FRAME]")] = None
    """Instead of coverage, print the clips of the workspace nearest to this one: EPISODE or EPISODE:FRAME, where
    EPISODE is the beginning of an id or BATCH:INDEX.
    """
    count: int = 5
    """Number of nearest clips that --nearest prints."""
    triples: bool = False
    """With DIR, also measure the coverage of triples of parameters."""


@request
class PlanRequest(Request):
    """Write a generate file for the next run that fills the largest holes: real situations without simulated episodes.

    A hole gets more episodes the more of the real data is in it, and the more often episodes fail there.
    """

    sides: ComparedSides = field(default_factory=ComparedSides)
    output: Path | None = None
    """The generate file to write; by default it is printed."""
    base: Path | None = None
    """The generate file to extend; by default that of the first simulated dataset."""
    episodes: int = 128
    """Number of attempted episodes of the next run, divided among the holes by their weight."""
    holes: int = 5
    """Maximum number of holes to fill."""
