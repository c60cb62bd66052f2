"""Parameters: declared once, written to one place, refused outside their bounds, and true to their units."""

from __future__ import annotations

import sys

import mujoco
import numpy as np
import pytest
from pydantic import ValidationError

from twinloop.cli.main import main
from twinloop.core.errors import BoundsError, InputError, MissingDependencyError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.generate.config import GenerateFile
from twinloop.twin import builtin_names, load_twin
from twinloop.twin.load import list_twin_files
from twinloop.twin.params import expand_params
from twinloop.twin.quantities import QUANTITIES
from twinloop.twin.spec import ParamSpec, describe_errors, parse_spec

ARM = """
<mujoco><worldbody>
  <geom name="floor" type="plane" size="1 1 .1"/>
  <camera name="eye" pos="0 -1 1" fovy="60"/><light name="sun" pos="0 0 3"/>
  <body name="link" pos="0 0 1"><joint name="hinge" damping=".1" armature=".02" range="-90 90"/>
    <geom name="rod" type="capsule" fromto="0 0 0 .3 0 0" size=".02"/></body>
  <body name="ball" pos="1 0 .1"><freejoint/><geom name="ball" size=".05" mass=".2"/></body>
</worldbody><actuator>
  <general name="hinge" joint="hinge" gainprm="9" biastype="affine" biasprm="0 -9 0" forcerange="-3 3"/>
</actuator></mujoco>
"""


@pytest.fixture
def arm(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(ARM)
    return load_twin(path)


@pytest.fixture
def model():
    return mujoco.MjModel.from_xml_string(ARM)


def everything(model):
    """Every quantity of a model, except duplicates of others, and the sky and the rotors, which it lacks."""
    left_out = {"geom", "material", "background", "rotors"}
    again = ("restitution", "log_cholesky")
    kinds = [q for q in QUANTITIES if q.family not in left_out and not any(word in q.quantity for word in again)]
    specs = [ParamSpec(name=q.path("*"), source="test") for q in kinds]
    return expand_params(model, specs, where="test")


def test_a_bare_model_gets_the_generic_parameters_and_its_actuator_as_robot(arm):
    assert arm.robot.joints == ["hinge"]
    assert arm.params["joint/hinge/damping"].nominal == pytest.approx(0.1)
    assert arm.params["object/ball/mass"].nominal == pytest.approx(0.2)
    assert arm.model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_AUTORESET


def test_a_twin_is_based_on_a_bare_model_and_without_params_gets_the_generic_ones(tmp_path, arm):
    slide = ARM.replace('name="hinge" damping', 'name="hinge" type="slide" damping')
    for name, text in {
        "arm.xml": ARM, "slide.xml": slide,
        "mine.yaml": "base: arm.xml\nname: mine\ncontrol_hz: 20\n"
        "params: [{name: 'object/ball/mass', range: [1, 2], source: t}]",
        "own.yaml": "base: mine.yaml\nname: own",
        "bare.yaml": "name: bare\nmodel: arm.xml\ncontrol_hz: 20\nsubsteps: 10",
        "none.yaml": "name: none\nmodel: arm.xml\ncontrol_hz: 20\nsubsteps: 10\nparams: []",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    mine, bare = load_twin(tmp_path / "mine.yaml"), load_twin(tmp_path / "bare.yaml")
    assert (mine.name, mine.control_hz, mine.robot.joints) == ("mine", 20, ["hinge"])
    assert mine.params.keys() == arm.params.keys()
    assert mine.params["object/ball/mass"].default_range == (1, 2)
    assert load_twin(tmp_path / "own.yaml").params.keys() == arm.params.keys()
    assert {"joint/hinge/damping", "object/ball/mass"} < bare.params.keys()
    assert not load_twin(tmp_path / "none.yaml").params
    assert load_twin(tmp_path / "slide.xml").robot.units == ["m"]
    assert [path.name for path in list_twin_files(tmp_path / "own.yaml")] == ["own.yaml", "mine.yaml", "arm.xml"]
    assert list_twin_files("so101_tabletop") == []


def test_nominal_values_leave_every_field_untouched(arm):
    assert arm.fields(arm.table(3)).arrays == {}


def test_a_nominal_value_that_the_model_does_not_have_is_refused(model):
    spec = ParamSpec(name="joint/hinge/damping", nominal=0.5, source="t")
    with pytest.raises(
        InputError, match=r"joint/hinge/damping has the nominal 0.5 .* here and 0.1 in the model. Change"
    ):
        expand_params(model, [spec], where="my.yaml")


def test_a_gain_moves_gain_and_bias_together(arm):
    fields = arm.fields(arm.table(2, {"joint/hinge/damping": [0.1, 0.4]}))
    np.testing.assert_allclose(fields.arrays["dof_damping"][:, 0], [0.1, 0.4])
    specs = [ParamSpec(name="actuator/*/kp", source="t"), ParamSpec(name="actuator/*/torque_limit", source="t")]
    from_spec = expand_params(arm.model, specs, where="t")
    assert from_spec["actuator/hinge/kp"].nominal == 9
    assert from_spec["actuator/hinge/torque_limit"].nominal == 3


def test_a_mass_carries_its_inertia_and_stays_a_rigid_body(arm):
    fields = arm.fields(arm.table(1, {"object/ball/mass": 0.6}))
    body = arm.model.body("ball").id
    assert fields.arrays["body_mass"][0, body] == pytest.approx(0.6)
    np.testing.assert_allclose(fields.arrays["body_inertia"][0, body], 3 * arm.model.body_inertia[body])
    assert fields.set_const


def test_every_quantity_reads_back_the_value_it_wrote(model):
    """The law of the table: after writing a value, the nominal read from the changed model is that value."""
    params = everything(model)
    from twinloop.twin.fields import field_values
    from twinloop.twin.quantities import nominal_value

    for param in params.values():
        if not param.quantity.fields or param.quantity.default is not None:
            continue
        value = param.nominal * 1.25 + 0.01
        value = param.low if value > param.high else value
        table = ParamTable(names=(param.name,), values=np.array([[value]]))
        fields = field_values(model, [param], table, visual=param.quantity.visual)
        changed = mujoco.MjModel.from_xml_string(ARM)
        fields.write_inplace(changed, 0)
        assert nominal_value(changed, param.quantity, param.target) == pytest.approx(value), param.name


def test_values_outside_their_bounds_are_refused_not_clipped(arm):
    with pytest.raises(BoundsError, match=r"joint/hinge/damping = -0.1 N·m·s/rad is outside its physical bounds"):
        arm.table(1, {"joint/hinge/damping": -0.1})


def test_an_unknown_parameter_answers_with_the_nearest(arm):
    with pytest.raises(
        UnknownNameError, match=r"'joint/hinge/dampin' in twin arm\. Nearest existing: joint/hinge/damping"
    ):
        arm.table(1, {"joint/hinge/dampin": 1})


def test_two_writers_of_one_place_are_refused(model):
    specs = [
        ParamSpec(name="object/ball/friction/slide", source="t"),
        ParamSpec(name="geom/ball/friction/slide", source="t"),
    ]
    with pytest.raises(
        InputError, match="object/ball/friction/slide and geom/ball/friction/slide both set geom_friction"
    ):
        expand_params(model, specs, where="t")


def test_a_camera_turns_about_its_own_axes(model):
    params = everything(model)
    from twinloop.twin.fields import field_values

    names = ("camera/eye/position/z", "camera/eye/rotation/x")
    table = ParamTable(names=names, values=np.array([[0.5, np.pi / 2]]))
    fields = field_values(model, [params[name] for name in names], table, visual=True)
    eye = model.camera("eye").id
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, model.cam_quat[eye])
    np.testing.assert_allclose(
        fields.arrays["cam_pos"][0, eye] - model.cam_pos[eye], 0.5 * rotation.reshape(3, 3)[:, 2]
    )
    turned = np.empty(9)
    mujoco.mju_quat2Mat(turned, fields.arrays["cam_quat"][0, eye])
    np.testing.assert_allclose(turned.reshape(3, 3)[:, 1], rotation.reshape(3, 3)[:, 2], atol=1e-12)


def test_the_hash_names_the_content(tmp_path):
    first, second = tmp_path / "arm.xml", tmp_path / "copy" / "arm.xml"
    second.parent.mkdir()
    first.write_text(ARM)
    second.write_text(ARM)
    assert load_twin(first).hash == load_twin(second).hash
    second.write_text(ARM.replace('armature=".02"', 'armature=".03"'))
    assert load_twin(first).hash != load_twin(second).hash


def test_a_urdf_is_a_twin(tmp_path):
    path = tmp_path / "one.urdf"
    path.write_text(
        '<robot name="one"><link name="base"/><link name="arm"><inertial><mass value="1"/>'
        '<inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '<joint name="j" type="revolute"><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/>'
        '<limit lower="-1" upper="1" effort="1" velocity="1"/><dynamics damping="0.3" friction="0.1"/></joint></robot>'
    )
    twin = load_twin(path)
    assert twin.params["joint/j/damping"].nominal == pytest.approx(0.3)
    assert twin.robot.joints == ["j"]


def test_what_is_no_twin_is_named_and_the_built_ins_are_listed():
    with pytest.raises(UnknownNameError, match=r"Unknown twin 'so101_tabletob'.*Nearest existing: so101_tabletop"):
        load_twin("so101_tabletob")


def test_a_new_twin_is_the_bare_model_with_a_commented_file(tmp_path, arm, capsys):
    words = ["twin", "new", str(tmp_path / "arm.xml"), "--output", str(tmp_path / "twins" / "mine.yaml")]
    assert main(words) == 0
    made = load_twin(tmp_path / "twins" / "mine.yaml")
    assert (made.name, made.control_hz, made.spec.robot.joints) == ("mine", arm.control_hz, arm.spec.robot.joints)
    assert {name: (p.nominal, p.low, p.high, p.default_range) for name, p in made.params.items()} == {
        name: (p.nominal, p.low, p.high, p.default_range) for name, p in arm.params.items()
    }
    text = (tmp_path / "twins" / "mine.yaml").read_text()
    assert "# objects: [ball]" in text
    assert "# 1 of nominal 0.1 N·m·s/rad, range times [0.9, 1.1]" in text
    capsys.readouterr()
    assert main(words) == 2
    assert "mine.yaml exists" in capsys.readouterr().err
    for wrong in ("so101_tabletop", str(tmp_path / "twins" / "mine.yaml")):
        assert main(["twin", "new", wrong, "--output", str(tmp_path / "no.yaml")]) == 2
        assert f"{wrong} is not a model" in capsys.readouterr().err
        assert not (tmp_path / "no.yaml").exists()


def test_menagerie_without_its_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)  # as if it were not installed
    with pytest.raises(MissingDependencyError, match=r'pip install "twinloop\[menagerie\]"'):
        load_twin("menagerie:franka_emika_panda")


def test_models_come_from_installed_packages_which_are_not_imported(tmp_path, monkeypatch):
    folder = tmp_path / "site" / "arm_models" / "assets"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "arm.xml").write_text(ARM)
    (tmp_path / "site" / "secret.xml").write_text(ARM)
    (tmp_path / "mine.yaml").write_text("base: package:arm_models/assets/arm.xml\nname: mine")
    (tmp_path / "own.yaml").write_text(
        "name: own\nmodel: package:arm-models/assets/arm.xml\ncontrol_hz: 20\nsubsteps: 10\nparams: []"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert load_twin("package:arm-models/assets/arm.xml").robot.joints == ["hinge"]
    assert load_twin(tmp_path / "mine.yaml").name == "mine"
    assert not load_twin(tmp_path / "own.yaml").params
    assert list_twin_files("package:arm_models/assets/arm.xml") == []
    assert list_twin_files(tmp_path / "own.yaml") == [tmp_path / "own.yaml"]
    assert list_twin_files(tmp_path / "mine.yaml") == [tmp_path / "mine.yaml"]
    with pytest.raises(UnknownNameError, match=r"model 'arm\.xml' in the package arm_models.*assets/arm\.xml"):
        load_twin("package:arm_models/arm.xml")
    with pytest.raises(UnknownNameError, match="secret"):
        load_twin("package:arm_models/../secret.xml")
    with pytest.raises(MissingDependencyError, match="pip install no-such-robot"):
        load_twin("package:no-such-robot/arm.xml")


def test_menagerie_models_come_from_a_folder_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
    (tmp_path / "my_arm").mkdir()
    for name in ("scene.xml", "arm.xml", "arm_with_hand.xml"):
        (tmp_path / "my_arm" / name).write_text(ARM.replace("hinge", name.partition(".")[0]))
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert load_twin("menagerie:my_arm").robot.joints == ["arm"]
    for wrong in ("other", "../my_arm", "."):
        with pytest.raises(MissingDependencyError, match="mujoco-menagerie"):
            load_twin(f"menagerie:{wrong}")
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingDependencyError, match="mujoco-menagerie"):
        load_twin("menagerie:my_arm")


def test_menagerie_models_come_from_its_package(tmp_path, monkeypatch):
    pytest.importorskip("mujoco_menagerie")
    folder = tmp_path / "universal_robots_ur5e"
    folder.mkdir()
    (folder / "scene.xml").write_text(ARM)
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert load_twin("menagerie:universal_robots_ur5e").robot.joints == ["hinge"]
    with pytest.raises(UnknownNameError, match="Nearest existing: universal_robots_ur5e"):
        load_twin("menagerie:universal_robot_ur5e")


def test_a_misspelled_key_in_a_spec_is_named():
    with pytest.raises(InputError, match=r"my.yaml has errors:\n(.*\n)*  control_hertz: This key does not exist"):
        parse_spec({"name": "x", "model": "x.xml", "control_hertz": 3, "substeps": 1}, where="my.yaml")


@pytest.mark.parametrize("name", builtin_names())
def test_every_range_of_a_built_in_twin_has_a_source_and_lies_in_bounds(name):
    twin = load_twin(name)
    assert twin.params
    for param in twin.params.values():
        assert param.source, param.name
        if param.default_range is not None:
            param.check(param.absolute(param.default_range, param.op))


def actuated(tmp_path, actuators):
    path = tmp_path / "own.xml"
    path.write_text(ARM[: ARM.index("<actuator>")] + f"<actuator>{actuators}</actuator></mujoco>")
    return load_twin(path)


def test_the_generic_parameters_hold_what_each_actuator_has(tmp_path, arm):
    assert {"actuator/hinge/kp", "actuator/hinge/torque_limit"} <= set(arm.params)
    unlimited = actuated(tmp_path, '<position name="hinge" joint="hinge" kp="5" kv="1"/>')
    assert unlimited.params["actuator/hinge/kp"].nominal == 5
    assert "actuator/hinge/torque_limit" not in unlimited.params
    for line in ('<motor name="m" joint="hinge"/>', '<velocity name="m" joint="hinge" kv="2"/>'):
        twin = actuated(tmp_path, line)
        assert "actuator/m/delay" in twin.params
        assert not {"actuator/m/kp", "actuator/m/torque_limit"} & set(twin.params)
    motor = actuated(tmp_path, '<motor name="m" joint="hinge"/>').model
    with pytest.raises(InputError, match="m lacks that quantity: kp belongs to a position servo"):
        expand_params(motor, [ParamSpec(name="actuator/m/kp", source="t")], where="t")
    for quantity, reason in (
        ("kd", r"kd belongs to a servo with a velocity gain \(biasprm\[2\] < 0\)"),
        ("kv", r"kv belongs to a velocity servo \(gainprm kv, biasprm 0 0 -kv\)"),
        ("time_constant", "time_constant belongs to an actuator with dyntype filter or filterexact"),
        ("ki", "m lacks that quantity: it belongs to MuJoCo's pid actuator with ki > 0"),
    ):
        with pytest.raises(InputError, match=reason):
            expand_params(motor, [ParamSpec(name=f"actuator/m/{quantity}", source="t")], where="t")
    bare = actuated(tmp_path, '<position name="m" joint="hinge" kp="5"/>').model
    with pytest.raises(InputError, match="kd belongs to a servo with a velocity gain"):
        expand_params(bare, [ParamSpec(name="actuator/m/kd", source="t")], where="t")
    with pytest.raises(InputError, match="gain belongs to an actuator without feedback"):
        expand_params(bare, [ParamSpec(name="actuator/m/gain", source="t")], where="t")
    with pytest.raises(UnknownNameError, match="Unknown actuator 'n'"):
        expand_params(motor, [ParamSpec(name="actuator/n/kp", source="t")], where="t")


def test_a_bare_model_of_velocity_servos_takes_velocities(tmp_path, arm):
    assert arm.robot.control == "position"
    for line in ('<velocity name="m" joint="hinge" kv="2"/>', '<intvelocity name="m" joint="hinge" kp="2"/>'):
        assert actuated(tmp_path, line).robot.control == "velocity"


def test_an_actuator_with_several_inputs_is_refused_by_its_name(tmp_path):
    with pytest.raises(InputError, match=r"the actuator m has 2 inputs, .* one input, for example input=\"pos\""):
        actuated(tmp_path, '<pid name="m" joint="hinge" kp="5" input="pos vel"/>')
    assert actuated(tmp_path, '<pid name="m" joint="hinge" kp="5" input="pos"/>').params["actuator/m/kp"].nominal == 5


def test_units_of_a_robot_are_checked(tmp_path, arm):
    with pytest.raises(InputError, match=r"2 units are given for the 1 joints of arm \(hinge\)"):
        arm.unit_map(["deg", "deg"])
    path = tmp_path / "arm.yaml"
    path.write_text(
        "name: a\nmodel: arm.xml\ncontrol_hz: 50\nsubsteps: 10\nrobot: {type: a, joints: [hinge], units: [degg]}\n"
    )
    with pytest.raises(UnknownNameError, match=r"Unknown joint unit 'degg' in .*robot.units. Nearest existing: deg"):
        load_twin(path)


@pytest.mark.parametrize(
    "text",
    [
        "<mujoco><worldbody><body><geom size='-1'/></body></worldbody></mujoco>",
        "<mujoco><worldbody><bodi/></worldbody></mujoco>",
        "<mujoco>",
    ],
)
def test_what_mujoco_says_of_a_broken_model_is_one_line(tmp_path, text):
    path = tmp_path / "broken.xml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"broken\.xml") as caught:
        load_twin(path)
    assert "\n" not in str(caught.value)


def test_an_empty_spec_says_so_and_a_misspelled_key_gets_its_nearest(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match=r"empty\.yaml is empty"):
        load_twin(path)
    wrong = {"name": "x", "model": "x", "control_hz": 3, "substep": 1, "robot": {"type": "a", "joint": []}}
    wrong["params"] = [{"name": "joint/*/damping", "sorce": "t"}]
    with pytest.raises(InputError) as caught:
        parse_spec(wrong, where="x.yaml")
    for key, near in (("substep", "substeps"), ("robot.joint", "joints"), ("params.0.sorce", "source")):
        assert any(f"{key}: " in row and near in row.split(". Nearest")[-1] for row in str(caught.value).split("\n"))
    lines = str(caught.value).split("\n")
    assert "  substeps: This key is required, but missing: Physics steps per command" in lines
    assert any(
        line.startswith("  robot.units: This key is required, but missing: Unit of each joint") for line in lines
    )


def test_a_key_outside_its_mapping_is_sent_there_and_a_missing_mapping_is_described():
    with pytest.raises(ValidationError) as caught:
        GenerateFile.model_validate({"twin": "so101_tabletop", "seed": 1})
    text = describe_errors(caught.value, where="x.yaml", model=GenerateFile)
    assert "  scene: This key is required, but missing. It is a mapping with the keys robot, twin, task" in text
    assert "  twin: This key does not exist (given: 'so101_tabletop'). Move it into `scene`" in text
