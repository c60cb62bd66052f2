"""The command that serves a policy to robots on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a policy over HTTP and WebSocket, to this machine only unless there is a token; end it with Ctrl-C."""

    policy: str
    """champion or another alias, NAME@VERSION, or a policy's folder."""
    host: str = "127.0.0.1"
    """Where to listen; beyond this machine a token is needed."""
    port: int = 8400
    """The port; 0 takes a free one."""
    token_file: Path | None = None
    """A file with the token that clients must show."""
    sessions: int = 16
    """Clients at a time."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Serve."""
        from twinloop.release.serve import ServeOptions, read_token
        from twinloop.workflows.deploy.cell import serve_policy

        options = ServeOptions(
            host=self.host, port=self.port, token=read_token(self.token_file), sessions=self.sessions
        )
        return serve_policy(self.policy, options, console=console(json=self.json)), 0
