"""Rays agree with closed forms and between engines, each at its time."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.render import open_renderer, probe_renderer
from twinloop.render.cameras import intrinsics, world_from_camera
from twinloop.render.protocol import SceneStates
from twinloop.render.rays.caster import CASTERS, BodyMotion, open_caster, slerp, visible_geoms
from twinloop.render.rays.embree import EmbreeCaster
from twinloop.render.rays.mujoco import MujocoCaster
from twinloop.render.triangles import CHORD, make_triangles
from twinloop.twin import load_twin
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, rotate_vectors

SHAPES = """
<mujoco>
  <asset>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1  1 0 1  0 1 1" scale=".2 .2 .2"/>
    <hfield name="hills" nrow="5" ncol="7" size=".4 .3 .1 .05" elevation="
      0 0 0 0 0 0 0  0 1 2 3 2 1 0  0 2 4 5 4 2 0  0 1 2 3 2 1 0  0 0 0 0 0 0 0"/>
  </asset>
  <worldbody>
    <geom name="ground" type="plane" size="0 0 1"/>
    <geom name="board" type="plane" size=".3 .2 1" pos="0 3 1" euler="70 20 0"/>
    <geom name="hills" type="hfield" hfield="hills" pos="-2 -2 .2"/>
    <body pos="1 0 .5" euler="10 20 30"><freejoint/>
      <geom name="ball" type="sphere" size=".1" pos=".1 0 0"/>
      <geom name="rod" type="capsule" size=".05 .2" pos="0 .3 0" euler="30 0 0"/></body>
    <body pos="-1 0 .5" euler="40 0 10"><freejoint/>
      <geom name="tin" type="cylinder" size=".1 .2"/>
      <geom name="egg" type="ellipsoid" size=".1 .2 .05" pos="0 0 .5"/></body>
    <body pos="0 -1 .5" euler="0 50 0"><freejoint/>
      <geom name="brick" type="box" size=".1 .2 .3"/>
      <geom name="wedge" type="mesh" mesh="wedge" pos="0 .6 0"/></body>
    <geom name="glass" type="box" size=".1 .1 .1" pos="0 0 .6" rgba="1 1 1 0"/>
    <geom name="hull" type="box" size=".1 .1 .1" pos="0 .5 .6" group="3"/>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def shapes() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SHAPES)


def caster(engine: str, model: mujoco.MjModel, **options):
    if engine == "embree":
        pytest.importorskip("embreex")
        return EmbreeCaster(model, **options)
    return MujocoCaster(model, **options)


def still(model: mujoco.MjModel) -> BodyMotion:
    return BodyMotion.of(model, SceneStates(qpos=model.qpos0))


def toward(point, count: int, *, seed: int = 0, wide: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Rays from all around that pass near a point."""
    rng = np.random.default_rng(seed)
    outward = rng.normal(size=(count, 3))
    outward[:, 2] = np.abs(outward[:, 2])
    origins = point + 1.5 * outward / np.linalg.norm(outward, axis=1, keepdims=True)
    return origins, point + rng.uniform(-wide, wide, (count, 3)) - origins


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
@pytest.mark.parametrize("name", ["ball", "rod", "tin", "egg", "brick", "wedge", "board", "hills", "ground"])
def test_engines_meet_every_shape_alike(shapes, engine, name) -> None:
    motion, place = still(shapes), mujoco.MjData(shapes)
    mujoco.mj_forward(shapes, place)
    origins, directions = toward(place.geom(name).xpos, 1500)
    exact = MujocoCaster(shapes).cast(motion, origins, directions)
    given = caster(engine, shapes).cast(motion, origins, directions)
    assert (exact.geom == shapes.geom(name).id).sum() > 50
    both = (exact.geom == given.geom) & (exact.geom >= 0)
    assert (exact.geom == given.geom).mean() > 0.995, "they differ at silhouettes only"
    ray = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    steep = both & ((exact.normal * ray).sum(axis=1) < -0.2)
    off = np.abs(exact.distance[steep] - given.distance[steep])
    slant = -(given.normal * ray).sum(axis=1)[steep]
    assert (off * slant).max() <= CHORD + 1e-5
    assert np.median(off) <= CHORD
    alike = (exact.normal * given.normal).sum(axis=1)[steep]
    assert np.quantile(alike, 0.01) > np.cos(np.radians(8))
    np.testing.assert_allclose(np.linalg.norm(given.normal[both], axis=1), 1.0, atol=1e-6)
    assert ((given.normal * ray).sum(axis=1)[both] <= 0).all()


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
def test_rays_meet_what_cameras_see_and_not_what_is_excluded(shapes, engine) -> None:
    assert {shapes.geom(i).name for i in visible_geoms(shapes)}.isdisjoint({"glass", "hull"})
    motion, cast = still(shapes), caster(engine, shapes)
    down = np.array([[0.0, 0.0, -1.0]])
    for place in ([0, 0, 2.0], [0, 0.5, 2.0]):
        hit = cast.cast(motion, place, down)
        assert shapes.geom(hit.geom[0]).name == "ground"
        assert hit.distance[0] == pytest.approx(2.0, abs=1e-6)
    body = shapes.geom("brick").bodyid[0]
    assert shapes.geom(cast.cast(motion, [0, -1.0, 2.0], down).geom[0]).name == "brick"
    assert shapes.geom(cast.cast(motion, [0, -1.0, 2.0], down, exclude=int(body)).geom[0]).name == "ground"
    up = cast.cast(motion, [9.0, 9.0, -1.0], -down)
    assert up.geom[0] == -1, "a plane is met from its front only"
    assert np.isinf(up.distance[0])
    assert not up.normal.any()


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
def test_a_ray_sees_the_bodies_at_its_own_moment(engine) -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><freejoint/><geom type="box" size=".1 .5 .5"/></body></worldbody></mujoco>'
    )
    half_turn = quat_from_rotation_vector(np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.6]]))
    qpos = np.concatenate([[[0.0, 0, 0], [0.4, 0, 0]], half_turn], axis=1)
    motion = BodyMotion.of(model, SceneStates(qpos=qpos))
    moments = np.linspace(0.0, 1.0, 41)
    options = {"slices": None} if engine == "mujoco" else {}
    hits = caster(engine, model, **options).cast(motion, [2.0, 0, 0], np.tile([-1.0, 0, 0], (41, 1)), times=moments)
    angle = 0.6 * moments  # the face x' = 0.1 of a box that has gone 0.4 m and turned by that
    np.testing.assert_allclose(hits.distance, 2.0 - 0.4 * moments - 0.1 / np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(hits.normal[:, :2], np.stack([np.cos(angle), np.sin(angle)], axis=1), atol=1e-6)


def test_moments_of_the_slow_engine_are_rounded_as_it_says() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><freejoint/><geom type="sphere" size=".1"/></body></worldbody></mujoco>'
    )
    motion = BodyMotion.of(model, SceneStates(qpos=[[0, 0, 0, 1, 0, 0, 0], [1.0, 0, 0, 1, 0, 0, 0]]))
    moments = np.linspace(0.0, 1.0, 101)
    hits = MujocoCaster(model, slices=8).cast(motion, [9.0, 0, 0], np.tile([-1.0, 0, 0], (101, 1)), times=moments)
    assert np.abs(hits.distance - (8.9 - moments)).max() == pytest.approx(1 / 16, abs=0.005)
    assert len(np.unique(hits.distance.round(9))) == 9


def test_moving_bodies_of_a_twin_are_met_alike_by_both() -> None:
    pytest.importorskip("embreex")
    twin = load_twin("so101_tabletop")
    qpos, _ = twin.home()
    moved = qpos.copy()
    moved[twin.joint_qpos] += 0.1
    motion = BodyMotion.of(twin.model, SceneStates(qpos=np.stack([qpos, moved])))
    rng = np.random.default_rng(1)
    origins, directions = toward(np.array([0.2, 0.0, 0.2]), 300, wide=0.2)
    moments = rng.uniform(0.0, 1.0, len(origins))
    slow = MujocoCaster(twin.model, slices=None).cast(motion, origins, directions, times=moments)
    fast = open_caster("embree", twin.model).cast(motion, origins, directions, times=moments)
    same = slow.geom == fast.geom
    assert same.mean() > 0.99
    ray = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    steep = same & (slow.geom >= 0) & ((slow.normal * ray).sum(axis=1) < -0.2)
    slant = -(fast.normal * ray).sum(axis=1)[steep]
    assert (np.abs(slow.distance[steep] - fast.distance[steep]) * slant).max() <= CHORD + 1e-5


def test_fields_of_a_world_move_and_resize_what_is_met() -> None:
    model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom type="box" size=".1 .1 .1"/></worldbody></mujoco>')
    fields = {"geom_size": np.array([[0.3, 0.3, 0.3]]), "geom_pos": np.array([[0.5, 0.0, 0.0]])}
    for engine in CASTERS:
        if engine == "embree":
            pytest.importorskip("embreex")
        cast = open_caster(engine, model, fields)
        hit = cast.cast(still(model), [3.0, 0.0, 0.0], [[-1.0, 0.01, 0.02]])
        assert hit.distance[0] == pytest.approx(2.2 * np.linalg.norm([1, 0.01, 0.02]), abs=1e-6)
    assert model.geom_size[0, 0] == 0.1


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
def test_what_collides_with_nothing_or_grew_is_met_like_all_else(engine) -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><freejoint/>
        <geom name="core" size=".05"/>
        <geom name="wing" type="box" size=".1 .1 .01" pos="1 0 0" contype="0" conaffinity="0"/>
        <geom name="grown" type="box" size=".01 .01 .01" pos="-1 0 0"/></body></worldbody></mujoco>"""
    )
    sizes = model.geom_size.copy()
    sizes[model.geom("grown").id] = 0.3
    cast = caster(engine, model, fields={"geom_size": sizes, "geom_rbound": np.array([0.05, 0.15, 0.6])})
    origins = [[1.0, 0.05, 2.0], [-1.2, 0.2, 2.0], [0.0, 0.0, 2.0]]
    for origin, name in zip(origins, ("wing", "grown", "core"), strict=True):
        together = cast.cast(still(model), origin, np.tile([0.0, 0.0, -1.0], (3, 1)))
        assert [model.geom(geom).name for geom in together.geom] == [name] * 3


def test_a_renderers_images_are_what_rays_meet() -> None:
    if not probe_renderer("gl").available:
        pytest.skip("the gl renderer does not work here")
    twin = load_twin("so101_tabletop")
    states = SceneStates(qpos=twin.home()[0])
    with open_renderer("gl", twin.model, height=60, width=80, cameras=["front"]) as renderer:
        seen = renderer.observe(states, channels=["depth", "geom"])["front"]
    pinhole = intrinsics(twin.model, "front", height=60, width=80)
    pose = world_from_camera(twin.model, states, cameras=["front"])["front"][0]
    toward = pinhole.unproject(pinhole.pixel_centres()).reshape(-1, 3)
    for engine in CASTERS:
        if engine == "embree":
            pytest.importorskip("embreex")
        hits = open_caster(engine, twin.model).cast(
            BodyMotion.of(twin.model, states), pose[:3, 3], toward @ pose[:3, :3].T
        )
        same = hits.geom == seen["geom"].ravel()
        assert same.mean() > 0.99
        met = same & (hits.geom >= 0)
        along = hits.distance[met] / np.linalg.norm(toward[met], axis=1)
        assert np.quantile(np.abs(along - seen["depth"].ravel()[met]), 0.99) < 1e-3


@pytest.mark.parametrize("kind", ["sphere", "capsule", "cylinder", "ellipsoid", "box"])
def test_triangles_close_and_keep_within_the_chord(kind) -> None:
    size = {"sphere": ".3", "capsule": ".1 .3", "cylinder": ".2 .1", "ellipsoid": ".1 .2 .3", "box": ".1 .2 .3"}[kind]
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><body><geom type="{kind}" size="{size}" density="1000"/></body></worldbody></mujoco>'
    )
    corners, faces = make_triangles(model, 0)
    a, b, c = (corners[faces[:, i]] for i in range(3))
    volume = np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6
    true = model.body_mass[1] / 1000
    assert volume == pytest.approx(true, rel=4e-3)
    assert volume <= true * (1 + 1e-9)
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    ends = corners[edges].round(9)
    real = np.abs(ends[:, 0] - ends[:, 1]).sum(axis=1) > 0
    keys = np.sort(np.array([hash(tuple(sorted(map(tuple, pair)))) for pair in ends[real] + 0.0]))
    assert (np.unique(keys, return_counts=True)[1] % 2 == 0).all(), "every edge borders two faces"


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
@pytest.mark.parametrize("shape", ["sphere", "capsule", "cylinder", "ellipsoid", "box"])
def test_nothing_slips_out_of_a_closed_shape(shape, engine) -> None:
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><geom type="{shape}" size=".5 .6 .7"/></worldbody></mujoco>'
    )
    rng, cast = np.random.default_rng(0), caster(engine, model)
    inside = rng.uniform(-0.2, 0.2, (3000, 3))
    assert (cast.cast(still(model), inside, rng.normal(size=(3000, 3))).geom == 0).all()
    straight = np.array([[x, y, z] for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if x or y or z])
    assert (cast.cast(still(model), np.zeros(3), straight).geom == 0).all(), "through corners and poles"


turns = st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3)


@settings(max_examples=50)
@given(first=turns, axis=turns, part=st.floats(0.0, 1.0))
def test_between_two_poses_a_body_turns_evenly_about_one_axis(first, axis, part) -> None:
    axis = np.asarray(axis) / max(np.linalg.norm(axis), 1.0) * 1.5  # less than half a turn
    begin = quat_from_rotation_vector(np.array([first]))
    end = np.array([_product(begin[0], quat_from_rotation_vector(axis[None])[0])])
    halfway = np.array([_product(begin[0], quat_from_rotation_vector(part * axis[None])[0])])
    vector = np.array([[0.3, -0.5, 0.8]])
    for other in (end, -end):
        turned = slerp(begin, other, np.array([[part]]))
        np.testing.assert_allclose(rotate_vectors(turned, vector), rotate_vectors(halfway, vector), atol=1e-9)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    result = np.zeros(4)
    mujoco.mju_mulQuat(result, left, right)
    return result


@pytest.mark.parametrize("engine", ["mujoco", "embree"])
def test_no_rays_are_no_hits(shapes, engine) -> None:
    assert len(caster(engine, shapes).cast(still(shapes), np.zeros(3), np.zeros((0, 3)))) == 0


def test_wrong_rays_are_refused(shapes) -> None:
    cast, motion = MujocoCaster(shapes), still(shapes)
    with pytest.raises(InputError, match=r"Directions of shape \(3,\)"):
        cast.cast(motion, np.zeros(3), np.ones(3))
    with pytest.raises(InputError, match=r"Origins of shape \(2, 3\)"):
        cast.cast(motion, np.zeros((2, 3)), np.ones((4, 3)))
    with pytest.raises(InputError, match="A ray without a direction"):
        cast.cast(motion, np.zeros(3), np.zeros((1, 3)))
    with pytest.raises(InputError, match="times from frame 0.5 to 0.5, but the motion has frames 0 to 0"):
        cast.cast(motion, np.zeros(3), np.ones((1, 3)), times=0.5)


def test_an_unknown_or_missing_engine_is_named(shapes, monkeypatch) -> None:
    with pytest.raises(UnknownNameError, match="Unknown ray caster 'embre'. Nearest existing: embree"):
        open_caster("embre", shapes)
    monkeypatch.setitem(__import__("sys").modules, "embreex.mesh_construction", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'twinloop\[rays\]'"):
        open_caster("embree", shapes)
