"""Define the flags of ``twinloop train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, TrackOption, request


@request
class TrainRequest(TrackOption, Request):
    """Train a policy on LeRobot v3.0 folders, dataset versions or queries; runs are resumable and reproducible.

    Flags override FILE. The policy's folder gets result.json and report.html. In a workspace, the list of training
    episodes is frozen as a dataset version and the policy is recorded. See docs/guides/training.md.
    """

    file: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="FILE")]] = None
    """A YAML file with policy, sources, steps and the other settings of docs/guides/training.md."""
    output: Path
    """Folder for the policy."""
    data: tuple[str, ...] = ()
    """Training data, instead of the file's sources: folders, dataset versions, or SELECT statements."""
    policy: str | None = None
    """Kind of policy: mlp (the default), act or flow, or one of LeRobot's: lerobot:act, lerobot:smolvla and others."""
    set: tuple[str, ...] = ()
    """Settings of the policy as NAME=VALUE, such as chunk_size=32."""
    steps: int | None = None
    """Number of optimizer steps."""
    batch: int | None = None
    """Number of samples per step."""
    lr: float | None = None
    """Maximum learning rate."""
    sim_fraction: float | None = None
    """Share of simulated samples in every batch; by default their share of the frames."""
    inputs: tuple[str, ...] = ()
    """Policy observations: state, environment, names of cameras; by default state and environment, or cameras."""
    holdout: float | None = None
    """Share of each source's episodes that is held out to measure the error."""
    patience: int | None = None
    """Number of evaluations without a lower held-out error after which training ends; 0 for never."""
    keep: Literal["best", "last"] | None = None
    """Weights of the policy: those with the lowest held-out error (best), or the last."""
    curriculum: bool = False
    """Train on weakly randomized episodes first, and add the others gradually."""
    domain_token: bool = False
    """Give the policy the data source of a sample as an additional input, with dropout."""
    keep_failures: bool = False
    """Train on failed episodes too."""
    adapt: str | None = None
    """Folder of a policy to continue from; it keeps its settings and its normalization."""
    method: Literal["full", "head", "low_rank"] | None = None
    """With --adapt: train all weights (full, the default), the head, or a low-rank change of every matrix."""
    rank: int | None = None
    """Rank of the low-rank changes; by default 8."""
    l2_start: float | None = None
    """With --adapt: weight of the squared distance to the initial weights, such as 1e-2; by default none."""
    align: str | None = None
    """Align features of real and simulated samples with coral, mmd or path.py:Class; by default no alignment."""
    align_weight: float | None = None
    """Weight of the alignment term; by default 1."""
    pixels: Literal["moments", "fda"] | None = None
    """Adapt simulated images to the real ones: moments (mean and deviation of each channel) or fda (amplitudes of low
    frequencies).
    """
    seed: int | None = None
    """Run seed; the same seed gives the same weights on one device."""
    device: str | None = None
    """cpu, cuda or cuda:NUMBER."""
    threads: int | None = None
    """Number of CPU threads of PyTorch; by default 1, which is fastest for small networks."""
    lerobot_python: Path | None = None
    """Interpreter of the environment that has LeRobot, for its policies; by default that of TWINLOOP_LEROBOT_PYTHON, or
    this one."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from --output."""
    resume: bool = False
    """Continue an interrupted run; the final weights are those of an uninterrupted one."""


@request
class DistillRequest(TrackOption, Request):
    """Teach a policy on-policy: it acts in randomized worlds, and the task's expert labels every state that it visits.

    In the first round the expert acts. The task needs an expert that can label states, such as the built-in
    pick_and_place has, or a trained policy as --teacher. The policy's folder gets result.json, which says who acted and
    who labelled. See docs/guides/training.md.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The generate file, whose twin, task and randomization are used."""
    output: Path
    """Folder for the policy."""
    policy: Literal["mlp", "adaptive"] = "mlp"
    """Kind of the policy: mlp, or adaptive, which has a memory and estimates parameters of the robot."""
    teacher: Path | None = None
    """Folder of a trained policy that labels the states and acts in the first round, instead of the task's expert."""
    base: Path | None = None
    """Folder of a policy from whose weights the teaching continues; it acts from the first round on."""
    randomize_from: Path | None = None
    """Folder of an identification run to draw parameters from, instead of the ranges in the file."""
    randomize_share: float = 1.0
    """Share of the worlds that are drawn from --randomize-from; the others are drawn from the ranges in the file."""
    inputs: tuple[str, ...] = ()
    """Tracked bodies that the policy reads besides the joints, such as cube, or '*'; by default all but the tool, and
    none with --cameras."""
    cameras: tuple[str, ...] = ()
    """Cameras of a policy from images; their images are 128x96 pixels unless --height and --width say otherwise."""
    height: int | None = None
    """Rows of an image in pixels."""
    width: int | None = None
    """Columns of an image in pixels."""
    images: Literal["device", "clean"] | None = None
    """Images of the twin's camera models (device, the default if there are models), or without them (clean)."""
    renderer: str | None = None
    """Name of the renderer; by default the fastest one that is installed."""
    eyes: Path | None = None
    """Folder of a localizer of the same cameras, whose image encoders the policy begins with."""
    worlds: int | None = None
    """Number of worlds of each round."""
    rounds: int | None = None
    """Number of rounds."""
    steps: int | None = None
    """Optimizer steps after each round but the last."""
    final_steps: int | None = None
    """Optimizer steps after the last round."""
    tracker_noise: float | None = None
    """Standard deviation of each tracked value per step, in m; by default 0."""
    tracker_offset: float | None = None
    """Largest constant error of tracked positions in an episode, in m; by default 0."""
    tracker_wander: float | None = None
    """Largest standard deviation of slowly varying errors of tracked positions, in m; by default 0."""
    tracker_turn: float | None = None
    """Largest standard deviation of slowly varying errors of tracked headings, in rad; by default 0."""
    expert_share: float | None = None
    """Share of the worlds of later rounds in which the expert acts; by default 0."""
    batch: int | None = None
    """Number of samples per step."""
    lr: float | None = None
    """Maximum learning rate."""
    set: tuple[str, ...] = ()
    """Settings of the policy as NAME=VALUE, such as width=512 or n_obs_steps=4 (four steps as inputs)."""
    seed: int | None = None
    """Run seed; by default that of the file for the worlds, and 0 for the weights."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from --output."""
    resume: bool = False
    """Continue an interrupted run from its last finished round."""


@request
class ReinforceRequest(TrackOption, Request):
    """Train a policy by reinforcement (PPO) in the randomized worlds of a generate file; no expert is needed.

    First the reward is reported: what each of its terms pays per episode to a policy that holds still, to one that
    moves at random, and to the task's expert. Adaptive ranges in the file are a curriculum. The policy's folder gets
    result.json and report.html. See docs/guides/training.md.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The generate file, whose twin, task and randomization are used."""
    output: Path
    """Folder for the policy."""
    report_only: bool = False
    """Only report the reward, and train nothing."""
    randomize_from: Path | None = None
    """Folder of an identification run to draw parameters from, instead of the ranges in the file."""
    inputs: tuple[str, ...] = ()
    """Tracked bodies that the policy reads besides the joints, such as cube, or '*'; by default all but the tool."""
    reward: tuple[str, ...] = ()
    """Weights of reward terms as NAME=WEIGHT, which replace those of the default reward: progress, success, holding,
    effort, smoothness and limits."""
    worlds: int | None = None
    """Number of worlds."""
    iterations: int | None = None
    """Number of iterations; each runs one episode in every world."""
    delta: float | None = None
    """Change of a command per control step for a policy output of 1, as a fraction of its range."""
    init_std: float | None = None
    """Initial standard deviation of the policy's outputs."""
    passes: int | None = None
    """Passes over the samples of an iteration."""
    batch: int | None = None
    """Number of samples per step of the optimizer."""
    lr: float | None = None
    """Maximum learning rate."""
    gamma: float | None = None
    """Discount factor per control step."""
    entropy: float | None = None
    """Weight of the entropy in the loss."""
    target_kl: float | None = None
    """Divergence of the new from the old policy beyond which an iteration's update ends."""
    set: tuple[str, ...] = ()
    """Settings of the policy as NAME=VALUE, such as width=256 or n_obs_steps=4 (a memory of four steps)."""
    seed: int | None = None
    """Run seed; by default that of the file for the worlds, and 0 for the weights."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from --output."""
    resume: bool = False
    """Continue an interrupted run from its last finished iteration."""
