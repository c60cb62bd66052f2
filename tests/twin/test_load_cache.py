"""A twin is compiled once per content, and what one caller does to it no other caller sees."""

import os

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.twin import load, load_twin

MODEL = """<mujoco><asset><mesh name="m" file="m.obj"/></asset><worldbody><body><joint name="j"/>
<geom type="mesh" mesh="m" mass="1"/></body></worldbody>
<actuator><position name="j" joint="j" kp="{kp}"/></actuator></mujoco>"""
MESH = "v 0 0 0\nv {size} 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_LOADED", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arm.xml").write_text(MODEL.format(kp=3))
    (tmp_path / "m.obj").write_text(MESH.format(size=1))
    (tmp_path / "base.yaml").write_text("base: arm.xml\nname: below\n")
    (tmp_path / "arm.yaml").write_text("base: base.yaml\nname: arm\n")
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """Names of the twins that were compiled."""
    names, compile_twin = [], load.compile_twin

    def count(spec, *args, **options):
        names.append(spec.name)
        return compile_twin(spec, *args, **options)

    monkeypatch.setattr(load, "compile_twin", count)
    return names


def test_a_twin_is_compiled_once_and_copies_are_equal(folder, compiled):
    first, second = load_twin("arm.yaml"), load_twin("arm.yaml")
    assert compiled == ["arm"]
    assert first.hash == second.hash
    assert list(first.params.items()) == list(second.params.items())
    for field in ("body_mass", "actuator_gainprm", "mesh_vert"):
        np.testing.assert_array_equal(getattr(first.model, field), getattr(second.model, field))
    assert second.mjspec.to_xml() == first.mjspec.to_xml()
    second.mjspec.compile()


def test_changes_of_a_copy_are_seen_nowhere_else():
    changed = load_twin("so101_tabletop")
    changed.model.body_mass[:] = 7.0
    changed.model.opt.timestep = 1.0
    changed.spec.robot.joints.clear()
    changed.params.clear()
    changed.devices.clear()
    changed.mjspec.worldbody.add_body(name="added")
    again = load_twin("so101_tabletop")
    assert again.model.opt.timestep < 0.01
    assert again.model.body_mass[1] != 7.0
    assert len(again.robot.joints) == 6
    assert again.params
    assert again.devices
    assert mujoco.mj_name2id(again.mjspec.compile(), mujoco.mjtObj.mjOBJ_BODY, "added") < 0


@pytest.mark.parametrize(
    ("file", "text"),
    [("arm.xml", MODEL.format(kp=4)), ("m.obj", MESH.format(size=2)), ("base.yaml", "base: arm.xml\nname: above\n")],
)
def test_a_change_of_any_file_is_seen_also_with_the_same_size_and_time(folder, compiled, file, text):
    before = load_twin("arm.yaml")
    stamp = (folder / file).stat()
    assert len(text) == stamp.st_size
    (folder / file).write_text(text)
    os.utime(folder / file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = load_twin("arm.yaml")
    assert len(compiled) == 2
    if file != "base.yaml":  # its name is replaced by that of arm.yaml
        assert after.hash != before.hash


def test_a_new_file_replaces_the_built_in_twin_of_its_name(folder):
    (folder / "mine.yaml").write_text("base: cube_toss\nname: mine\n")
    (folder / "own.yaml").write_text("base: below\nname: own\n")
    load_twin("mine.yaml")
    with pytest.raises(InputError, match="below"):
        load_twin("own.yaml")
    (folder / "below").write_text("base: arm.xml\nname: below\n")
    assert load_twin("own.yaml").robot.joints == ["j"]
    (folder / "below").unlink()
    with pytest.raises(InputError, match="below"):
        load_twin("own.yaml")


def test_few_twins_are_kept(folder):
    for number in range(load._MOST_LOADED + 2):
        (folder / f"t{number}.yaml").write_text("base: arm.xml\nname: t\n")
        load_twin(f"t{number}.yaml")
    assert len(load._LOADED) == load._MOST_LOADED
    assert all("t0.yaml" not in key for key in load._LOADED)
