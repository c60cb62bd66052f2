"""Run ``twinloop promote``, ``rollback`` and ``policies``: change and inspect which policy version is released."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace, audit
from twinloop.catalog.fsck_state import check_release
from twinloop.core.errors import InputError
from twinloop.release import PolicyRegistry, StageTracker, promote, rollback
from twinloop.release.version import PolicyVersion
from twinloop.workflows.deploy.requests import (
    DeploymentRequest,
    PoliciesAddRequest,
    PoliciesAuditRequest,
    PoliciesListRequest,
    PoliciesShowRequest,
    PoliciesVerifyRequest,
    PromoteRequest,
    RollbackRequest,
)

_TOLD = ("reason", "from", "forced", "passed", "stage")  # printed details of a log entry


_R = TypeVar("_R", bound=DeploymentRequest)
_T = TypeVar("_T")


def with_registry(work: Callable[[_R, PolicyRegistry, Console], _T]) -> Callable[[_R, Console], _T]:
    """Decorate a command so that it receives the policy registry of its request's workspace as an argument.

    The workspace is the requested one, or by default the nearest one upwards from the working folder.
    """

    @wraps(work)
    def opened(request: _R, console: Console) -> _T:
        with Workspace.open(request.workspace) as held:
            registry = PolicyRegistry(held, deployment=request.deployment, who=getattr(request, "who", None))
            return work(request, registry, console)

    return opened


@with_registry
def run_promote(request: PromoteRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Move a policy version to the next stage of deployment: shadow, canary or champion; see `release.promote`.

    Raises:
        InputError: If the alias ``candidate`` is requested, and there is no candidate.
    """
    where, _, alias = request.policy.rpartition("/")
    if alias == "candidate" and "candidate" not in (
        registry.aliases() if where in ("", registry.deployment) else [alias]
    ):
        raise InputError(_explain_missing_candidate(registry))
    moved = promote(registry, request.policy, to=request.to, force=request.force, reason=request.reason)
    if moved.stage == "champion":
        before = f"; the previous one is {moved.before}" if moved.before else ""
        console.print(f"{moved.policy} is the champion of {registry.deployment}{before}.")
    else:
        console.print(f"{moved.policy} is in {moved.stage} of {registry.deployment}; the champion is {moved.before}.")
    return {"verb": "promote", "deployment": registry.deployment, **moved.to_json(), "aliases": registry.aliases()}


def _explain_missing_candidate(registry: PolicyRegistry) -> str:
    known = [version.reference for version in registry.versions()]
    if not known:
        return (
            "There is no policy to promote. Add one with `twinloop policies add DIR`, then run a gate on it: "
            "`twinloop gate candidate.yaml`."
        )
    champion = registry.aliases().get("champion")
    now = f"{champion} is its champion" if champion else "it has no champion"
    return (
        f"{registry.deployment} has no candidate; {now}. A yes of `twinloop gate candidate.yaml` makes a policy the "
        f"candidate. To skip the gate: `twinloop promote {known[-1]} --force --reason WHY` (policies: "
        f"{', '.join(known[-5:])})."
    )


@with_registry
def run_rollback(request: RollbackRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Make the previous champion the champion again; see `release.rollback`."""
    began = time.perf_counter()
    moved = rollback(registry, request.reason)
    seconds = time.perf_counter() - began
    console.print(f"{moved.policy} is the champion of {registry.deployment} again, checked in {seconds:.3f} s.")
    aliases = registry.aliases()
    return {"verb": "rollback", "deployment": registry.deployment, **moved.to_json(), "seconds": seconds} | {
        "aliases": aliases
    }


@with_registry
def run_add(request: PoliciesAddRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Copy a saved policy into the registry as a new version, and print its reference and hash."""
    reference = registry.add(request.folder, name=request.name)
    version = registry.version(reference)
    console.print(
        f"{reference} ({_format_short_hash(version)}): {len(version.record['files'])} files of {request.folder}",
        soft_wrap=True,
    )
    return {"verb": "policies add", **version.to_json()}


@with_registry
def run_list(_: PoliciesListRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Print every policy version of the registry with its aliases, its stage of deployment and its training data."""
    aliases, stages = registry.aliases(), StageTracker(registry)
    standing = {one.policy: one for one in stages.history()}
    table = Table("policy", "alias", "stage", "policy hash", "trained on", "added", "by", box=None, pad_edge=False)
    rows = list[dict[str, Any]]()
    for version in registry.versions():
        called = [alias for alias, policy in aliases.items() if policy == version.reference]
        at = standing.get(version.reference)
        trained = [row["said"] for row in version.record.get("datasets", [])]
        rows.append(
            {
                "policy": version.reference,
                "aliases": called,
                "stage": "offline" if at is None else at.stage,
                "reason": "" if at is None else at.reason,
                "hash": version.hash,
                "policy_hash": version.policy,
                "datasets": trained,
                "added": version.added,
                "added_by": version.added_by,
            }
        )
        shown = (
            (version.policy or "–")[:12],
            ", ".join(trained) or "–",
            version.added[:16].replace("T", " "),
            version.added_by,
        )
        table.add_row(version.reference, ", ".join(called) or "–", rows[-1]["stage"], *shown)
    console.print(table)
    judgement = stages.judge_stage()
    if judgement is not None:
        console.print(judgement.reason)
    return {"verb": "policies list", "deployment": registry.deployment, "aliases": aliases, "policies": rows} | {
        "now": None if judgement is None else {"reason": judgement.reason, **judgement.metrics}
    }


@with_registry
def run_show(request: PoliciesShowRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Print the content and origin of a policy version, and the gate's decisions about it."""
    version = registry.version(request.policy)
    folder = registry.folder(request.policy)
    record = version.record
    contract = record.get("contract") or {}
    rows = {
        "folder": str(folder),
        "policy hash": _describe_hash(
            version.policy, "weights and settings; evaluations, runs and training refer to it"
        ),
        "files hash": _describe_hash(version.hash, "of every file, the card included; identifies this version"),
        "weights hash": _describe_hash(record.get("weights"), "of model.safetensors alone"),
        "kind": record.get("kind"),
        "robot": contract.get("robot_type"),
        "rate": f"{contract['control_hz']:g} Hz" if "control_hz" in contract else None,
        "normalization": (record.get("normalization") or {}).get("how"),
        "datasets": ", ".join(row["said"] for row in record.get("datasets", [])),
        "twins": ", ".join(digest[:16] for digest in record.get("twins", [])),
        "code": ", ".join(f"{name} {number}" for name, number in record.get("code", {}).items()),
        "added": f"{version.added} by {version.added_by}",
    }
    for name, value in rows.items():
        console.print(f"{name:14} {value or 'not known'}", soft_wrap=True)
    decisions = registry.decisions(version.reference)
    for decision in decisions:
        console.print(f"gate {decision.made}: {'yes' if decision.passed else 'no'}")
        for reason in decision.reasons:
            console.print(f"  {reason}", soft_wrap=True)
    return {"verb": "policies show", **version.to_json(), "folder": str(folder)} | {
        "decisions": [decision.to_json() for decision in decisions]
    }


def _format_short_hash(version: PolicyVersion) -> str:
    return f"policy {version.policy[:16]}" if version.policy else f"files {version.hash[:16]}"


def _describe_hash(digest: str | None, of: str) -> str | None:
    """Return a hash with a description of the hashed content in parentheses; None if there is no hash."""
    return f"{digest} ({of})" if digest else None


@with_registry
def run_audit(_: PoliciesAuditRequest, registry: PolicyRegistry, console: Console) -> dict[str, Any]:
    """Print the promotion log, oldest entry first, and the hash of its newest entry."""
    log = registry.audit()
    for entry in log:
        details = {k: v for k, v in entry.details.items() if k in _TOLD and (v or k == "passed")}
        said = ", ".join(f"{key} {value}" for key, value in details.items())
        where = f"{entry.seq:4} {entry.at[:19].replace('T', ' ')}"
        console.print(f"{where} {entry.who}: {entry.action} {entry.policy} {said}".rstrip(), soft_wrap=True)
    seq, digest = audit.read_newest_entry(registry.workspace.state)
    console.print(f"Newest entry: {seq}:{digest}")
    return {"verb": "policies audit", "entries": [entry.to_json() for entry in log], "head": f"{seq}:{digest}"}


@with_registry
def run_verify(
    request: PoliciesVerifyRequest, registry: PolicyRegistry, console: Console
) -> tuple[dict[str, Any], int]:
    """Check the files of every policy version and the hash chain of the log of releases, and print the faults.

    If ``--head`` (number and hash of a known log entry) is given, also check that the log still contains this entry.

    Returns:
        The faults, and exit code 1 if there are any, else 0.

    Raises:
        InputError: If ``--head`` is not written as NUMBER:HASH.
    """
    workspace = registry.workspace
    found = [finding.problem for finding in check_release(workspace.root, workspace.state)]
    if request.head is not None:
        seq, _, digest = request.head.partition(":")
        if not (seq.isdigit() and digest):
            raise InputError(f"--head {request.head} is not NUMBER:HASH, as `twinloop policies audit` prints it last.")
        lost = audit.explain_missing_entry(workspace.state, int(seq), digest)
        found += [lost] if lost else []
    for what in found:
        console.print(what, soft_wrap=True)
    if not found:
        count, entries = len(registry.versions()), audit.read_newest_entry(workspace.state)[0]
        console.print(f"{count} versions and {entries} entries of the log are unchanged.")
    return {"verb": "policies verify", "findings": found}, 1 if found else 0
