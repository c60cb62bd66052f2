"""What the workspace knows of the data that trained a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twinloop.catalog import Workspace


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a policy saw while it was trained: simulated episodes, their twins, and the range of each parameter."""

    episodes: int
    twins: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def trained_on(workspace: Workspace, policy: str | None) -> Trained:
    """What the workspace knows of the data that trained a policy, and what its training went on from."""
    seen = "(SELECT DISTINCT episode_id FROM policy_episodes WHERE policy = ?)"
    twins = workspace.query(
        f"SELECT twin_hash, count(*) AS n FROM episodes WHERE episode_id IN {seen} AND source = 'sim' GROUP BY ALL",  # noqa: S608
        [policy or ""],
    ).to_pylist()
    drawn = workspace.query(
        f"SELECT name, min(value) AS low, max(value) AS high FROM params WHERE episode_id IN {seen} GROUP BY name",  # noqa: S608
        [policy or ""],
    ).to_pylist()
    return Trained(
        episodes=sum(row["n"] for row in twins),
        twins=tuple(row["twin_hash"] for row in twins if row["twin_hash"]),
        ranges={row["name"]: (row["low"], row["high"]) for row in drawn},
    )
