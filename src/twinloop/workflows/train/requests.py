"""Request of ``twinloop train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, request


@request
class TrainRequest(Request):
    """Train a policy on LeRobot v3.0 folders, frozen datasets or queries: exact shares, resumable, reproducible.

    Flags override FILE. The policy's folder gets result.json and report.html; in a workspace the list of episodes is
    frozen and the policy recorded. See docs/guides/training.md.
    """

    file: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="FILE")]] = None
    """A YAML file: policy, sources, steps and all else of docs/guides/training.md."""
    output: Path
    """Folder for the policy."""
    data: tuple[str, ...] = ()
    """What to train on, instead of the file's sources: folders, frozen datasets, or SELECT statements."""
    policy: str | None = None
    """mlp (by default), act or flow; or one of LeRobot's: lerobot:act, lerobot:smolvla and others."""
    set: tuple[str, ...] = ()
    """Settings of the policy, such as chunk_size=32."""
    steps: int | None = None
    """Steps of the optimizer."""
    batch: int | None = None
    """Samples in each."""
    lr: float | None = None
    """Learning rate at its highest."""
    sim_fraction: float | None = None
    """Share of simulated samples in every batch, instead of that of the frames."""
    inputs: tuple[str, ...] = ()
    """What the policy observes: state, environment, names of cameras; by default state and environment, or cameras."""
    holdout: float | None = None
    """Share of each source's episodes that is not trained on and measures the error."""
    patience: int | None = None
    """End after so many evaluations without a better held-out error, and keep the best; 0 for never."""
    keep: Literal["best", "last"] | None = None
    """Which weights become the policy: those with the best held-out error, or the last."""
    curriculum: bool = False
    """Weakly randomized episodes first."""
    domain_token: bool = False
    """Give the policy the source of a sample as an input, with dropout."""
    keep_failures: bool = False
    """Train on failed episodes too."""
    adapt: str | None = None
    """Folder of a policy to go on from; it keeps its settings and its normalization."""
    method: Literal["full", "head", "low_rank"] | None = None
    """What of it moves: all weights, the head, or a low-rank change of every matrix; full by default."""
    rank: int | None = None
    """Of the low-rank changes; 8 by default."""
    l2_start: float | None = None
    """Weight of the squared distance to its weights, such as 1e-2; none by default."""
    align: str | None = None
    """coral, mmd or path.py:Class: draw features of real and simulated samples together."""
    align_weight: float | None = None
    """Weight of that term; 1 by default."""
    pixels: Literal["moments", "fda"] | None = None
    """Give simulated images the channel moments of the real ones, or their amplitudes of low frequencies."""
    seed: int | None = None
    """Run seed; the same seed gives the same weights on one device."""
    device: str | None = None
    """cpu, cuda or cuda:NUMBER."""
    threads: int | None = None
    """CPU threads of torch; 1 by default, which is the fastest for small networks."""
    lerobot_python: Path | None = None
    """Interpreter of the environment that has LeRobot, for its policies; by default that of TWINLOOP_LEROBOT_PYTHON, or
    this one."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from --output."""
    resume: bool = False
    """Go on from a run that was stopped: the same weights come of it as of an unbroken one."""
