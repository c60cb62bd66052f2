"""Soft bodies: each parameter gives the model that MuJoCo compiles with that value, in every backend and file."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.rollout import initial_from_state
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import load_twin
from twinloop.twin.model_text import model_text, world_model_inplace
from twinloop.twin.params import expand_params
from twinloop.twin.quantities import find_quantities
from twinloop.twin.quantities.lookup import find_members
from twinloop.twin.spec import ParamSpec

NOMINAL = {"young": 1e5, "damping": 0.01, "mass": 0.2, "friction/slide": 0.7}
CHANGED = {"young": 2.7e5, "damping": 0.003, "mass": 0.31, "friction/slide": 0.4}
SHAPES = {
    "rope": ('type="grid" dim="1" count="8 1 1"', "", '<edge equality="true"/><pin id="0"/>'),
    "strip": ('type="grid" dim="1" count="6 1 1"', 'section="box" sectionsize=".004 .002"', '<edge equality="true"/>'),
    "ring": ('type="circle" dim="1" count="9 1 1"', "", '<edge equality="true"/>'),
    "cloth": ('type="grid" dim="2" count="4 5 1" radius=".005"', 'thickness=".01" elastic2d="both"', ""),
    "shell": ('type="ellipsoid" dim="2" count="4 4 4" radius=".005"', 'thickness=".01" elastic2d="both"', ""),
    "solid": ('type="grid" dim="3" count="3 3 3" radius=".005"', "", '<pin gridrange="0 0 0 0 2 2"/>'),
    "block": ('type="grid" dim="3" dof="trilinear" count="3 3 3" radius=".005"', "", ""),
    "curved": ('type="grid" dim="3" dof="quadratic" cellcount="2 1 1" count="5 3 3" radius=".005"', "", ""),
}


def write_model(path: Path, shape: str, values=NOMINAL) -> Path:
    """Write a model with one flex above a plate on a driven slide, and with a second flex of other properties."""
    attributes, elasticity, more = SHAPES[shape]
    path.write_text(f"""<mujoco><option timestep="0.002" integrator="discrete" tolerance="1e-8"/><worldbody>
      <geom type="plane" size="2 2 .1"/>
      <body name="plate" pos="0 0 .1"><joint name="lift" type="slide" axis="0 0 1"/>
        <geom type="box" size=".2 .2 .01" mass="1"/></body>
      <flexcomp name="other" type="grid" dim="1" count="5 1 1" spacing=".05 .05 .05" pos="1 0 .3" mass=".05">
        <elasticity young="3e5"/><edge equality="true"/></flexcomp>
      <flexcomp name="soft" {attributes} spacing=".05 .05 .05" pos="0 0 .25" mass="{values["mass"]}">
        <elasticity young="{values["young"]}" poisson="0.3" damping="{values["damping"]}" {elasticity}/>
        <contact selfcollide="none" friction="{values["friction/slide"]} .005 .0001"/>{more}</flexcomp>
    </worldbody><actuator><position name="lift" joint="lift" kp="900" kv="40" ctrlrange="0 .1"/></actuator></mujoco>""")
    return path


def float_fields(model):
    named = ((name, getattr(model, name)) for name in dir(model) if not name.startswith("_"))
    return {name: value for name, value in named if isinstance(value, np.ndarray) and value.dtype.kind == "f"}


def changed_values(twin):
    """The changed values, with the mass relative to the nominal mass of the vertices that move."""
    values = {f"soft/soft/{quantity}": value for quantity, value in CHANGED.items()}
    nominal = twin.params["soft/soft/mass"].nominal
    return values | {"soft/soft/mass": nominal * CHANGED["mass"] / NOMINAL["mass"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_changed_parameter_gives_the_model_that_is_compiled_with_it(shape, tmp_path):
    twin = load_twin(write_model(tmp_path / "soft.xml", shape))
    wanted = load_twin(write_model(tmp_path / "other.xml", shape, CHANGED))
    for quantity in ("young", "damping", "friction/slide"):
        assert twin.params[f"soft/soft/{quantity}"].nominal == pytest.approx(NOMINAL[quantity])
    table = twin.table(1, changed_values(twin))
    model = copy.copy(twin.model)
    twin.fields(table).write_inplace(model, 0)
    again = model_text(twin, table)
    from_text = mujoco.MjModel.from_xml_string(again.xml, dict(again.assets))
    for name, value in float_fields(wanted.model).items():
        if name == "numeric_data":  # the nominal modulus
            continue
        rounding = 1e-13 * np.abs(value).max(initial=0.0)  # of sums that cancel
        for other in (model, from_text):
            np.testing.assert_allclose(getattr(other, name), value, rtol=1e-10, atol=rounding, err_msg=name)


@pytest.mark.parametrize("shape", ["rope", "cloth", "solid", "block"])
def test_worlds_of_different_softness_are_equal_in_both_backends(shape, tmp_path):
    twin = load_twin(write_model(tmp_path / "soft.xml", shape))
    values = changed_values(twin)
    columns = {name: [twin.params[name].nominal, value, value] for name, value in values.items()}
    columns["soft/soft/young"][2] *= 0.1
    table = twin.table(3, columns)
    commands, start = np.full((3, 15, 1), 0.08), InitialState.home(twin, 3)
    runs = [rollout(open_backend(name), twin, table, start, commands, 15) for name in ("reference", "threads")]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    assert runs[0].valid.all()
    nominal = rollout(open_backend("threads"), twin, twin.table(1), InitialState.home(twin, 1), commands[:1], 15)
    np.testing.assert_array_equal(runs[1].states[0], nominal.states[0])
    assert np.abs(np.diff(runs[0].qpos, axis=0)).max(axis=(1, 2)).min() > 1e-6


@pytest.mark.parametrize("shape", ["rope", "block"])
def test_the_parts_of_a_soft_body_are_no_links_and_no_joints_of_their_own(shape, tmp_path):
    twin = load_twin(write_model(tmp_path / "soft.xml", shape))
    for family, quantity, members in (
        ("link", "mass", ["plate"]),
        ("push", "force", ["plate"]),
        ("object", "mass", []),
        ("joint", "damping", ["lift"]),
        ("soft", "young", ["other", "soft"]),
    ):
        (kind,) = find_quantities(family, quantity)
        assert find_members(twin.model, kind) == members


def test_a_flex_without_elasticity_or_with_another_name_is_an_error_that_helps(tmp_path):
    path = write_model(tmp_path / "soft.xml", "rope")
    path.write_text(path.read_text().replace('<elasticity young="3e5"/>', ""))
    model = load_twin(path).model
    with pytest.raises(InputError, match="other lacks that quantity: it has no Young's modulus. Give its flex <elast"):
        expand_params(model, [ParamSpec(name="soft/other/young", source="test")], where="test")
    with pytest.raises(UnknownNameError, match="sofd.*other, soft|sofd.*soft"):
        expand_params(model, [ParamSpec(name="soft/sofd/young", source="test")], where="test")


def test_contact_stiffness_and_damping_of_a_soft_body_are_those_of_its_flex():
    twin = load_twin("soft_press")
    table = twin.table(1, {"soft/block/contact/stiffness": 1e4, "soft/block/contact/damping_ratio": 0.5})
    model = copy.copy(twin.model)
    world_model_inplace(twin, table, model)
    np.testing.assert_allclose(model.flex_solref[0], [0.02, 0.5])
    np.testing.assert_array_equal(model.geom_solref, twin.model.geom_solref)


def test_a_twisted_rope_continues_from_a_recorded_state(tmp_path):
    twin = load_twin(write_model(tmp_path / "soft.xml", "strip"))
    home, commands = InitialState.home(twin, 1), np.full((1, 24, 1), 0.05)
    spin = np.random.default_rng(0).normal(scale=0.5, size=home.qvel.shape)
    run = rollout(open_backend("threads"), twin, twin.table(1), dataclasses.replace(home, qvel=spin), commands, 24)
    middle = initial_from_state(twin, run.states[0, 12], commands[0, 11])
    for backend in ("threads", "reference"):
        again = rollout(open_backend(backend), twin, twin.table(1), middle, commands[:, 12:], 12)
        np.testing.assert_allclose(again.qpos[0, -1], run.qpos[0, -1], rtol=0, atol=1e-9)
    fresh = dataclasses.replace(middle, plastic=np.empty((1, 0)))
    other = rollout(open_backend("threads"), twin, twin.table(1), fresh, commands[:, 12:], 12)
    assert np.abs(other.qpos[0, -1] - run.qpos[0, -1]).max() > 1e-6
