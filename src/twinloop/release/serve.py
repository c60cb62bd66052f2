"""Serve a policy over HTTP and WebSocket to robots on this machine, or with a token on other machines."""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.release.running_policy import Decider
from twinloop.release.serve_sessions import MOST_SESSIONS, Sessions
from twinloop.release.serve_wire import LARGEST_MESSAGE, largest_request, observation_bytes
from twinloop.release.serve_worker import LIMITS, PolicyThread, ServeLimits

if TYPE_CHECKING:
    import uvicorn  # pyright: ignore[reportMissingImports]

LOOPBACK = "127.0.0.1"
SHORTEST_TOKEN = 16  # characters; 16 of the 64 of a random token are 96 bits
_TOKEN_BYTES = 4096  # bytes that are read from a token's file, at most


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Address of a policy server and limits for its clients.

    Attributes:
        host: host name or network address to listen on; by default only clients on this machine can connect.
        port: TCP port; 0 chooses a free one.
        token: token that clients must send; required if ``host`` is reachable from other machines.
        sessions: largest number of clients at a time.
        largest: largest message in bytes; the limit is lower if the policy needs less.
        limits: time limits and largest counts.
    """

    host: str = LOOPBACK
    port: int = 8400
    token: str | None = None
    sessions: int = MOST_SESSIONS
    largest: int = LARGEST_MESSAGE
    limits: ServeLimits = LIMITS

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"--port {self.port} is not a port. Give a number from 0 to 65535; 0 chooses a free one.")
        if self.sessions < 1:
            raise InputError(f"--sessions {self.sessions} allows no client. Give at least 1.")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise InputError(
                f"The token has {len(self.token)} characters and is too easy to guess. Give at least "
                f"{SHORTEST_TOKEN}: "
                "python -c 'import secrets; print(secrets.token_urlsafe())' > token.txt"
            )
        if not self.is_local and self.token is None:
            raise InputError(
                f"--host {self.host} admits other machines, and any of them could command robots. Give "
                "--token-file, or leave --host out and connect through a tunnel: ssh -L 8400:localhost:8400 SERVER"
            )

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Host names under which clients may call the server; None for any name."""
        return frozenset({self.host, "localhost", "127.0.0.1", "::1"}) if self.is_local else None


def read_token(path: Path | None) -> str | None:
    """Return the token in a file, without surrounding white space; None if ``path`` is None.

    Raises:
        InputError: If the file cannot be read, or contains no valid token.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES).decode().strip()
    except OSError as error:
        raise InputError(f"The token's file {path} cannot be read ({error}). Check the path.") from error
    except UnicodeDecodeError:  # its message would show bytes of the token
        token = ""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{path} has no valid token. Write one line of ASCII without spaces.")
    return token


class PolicyServer:
    """Server of one policy over HTTP and WebSocket; `run` starts it.

    Args:
        make: function that returns a separate source of commands for each client.
        options: address and limits.

    Raises:
        MissingDependencyError: If the extra ``serve`` is not installed.
        InputError: If the port is taken, the host does not exist on this machine, or the policy needs larger messages
            than allowed.
    """

    def __init__(self, make: Callable[[], Decider], options: ServeOptions | None = None) -> None:
        self.options = options or ServeOptions()
        limits = self.options.limits
        self.sessions = Sessions(make, most=self.options.sessions, idle_s=limits.idle_s, first_s=limits.first_s)
        self._largest = self._limit_message_bytes()
        self._worker = PolicyThread(limit_s=limits.policy_s, most_stuck=limits.stuck_threads)
        self._server, self._socket = self._build_server()

    @property
    def address(self) -> str:
        """Address that clients use, ``http://HOST:PORT``."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop` is called or Ctrl-C is pressed."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._worker.close()

    def stop(self, *, at_once: bool = False) -> None:
        """End `run` from another thread.

        Args:
            at_once: whether to drop clients during their requests; by default requests are finished first.
        """
        self._server.should_exit, self._server.force_exit = True, at_once

    @property
    def is_running(self) -> bool:
        """True as soon as the server answers requests."""
        return self._server.started

    def _limit_message_bytes(self) -> int:
        """Return the size limit of messages in bytes: the server's limit, or the contract's largest request if smaller.

        Raises:
            InputError: If one observation is larger than the server's limit.
        """
        contract, largest = self.sessions.contract, self.options.largest
        if observation_bytes(contract) > largest:
            raise InputError(
                f"One observation of {self.sessions.name} has {observation_bytes(contract)} bytes, but at most "
                f"{largest} are read. Train a policy with smaller images."
            )
        return min(largest, largest_request(contract))

    def _build_server(self) -> tuple[uvicorn.Server, socket.socket]:
        try:
            import uvicorn  # pyright: ignore[reportMissingImports]
            import websockets  # noqa: F401  # pyright: ignore[reportMissingImports]

            from twinloop.release.serve_app import Application, create_app
            from twinloop.release.serve_protocols import Connections, HttpProtocol, StreamProtocol
        except ImportError as error:
            what = f"Serving needs FastAPI, uvicorn and websockets, and {error.name} is not installed."
            raise MissingDependencyError(what, remedy="pip install 'twinloop[serve]'") from error
        options, limits = self.options, self.options.limits
        application = Application(self.sessions, self._worker, limits, largest=self._largest)
        settings: dict[str, Any] = {
            "http": functools.partial(HttpProtocol, connections=Connections(self.sessions, limits)),
            "ws": StreamProtocol,
            "ws_max_size": self._largest,
            "ws_per_message_deflate": False,  # a few bytes could unpack to a message of any size
            # No pings: a client's program may pause between episodes. The kernel detects vanished clients.
            "ws_ping_interval": None,
            "h11_max_incomplete_event_size": limits.header_bytes,
            "timeout_keep_alive": limits.rest_s,
            "timeout_graceful_shutdown": limits.stop_s,
            "proxy_headers": False,  # a client could claim any address
            "server_header": False,
            "lifespan": "off",
            "log_level": "error",  # one line for each wrong request would fill the disk
        }
        app = create_app(application, token=options.token, hosts=options.allowed_hosts)
        return uvicorn.Server(uvicorn.Config(app, **settings)), _bind_socket(options.host, options.port)


def _bind_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(
            family, kind, protocol
        )  # asyncio sends at once only if the protocol is known to be TCP
    except OSError as error:
        raise InputError(
            f"This machine has no host name {host} ({error.strerror}). Leave --host out, or correct it."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # clients that come before `run` wait instead of being refused
    except OSError as error:
        listener.close()
        raise InputError(
            f"Port {port} of {host} is not available ({error.strerror}). Choose another --port."
        ) from error
    return listener
