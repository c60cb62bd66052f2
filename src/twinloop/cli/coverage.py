"""The command ``twinloop coverage``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Sides:
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
    level: float = 0.95
    """Confidence level of intervals."""
    failure_weight: float = 1.0
    """How much failures count in the rank of a hole: mass × (1 + weight × failure rate)."""
    seed: int = 0
    """Of resamples, relabellings and maps."""

    def options(self, **more: Any) -> Any:
        """The same as the loop takes them; where nothing is named, the nearest workspace upwards.

        Raises:
            InputError: nothing is named, and there is no workspace.
        """
        from twinloop.workflows.coverage.measured import CoverageOptions

        plain = {key: value for key, value in vars(self).items() if key != "clip"}
        if not (self.real or self.sim or self.workspace):
            from twinloop.catalog import Workspace

            plain["workspace"] = Workspace.find(Path.cwd())
            if plain["workspace"] is None:
                raise InputError(
                    "Nothing was named, and there is no workspace here. Give --real LOG --sim DATASET, or --workspace "
                    "DIR; or a generated dataset alone, DIR, for its own parameter space."
                )
        return CoverageOptions(**plain, clip_s=self.clip, **more)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What simulation covers: of reality (--real and --sim, or a workspace), or of its own parameter space (DIR)."""

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DIR")]] = None
    """A generated dataset alone: each of its parameters, pairs of them, the largest hole."""
    sides: Sides = field(default_factory=Sides)
    output: Path | None = None
    """Folder for result.json and report.html; of a DIR alone, the file of a page."""
    projection: Literal["pca", "umap"] = "pca"
    """The map of clips on the page."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 where this holds, such as 'coverage < 0.9' or 'largest_hole > 0.05'."""
    like: Annotated[str | None, tyro.conf.arg(metavar="EPISODE[:FRAME]")] = None
    """Instead: the clips of the workspace nearest to this one, EPISODE or EPISODE:FRAME; an episode is named by the
    beginning of its id or by BATCH:INDEX."""
    most: int = 5
    """How many of them."""
    triples: bool = False
    """Of a DIR alone: count triples of parameters too."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        out = console(json=self.json)
        sides = self.sides
        if self.like is not None:
            from twinloop.workflows.coverage.coverage import run_like

            return run_like(sides.workspace, self.like, most=self.most, embedding=sides.embedding, console=out), 0
        if self.dataset is not None:
            if sides.real or sides.sim or sides.workspace:
                raise InputError(
                    f"{self.dataset} alone is measured in its own parameter space. To compare it with reality: "
                    f"--sim {self.dataset} --real LOG."
                )
            from twinloop.workflows.coverage.coverage import run_coverage

            return run_coverage(self.dataset, output=self.output, triples=self.triples, console=out), 0
        from twinloop.workflows.coverage.coverage import run_coverage_of_reality

        return run_coverage_of_reality(
            sides.options(projection=self.projection), output=self.output, fail_if=self.fail_if, console=out
        )
