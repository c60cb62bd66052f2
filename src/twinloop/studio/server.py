"""Run `twinloop studio`: open the folder, listen on this machine, print the address, and open a browser."""

from __future__ import annotations

import getpass
import socket
import threading
import webbrowser
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.studio.data import open_folder
from twinloop.workflows.studio.requests import StudioRequest

LOOPBACK = "127.0.0.1"


def run_studio(request: StudioRequest, console: Console) -> dict[str, Any]:
    """Show a workspace, a dataset or a run in a browser until Ctrl-C.

    Raises:
        MissingDependencyError: If the extra ``studio`` is not installed.
        InputError: If the folder is none of these, or the port is not available.
    """
    try:
        import uvicorn  # pyright: ignore[reportMissingImports]

        from twinloop.studio.access import AccessGuard
        from twinloop.studio.app import Studio
    except ImportError as error:
        what = f"The studio needs Starlette and uvicorn, and {error.name} is not installed."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[studio]'") from error
    data = open_folder(request.path, request.author or getpass.getuser())
    listener = _bind(request.port)
    port = listener.getsockname()[1]
    first = True

    def announce(address: str) -> None:
        nonlocal first
        what = f"Studio of {data.where}: " if first else "For another browser: "
        console.print(what + address, soft_wrap=True)
        if first and not request.no_browser:
            webbrowser.open(address)
        first = False

    studio = Studio(data)
    guard = AccessGuard(studio.app, port, announce, start=data.start)
    threading.Thread(target=studio.warm_up, daemon=True).start()
    console.print("End with Ctrl-C.")
    config = uvicorn.Config(
        guard, lifespan="off", log_level="error", proxy_headers=False, server_header=False, timeout_graceful_shutdown=2
    )
    uvicorn.Server(config).run(sockets=[listener])
    data.workspace.close()
    return {"folder": str(data.where), "port": port}


def _bind(port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise InputError(f"--port {port} is not a port. Give a number from 0 to 65535; 0 chooses a free one.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(f"Port {port} is not available ({error.strerror}). Choose another --port, or 0.") from error
    return listener
