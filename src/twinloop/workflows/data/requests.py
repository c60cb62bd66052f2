"""Define the flags of the commands on logs, datasets and workspaces, such as ``twinloop import`` and ``query``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, WorkspaceRequest, request

_Reference = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET")]]


@request
class LogReading:
    """Facts about a log that its files do not contain."""

    units: str | None = None
    """Unit of the joint columns if the log does not state it: deg, rad, range_m100_100 or range_0_100; one for all
    joints, or one per joint, separated by commas.
    """
    joints: str | None = None
    """Names of the joints, separated by commas, if the log has none."""
    calibration: Path | None = None
    """LeRobot's calibration.json, which converts positions of ±100 to radians."""
    topics: str | None = None
    """Roles of a ROS recording's topics, as in state=/joint_states,command=/arm/commands,imu:SITE=/imu; none as the
    topic means that the recording has no such topic.
    """
    describe: Path | None = None
    """A YAML file that describes the columns of CSV or Parquet files; by default the one with the name of the file, or
    columns.yaml, in the same folder.
    """
    guess: bool = False
    """Use the meaning of the columns that their names suggest. Without this flag the suggestion is only printed."""
    layout: str | None = None
    """Name of a public set: LOG is a folder with the same file layout as this set."""


@request
class LogCorrections:
    """Corrections of a log during import. By default none is made; `--check` reports which corrections are needed."""

    drop_duplicates: bool = False
    """Leave out frames with the same time as the frame before, and frames that repeat its values while the robot moves.
    """
    drop_missing: bool = False
    """Leave out frames with a value that is NaN or infinite."""
    flip: tuple[str, ...] = ()
    """Reverse the sign of a measurement (JOINT), command (action/JOINT), signal (SIGNAL) or column (SIGNAL/COLUMN)."""
    shift: tuple[str, ...] = ()
    """Delay the measurements of all joints by SECONDS, or the measurements of one joint or signal by NAME=SECONDS."""
    clock_rate: float = 1.0
    """Factor for the times of the commands, counted from the start of the episode, if the clock of the commands is too
    fast or too slow.
    """
    time_scale: float = 1.0
    """Seconds per time unit of the log, for example 0.001 for milliseconds."""
    scale: tuple[str, ...] = ()
    """Multiply a signal by a factor, as NAME=FACTOR; of a pose, only the position is multiplied."""
    quaternions: Annotated[str, tyro.conf.arg(metavar="{wxyz,xyzw}")] = "wxyz"
    """The order of the elements of the log's quaternions."""
    unwrap: tuple[str, ...] = ()
    """Remove the jumps of one turn from the positions of these joints, so that they are continuous."""
    resample: float | None = None
    """Resample the log to this number of frames per second; a gap in the log starts a new episode."""


@request
class ImportRequest(Request):
    """Convert a robot's log to a LeRobot v3.0 dataset. Units that the log does not state must be given with --units."""

    log: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="LOG")]]
    """A LeRobot v2.1 or v3.0 folder, an Arrow, CSV, Parquet, HDF5 or ROS recording, a log of a Crazyflie, or the name
    of a public set. A folder or a quoted glob of CSV or Parquet files is one log of many episodes.
    """
    output: Path | None = None
    """Folder of the new dataset. It may be omitted only with --check."""
    check: bool = False
    """Check the log for defects first. If it has errors, nothing is imported and the exit code is 1."""
    twin: str | None = None
    """The twin of the logged robot. --check then also compares the log with its joints, ranges and inverse dynamics.
    With --guess, columns that number the joints get the names of the twin's joints, in order, if they are as many.
    """
    reading: LogReading = field(default_factory=LogReading)
    mend: LogCorrections = field(default_factory=LogCorrections)
    task: str = ""
    """What the robot does in the log, as a sentence for language-conditioned policies, if the log does not state it."""


@request
class ExportRequest(Request):
    """Export a LeRobot dataset (v3.0 or v2.1, from any program) to another format.

    docs/guides/datasets.md lists what each format preserves; `dataset/export/formats.py` lists the formats.
    """

    format: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]]
    """lerobot (v3.0), lerobot-v2 (v2.1), groot, robomimic, mcap, rerun, or card for the dataset card alone."""
    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    output: Path | None = None
    """Folder to write, or file for formats with a single file. A card is by default written to README.md of the
    dataset.
    """
    episodes: str | None = None
    """Numbers of the exported episodes, as in 0,2-5,9; by default all."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Settings of the format, such as spans=each (groot) or repo_id=USER/NAME (card)."""
    verify: bool = False
    """Compare ten random frames with the source; exit with 1 unless their numbers and images are the same."""
    workspace: Path | None = None
    """The workspace whose labels and scores the card counts; by default the nearest one above the dataset."""


@request
class RecordRequest(Request):
    """Move a robot within its limits, and record joints, tracker and cameras as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N, or your own class as path/to/file.py:Class?option=value."""
    excitation: Path | None = None
    """An excitation plan: a file from identify --plan --excitation."""
    motion: str | None = None
    """Instead of a plan: reach (the tool moves to random places), pick (it picks up the twin's first object and puts it
    down aside), random (random poses of the joints), or a CSV file with the columns time and one per joint.
    """
    twin: str | None = None
    """Twin of the robot, which gives the limits of a motion; by default that of the address virtual:TWIN."""
    seconds: float = 10.0
    """Duration of the motions reach and random."""
    seed: int = 0
    """Seed of the motions."""
    output: Path | None = None
    """Folder of the new dataset. Required unless --dry-run is given."""
    repeat: int | None = None
    """Number of episodes: repetitions of a plan, by default the number in it, or different motions, by default 1."""
    dry_run: bool = False
    """Print duration, range and peak speed per joint; the robot does not move."""
    on_abort: Literal["hold", "return"] = "hold"
    """What the robot does after a fault or Ctrl-C: hold its pose, or return slowly to the start."""
    max_lag: float = 0.15
    """Stop if a joint lags behind its command by more than 1.5 times the expected lag plus this value, in rad or m.
    """
    temperature: float = 60.0
    """Stop at this temperature of a drive, in degrees Celsius, if the robot measures it."""
    force: bool = False
    """Continue although the twin has changed since the plan was made, or the robot is of another type."""


@request
class FetchRequest(Request):
    """Copy a dataset from an object store such as S3 to a local folder. Repeat the command to update the copy.

    The copy has the same bytes as the original.
    """

    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    """Address of the dataset in the store, such as s3://bucket/prefix."""
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Local folder of the copy."""


@request
class PushRequest(Request):
    """Upload a dataset folder to the Hugging Face Hub as one commit, and set the version tag that LeRobot requires."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME of the repository; it is created if it does not exist."""
    private: bool = False
    """Make the repository private if it is created by this command."""
    branch: str | None = None
    """Upload to this branch instead of main. The version tag is then not moved."""
    allow: tuple[str, ...] = ()
    """Upload only paths that match one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that match one of these patterns, such as 'twinloop/*'."""


@request
class PullRequest(Request):
    """Download a dataset from the Hugging Face Hub to a new folder, and verify the hash of every file."""

    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME of the repository."""
    output: Path
    """Folder to write; it must be absent or empty."""
    revision: str | None = None
    """Branch, tag or commit; by default the main branch."""
    allow: tuple[str, ...] = ()
    """Download only paths that match one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that match one of these patterns, such as 'videos/*'."""


@request
class QueryRequest(WorkspaceRequest):
    """Query the workspace in SQL: episodes, frames, params, contacts, scores, labels, evaluations, runs and more.

    Views: episodes, places, frames, contacts, params, scores, score_history, labels, label_history, consensus,
    evaluations, embeddings, runs, batches, datasets, dataset_episodes, policies, policy_datasets, policy_episodes,
    tombstones, parts. `DESCRIBE episodes` lists the columns of a view; docs/guides/catalog.md explains them.
    """

    sql: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SQL")]]
    """One read-only SQL statement, or the name of a predefined query: success, worst, range, twins, trained, seen,
    disagreement, occupancy, unscored, evaluations.
    """
    params: tuple[str, ...] = ()
    """Values of the parameters: NAME=VALUE for each $NAME in the statement."""
    format: Literal["table", "json", "parquet", "arrow", "csv"] | None = None
    """table (the first 50 rows, readable), json (one line per row), parquet, arrow (an IPC stream), or csv (lists and
    structs as JSON text); by default derived from the suffix of --output, else table.
    """
    output: Path | None = None
    """File for the result; by default standard output."""
    json: bool = False
    """End with one line of JSON on standard output. It contains the result unless --output is given."""


@request
class InitRequest(Request):
    """Create a workspace: one folder that holds the whole state of a project in plain files."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """The folder to create. An existing folder must not contain a workspace."""
    robot: str | None = None
    """so101 or panda: use the built-in twin of that robot on a table."""
    twin: str | None = None
    """Instead of --robot: a built-in twin, a twin YAML file, an MJCF or URDF file, or menagerie:NAME."""
    name: str | None = None
    """Name of the project; by default the name of the folder."""


@request
class AddRequest(WorkspaceRequest):
    """Add LeRobot v3.0 dataset folders to the workspace without copying them.

    Repeat the command after a folder has changed.
    """

    datasets: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR")]]
    """Folders of datasets, from twinloop or any other program."""
    batch: str | None = None
    """Name of the dataset in the workspace; by default the name of the folder. For one folder only."""


@request
class FsckRequest(WorkspaceRequest):
    """Check a workspace: the hashes of its catalog files, the index of the catalog, and the state of its datasets."""

    deep: bool = False
    """Read every file of every dataset completely, recompute the ids of episodes without provenance, and decode the
    first and last frames of videos.
    """
    repair: bool = False
    """Repair everything that can be repaired without loss: rebuild the index, read datasets again, find moved folders,
    and move leftover files of interrupted writers to catalog/swept.
    """
    accept: tuple[Path, ...] = ()
    """Files and folders of recorded runs that were changed on purpose. Their present content is recorded as correct."""
    compact: bool = False
    """Afterwards, join small Parquet files of the catalog into large ones."""


@request
class DatasetsFreezeRequest(WorkspaceRequest):
    """Freeze the episodes that a SQL statement selects as a dataset version.

    If the name exists with other episodes, they become its next version.
    """

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]]
    """Name of the dataset: letters, digits, '.', '_' and '-'."""
    sql: str
    """The statement that selects the episodes: SELECT episode_id FROM episodes WHERE …"""
    note: str = ""
    """A note on the purpose of the dataset."""


@request
class DatasetsListRequest(WorkspaceRequest):
    """List the dataset versions, each with the number of policies that were trained on it."""


@request
class DatasetsShowRequest(WorkspaceRequest):
    """Show a dataset version: sources, tasks, twins and success of its episodes, and the policies trained on it.

    Also shows its hash and the SQL statement that selected it.
    """

    dataset: _Reference
    """The dataset version: NAME (its newest version), NAME@VERSION, or the beginning of its hash."""


@request
class DatasetsDiffRequest(WorkspaceRequest):
    """List the episodes that are in only one of two dataset versions."""

    first: _Reference
    """The first dataset version: NAME, NAME@VERSION, or the beginning of its hash."""
    second: _Reference
    """The second dataset version, given in the same ways."""


@request
class DatasetsLineageRequest(WorkspaceRequest):
    """List the episodes that a policy was trained on, or the policies that were trained on an episode or a dataset."""

    what: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY|EPISODE|DATASET")]]
    """Name or hash of a policy, a dataset version, or an episode (the beginning of its id, or BATCH:INDEX)."""


@request
class DatasetsMaterializeRequest(WorkspaceRequest):
    """Write exactly the episodes of a dataset version as one LeRobot v3.0 folder."""

    dataset: _Reference
    """The dataset version: NAME, NAME@VERSION, or the beginning of its hash."""
    output: Path
    """The folder to write; it must not exist."""
    codec: Literal["h264", "av1", "hevc"] | None = None
    """Codec of all videos, required only if the source folders use different codecs. Videos in another codec are
    encoded again.
    """
    same_units: bool = False
    """Assume that the joint columns of all source folders have the same units, even if the folders state other units.
    """
    common: bool = False
    """Keep only the features that all source folders have. The names of all other features are printed."""


@request
class ApproveRequest(Request):
    """Approve code files that datasets refer to, or list the approved ones if no file is given.

    Python files and TorchScript modules are approved by the hash of their content: a changed file needs a new approval.

    If a folder of a workspace is given, for example of one from another machine, all code that its files refer to is
    approved and may run.
    """

    files: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE")]] = ()
    """Files that you have read and that may run on this machine if a dataset refers to them, or folders of workspaces.
    """
    revoke: bool = False
    """Withdraw the approval of these files instead."""


@request
class DoctorRequest(Request):
    """Show the packages, renderers, cores and data of this machine, and how to install missing packages."""
