"""Run ``twinloop policies export``: write a policy as an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from twinloop.core.assignment import list_sources
from twinloop.core.errors import InputError
from twinloop.policies import KINDS, open_policy, read_card, read_config
from twinloop.policies.folder import find_onnx
from twinloop.workflows.deploy.requests import PoliciesExportRequest
from twinloop.workflows.scenario.references import policy_folder


def run_export(request: PoliciesExportRequest, console: Console) -> dict[str, Any]:
    """Write a policy as an ONNX file after comparing its commands with those of the policy; print the difference.

    Raises:
        InputError: If the policy cannot be opened, or is of a kind that does not train here.
        CheckFailedError: If the commands differ by more than 1e-5 of their largest value. Nothing is written then.
        MissingDependencyError: If torch, onnx, onnxscript or onnxruntime is not installed.
    """
    folder = policy_folder(request.policy)
    kind = read_config(folder)["kind"]
    if find_onnx(folder) or kind not in KINDS:
        what = "already an ONNX file" if find_onnx(folder) else f"of kind {kind}"
        raise InputError(f"{request.policy} is {what}. Policies that train here can be exported: {', '.join(KINDS)}.")
    policy, card = open_policy(folder), replace(read_card(folder), sources=list_sources(folder))
    from twinloop.policies.onnx_export import LIMIT, export_onnx

    exported, difference = export_onnx(policy, request.output, card)
    console.print(
        f"{request.output}: {kind} policy {policy.hash[:12]} as {exported.hash[:12]}. Commands and features of "
        f"onnxruntime differ from those of torch by at most {difference:.1e} of the largest value ({LIMIT:.0e} is "
        "allowed).",
        soft_wrap=True,
    )
    return {
        "verb": "policies export",
        "output": str(request.output),
        "hash": exported.hash,
        "source_hash": policy.hash,
        "difference": difference,
        "limit": LIMIT,
    }
