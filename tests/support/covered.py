"""Datasets whose motion is a plain function of drawn parameters: a plan draws them, no physics is run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.params import ParamTable
from twinloop.core.records import Provenance, SimEpisode, Source
from twinloop.core.units import NORMALIZED, UnitMap
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.config import make_plan, resolve_config
from twinloop.twin import Twin, load_twin

X, Y, MASS = "object/cube/position/x", "object/cube/position/y", "object/cube/mass"
RANGES = {X: [0.18, 0.27], Y: [-0.1, 0.1], MASS: [0.02, 0.1]}
AWAY = f"{Y} < 0.03"  # a third of the table is left out
FRAMES = 60


@functools.cache
def arm() -> Twin:
    return load_twin("so101_tabletop")


def generate_file(*constraints: str, **section: Any) -> dict[str, Any]:
    """A generate file of three parameters."""
    randomization: dict[str, Any] = {"params": RANGES, **section}
    if constraints:
        randomization["constraints"] = list(constraints)
    return {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": randomization,
        "rollout": {"parallel_envs": 64},
    }


def motion(params: Mapping[str, float], number: int) -> np.ndarray:
    """Joint positions in rad ``(FRAMES, 6)``: the arm turns to the cube and reaches for it; the mass moves nothing."""
    chance = np.random.default_rng(number)
    ramp = 0.5 - 0.5 * np.cos(np.pi * np.linspace(0.0, 1.0, FRAMES))
    pan, reach = np.arctan2(params[Y], params[X]), 8.0 * (params[X] - 0.2)
    shape = np.array([pan, 0.3 + 0.5 * reach, 0.4 - reach, 0.2 * pan, 0.5 * pan, 0.6])
    return ramp[:, None] * shape + chance.normal(scale=0.003, size=6) + chance.normal(scale=0.002, size=(FRAMES, 6))


def write_generated(
    folder: Path,
    value: Mapping[str, Any],
    *,
    episodes: int,
    seed: int,
    succeeds: Callable[[Mapping[str, float]], bool] = lambda params: True,
    bare: bool = False,
) -> Path:
    """A dataset as if it had been generated from a file; ``bare``: as a real log in ±100 without a calibration."""
    twin = arm()
    config = resolve_config(dict(value), where="test", folder=folder.parent, episodes=episodes, seed=seed, keep="all")
    table = make_plan(config, twin).draw(range(episodes))
    units = twin.unit_map([NORMALIZED if bare else "rad"] * 6)
    scaled = units.from_si if bare else np.asarray
    told = UnitMap(joints=tuple(replace(unit, scale=None, offset=None) for unit in units.joints), source="log header")
    spec = DatasetSpec(
        name="covered",
        robot_type="so101_follower",
        fps=30,
        joints=tuple(twin.robot.joints),
        units=told if bare else units,
        block_size=episodes,
        config={} if bare else {"generate": config.model_dump(mode="json")},
        twin_hash=twin.hash,
    )
    source: Source = "real" if bare else "sim"
    with DatasetWriter.open(folder, spec) as writer:
        writer.commit_block(
            0,
            [_episode(n, table, spec, seed, succeeds, source, scaled) for n in range(episodes)],
            outcome={"attempted": episodes},
        )
        writer.finish({})
    return folder


def _episode(
    number: int,
    table: ParamTable,
    spec: DatasetSpec,
    seed: int,
    succeeds: Callable[[Mapping[str, float]], bool],
    source: Source,
    scaled: Callable[[np.ndarray], np.ndarray],
) -> SimEpisode:
    params = table.row(number)
    state = scaled(motion(params, 1000 * seed + number))
    success = succeeds(params)
    record = Provenance(
        source=source,
        twin=arm().name,
        twin_hash=spec.twin_hash,
        config_hash="c" * 64,
        params={} if source == "real" else {name: params[name] for name in RANGES},
        seed_path=(seed, number, 0),
        versions={},
        actor="planted",
        task="pick",
        units=spec.units.to_json(),
        success=success,
        success_version="1",
    )
    return SimEpisode(
        number=number,
        commands=state,
        states=np.zeros((FRAMES + 1, 2)),
        action=state,
        observation=state,
        next_success=np.full(FRAMES, success),
        provenance=record,
    )
