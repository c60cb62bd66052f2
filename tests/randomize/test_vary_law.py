"""Laws over every quantity at once: backends agree, worlds keep to themselves, what nothing moves keeps its bits."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from support.worlds import make_world, start
from twinloop.core.errors import UnitsError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan
from twinloop.randomize.section import parse_randomization
from twinloop.simulate import open_backend, rollout
from twinloop.twin import load_twin
from twinloop.twin.quantities import QUANTITIES, find_members, has_quantity

SCENE = """<geom name="floor" type="plane" size="3 3 .1"/>
  <geom name="plate" type="box" size=".3 .3 .02" pos="0 0 .2"/>
  <camera name="eye" pos="0 -1 1"/><light name="sun" pos="0 0 3" dir=".1 .2 -1"/>
  <body name="block" pos="0 0 .27"><freejoint/>
    <geom name="block" type="box" size=".06 .05 .04" mass=".2" material="paint" fluidshape="ellipsoid"/></body>
  <body name="base" pos="0 .6 .5"><geom name="base" type="box" size=".05 .05 .05"/>
    <body name="arm" gravcomp="1"><joint name="hinge" axis="1 0 0" range="-90 90" stiffness=".1" damping=".05"/>
      <geom name="rod" type="capsule" fromto="0 0 0 0 0 -.3" size=".02"/>
      <site name="tool" pos="0 0 -.3"/></body></body>"""
HEAD = '<asset><material name="paint" rgba=".5 .4 .3 1"/></asset>'
OTHER_WAY = ("contact/restitution",)  # duplicates contact/damping_ratio
OF_BOTH = ("geom/block/friction", "geom/block/contact", "geom/block/position", "geom/block/rotation")


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    plain = make_world(tmp_path_factory.mktemp("plain"), SCENE, [], head=HEAD).model
    model_families = {"joint", "link", "object", "geom", "body", "world", "camera", "light", "material"}
    names = [
        kind.path(name)
        for kind in QUANTITIES
        if kind.stage == "model" and kind.family in model_families and not kind.nominal_outside_model
        for name in find_members(plain, kind)
        if not kind.quantity.startswith("log_cholesky/")  # duplicates mass, com and inertia
        if kind.quantity.startswith("com/") or kind.quantity == "payload" or has_quantity(plain, kind, name)
    ]
    chosen = [name for name in names if not name.endswith(OTHER_WAY) and not name.startswith(OF_BOTH)]
    return make_world(tmp_path_factory.mktemp("all"), SCENE, chosen, head=HEAD)


def moved(twin, nworld, *, share=1.0):
    """Every parameter a little off its nominal value in a share of the worlds."""
    params = list(twin.params.values())
    numbers = uniforms(1, "vary", range(nworld), size=2 * len(params))
    off, which = numbers[:, : len(params)] - 0.5, numbers[:, len(params) :]
    nominal = np.array([param.nominal for param in params])
    width = np.where(nominal == 0, 0.02, 0.2 * nominal)
    low, high = (np.array([getattr(param, end) for param in params]) for end in ("low", "high"))
    values = np.clip(nominal + off * width, low, high)
    return ParamTable(names=tuple(twin.params), values=np.where(which < share, values, nominal))


def test_threads_equal_the_reference_with_everything_moved(twin):
    assert len(twin.params) > 70
    table, commands = moved(twin, 4), np.zeros((4, 30, 0))
    speed = uniforms(2, "speed", range(4), size=twin.model.nv) - 0.5
    runs = [
        rollout(open_backend(name), twin, table, start(twin, 4, qvel=speed), commands, 30)
        for name in ("reference", "threads")
    ]
    assert runs[0].valid.all()
    np.testing.assert_array_equal(runs[0].states, runs[1].states)


def test_fields_of_a_world_are_a_function_of_that_world_alone(twin):
    """If a world does not change a field, it keeps the model's bits, also when other worlds change it."""
    table = moved(twin, 12, share=0.3)
    for visual in (False, True):
        together = twin.fields(table, visual=visual).arrays
        for world in range(table.nworld):
            alone = twin.fields(table.take([world]), visual=visual).arrays
            for field, values in together.items():
                owner, _, name = field.rpartition(".")
                own = getattr(twin.model.opt if owner else twin.model, name)
                np.testing.assert_array_equal(values[world], alone[field][0] if field in alone else own, err_msg=field)


def test_what_steps_is_written_with_all_that_shares_its_fields(twin):
    """A gravity that changes at every step keeps the tilt of its episode; a stepped mass keeps its inertia."""
    values = {"world/gravity/tilt_x": 0.3, "object/block/inertia/x": 2.0, "object/block/size": 1.5}
    table = twin.table(1, values)
    steps = {"world/gravity/magnitude": np.array([[5.0, 7.0]]), "object/block/mass": np.array([[0.3, 0.4]])}
    stepped = ParamTable(names=table.names, values=table.values, steps=steps)
    now = twin.stepped_fields(stepped, 1)
    then = twin.fields(twin.table(1, {**values, "world/gravity/magnitude": 7.0, "object/block/mass": 0.4}))
    assert now is not None
    assert {"opt.gravity", "body_inertia", "geom_size"} <= set(now.arrays)
    for field, array in now.arrays.items():
        np.testing.assert_array_equal(array, then.arrays[field], err_msg=field)


def test_every_quantity_says_what_it_means():
    assert [kind.path() for kind in QUANTITIES if not kind.meaning] == []


def test_every_range_of_a_light_lies_on_the_sphere(twin):
    """Azimuth and elevation give the direction to the light: it shines the opposite way."""
    values = {"light/sun/direction/azimuth": np.pi / 2, "light/sun/direction/elevation": np.pi / 6}
    shines = twin.fields(twin.table(1, values), visual=True).arrays["light_dir"][0, 0]
    np.testing.assert_allclose(shines, [0, -np.sqrt(3) / 2, -0.5], atol=1e-12)
    own = mujoco.MjModel.from_xml_string(f"<mujoco>{HEAD}<worldbody>{SCENE}</worldbody></mujoco>").light_dir[0]
    azimuth, elevation = (twin.params[f"light/sun/direction/{a}"].nominal for a in ("azimuth", "elevation"))
    back = -np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    np.testing.assert_allclose(back, own, atol=1e-12)


def test_plain_words_stand_for_the_new_parameters_with_their_units():
    twin = load_twin("so101_tabletop")
    physics = {
        "object_com_offset_mm": [-1, 1],
        "object_inertia_scale": [0.9, 1.1],
        "object_size_scale": [0.9, 1.1],
        "link_mass_scale": [0.9, 1.1],
        "contact_stiffness_scale": [0.8, 1.0],
        "contact_damping_ratio": [0.8, 1.0],
        "gravity_tilt_deg": [-1, 1],
        "table_height_offset_mm": [-5, 5],
        "table_tilt_deg": [-1, 1],
    }
    visual = {"light_direction_deg": [-10, 10], "light_color_scale": [0.9, 1.1]}
    draws, _ = parse_randomization({"physics": physics, "visual": visual}, twin, where="test")
    table = Plan(twin=twin, run_seed=1, draws=tuple(draws)).draw(range(64))
    for name, low, high in (
        ("object/cube/com/y", -1e-3, 1e-3),
        ("world/gravity/tilt_x", -np.pi / 180, np.pi / 180),
        ("geom/table/position/z", -5e-3, 5e-3),
        ("geom/table/rotation/y", -np.pi / 180, np.pi / 180),
        ("link/wrist/mass", 0.9 * 0.079, 1.1 * 0.079),
    ):
        assert (
            low <= table[name].min() < low + 0.2 * (high - low) < high - 0.2 * (high - low) < table[name].max() <= high
        )
    with pytest.raises(UnitsError, match=r"Write .*gravity_tilt_deg"):
        parse_randomization({"physics": {"gravity_tilt": [-1, 1]}}, twin, where="test")
