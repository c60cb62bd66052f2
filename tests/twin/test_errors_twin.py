"""Errors in a twin's YAML are refused by key, before any simulation."""

from __future__ import annotations

import pytest
import yaml

from twinloop.core.errors import InputError
from twinloop.twin import load_twin

BOX = {"shape": "box", "size": 0.03}
AREA = {"set": "a", "count": [0, 1], "x": [0.1, 0.3], "y": [-0.1, 0.1]}
CAN = {**BOX, "name": "can", "position": [0.3, 0.15]}
JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


def shape(**changes):
    return {"scene": {"sets": {"a": [{**BOX, **changes}]}, "clutter": {"c": AREA}}}


def occlude(**changes):
    scene = shape()["scene"]
    return {"scene": {**scene, "clutter": {"c": {**AREA, "occlude": {"camera": "front", "object": "cube", **changes}}}}}


def gears(**changes):
    robot = {"type": "so101_follower", "joints": JOINTS, "units": ["deg"] * 6, "servo": "sts3215_7v4"}
    return {"robot": {**robot, "gears": changes}}


def param(**changes):
    return {"params": [{"name": "object/cube/mass", "source": "x", **changes}]}


@pytest.mark.parametrize(
    ("twin", "message"),
    [
        (shape(size=30), r"scene.sets.a.0.size: Input should be less than or equal to 2, or: .* \(given: 30\)"),
        (shape(size=float("inf")), "scene.sets.a.0.size: Input should be a finite number"),
        (shape(mass=float("inf")), "scene.sets.a.0.mass: Input should be a finite number"),
        (shape(scale=[2, 1]), r"sets.a.0: scale is a range \[low, high\], given \[2, 1\]"),
        (shape(masss=3), "scene.sets.a.0.masss: This key does not exist .*Nearest existing: mass"),
        (shape(color=[2, 0, 0]), "scene.sets.a.0.color.0: Input should be less than or equal to 1"),
        (shape(shape="mesh", size=None, files=["."]), "is a folder. Mesh files are searched"),
        (shape(shape="mesh", size=None, files=["millimetres.obj"]), "100 m large. If its file is in mm, give `size:`"),
        ({"scene": {"sets": {"a": []}, "clutter": {"c": AREA}}}, "scene.sets.a: List should have at least 1 item"),
        (
            {"scene": {"objects": [{**CAN, "name": "cube"}]}},
            r"objects\[0\]: there is a body 'cube' already, in the model",
        ),
        ({"scene": {"objects": [CAN, CAN]}}, r"objects\[1\]: there is a body 'can' already, in scene.objects\[0\]"),
        ({"scene": {"objects": [{**CAN, "position": [float("nan"), 0]}]}}, "position.0: Input should be a finite"),
        ({"scene": {"objects": [{**CAN, "position": [30, 30]}]}}, r"can is at \[30.0, 30.0\] m, outside table, which"),
        (occlude(camera="frnt"), "Unknown camera 'frnt' in .*scene.clutter.c.occlude. Nearest existing: front"),
        (occlude(object="cub"), "Unknown object 'cub' in .*scene.clutter.c.occlude. Nearest existing: cube"),
        (occlude(visible=[0.9, 0.2]), "visible is a range .* of fractions from 0 to 1"),
        (occlude(distance=[-1, 1]), "distance is a range .* in m above 0"),
        (gears(backlash=-0.01), "robot.gears.backlash: Input should be greater than or equal to 0"),
        (gears(backlash=100), "robot.gears.backlash: Input should be less than or equal to 1"),
        (gears(backlash=0.01, stiffness=-1), "robot.gears.stiffness: Input should be greater than 0"),
        (param(range=[0.2, 0.1]), r"the range of object/cube/mass must be \[low, high\], given \[0.2, 0.1\]"),
        (param(low=-1), r"object/cube/mass has the bounds \[-1, 1000\]. Values outside \[0.0001, 1000\] kg are"),
        (param(name="timing/command/drop_rate", high=5), r"the bounds \[0, 5\]. Values outside \[0, 1\]"),
        ({"params": {"a": 1}}, "params must be a list of lines"),
        (
            {"base": "twin.yaml"},
            "base: twin.yaml is based on itself, directly or through other twins. Name another twin",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(tmp_path, twin, message):
    corners = "v 0 0 0\nv 100 0 0\nv 0 100 0\nv 0 0 100\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    (tmp_path / "millimetres.obj").write_text(corners)
    file = tmp_path / "twin.yaml"
    file.write_text(yaml.safe_dump({"base": "so101_tabletop", "name": "x", **twin}))
    with pytest.raises(InputError, match=message):
        load_twin(file)
