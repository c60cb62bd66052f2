"""Whether every frozen dataset still is what was frozen, and whether policies and labels speak of what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twinloop.catalog.frozen import FOLDER, list_hash, read_list
from twinloop.catalog.fsck import Finding
from twinloop.catalog.state import State
from twinloop.core.errors import DatasetError


def check_frozen(catalog: Path, state: State) -> Iterator[Finding]:
    """Lists that are missing, damaged or not what their row says; rows that speak of nothing."""
    known = set[str]()
    for row in state.rows("SELECT name, version, hash, sha256, episodes FROM datasets ORDER BY name, version"):
        known.add(row["hash"])
        where = f"dataset {row['name']}@{row['version']}"
        try:
            ids = read_list(catalog, row["hash"], row["sha256"])
        except DatasetError as error:
            yield Finding(kind="frozen", where=where, what=str(error), remedy=_REMEDY)
            continue
        if list_hash(ids) != row["hash"] or len(ids) != row["episodes"]:
            what = f"Its row says {row['episodes']} episodes of another hash; its list has {len(ids)}."
            yield Finding(kind="frozen", where=where, what=what, remedy="Put a copy of state.sqlite back.")
    for row in state.rows("SELECT policy, dataset FROM policy_datasets ORDER BY policy, dataset"):
        if row["dataset"] not in known:
            yield Finding(
                kind="frozen",
                where=f"policy {row['policy'][:16]}",
                what=f"It was trained on a dataset {row['dataset'][:16]} that no row names.",
                remedy="Put a copy of state.sqlite back.",
            )
    lost = state.rows("SELECT seq FROM label_ends WHERE seq NOT IN (SELECT seq FROM label_history)")
    if lost:
        yield Finding(
            kind="labels",
            where="state.sqlite",
            what=f"{len(lost)} labels ended that the history does not hold, the first number {lost[0]['seq']}.",
            remedy="Put a copy of state.sqlite back.",
        )


_REMEDY = (
    f"Put a copy of the file in catalog/{FOLDER} back. Where the SQL of the dataset still selects the same, freezing "
    "it again writes that file."
)
