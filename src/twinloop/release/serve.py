"""A policy for robots whose computer is another one: HTTP and WebSocket, this machine only unless there is a token."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.release.running_policy import Decider
from twinloop.release.serve_sessions import MOST_SESSIONS, Sessions
from twinloop.release.serve_wire import LARGEST_MESSAGE

if TYPE_CHECKING:
    import uvicorn  # pyright: ignore[reportMissingImports]

LOOPBACK = "127.0.0.1"
SHORTEST_TOKEN = 16  # characters; 16 of the 64 of a random token are 96 bits
_KEEP_ALIVE_S = 3600  # a robot may rest between episodes


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where a server listens, and whom it serves.

    Attributes:
        host: name or address; this machine only by default.
        port: 0 takes a free one.
        token: what clients must show; needed for any other host.
        sessions: clients at a time.
        largest: bytes of a message.
    """

    host: str = LOOPBACK
    port: int = 8400
    token: str | None = None
    sessions: int = MOST_SESSIONS
    largest: int = LARGEST_MESSAGE

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"--port {self.port} is none. Give a number from 0 to 65535; 0 takes a free one.")
        if self.sessions < 1:
            raise InputError(f"--sessions {self.sessions} would serve nobody. Give at least 1.")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise InputError(
                f"The token has {len(self.token)} characters, and could be guessed. Give at least {SHORTEST_TOKEN}: "
                "python -c 'import secrets; print(secrets.token_urlsafe())' > token.txt"
            )
        if not self.is_local and self.token is None:
            raise InputError(
                f"--host {self.host} lets other machines in, and whoever reaches the server would command robots. Give "
                "--token-file, or leave --host out and reach it through a tunnel: ssh -L 8400:localhost:8400 SERVER"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> frozenset[str] | None:
        """Names by which clients may call it; None for any."""
        return frozenset({self.host, "localhost", "127.0.0.1", "::1"}) if self.is_local else None


def read_token(path: Path | None) -> str | None:
    """The token in a file, without the white space around it; None without a file.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The token's file {path} cannot be read ({error}). Check the path.") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{path} holds no token: one line of ASCII without spaces is one.")
    return token


class PolicyServer:
    """A server of one policy, made but not started.

    Args:
        make: gives a decider of its own to each client.
        options: see `ServeOptions`.

    Raises:
        MissingDependencyError: the extra ``serve`` is not installed.
        InputError: the port is taken, or there is no such host here.
    """

    def __init__(self, make: Callable[[], Decider], options: ServeOptions | None = None) -> None:
        self.options = options or ServeOptions()
        self.sessions = Sessions(make, most=self.options.sessions)
        self._server, self._socket = self._built()

    @property
    def address(self) -> str:
        """Where it listens, as a client calls it."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until it is told to stop, or by Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def stop(self, *, at_once: bool = False) -> None:
        """End `run`, from another thread; ``at_once`` drops clients in the middle of their requests."""
        self._server.should_exit, self._server.force_exit = True, at_once

    @property
    def started(self) -> bool:
        """Whether it answers."""
        return self._server.started

    def _built(self) -> tuple[uvicorn.Server, socket.socket]:
        try:
            import uvicorn  # pyright: ignore[reportMissingImports]
            import websockets  # noqa: F401  # pyright: ignore[reportMissingImports]

            from twinloop.release.serve_app import create_app
        except ImportError as error:
            what = f"Serving needs FastAPI, uvicorn and websockets, and {error.name} is not installed."
            raise MissingDependencyError(what, remedy="pip install 'twinloop[serve]'") from error
        options = self.options
        app = create_app(self.sessions, token=options.token, largest=options.largest, hosts=options.names)
        settings: dict[str, Any] = {"timeout_keep_alive": _KEEP_ALIVE_S, "server_header": False}
        config = uvicorn.Config(
            app, log_level="warning", ws="websockets-sansio", ws_max_size=options.largest, lifespan="off", **settings
        )
        return uvicorn.Server(config), _bound(options.host, options.port)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # asyncio sends at once only where it knows that it is TCP
    except OSError as error:
        raise InputError(
            f"There is no host {host} here ({error.strerror}). Leave --host out, or correct it."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(f"Port {port} of {host} cannot be had ({error.strerror}). Choose another --port.") from error
    return listener
