"""The commands ``twinloop promote``, ``rollback`` and ``policies``."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.deploy import requests

POLICIES = Group(
    name="policies",
    description="The registry of policies: immutable versions, aliases, and the log of who moved them.",
    commands=(
        Command("list", requests.PoliciesListRequest, "twinloop.workflows.deploy.release:run_list"),
        Command("show", requests.PoliciesShowRequest, "twinloop.workflows.deploy.release:run_show"),
        Command("add", requests.PoliciesAddRequest, "twinloop.workflows.deploy.release:run_add"),
        Command("audit", requests.PoliciesAuditRequest, "twinloop.workflows.deploy.release:run_audit"),
        Command("verify", requests.PoliciesVerifyRequest, "twinloop.workflows.deploy.release:run_verify"),
    ),
)
PROMOTE = Command("promote", requests.PromoteRequest, "twinloop.workflows.deploy.release:run_promote")
ROLLBACK = Command("rollback", requests.RollbackRequest, "twinloop.workflows.deploy.release:run_rollback")
