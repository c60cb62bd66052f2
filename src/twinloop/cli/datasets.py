"""The command ``twinloop datasets``: selections of episodes that never change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, console

_Reference = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET")]]


@dataclass(frozen=True, kw_only=True)
class DatasetsFreeze:
    """Freeze what a statement selects now, under a name; another list under the same name is its next version."""

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]]
    """Letters, digits, '.', '_' and '-'."""
    sql: str
    """SELECT episode_id FROM episodes WHERE …"""
    note: str = ""
    """What it is for."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Freeze."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import freeze

        with Workspace.open(self.workspace) as opened:
            return freeze(opened, self.name, self.sql, self.note, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class DatasetsList:
    """Every frozen dataset, and how many policies it trained."""

    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import overview

        with Workspace.open(self.workspace) as opened:
            return overview(opened, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class DatasetsShow:
    """What a frozen dataset is made of: sources, tasks, twins, success; its hash, its SQL, the policies it trained."""

    dataset: _Reference
    """NAME, NAME@VERSION, or the beginning of its hash."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import show

        with Workspace.open(self.workspace) as opened:
            return show(opened, self.dataset, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class DatasetsDiff:
    """Episodes that only one of two frozen datasets has."""

    first: _Reference
    """NAME, NAME@VERSION, or the beginning of its hash."""
    second: _Reference
    """The other."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Compare."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import compare

        with Workspace.open(self.workspace) as opened:
            return compare(opened, self.first, self.second, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class DatasetsLineage:
    """Which episodes trained a policy, which policies saw an episode, which policies a dataset trained."""

    what: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY|EPISODE|DATASET")]]
    """A policy's name or hash, a frozen dataset, or an episode (the beginning of its id, or BATCH:INDEX)."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Trace."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import trace

        with Workspace.open(self.workspace) as opened:
            return trace(opened, self.what, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class DatasetsMaterialize:
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
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Write."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.datasets import materialize

        with Workspace.open(self.workspace) as opened:
            figures = materialize(
                opened,
                self.dataset,
                self.output,
                codec=self.codec,
                same_units=self.same_units,
                common=self.common,
                console=console(json=self.json),
            )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """Frozen datasets: named selections of episodes that never change, and the policies they trained."""

    action: (
        Annotated[DatasetsFreeze, tyro.conf.subcommand("freeze", prefix_name=False)]
        | Annotated[DatasetsList, tyro.conf.subcommand("list", prefix_name=False)]
        | Annotated[DatasetsShow, tyro.conf.subcommand("show", prefix_name=False)]
        | Annotated[DatasetsDiff, tyro.conf.subcommand("diff", prefix_name=False)]
        | Annotated[DatasetsLineage, tyro.conf.subcommand("lineage", prefix_name=False)]
        | Annotated[DatasetsMaterialize, tyro.conf.subcommand("materialize", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()
