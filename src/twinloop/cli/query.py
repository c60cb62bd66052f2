"""The command ``twinloop query``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Query:
    """Ask the workspace in SQL: episodes, frames, params, contacts, scores, labels, evaluations, runs and more.

    Views: episodes, places, frames, contacts, params, scores, score_history, labels, label_history, consensus,
    evaluations, embeddings, runs, batches, datasets, dataset_episodes, policies, policy_datasets, policy_episodes,
    tombstones, parts. DESCRIBE episodes tells the columns of one; docs/catalog.md explains them.
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
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output, which holds the answer unless --output does."""

    def run(self) -> Outcome:
        """Ask."""
        from twinloop.workflows.data.query import run_query

        figures = run_query(
            self.sql,
            params=self.params,
            format=self.format,
            output=self.output,
            workspace=self.workspace,
            console=console(json=self.json),
            quiet=self.json,
        )
        return figures, 0
