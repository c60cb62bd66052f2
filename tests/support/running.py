"""A small saved policy that sways an SO-101 about its home, and the helpers to run and serve it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from twinloop.core.contract import ACTION, ENVIRONMENT, STATE, Contract
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


def saved_localizer(folder: Path) -> Path:
    """An untrained localizer of the cube for the front camera, with a control policy next to it and photos.

    Folders: ``FOLDER/eyes``, ``FOLDER/control`` and ``FOLDER/photos``.
    """
    from PIL import Image

    rng, twin = np.random.default_rng(0), load_twin("so101_tabletop")
    contract, tracked = so101_contract(), ("cube.x", "cube.y", "cube.z")
    home = twin.units.from_si(twin.home()[0][twin.joint_qpos])
    samples = home + 0.5 * rng.normal(size=(200, 6))
    places = rng.uniform([0.15, -0.1, 0.01], [0.3, 0.1, 0.02], (200, 3))
    statistics = Statistics.measure({ACTION: samples, STATE: samples, ENVIRONMENT: places}, source="planted samples")
    seeing = dataclasses.replace(contract, cameras={"front": (24, 32)})
    small = {"images": {"channels": [8], "per_camera": True}, "width": 8, "depth": 1, "tracked": tracked}
    new_policy("localizer", seeing, small, statistics).save(folder / "eyes")
    control = {"width": 8, "depth": 1, "chunk_size": 1, "n_action_steps": 1}
    tracking = dataclasses.replace(contract, environment=tracked)
    new_policy("mlp", tracking, control, statistics).save(folder / "control")
    (folder / "photos").mkdir(parents=True)
    entries = []
    for number in range(6):
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
        entries.append(
            {
                "images": {"front": f"{number}.png"},
                "joints": home.tolist(),
                "positions": {"cube": places[number].tolist()},
            }
        )
    (folder / "photos" / "photos.yaml").write_text(json.dumps({"photos": entries}))
    return folder


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
