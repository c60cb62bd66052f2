"""The commands ``twinloop promote``, ``rollback`` and ``policies``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class _InWorkspace:
    deployment: str = "main"
    """What the aliases belong to, where a workspace serves several robots or tasks."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""


@dataclass(frozen=True, kw_only=True)
class Promote(_InWorkspace):
    """Move a version one stage on: shadow, canary, champion, as the file of its gate says."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]] = "candidate"
    """NAME@VERSION, the beginning of a hash, or an alias."""
    to: Literal["shadow", "canary", "champion"] | None = None
    """The stage; by default the next one."""
    force: bool = False
    """Go past the gate and the stages; the log says so."""
    reason: str = ""
    """Why; needed with --force."""
    who: str | None = None
    """Who decides; by default the user."""

    def run(self) -> Outcome:
        """Promote."""
        from twinloop.workflows.deploy.release import opened, run_promote

        with opened(self.workspace, self.deployment, self.who) as registry:
            return run_promote(
                registry,
                self.policy,
                to=self.to,
                force=self.force,
                reason=self.reason,
                console=console(json=self.json),
            ), 0


@dataclass(frozen=True, kw_only=True)
class Rollback(_InWorkspace):
    """Make the previous champion the champion again, after checking every byte of it."""

    reason: str
    """Why; the log keeps it."""
    who: str | None = None
    """Who decides; by default the user."""

    def run(self) -> Outcome:
        """Roll back."""
        from twinloop.workflows.deploy.release import opened, run_rollback

        with opened(self.workspace, self.deployment, self.who) as registry:
            return run_rollback(registry, self.reason, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class PoliciesAdd(_InWorkspace):
    """Copy a saved policy into the registry; what is there never changes."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of the policy: config.json, model.safetensors, README.md."""
    name: str | None = None
    """What to call it; by default as the folder. A name has versions."""

    def run(self) -> Outcome:
        """Add."""
        from twinloop.workflows.deploy.release import opened, run_add

        with opened(self.workspace, self.deployment) as registry:
            return run_add(registry, self.folder, self.name, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class PoliciesList(_InWorkspace):
    """Every version with its aliases and its stage."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.workflows.deploy.release import opened, run_list

        with opened(self.workspace, self.deployment) as registry:
            return run_list(registry, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class PoliciesShow(_InWorkspace):
    """What a version is made of, checked byte by byte, and what the gate said of it."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
    """NAME@VERSION, the beginning of a hash, or an alias."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.workflows.deploy.release import opened, run_show

        with opened(self.workspace, self.deployment) as registry:
            return run_show(registry, self.policy, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class PoliciesAudit(_InWorkspace):
    """Who promoted what on which evidence; ends with the hash of the newest entry, to be noted elsewhere."""

    def run(self) -> Outcome:
        """Tell."""
        from twinloop.workflows.deploy.release import opened, run_audit

        with opened(self.workspace, self.deployment) as registry:
            return run_audit(registry, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class PoliciesVerify(_InWorkspace):
    """Check every version, the chain of the log and the aliases; exits with 1 where something is wrong."""

    head: str | None = None
    """NUMBER:HASH of an entry of the log that was noted elsewhere: it must still be there."""

    def run(self) -> Outcome:
        """Verify."""
        from twinloop.workflows.deploy.release import opened, run_verify

        with opened(self.workspace, self.deployment) as registry:
            return run_verify(registry, self.head, console(json=self.json))


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The registry of policies: immutable versions, aliases, and the log of who moved them."""

    action: (
        Annotated[PoliciesList, tyro.conf.subcommand("list", prefix_name=False)]
        | Annotated[PoliciesShow, tyro.conf.subcommand("show", prefix_name=False)]
        | Annotated[PoliciesAdd, tyro.conf.subcommand("add", prefix_name=False)]
        | Annotated[PoliciesAudit, tyro.conf.subcommand("audit", prefix_name=False)]
        | Annotated[PoliciesVerify, tyro.conf.subcommand("verify", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()
