"""Define ``twinloop query``, which runs an SQL query on the catalog of a workspace."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import QueryRequest

QUERY = Command(
    "query",
    QueryRequest,
    "twinloop.workflows.data.query:run_query",
    example='twinloop query "SELECT batch, count(*) FROM episodes GROUP BY ALL"',
)
