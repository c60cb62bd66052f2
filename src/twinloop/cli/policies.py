"""Define ``twinloop promote``, ``rollback`` and ``policies``, which release policies and manage the policy registry."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.deploy import requests

POLICIES = Group(
    name="policies",
    description="Manage the policy registry: immutable versions, aliases, and the log of promotions.",
    commands=(
        Command(
            "list",
            requests.PoliciesListRequest,
            "twinloop.workflows.deploy.release:run_list",
            example="twinloop policies list",
        ),
        Command(
            "show",
            requests.PoliciesShowRequest,
            "twinloop.workflows.deploy.release:run_show",
            example="twinloop policies show pick@1",
        ),
        Command(
            "add",
            requests.PoliciesAddRequest,
            "twinloop.workflows.deploy.release:run_add",
            example="twinloop policies add policies/bc --name pick",
        ),
        Command(
            "export",
            requests.PoliciesExportRequest,
            "twinloop.workflows.deploy.export_policy:run_export",
            example="twinloop policies export policies/bc --output bc.onnx",
        ),
        Command(
            "audit",
            requests.PoliciesAuditRequest,
            "twinloop.workflows.deploy.release:run_audit",
            example="twinloop policies audit",
        ),
        Command(
            "verify",
            requests.PoliciesVerifyRequest,
            "twinloop.workflows.deploy.release:run_verify",
            example="twinloop policies verify",
        ),
    ),
)
PROMOTE = Command(
    "promote", requests.PromoteRequest, "twinloop.workflows.deploy.release:run_promote", example="twinloop promote"
)
ROLLBACK = Command(
    "rollback",
    requests.RollbackRequest,
    "twinloop.workflows.deploy.release:run_rollback",
    example='twinloop rollback --reason "drops the cube since the new gripper"',
)
