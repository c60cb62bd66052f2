"""A table without a robot, and scenes on it, for tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from twinloop.simulate import InitialState
from twinloop.tasks.ground import Ground, place_on_support
from twinloop.tasks.placement import place_clutter
from twinloop.twin import Twin
from twinloop.twin.load import compile_twin
from twinloop.twin.spec import parse_spec

TABLE = """
<mujoco model="table">
  <option integrator="implicitfast" cone="elliptic" impratio="50"/>
  <default><geom solref="0.006 1" solimp="0.95 0.99 0.001"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" pos="0 0 -0.7"/>
    <geom name="table" type="box" size="0.5 0.5 0.02" pos="0 0 -0.02"/>
    <camera name="eye" pos="1 0 0.02" xyaxes="0 1 0 0 0 1"/>
    <body name="thing" pos="0 0 0.02">
      <freejoint name="thing"/>
      <geom type="sphere" size="0.02" mass="0.05" condim="6" friction="0.8 0.005 0.005"/>
    </body>
  </worldbody>
</mujoco>
"""
TILT = [{"name": f"geom/table/{kind}", "source": "test"} for kind in ("position/z", "rotation/x", "rotation/y")]
FAMILIES = [
    {"shape": "box", "size": [0.03, 0.02, 0.02]},
    {"shape": "cylinder", "size": [0.02, 0.02, 0.03]},
    {"shape": "sphere", "size": 0.024},
    {"shape": "polyhedron", "size": 0.03, "count": 2},
    {"shape": "ell", "size": [0.04, 0.02, 0.03]},
    {"shape": "mug", "size": [0.05, 0.035, 0.04]},
]


def table_twin(folder: Path, scene: dict[str, Any], **keys: Any) -> Twin:
    """The table with a scene on it."""
    (folder / "table.xml").write_text(TABLE)
    value = {"name": "table", "model": "table.xml", "control_hz": 50, "substeps": 10, "scene": scene}
    return compile_twin(parse_spec({**value, "params": TILT, **keys}, where="t"), folder / "table.xml", where="t")


def clutter(count: int = 4, **keys: Any) -> dict[str, Any]:
    """A scene section with one group of up to ``count`` things."""
    group = {"set": "all", "count": [0, count], "x": [-0.2, 0.2], "y": [-0.2, 0.2], **keys}
    return {"sets": {"all": FAMILIES}, "clutter": {"stuff": group}}


def placed(twin: Twin, values: dict[str, Any], nworld: int = 1, episodes: Any = None, **keys: Any):
    """Worlds of the table after their clutter has been placed around the thing in the middle, and their table."""
    params = twin.table(nworld, values)
    home = InitialState.home(twin, nworld)
    qpos = home.qpos.copy()
    place_on_support(qpos, 0, params, "object/thing", Ground.of(twin, params), yaw=0.0)
    initial = dataclasses.replace(home, qpos=qpos)
    numbers = range(nworld) if episodes is None else episodes
    return params, place_clutter(twin, params, initial, run_seed=1, episodes=numbers, **keys)
