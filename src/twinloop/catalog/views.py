"""Declare the views for SQL queries of the catalog, and find the views that a statement needs.

There are views of Parquet files, of tables in ``state.sqlite``, of labels, of dataset versions, of the lineage of
episodes and policies, of frames, and of episodes whose physics engine had a known fault. Each view is made of tables
and of views that are declared before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from twinloop.catalog.dataset_versions import LISTS
from twinloop.catalog.schema import EPISODES, TABLES
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.engine_faults import ENGINE_FAULTS, ENGINES, JACOBIANS, SOLVERS

_KNOWN = ", ".join(
    f"('{fault.name}', '{fault.engine}', '{version}', '{fault.solver}', '{fault.jacobian}', '{fault.fixed_in}')"
    for fault in ENGINE_FAULTS
    for version in fault.versions
)

# Settings of the solver as an episode's provenance records them, see `core.engine_faults.SolverSettings`. Other values
# are `unknown`. So are older episodes, which have no record of the settings.
FAULT_VIEWS = {
    "engine_faults": f"""
        WITH known (fault, engine, version, solver, jacobian, fixed_in) AS (VALUES {_KNOWN}),
        made AS (
            SELECT batch, twin, twin_hash, sim_version,
                json_extract_string(extra, '$.solver.engine') AS engine,
                json_extract_string(extra, '$.solver.solver') AS solver,
                json_extract_string(extra, '$.solver.jacobian') AS jacobian,
                TRY_CAST(json_extract_string(extra, '$.solver.dof') AS BIGINT) AS dof
            FROM places
        )
        SELECT m.batch, m.twin, m.twin_hash, m.sim_version, k.fault, k.fixed_in,
            CASE WHEN m.engine = k.engine AND m.solver = k.solver AND m.jacobian = k.jacobian THEN 'yes'
                WHEN m.engine IN {ENGINES} AND m.solver IN {SOLVERS} AND m.jacobian IN {JACOBIANS} THEN 'no'
                ELSE 'unknown' END AS affected,
            m.dof, m.solver, m.jacobian, count(*) AS episodes
        FROM made m JOIN known k ON m.sim_version = k.version OR (m.sim_version IS NULL AND m.twin IS NOT NULL)
        GROUP BY ALL ORDER BY m.batch, k.fault, affected""",  # noqa: S608 - our own
}


LABEL_VIEWS = {
    # The current labels of episodes: the newest statement of each author on each kind.
    "labels": """
        SELECT episode_id, kind, value,
            CASE WHEN starts_with(kind, 'number/') THEN TRY_CAST(value AS DOUBLE) END AS number,
            first_frame, last_frame, source, author, author_hash, confidence, reason, said_at, run_id, seq
        FROM label_history h WHERE NOT retracted AND NOT EXISTS (SELECT 1 FROM label_ends e WHERE e.seq = h.seq)""",
    # One answer per episode and kind (success, failure, numbers), the rule of decision, and the conflicting answers.
    # Only the highest source counts (hand before rule before model), and in it the majority; of numbers the
    # median. An `unknown` does not count. A tie has no value. All differing answers are listed in `conflict`.
    "consensus": """
        WITH voting AS (
            SELECT episode_id, kind, value, number, source, author,
                CASE source WHEN 'hand' THEN 0 WHEN 'rule' THEN 1 ELSE 2 END AS place
            FROM labels WHERE (kind IN ('success', 'failure') OR number IS NOT NULL) AND value <> 'unknown'
        ), everybody AS (
            SELECT episode_id, kind, min(place) AS best, count(*) AS said, min(value) <> max(value) AS unlike
            FROM voting GROUP BY episode_id, kind
        ), counted AS (
            SELECT v.episode_id, v.kind, v.value, any_value(v.source) AS source, count(*) AS votes
            FROM voting v JOIN everybody e ON e.episode_id = v.episode_id AND e.kind = v.kind AND e.best = v.place
            GROUP BY v.episode_id, v.kind, v.value
        ), winners AS (
            SELECT episode_id, kind, any_value(source) AS source, arg_max(value, votes) AS value, max(votes, 2) AS most,
                sum(votes) AS voters
            FROM counted GROUP BY episode_id, kind
        ), middles AS (
            SELECT v.episode_id, v.kind, median(v.number) AS middle
            FROM voting v JOIN everybody e ON e.episode_id = v.episode_id AND e.kind = v.kind AND e.best = v.place
            WHERE v.number IS NOT NULL GROUP BY v.episode_id, v.kind
        ), conflicts AS (
            SELECT v.episode_id, v.kind,
                string_agg(v.source || ':' || v.author || '=' || v.value, ', ' ORDER BY v.place, v.author) AS conflict
            FROM voting v JOIN everybody e ON e.episode_id = v.episode_id AND e.kind = v.kind AND e.unlike
            GROUP BY v.episode_id, v.kind
        )
        SELECT e.episode_id, e.kind,
            CASE WHEN m.middle IS NOT NULL THEN CAST(m.middle AS VARCHAR)
                WHEN w.most[1] IS DISTINCT FROM w.most[2] THEN w.value END AS value,
            m.middle AS number, w.source,
            CASE WHEN w.voters = 1 THEN 'only one' WHEN w.most[1] = w.voters THEN 'unanimous'
                WHEN m.middle IS NOT NULL THEN 'median' WHEN w.most[1] = w.most[2] THEN 'tie'
                WHEN 2 * w.most[1] > w.voters THEN 'majority' ELSE 'plurality' END AS decided,
            CAST(w.most[1] AS BIGINT) AS votes, CAST(w.voters AS BIGINT) AS voters, e.said, c.conflict
        FROM everybody e
        JOIN winners w ON w.episode_id = e.episode_id AND w.kind = e.kind
        LEFT JOIN middles m ON m.episode_id = e.episode_id AND m.kind = e.kind
        LEFT JOIN conflicts c ON c.episode_id = e.episode_id AND c.kind = e.kind""",
}
DATASET_VIEWS = {
    # The episodes of each dataset version.
    "dataset_episodes": """
        SELECT d.name, d.version, l.hash, l.episode_id FROM dataset_lists l JOIN datasets d USING (hash)""",
}
LINEAGE_VIEWS = {
    # Each episode that was derived from others, with all its ancestors over any number of steps.
    "descent": """
        WITH RECURSIVE made AS (
            SELECT DISTINCT episode_id, unnest(parents) AS ancestor FROM places WHERE len(parents) > 0
        ), up AS (
            SELECT episode_id, ancestor FROM made
            UNION SELECT up.episode_id, made.ancestor FROM up JOIN made ON made.episode_id = up.ancestor
        ) SELECT episode_id, ancestor FROM up WHERE episode_id <> ancestor""",
    # Each policy with itself and all policies from which its training continued.
    "policy_bases": """
        WITH RECURSIVE up AS (
            SELECT policy, policy AS base FROM policies
            UNION SELECT up.policy, p.base FROM up JOIN policies p ON p.policy = up.base WHERE p.base IS NOT NULL
        ) SELECT policy, base FROM up""",
    # The episodes that a policy has seen: those in a dataset it was trained on, and those from which such an episode,
    # `via`, was derived; if `base` names a policy, in the training from which this policy's training continued.
    "policy_episodes": """
        WITH given AS (
            SELECT b.policy, p.name, nullif(b.base, b.policy) AS base, d.dataset, l.episode_id
            FROM policy_bases b JOIN policies p ON p.policy = b.policy
            JOIN policy_datasets d ON d.policy = b.base JOIN dataset_lists l ON l.hash = d.dataset
        )
        SELECT policy, name, episode_id, dataset, NULL AS via, base FROM given
        UNION ALL SELECT g.policy, g.name, x.ancestor, g.dataset, g.episode_id, g.base
        FROM given g JOIN descent x ON x.episode_id = g.episode_id""",
}


# Views of the rows from the run that was committed last, for each value of some columns: the table, and the columns.
# A finding that a check no longer reports for an episode is then no longer valid.
LATEST: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "scores": ("scores", ("episode_id", "check")),
    "latest_evaluations": ("evaluations", ("policy", "suite")),
}

# Views over other views, as SQL; each comes after the views that it uses.
DERIVED: Mapping[str, str] = {**DATASET_VIEWS, **LINEAGE_VIEWS, **LABEL_VIEWS, **FAULT_VIEWS}

# Views that show all rows of a table's parts, by view name.
PART_VIEWS = {"score_history" if name == "scores" else name: name for name in TABLES if name != EPISODES.name}
IN_MEMORY_VIEWS = ("episodes", "places", LISTS)  # built in memory by `CatalogQueries`
FRAME_VIEWS = ("frames", "contacts")
NAMES = tuple(sorted({*IN_MEMORY_VIEWS, *PART_VIEWS, *LATEST, *STATE_TABLES, *DERIVED, *FRAME_VIEWS}))

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def latest_sql(source: str, key: Iterable[str]) -> str:
    """Return SQL that selects, for each combination of values in the key columns, the rows of the newest run.

    The newest run is the one that was committed last. The order of the rows decides, not the names of the runs, because
    a name contains the time of a clock that may have been wrong.

    Args:
        source: SQL that reads a table's Parquet files in the order of their commits.
        key: names of the key columns.
    """
    columns = ", ".join(f'"{name}"' for name in key)
    return f"""
        SELECT * EXCLUDE (latest) FROM (
            SELECT *, arg_max(run_id, (file_index::BIGINT << 40) + file_row_number) OVER (PARTITION BY {columns})
                AS latest FROM {source}
        ) WHERE run_id = latest"""  # noqa: S608 - names of our own


def find_required_views(sql: str) -> set[str]:
    """Return the names of the views that a statement may use, and of all views from which these views are made.

    The set may contain unused views, because every word of the statement counts.
    """
    return _add_required_views(_find_view_names(sql))


def _add_required_views(names: Iterable[str]) -> set[str]:
    names = set(names)
    more = names.union(*(_find_view_names(DERIVED[name]) for name in names if name in DERIVED))
    return names if more == names else _add_required_views(more)


def _find_view_names(sql: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(sql)}.intersection(NAMES)
