"""A small saved policy that sways an SO-101 about its home, and the helpers to run and serve it."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from twinloop.core.contract import ACTION, STATE, Contract
from twinloop.policies import Statistics, new_policy
from twinloop.release.serve import PolicyServer, ServeOptions
from twinloop.twin import load_twin

ROBOT = "virtual:so101_tabletop?seed=3"


def so101_contract(**changes) -> Contract:
    units = load_twin("so101_tabletop").units
    given = {"robot_type": "so101_follower", "control_hz": 30.0, "action": units, "state": units}
    return Contract(**{**given, **changes})


def saved_policy(folder: Path, *, spread: float = 0.5, **changes) -> Path:
    """An untrained policy whose commands are within a few degrees of the twin's home."""
    twin = load_twin("so101_tabletop")
    home = twin.units.from_si(twin.home()[0][twin.joint_qpos])
    contract = so101_contract(**changes)
    samples = home + spread * np.random.default_rng(0).normal(size=(200, 6))
    statistics = Statistics.measure({ACTION: samples, STATE: samples}, source="planted samples")
    small = {"width": 16, "depth": 1, "chunk_size": 4, "n_action_steps": 2}
    return new_policy("mlp", contract, small, statistics).save(folder)


def said() -> tuple[Console, io.StringIO]:
    """A console, and its printed output."""
    text = io.StringIO()
    return Console(file=text, width=400), text


@contextlib.contextmanager
def served(make, **options) -> Iterator[PolicyServer]:
    """A policy server in a thread; connections are dropped at the end."""
    server = PolicyServer(make, ServeOptions(**{"port": 0, **options}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.is_running:
            assert thread.is_alive()
            time.sleep(0.005)
        yield server
    finally:
        server.stop(at_once=True)
        thread.join(10.0)
        assert not thread.is_alive()
