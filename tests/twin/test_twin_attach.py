"""A twin's YAML adds models of a robot and its tool to the model of a cell."""

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin import load_twin
from twinloop.twin.load import list_twin_files
from twinloop.twin.model_text import model_text

CELL = """<mujoco><option timestep="0.001"/><worldbody><body name="stand" pos="0 0 0.5"><site name="top" pos="0 0 0.1"/>
</body><body name="cube" pos="1 0 0"><freejoint/><geom type="box" size=".1 .1 .1"/></body></worldbody></mujoco>"""
ARM = """<mujoco><compiler meshdir="meshes"/><asset><mesh name="m" file="m.obj"/></asset><worldbody><body name="link">
<joint name="j" axis="0 1 0"/><geom type="mesh" mesh="m" mass="2"/><site name="flange" pos="0 0 0.3" euler="0 90 0"/>
</body></worldbody><actuator><position name="j" joint="j" kp="3"/></actuator>
<keyframe><key name="home" qpos="0.25" ctrl="0.5"/></keyframe></mujoco>"""
ROD = '<mujoco><worldbody><geom size="0.01" mass="0.125"/><site name="tip" pos="0 0 0.2"/></worldbody></mujoco>'
MESH = "v 0 0 0\nv {size} 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
TWIN = """name: cell
model: cell.xml
attach:
  - {model: "package:arm_models/arm.xml", prefix: a_, site: top}
  - {model: rod.xml, prefix: t_, site: a_flange}
control_hz: 20
substeps: 10
robot: {type: arm, joints: [a_j], units: [rad], tcp: t_tip}
params: [{name: "joint/*/damping"}]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    folder = tmp_path / "site" / "arm_models" / "meshes"
    folder.mkdir(parents=True)
    (folder / "m.obj").write_text(MESH.format(size=1))
    (folder.parent / "arm.xml").write_text(ARM)
    for name, text in (("cell.xml", CELL), ("rod.xml", ROD), ("twin.yaml", TWIN)):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "twin.yaml"


def test_bodies_are_where_the_sites_are_and_keyframes_are_those_of_the_whole(file):
    twin = load_twin(file)
    qpos, command = twin.home()
    np.testing.assert_array_equal(qpos[twin.joint_qpos], [0.25])
    np.testing.assert_array_equal(command, [0.5])
    assert twin.model.nq == 8
    assert twin.model.body_mass.sum() == pytest.approx(2.125 + twin.model.body("cube").mass[0])
    data = mujoco.MjData(twin.model)
    mujoco.mj_forward(twin.model, data)
    np.testing.assert_allclose(data.site("t_tip").xpos, [0.2, 0.0, 0.9], atol=1e-9)  # 0.5 + 0.1 + 0.3, then along x
    assert list(twin.params) == ["joint/a_j/damping"]


def test_the_model_of_a_world_holds_the_files_of_attached_models(file):
    twin = load_twin(file)
    text = model_text(twin, twin.table(1))
    again = mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))
    np.testing.assert_array_equal(again.mesh_vert, twin.model.mesh_vert)
    np.testing.assert_array_equal(again.body_mass, twin.model.body_mass)


def test_attached_files_belong_to_the_twin(file):
    before = load_twin(file)
    assert {path.name for path in list_twin_files(file)} == {"twin.yaml", "cell.xml", "rod.xml"}
    mesh = file.parent / "site" / "arm_models" / "meshes" / "m.obj"
    mesh.write_text(MESH.format(size=2))
    after = load_twin(file)
    assert after.hash != before.hash
    assert np.abs(after.model.mesh_vert - before.model.mesh_vert).max() > 0.1


def test_an_attachment_without_prefix_stands_where_it_is_put(file):
    """The text of the model, which has the same names twice otherwise, gives the same model again."""
    old = "{model: rod.xml, prefix: t_, site: a_flange}"
    new = "{model: rod.xml, site: a_flange, position: [0, 0.1, 0.2], yaw: 0.5}"
    file.write_text(TWIN.replace(old, new).replace("t_tip", "tip"))
    twin = load_twin(file)
    data = mujoco.MjData(twin.model)
    mujoco.mj_forward(twin.model, data)
    np.testing.assert_allclose(data.site("tip").xpos, [0.4, 0.1, 0.9], atol=1e-9)  # the flange looks along x
    turned = data.site("a_flange").xmat.reshape(3, 3).T @ data.site("tip").xmat.reshape(3, 3)
    np.testing.assert_allclose(np.arctan2(turned[1, 0], turned[0, 0]), 0.5, atol=1e-9)
    text = model_text(twin, twin.table(1))
    again = mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))
    for name in ("body_pos", "body_quat", "geom_size", "key_qpos", "site_pos"):
        np.testing.assert_allclose(getattr(again, name), getattr(twin.model, name), rtol=0.0, atol=1e-15)


def test_a_twin_leaves_out_bodies_of_its_base_with_their_parameters(file):
    lines = '[{name: "object/cube/mass"}, {name: "joint/*/damping"}]'
    file.write_text(TWIN.replace('[{name: "joint/*/damping"}]', lines) + "objects: [cube]\n")
    own = file.with_name("own.yaml")
    own.write_text("base: twin.yaml\nname: own\nremove: [cube]\nattach: [{model: rod.xml, prefix: u_}]\n")
    base, twin = load_twin(file), load_twin(own)
    assert set(base.params) - set(twin.params) == {"object/cube/mass"}
    assert twin.spec.objects == []
    assert (base.model.nq, twin.model.nq) == (8, 1)
    assert twin.model.site("u_tip").pos[2] == 0.2  # beside the attachments of the base
    np.testing.assert_array_equal(twin.home()[0], [0.25])  # the home pose of what is left


def test_a_twin_in_another_folder_has_the_attachments_of_its_base(file):
    own = file.parent / "mine" / "own.yaml"
    own.parent.mkdir()
    own.write_text("base: ../twin.yaml\nname: own\n")
    twin = load_twin(own)
    assert twin.model.site("t_tip").id >= 0
    assert [one.model for one in twin.spec.attach] == ["package:arm_models/arm.xml", "../rod.xml"]
    assert file.with_name("rod.xml") in [path.resolve() for path in list_twin_files(own)]


def test_own_twins_are_based_on_the_library_and_use_its_parts(tmp_path):
    own = tmp_path / "own.yaml"
    part = "package:twinloop/twin/library/parts/peg.yaml"
    own.write_text(f'base: panda_stack\nname: own\nattach: [{{model: "{part}", position: [0.6, 0.0, 0.0]}}]\n')
    twin = load_twin(own)
    assert [one.model for one in twin.spec.attach] == [
        "package:twinloop/twin/library/parts/block.xml",  # where twinloop is installed does not enter the hash
        "package:twinloop/twin/library/parts/peg.xml",
    ]
    assert {"object/block/mass", "object/peg/mass"} <= set(twin.params)
    assert list_twin_files(own) == [own]


def test_wrong_attachments_are_named(file):
    for old, new, error, said in (
        ("site: top", "site: bottom", UnknownNameError, r"site 'bottom' in .*attach package:arm_models.*top"),
        ("rod.xml", "gone.xml", InputError, "gone.xml does not exist"),
        ("name: cell", "name: cell\nremove: [cub]", UnknownNameError, r"body 'cub' in .*remove.*cube"),
        ("prefix: t_", "prefix: a_", InputError, "repeated name|flange"),
    ):
        file.write_text(TWIN.replace(old, new, 1))
        if said.startswith("repeated"):
            (file.parent / "rod.xml").write_text(ROD.replace("tip", "flange"))
        with pytest.raises(error, match=said):
            load_twin(file)
