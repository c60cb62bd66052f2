"""Measure the round-trip time of a command from a policy server; ``--write docs`` updates the page.

``python -m benchmarks.speed.wire [--write docs]``. Round trips on one machine to a policy that computes nothing. Server
and client share a process, so that its CPU time includes both. Needs the extra ``serve``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.page import main
from benchmarks.studies import markdown_table
from twinloop.core.contract import IMAGES, STATE, Contract
from twinloop.release.client import PolicyClient
from twinloop.release.running_policy import Observation
from twinloop.release.serve import PolicyServer, ServeOptions
from twinloop.twin import load_twin

TRIPS, WARM, MARK = 400, 20, "python -m benchmarks.speed.wire"
CAMERAS = {"joints": {}, "joints and two 240x320 images": {"front": (240, 320), "wrist": (240, 320)}}
Array = NDArray[np.float64]


class Still:
    """A policy that returns the current joint positions as its command."""

    name, hash = "still", "0" * 64

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def restart(self, episode: int) -> None:
        """Start an episode; this policy has no state to reset."""

    def act(self, observation: Observation) -> Array:
        """Return the observed joint positions."""
        return observation[STATE]

    def report_sent(self, command: Array) -> None:
        """Ignore the sent command."""

    def close(self) -> None:
        """Do nothing, because no resource is open."""


@contextlib.contextmanager
def serve_policy(contract: Contract) -> Iterator[PolicyServer]:
    """Serve the policy on a free local port, as a context manager that yields the server."""
    server = PolicyServer(lambda: Still(contract), ServeOptions(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.is_running:
        time.sleep(0.005)
    try:
        yield server
    finally:
        server.stop(at_once=True)
        thread.join()


def run(trips: int = TRIPS) -> dict[tuple[str, str], tuple[Array, float]]:
    """Return milliseconds of each round trip and the CPU milliseconds of one, by observation and protocol."""
    units, found = load_twin("so101_tabletop").units, {}
    for name, cameras in CAMERAS.items():
        contract = Contract(robot_type="so101", control_hz=30.0, action=units, state=units, cameras=cameras)
        rng = np.random.default_rng(0)
        observation = {STATE: np.zeros(6)}
        observation |= {f"{IMAGES}{at}": rng.integers(0, 256, (*size, 3), np.uint8) for at, size in cameras.items()}
        with serve_policy(contract) as server:
            for protocol, scheme in (("HTTP", "http"), ("WebSocket", "ws")):
                client = PolicyClient(server.address.replace("http", scheme, 1))
                client.restart(0)
                found[name, protocol] = _timed(client, observation, trips)
                client.close()
    return found


def _timed(client: PolicyClient, observation: Observation, trips: int) -> tuple[Array, float]:
    for _ in range(WARM):
        client.act(observation)
    spent, cpu = np.empty(trips), time.process_time()
    for trip in range(trips):
        started = time.perf_counter()
        client.act(observation)
        spent[trip] = 1e3 * (time.perf_counter() - started)
    return spent, 1e3 * (time.process_time() - cpu) / trips


def table(found: dict[tuple[str, str], tuple[Array, float]]) -> str:
    """Return the Markdown table for the page."""
    rows = [
        [*key, *(f"{value:.1f} ms" for value in (spent.min(), np.median(spent), np.quantile(spent, 0.99), cpu))]
        for key, (spent, cpu) in found.items()
    ]
    return markdown_table(["observation", "over", "shortest", "median", "99 %", "CPU"], rows)


if __name__ == "__main__":
    main(__doc__, "evidence/performance.md", MARK, lambda: table(run()))
