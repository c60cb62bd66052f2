"""The card of a dataset, with what the workspace knows of its episodes beside what the folder says itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError
from twinloop.core.files import write_text
from twinloop.dataset import layout
from twinloop.dataset.folder_card import Rows, folder_card

SETTINGS = {
    "repo_id": "USER/NAME on the Hub, for the lines that load it",
    "name": "the title; by default the dataset's own name or the folder's",
    "licence": "an identifier that the Hub knows or a sentence, in place of what the folder states",
}
_SCORES = """
    SELECT "check", s.verdict, count(DISTINCT s.episode_id) AS episodes
    FROM scores s JOIN places p USING (episode_id) WHERE p.batch = ?
    GROUP BY ALL ORDER BY ALL
"""
_LABELS = """
    SELECT l.kind AS label, l.source, l.value, count(DISTINCT l.episode_id) AS episodes
    FROM labels l JOIN places p USING (episode_id) WHERE p.batch = ?
    GROUP BY ALL ORDER BY ALL LIMIT 40
"""


def run_card(
    dataset: Path, output: Path | None, settings: Mapping[str, str], *, workspace: Path | None = None
) -> dict[str, Any]:
    """Write the card of a dataset folder; returns the figures.

    Args:
        dataset: a v3.0 folder.
        output: the file; by default ``README.md`` in the folder.
        settings: as `SETTINGS` names them.
        workspace: whose labels and scores to count; by default the nearest one above the dataset that knows it.

    Raises:
        InputError: see the message.
    """
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise InputError(f"A card has no setting {unknown[0]}. It has: {', '.join(SETTINGS)}.")
    target = output or dataset / layout.CARD
    tables = known_tables(dataset, workspace)
    text = folder_card(dataset, tables=tables, **settings)
    write_text(target, text)
    if output is None:
        _add_again(dataset, workspace)
    return {"schema": 1, "verb": "export", "format": "card", "dataset": str(dataset), "output": str(target)} | {
        "sections": [line[3:] for line in text.splitlines() if line.startswith("## ")]
    }


def known_tables(dataset: Path, workspace: Path | None = None) -> dict[str, Rows]:
    """Tables of a card out of the workspace: verdicts of checks and labels, counted over the dataset's episodes.

    Raises:
        InputError: no workspace at ``workspace``.
    """
    root = workspace or Workspace.find(dataset.absolute().parent)
    if root is None:
        return {}
    with Workspace.open(root) as known:
        batch = _batch(known, dataset)
        if batch is None:
            return {}
        found: dict[str, Sequence[Mapping[str, Any]]] = {
            "Quality": known.query(_SCORES, [batch]).to_pylist(),
            "Labels": known.query(_LABELS, [batch]).to_pylist(),
        }
    return {title: table for title, table in found.items() if table}


def _batch(known: Workspace, dataset: Path) -> str | None:
    """Return the batch that a dataset is in a workspace, if it is one."""
    rows = known.query("SELECT batch, path FROM batches").to_pylist()
    return next((row["batch"] for row in rows if (known.root / row["path"]).resolve() == dataset.resolve()), None)


def _add_again(dataset: Path, workspace: Path | None) -> None:
    """Let the workspace of a dataset know its new card, which `fsck` would else report as changed."""
    root = workspace or Workspace.find(dataset.absolute().parent)
    if root is not None:
        with Workspace.open(root) as known:
            if _batch(known, dataset) is not None:
                known.add(dataset)
