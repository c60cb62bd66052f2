"""`serve`: a saved policy for robots whose computer is another one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.loop.run_cell import open_registry
from twinloop.release.client import is_address
from twinloop.release.running_policy import open_saved
from twinloop.release.serve import PolicyServer, ServeOptions


def serve_policy(reference: str, options: ServeOptions, *, console: Console) -> dict[str, Any]:
    """Serve a policy until Ctrl-C; returns how many observations were answered.

    Raises:
        InputError: no such policy, a server's address instead of one, or a port that cannot be had.
    """
    if is_address(reference):
        raise InputError(f"{reference} is a server already. Give a folder, or a name of the registry.")
    with ExitStack() as held:
        policy = open_saved(reference, open_registry(held))
        server = PolicyServer(policy.copy, options)
        console.print(
            f"Serving {policy.name} ({policy.hash[:12]}) at {server.address}. Ctrl-C ends it.", soft_wrap=True
        )
        server.run()
    return {"schema": 1, "verb": "serve", "policy": policy.name, "answered": server.sessions.answered}
