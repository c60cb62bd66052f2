"""Views over what was chosen and said: labels that hold, one answer where several speak, who has seen what.

Each is made of tables and of views before it.
"""

from __future__ import annotations

LABEL_VIEWS = {
    # What is said of episodes now: the newest statement of each author on each kind.
    "labels": """
        SELECT episode_id, kind, value,
            CASE WHEN starts_with(kind, 'number/') THEN TRY_CAST(value AS DOUBLE) END AS number,
            first_frame, last_frame, source, author, author_hash, confidence, reason, said_at, run_id, seq
        FROM label_history h WHERE NOT retracted AND NOT EXISTS (SELECT 1 FROM label_ends e WHERE e.seq = h.seq)""",
    # One answer per episode and kind (success, failure, numbers), how it was decided, and who disagrees.
    # Those of the highest source speak, hand before rule before model, and among them the majority; of numbers the
    # median. Whoever cannot tell has no vote. A tie has no value. What anybody said otherwise stands in `conflict`.
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
    # The episodes of each frozen dataset.
    "dataset_episodes": """
        SELECT d.name, d.version, l.hash, l.episode_id FROM dataset_lists l JOIN datasets d USING (hash)""",
}
LINEAGE_VIEWS = {
    # Each episode that was made from others, and every one of those, in any number of steps.
    "descent": """
        WITH RECURSIVE made AS (
            SELECT DISTINCT episode_id, unnest(parents) AS ancestor FROM places WHERE len(parents) > 0
        ), up AS (
            SELECT episode_id, ancestor FROM made
            UNION SELECT up.episode_id, made.ancestor FROM up JOIN made ON made.episode_id = up.ancestor
        ) SELECT episode_id, ancestor FROM up WHERE episode_id <> ancestor""",
    # Each policy and those that its training went on from, itself among them.
    "policy_bases": """
        WITH RECURSIVE up AS (
            SELECT policy, policy AS base FROM policies
            UNION SELECT up.policy, p.base FROM up JOIN policies p ON p.policy = up.base WHERE p.base IS NOT NULL
        ) SELECT policy, base FROM up""",
    # The episodes that a policy has seen: those in a dataset it was trained on, and those that such a one, `via`, was
    # made from; where `base` names a policy, in the training that this one's went on from.
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
