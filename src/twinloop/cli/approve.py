"""The command ``twinloop approve``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Approve:
    """Approve code that data name: Python files and TorchScript modules, by their content. Without files, list them.

    A workspace that came from another machine is approved by its folder: what its own files name runs then.
    """

    files: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE")]] = ()
    """Files that you have read and that may run on this machine when data name them, or folders of workspaces."""
    revoke: bool = False
    """Withdraw the approval of these files instead."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Approve, revoke or list."""
        from twinloop.core.approval import approvals, approve, revoke
        from twinloop.core.errors import InputError

        out = console(json=self.json)
        if self.revoke and not self.files:
            raise InputError("--revoke needs the files whose approval is withdrawn.")
        if self.revoke:
            rows = [row for file in self.files for row in revoke(file)]
        else:
            rows = [approve(file) for file in self.files] if self.files else approvals()
        for row in rows:
            out.print(f"{row.sha256[:12] or 'workspace':<12}  {row.time}  {row.path}", soft_wrap=True)
        if self.files:
            out.print(f"{len(rows)} {'revoked' if self.revoke else 'approved'}. A changed file needs a new approval.")
        else:
            out.print(f"{len(rows)} approved.")
        return {"verb": "approve", "revoked": self.revoke, "files": [asdict(row) for row in rows]}, 0
