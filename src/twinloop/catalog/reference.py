"""Define ten example queries of the catalog, and update the documentation pages that list queries and columns.

Run ``python -m twinloop.catalog.reference PAGE...`` to update pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinloop.catalog.schema import TABLES, CatalogTable
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.files import write_text


@dataclass(frozen=True, kw_only=True)
class ExampleQuery:
    """Example query of the documentation.

    Attributes:
        name: short name of the query.
        question: the question in words.
        sql: the SQL statement that answers the question.
        example: example values of the statement's parameters, by name.
    """

    name: str
    question: str
    sql: str
    example: Mapping[str, Any] = field(default_factory=dict[str, Any])


EXAMPLE_QUERIES = (
    ExampleQuery(
        name="success",
        question="How often does each task succeed, in reality and in simulation?",
        sql="""
SELECT task, source, count(*) AS episodes, avg(success::INT) AS success_rate, sum(duration_s) / 3600 AS hours
FROM episodes WHERE valid GROUP BY task, source ORDER BY task, source""",
    ),
    ExampleQuery(
        name="worst",
        question="Which real episodes failed the most checks, and which ones?",
        sql="""
SELECT episode_id, count(*) AS bad, string_agg(DISTINCT s."check", ', ') AS checks, any_value(s.reason) AS one_reason
FROM scores s JOIN episodes e USING (episode_id)
WHERE e.source = 'real' AND s.verdict IN ('bad', 'unreadable')
GROUP BY episode_id ORDER BY bad DESC, episode_id LIMIT 20""",
    ),
    ExampleQuery(
        name="range",
        question="Which simulated episodes with a parameter in this range failed?",
        sql="""
SELECT e.episode_id, e.batch, e.episode_index, p.value FROM params p JOIN episodes e USING (episode_id)
WHERE p.name = $name AND p.value BETWEEN $low AND $high AND NOT e.success ORDER BY p.value, e.episode_id""",
        example={"name": "geom/table/friction/slide", "low": 0.2, "high": 0.4},
    ),
    ExampleQuery(
        name="twins",
        question="How many episodes did each twin simulate, with which simulator, and when were they added?",
        sql="""
SELECT e.twin, left(e.twin_hash, 12) AS hash, e.sim_version, count(*) AS episodes, min(b.added) AS first_added
FROM episodes e JOIN batches b USING (batch) WHERE e.twin IS NOT NULL GROUP BY ALL ORDER BY episodes DESC""",
    ),
    ExampleQuery(
        name="trained",
        question="Which episodes trained this policy, and how many are real?",
        sql="""
SELECT e.source, count(*) AS episodes, sum(e.frames) AS frames
FROM (SELECT DISTINCT episode_id FROM policy_episodes WHERE policy = $policy) p JOIN episodes e USING (episode_id)
GROUP BY e.source ORDER BY e.source""",
        example={"policy": "champion"},
    ),
    ExampleQuery(
        name="seen",
        question="Which policies have seen this episode in training?",
        sql="""
SELECT DISTINCT policy, name, dataset FROM policy_episodes WHERE episode_id = $episode ORDER BY name, policy""",
        example={"episode": ""},
    ),
    ExampleQuery(
        name="disagreement",
        question="Where do a person and a rule disagree about success?",
        sql="""
SELECT h.episode_id, h.author AS person, h.value AS person_says, r.author AS rule, r.value AS rule_says
FROM labels h JOIN labels r USING (episode_id)
WHERE h.kind = 'success' AND r.kind = 'success' AND h.source = 'hand' AND r.source = 'rule' AND h.value <> r.value
ORDER BY h.episode_id LIMIT 100""",
    ),
    ExampleQuery(
        name="occupancy",
        question="How are episodes and successes distributed over a parameter's range?",
        sql="""
SELECT floor((p.value - $low) / ($high - $low) * 10)::INT AS cell, count(*) AS episodes,
       avg(e.success::INT) AS success_rate
FROM params p JOIN episodes e USING (episode_id) WHERE p.name = $name GROUP BY cell ORDER BY cell""",
        example={"name": "geom/table/friction/slide", "low": 0.2, "high": 1.4},
    ),
    ExampleQuery(
        name="unscored",
        question="How many episodes of each batch have no check result yet?",
        sql="""
SELECT e.batch, count(*) AS unscored FROM episodes e ANTI JOIN score_history s USING (episode_id)
GROUP BY e.batch ORDER BY unscored DESC""",
    ),
    ExampleQuery(
        name="evaluations",
        question="How high is the success rate of each policy in its newest evaluation of each suite?",
        sql="""
SELECT policy, suite, source, run_id, count(*) AS trials, avg(success::INT) AS success_rate, avg(score) AS mean_score
FROM latest_evaluations
GROUP BY ALL ORDER BY suite, success_rate DESC""",
    ),
)


_TYPES = {"string": "text", "double": "number", "int64": "integer", "bool": "flag"}


def format_columns() -> str:
    """Return Markdown with one table per table of the catalog, which lists name, type and meaning of each column."""
    return "\n".join(_format_table(table) for table in (*TABLES.values(), *STATE_TABLES.values())).rstrip() + "\n"


def format_questions() -> str:
    """Return Markdown with the example queries: name, question and SQL."""
    return (
        "\n".join(f"**{q.name}**: {q.question}\n\n```sql\n{q.sql.strip()}\n```\n" for q in EXAMPLE_QUERIES).rstrip()
        + "\n"
    )


def update_page(page: str) -> str:
    """Replace the columns and the example queries in the text of a Markdown page; return the new text.

    They are between the markers ``<!-- columns -->`` and ``<!-- questions -->`` and their closing markers.
    """
    for name, text in (("columns", format_columns()), ("questions", format_questions())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page, flags=re.DOTALL)
    return page


def _format_table(table: CatalogTable) -> str:
    rows = [
        f"| `{c.name}` | {_format_type(str(c.type))} | {c.meaning}{' (may be empty)' if c.optional else ''} |"
        for c in table.columns
    ]
    head = [
        f"### {table.name}",
        "",
        f"{table.meaning[0].upper()}{table.meaning[1:]}.",
        "",
        "| column | type | meaning |",
    ]
    return "\n".join([*head, "|---|---|---|", *rows, ""])


def _format_type(name: str) -> str:
    inner = re.fullmatch(r"list<.*?: (\w+)>", name)
    return f"list of {'numbers' if inner[1] == 'float' else 'texts'}" if inner else _TYPES.get(name, name)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        write_text(path, update_page(path.read_text()))
