"""The texture pool: a function of (seed, index), tiling where it claims to, visible on the geom that picks it."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.twin.textures import MAX_POOL, PATTERNS, _Canvas, add_texture_pool, pool_indices, texture_pool

PLATE = """
<mujoco><worldbody><light pos="0 0 3" dir="0 0 -1" diffuse="0.4 0.4 0.4"/><camera name="top" pos="0 0 1" fovy="45"/>
<geom name="plate" type="box" size="0.3 0.3 0.01"/></worldbody></mujoco>
"""


def test_a_texture_depends_on_seed_and_index_alone() -> None:
    pool = texture_pool(12, seed=5, height=32, width=24)
    assert pool.shape == (12, 32, 24, 3)
    assert pool.dtype == np.uint8
    np.testing.assert_array_equal(texture_pool(4, seed=5, height=32, width=24), pool[:4])
    np.testing.assert_array_equal(texture_pool(3, seed=5, height=32, width=24, first=7), pool[7:10])
    assert (texture_pool(12, seed=6, height=32, width=24) != pool).any(axis=(1, 2, 3)).all()


def test_a_pool_holds_no_texture_twice_and_uses_the_whole_cube_of_colours() -> None:
    pool = texture_pool(200, seed=0, height=16, width=16)
    assert len({texture.tobytes() for texture in pool}) == 200
    means = pool.reshape(200, -1, 3).mean(axis=1)
    assert (means.min(axis=0) < 60).all()
    assert (means.max(axis=0) > 195).all()
    assert means.mean() == pytest.approx(127.5, abs=10)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_stays_in_range_and_varies(name: str) -> None:
    for index in range(6):
        mask = PATTERNS[name](_Canvas(1, index, 40, 40))
        assert mask.shape == (40, 40)
        assert mask.min() >= 0
        assert mask.max() <= 1
        assert np.ptp(mask) > 0.1


@pytest.mark.parametrize("name", ["noise", "stripes", "wood"])
def test_smooth_patterns_join_themselves_when_repeated(name: str) -> None:
    for index in range(6):
        mask = PATTERNS[name](_Canvas(2, index, 64, 64))
        for axis in (0, 1):
            inside = np.abs(np.diff(mask, axis=axis)).max()
            seam = np.abs(mask.take(0, axis=axis) - mask.take(-1, axis=axis)).max()
            assert seam <= 1.5 * inside


@pytest.mark.parametrize("mapping", ["cube", "2d"])
@pytest.mark.parametrize("renderer", ["gl", "warp"])
def test_a_geom_shows_the_texture_it_picks(renderer: str, mapping: str) -> None:
    found = probe_renderer(renderer)
    if not found.available:
        pytest.skip(f"renderer {renderer} is not available: {found.detail}")
    spec = mujoco.MjSpec.from_string(PLATE)
    names = add_texture_pool(spec, 12, seed=3, mapping=mapping)
    model = spec.compile()
    pool, images = texture_pool(12, seed=3), []
    assert [model.material(i).name for i in pool_indices(model)] == names == [f"pool/{i}" for i in range(12)]
    with open_renderer(renderer, model, height=64, width=64) as opened:
        for material in pool_indices(model):
            fields = {"geom_matid": np.array([material])}
            images.append(opened.render(SceneStates(qpos=model.qpos0), fields)["top"][0, 20:44, 20:44])
    shown = np.array(images, dtype=float).reshape(12, -1, 3).mean(axis=1)
    painted = pool.reshape(12, -1, 3).mean(axis=1)
    # A grey light scales all channels equally, so each image has the hue of its texture.
    shown /= np.linalg.norm(shown, axis=1, keepdims=True)
    painted /= np.linalg.norm(painted, axis=1, keepdims=True)
    assert (shown @ painted.T).argmax(axis=1).tolist() == list(range(12))


def test_a_pool_that_cannot_be_held_or_is_there_already_is_refused() -> None:
    spec = mujoco.MjSpec.from_string(PLATE)
    with pytest.raises(InputError, match=f"{MAX_POOL + 1} is not possible: MuJoCo's renderer supports 0 to"):
        add_texture_pool(spec, MAX_POOL + 1, seed=0)
    add_texture_pool(spec, 1, seed=0)
    with pytest.raises(InputError, match="already has a texture pool"):
        add_texture_pool(spec, 1, seed=0)


def test_a_model_without_a_pool_has_no_indices() -> None:
    assert len(pool_indices(mujoco.MjModel.from_xml_string(PLATE))) == 0
