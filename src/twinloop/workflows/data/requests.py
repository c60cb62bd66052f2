"""Requests of ``twinloop import``, ``export``, ``record`` and of what moves and keeps datasets."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, WorkspaceRequest, request

_Reference = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET")]]


@request
class LogReading:
    """What a log does not say of itself."""

    units: str | None = None
    """Unit of the joint columns where the log does not say: deg, rad, range_m100_100, range_0_100; or one per joint."""
    joints: str | None = None
    """Joint names, comma separated, where the log has none."""
    calibration: Path | None = None
    """LeRobot's calibration.json, which gives ±100 its radians."""
    topics: str | None = None
    """Roles of a ROS recording's topics: state=/joint_states,command=/arm/commands,imu:SITE=/imu; none for no topic."""
    describe: Path | None = None
    """A YAML file that says what the columns of a CSV file are; by default the one beside it."""
    layout: str | None = None
    """LOG is a folder laid out like this public set."""


@request
class LogCorrections:
    """What is changed on the way in, on request only; `--check` says what needs it."""

    drop_duplicates: bool = False
    """Leave out frames at the time of the frame before, and frames that repeat it while the robot moves."""
    drop_missing: bool = False
    """Leave out frames in which something is no number."""
    flip: tuple[str, ...] = ()
    """Turn the sign of a joint's measurement (JOINT), its command (action/JOINT), a signal or one of its columns."""
    shift: tuple[str, ...] = ()
    """Move measurements later by SECONDS, of one joint or signal by NAME=SECONDS."""
    clock_rate: float = 1.0
    """Stretch the commands' clock by this factor."""
    time_scale: float = 1.0
    """Seconds per unit of the log's times: 0.001 for milliseconds."""
    scale: tuple[str, ...] = ()
    """Multiply a signal, as NAME=FACTOR; of a pose its position."""
    quaternions: Annotated[str, tyro.conf.arg(metavar="{wxyz,xyzw}")] = "wxyz"
    """The order in which the log has its quaternions."""
    unwrap: tuple[str, ...] = ()
    """Join the turns of these joints."""
    resample: float | None = None
    """Bring the log onto a uniform grid of so many frames per second; gaps split episodes."""


@request
class ImportRequest(Request):
    """Turn a robot's log into a LeRobot v3.0 dataset; a log that does not say its units is asked for them."""

    log: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="LOG")]]
    """A LeRobot v2.1 or v3.0 folder, an Arrow, CSV, HDF5 or ROS recording, a Crazyflie's log, or a public set."""
    output: Path | None = None
    """Folder of the dataset; --check alone needs none."""
    check: bool = False
    """Look for defects first: exit with 1 and import nothing where there are errors."""
    twin: str | None = None
    """The twin that the log is meant for, whose joints, ranges and inverse dynamics --check goes by."""
    reading: LogReading = field(default_factory=LogReading)
    mend: LogCorrections = field(default_factory=LogCorrections)
    task: str = ""
    """What the robot was doing, where the log does not say: a sentence for language-conditioned policies."""


@request
class ExportRequest(Request):
    """Export a LeRobot folder (v3.0 or v2.1, anybody's) to another format; docs/guides/datasets.md says what survives.

    Formats are looked up in `dataset/exporters/formats.py`, one line each: lerobot (v3.0), lerobot-v2 (v2.1), groot, …
    """

    format: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]]
    """lerobot, lerobot-v2, groot, robomimic, mcap, rerun, or card for the dataset card alone."""
    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    output: Path | None = None
    """Folder (or file, where the format is one) to write; a card goes to README.md of the dataset by default."""
    episodes: str | None = None
    """Which episodes, as in 0,2-5,9; by default all."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """What the format lets one set, such as spans=each (groot) or repo_id=USER/NAME (card)."""
    verify: bool = False
    """Compare ten frames at random with the source: exit with 1 unless numbers and pictures are the same."""
    workspace: Path | None = None
    """For the card: the workspace whose labels and scores it counts; by default the nearest one above the dataset."""


@request
class RecordRequest(Request):
    """Drive a robot through an excitation within its limits, and record the log as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N, or your own class as path/to/file.py:Class?option=value."""
    excitation: Path
    """The plan, from identify --plan --excitation."""
    output: Path | None = None
    """Folder of the dataset."""
    repeat: int | None = None
    """How often, each time an episode; by default as often as the plan was made for."""
    dry_run: bool = False
    """Say duration, range and peak speed per joint, and move nothing."""
    on_abort: Literal["hold", "return"] = "hold"
    """When something is wrong, or on Ctrl-C: hold the pose, or return slowly to the start."""
    following: float = 0.15
    """How far a joint may lag beyond one and a half times what the plan foresees, in rad or m."""
    temperature: float = 60.0
    """Degrees Celsius at which to stop, where the robot says its temperatures."""
    anyway: bool = False
    """Go on although the twin has changed since the plan was made, or the robot is of another type."""


@request
class FetchRequest(Request):
    """Bring a dataset from a store into a local folder, byte for byte; again to bring the folder up to date."""

    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    """Where it was generated to, such as s3://bucket/prefix."""
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder for it."""


@request
class PushRequest(Request):
    """Upload a dataset folder to the Hugging Face Hub as one commit, tagged so that LeRobot finds it."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME; made if it does not exist."""
    private: bool = False
    """Make a new repository private."""
    branch: str | None = None
    """Push to this branch and leave the tag where it is."""
    allow: tuple[str, ...] = ()
    """Upload only paths that fit one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that fit one of these patterns, such as 'twinloop/*'."""


@request
class PullRequest(Request):
    """Download a dataset from the Hugging Face Hub into a new folder, every file verified by its hash."""

    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME."""
    output: Path
    """Folder for it, absent or empty."""
    revision: str | None = None
    """Branch, tag or commit; by default the main branch."""
    allow: tuple[str, ...] = ()
    """Download only paths that fit one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that fit one of these patterns, such as 'videos/*'."""


@request
class QueryRequest(WorkspaceRequest):
    """Ask the workspace in SQL: episodes, frames, params, contacts, scores, labels, evaluations, runs and more.

    Views: episodes, places, frames, contacts, params, scores, score_history, labels, label_history, consensus,
    evaluations, embeddings, runs, batches, datasets, dataset_episodes, policies, policy_datasets, policy_episodes,
    tombstones, parts. DESCRIBE episodes tells the columns of one; docs/guides/catalog.md explains them.
    """

    sql: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SQL")]]
    """One statement that reads; or a written question by name: success, worst, range, twins, trained, seen,
    disagreement, occupancy, unscored, evaluations."""
    params: tuple[str, ...] = ()
    """NAME=VALUE for each $NAME in the statement."""
    format: Literal["table", "json", "parquet", "arrow", "csv"] | None = None
    """table for people (the first 50 rows), json (a line for each row), parquet, arrow (an IPC stream), or csv (lists
    and structs as JSON text); by default what the output's name ends in, else a table."""
    output: Path | None = None
    """File for the answer; else standard output."""
    json: bool = False
    """End with one line of JSON on standard output, which holds the answer unless --output does."""


@request
class InitRequest(Request):
    """Make a workspace: one folder that holds the whole state of a project, all of it in plain files."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """The folder to make; an existing one must be empty of a workspace."""
    robot: str | None = None
    """so101 or panda: the built-in twin of that robot on a table."""
    twin: str | None = None
    """Instead of a robot, a built-in twin, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    name: str | None = None
    """What the project is called; by default as the folder."""


@request
class AddRequest(WorkspaceRequest):
    """Tell the workspace of datasets: LeRobot v3.0 folders, where they lie; again, to bring it up to date."""

    datasets: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR")]]
    """Folders of datasets, of twinloop or any other program."""
    batch: str | None = None
    """What the workspace calls it; by default as the folder. For one folder only."""


@request
class FsckRequest(WorkspaceRequest):
    """Check a workspace: every part against its hash, the index against the parts, datasets against what they were."""

    deep: bool = False
    """Read every file of every dataset whole, name episodes without provenance anew, and decode videos at both ends."""
    repair: bool = False
    """Put right what can be without losing anything: make the index again, read batches again, find moved folders,
    move leftovers of ended writers aside."""
    accept: tuple[Path, ...] = ()
    """Files and folders of recorded runs that were changed on purpose: they are known as they are now."""
    compact: bool = False
    """Afterwards, join small parts into large ones."""


@request
class DatasetsFreezeRequest(WorkspaceRequest):
    """Freeze what a statement selects now, under a name; another list under the same name is its next version."""

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]]
    """Letters, digits, '.', '_' and '-'."""
    sql: str
    """SELECT episode_id FROM episodes WHERE …"""
    note: str = ""
    """What it is for."""


@request
class DatasetsListRequest(WorkspaceRequest):
    """Every frozen dataset, and how many policies it trained."""


@request
class DatasetsShowRequest(WorkspaceRequest):
    """What a frozen dataset is made of: sources, tasks, twins, success; its hash, its SQL, the policies it trained."""

    dataset: _Reference
    """NAME, NAME@VERSION, or the beginning of its hash."""


@request
class DatasetsDiffRequest(WorkspaceRequest):
    """Episodes that only one of two frozen datasets has."""

    first: _Reference
    """NAME, NAME@VERSION, or the beginning of its hash."""
    second: _Reference
    """The other."""


@request
class DatasetsLineageRequest(WorkspaceRequest):
    """Which episodes trained a policy, which policies saw an episode, which policies a dataset trained."""

    what: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY|EPISODE|DATASET")]]
    """A policy's name or hash, a frozen dataset, or an episode (the beginning of its id, or BATCH:INDEX)."""


@request
class DatasetsMaterializeRequest(WorkspaceRequest):
    """Write exactly the episodes of a frozen dataset as one LeRobot v3.0 folder."""

    dataset: _Reference
    """NAME, NAME@VERSION, or the beginning of its hash."""
    output: Path
    """The folder to write; it must not exist."""
    codec: Literal["h264", "av1", "hevc"] | None = None
    """Where videos are coded differently, the codec they get; those coded otherwise are encoded anew."""
    same_units: bool = False
    """The joint columns of all batches mean the same, whatever the folders say of their units."""
    common: bool = False
    """Carry only the features that all batches have; those left out are named."""


@request
class ApproveRequest(Request):
    """Approve code that data name: Python files and TorchScript modules, by their content. Without files, list them.

    A workspace that came from another machine is approved by its folder: what its own files name runs then.
    """

    files: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE")]] = ()
    """Files that you have read and that may run on this machine when data name them, or folders of workspaces."""
    revoke: bool = False
    """Withdraw the approval of these files instead."""


@request
class DoctorRequest(Request):
    """What this machine can do: renderers, validators, cores, data, and the command that adds what is missing."""
