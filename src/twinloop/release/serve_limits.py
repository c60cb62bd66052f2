"""Limits of a policy server: how long it waits for a client or a policy, and how many clients it admits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """Limits of a policy server. Each default has its reason; tests use shorter times.

    Attributes:
        header_s: time for the headers of a request. They fit into one or two packets.
        body_s: time for a request's body, or for one WebSocket message. 64 MiB take 5.4 s at 100 Mbit/s.
        write_s: time in which a client must read what was sent to it.
        rest_s: time that a connection without a session may stay open between requests.
        first_s: time within which a new session must send its first message. A robot sends it at once.
        idle_s: time without a message after which a session may be given to another client. A person resets a scene
            in less.
        gone_s: time for which a session over HTTP outlives its connection. A client that reconnects does so at once.
        policy_s: time for the policy to answer; a policy may compile or load something when an episode begins.
        stop_s: time for which a server that was asked to stop waits for answers under way, in whole seconds.
        linger_s: time for a refused client to read why it was refused.
        connections: open connections. A robot needs one; 128 file descriptors fit into every system's limit.
        connections_per_address: the same of one network address, so that no single machine takes all of them.
        sessions_per_connection: sessions that one connection may open and not use, so that no single client takes all
            of them. Through a proxy, several robots may share a connection.
        header_bytes: bytes of a request's line and headers. Ours take less than 1 KiB.
        stuck_threads: policy calls that never return, before the server refuses to call the policy again. Each costs a
            thread.
    """

    header_s: float = 5.0
    body_s: float = 10.0
    write_s: float = 10.0
    rest_s: float = 10.0
    first_s: float = 30.0
    idle_s: float = 600.0
    gone_s: float = 10.0
    policy_s: float = 30.0
    stop_s: int = 5
    linger_s: float = 1.0
    connections: int = 128
    connections_per_address: int = 64
    sessions_per_connection: int = 4
    header_bytes: int = 32 * 2**10
    stuck_threads: int = 4


LIMITS = ServeLimits()
