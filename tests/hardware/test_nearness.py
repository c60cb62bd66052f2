"""Which shapes are near: closed forms, the engine's own contacts, and the pairs that never count."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.hardware.limits import CLEARANCE, ClearanceCheck, ProximityPairs
from twinloop.twin import load_twin

SCENE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" pos="0 0 -1"/>
    <geom name="wall" type="box" size=".1 .2 .3"/>
    <body pos="2 0 0"><freejoint/><geom name="{name}" type="{kind}" size="{size}"/></body>
  </worldbody>
</mujoco>
"""
offsets = st.floats(-0.7, 0.7)


def scene(kind: str, size: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE.format(name="thing", kind=kind, size=size))


def found(near: ProximityPairs, place: tuple[float, float, float]) -> dict[tuple[str, str], float]:
    near.set_position(np.array([*place, 1.0, 0.0, 0.0, 0.0]))
    return {(near.name(a), near.name(b)): distance for a, b, distance, _ in near.find_close_pairs()}


@given(st.tuples(offsets, offsets, offsets), st.floats(0.005, 0.3))
@settings(max_examples=60, deadline=None)
def test_boxes_that_stand_square_are_as_far_apart_as_their_gaps_say(
    place: tuple[float, float, float], keep: float
) -> None:
    gaps = np.abs(place) - (np.array([0.1, 0.2, 0.3]) + 0.05)
    distance = float(np.linalg.norm(np.maximum(gaps, 0.0)))
    if abs(distance - keep) < 1e-6:
        return
    close = found(ProximityPairs(scene("box", ".05 .05 .05"), keep), place)
    assert (("wall", "thing") in close) == (distance < keep)
    if 0 < distance < keep:
        assert close["wall", "thing"] == pytest.approx(distance, abs=1e-6)


@given(st.tuples(offsets, offsets, st.floats(-0.99, 0.7)), st.floats(0.005, 0.3))
@settings(max_examples=60, deadline=None)
def test_a_sphere_is_near_the_floor_and_the_wall_as_geometry_says(
    place: tuple[float, float, float], keep: float
) -> None:
    close = found(ProximityPairs(scene("sphere", ".05"), keep), place)
    to_floor = place[2] + 1.0 - 0.05
    to_wall = float(np.linalg.norm(np.maximum(np.abs(place) - np.array([0.1, 0.2, 0.3]), 0.0))) - 0.05
    for other, distance in (("floor", to_floor), ("wall", to_wall)):
        if abs(distance - keep) > 1e-6:
            assert ((other, "thing") in close) == (distance < keep), other


def test_boxes_that_stand_diagonally_are_near_though_the_engine_makes_no_contact() -> None:
    model = scene("box", ".05 .05 .05")
    place = np.array([0.156, 0.256, 0.0, 1.0, 0.0, 0.0, 0.0])
    near = ProximityPairs(model, 0.02)
    near.set_position(place)
    assert [distance for *_, distance, _ in near.find_close_pairs()] == pytest.approx(
        [np.hypot(0.006, 0.006)], abs=1e-6
    )
    model.geom_margin[:] = model.body_margin[:] = 0.01
    data = mujoco.MjData(model)
    data.qpos[:] = place
    mujoco.mj_kinematics(model, data)
    mujoco.mj_collision(model, data)
    assert data.ncon == 0  # where it makes one, the engine's contacts can serve again


def test_every_contact_of_the_engine_is_found_and_the_spheres_leave_nothing_out() -> None:
    twin = load_twin("so101_tabletop")
    clearance, rng = ClearanceCheck(twin), np.random.default_rng(0)
    near, data = clearance._near, mujoco.MjData(twin.model)
    low, high = twin.joint_ranges.T
    for pose in rng.uniform(low, high, (60, len(low))):
        close = clearance.find_close_pairs(pose)
        slow = {
            (int(a), int(b))
            for a, b in near._pairs
            if mujoco.mj_geomDistance(twin.model, near.data, int(a), int(b), 0.2, None) < CLEARANCE
        }
        assert close == slow
        data.qpos[:] = near.data.qpos
        mujoco.mj_kinematics(twin.model, data)
        mujoco.mj_collision(twin.model, data)
        assert {tuple(sorted(pair)) for pair in data.contact.geom.tolist()} <= close


def test_pairs_that_may_never_collide_do_not_count() -> None:
    model = mujoco.MjModel.from_xml_string(
        """
        <mujoco>
          <worldbody>
            <geom name="fixed" size=".1"/>
            <geom name="fixed too" size=".1"/>
            <body name="arm">
              <joint name="a"/><geom name="upper" size=".1"/>
              <geom name="image" size=".1" contype="0" conaffinity="0"/>
              <body name="hand"><joint name="b"/><geom name="lower" size=".1"/></body>
            </body>
            <body name="other"><freejoint/><geom name="loose" size=".1"/></body>
          </worldbody>
          <contact><exclude body1="hand" body2="other"/><pair geom1="image" geom2="loose"/></contact>
        </mujoco>
        """
    )
    near = ProximityPairs(model, 0.0)
    near.set_position(model.qpos0)
    pairs = {frozenset((near.name(a), near.name(b))) for a, b, *_ in near.find_close_pairs()}
    assert pairs == {
        frozenset(pair)
        for pair in (
            ("fixed", "upper"),
            ("fixed too", "upper"),
            ("fixed", "lower"),
            ("fixed too", "lower"),
            ("fixed", "loose"),
            ("fixed too", "loose"),
            ("upper", "loose"),
            ("image", "loose"),
        )
    }
