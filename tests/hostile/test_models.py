"""Models (MJCF, URDF, twin YAML) that claim memory, time or another file are refused before MuJoCo reads them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from _limited import Limited, Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.twin import load_twin
from twinloop.twin.model_limits import check_model_file, check_model_text

QUICK = "refused by file and line in under 1 s of CPU time and 512 MiB, without a traceback"
Observed = Callable[[object], None]
Files = Mapping[str, str | bytes]


@pytest.fixture(scope="module")
def limited() -> Limited:
    """One process with everything loaded, for all attacks."""
    return Limited.shared()


def attack(what: str, *values: Any, expected: str = QUICK, name: str) -> Any:
    """Return one row of the table of attacks."""
    return pytest.param(*values, marks=pytest.mark.attack(what, expected=expected), id=name)


def model(inside: str) -> str:
    """Return a model with a world."""
    return f"<mujoco>{inside}</mujoco>"


def world(inside: str) -> str:
    """Return a model with things in its world."""
    return model(f"<worldbody>{inside}</worldbody>")


def asset(inside: str) -> str:
    """Return a model with assets."""
    return model(f"<asset>{inside}</asset><worldbody/>")


def _loaded(limited: Limited, folder: Path, text: str | bytes, files: Files, name: str = "model.xml") -> Outcome:
    for inner, content in {name: text, **files}.items():
        path = folder / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return limited.refused("twinloop.twin:load_twin", folder / name)


GEOM = '<geom size="1"/>'
LARGE = "of memory to compile, most of it for"
SIZES = [
    attack("MJCF: `<replicate count>` of 10⁸", world(f'<replicate count="100000000">{GEOM}</replicate>'), name="count"),
    attack(
        "MJCF: four nested replicates of 100",
        world('<replicate count="100">' * 4 + GEOM + "</replicate>" * 4),
        name="nested-counts",
    ),
    attack(
        "MJCF: a replicate whose count is written with character references",
        world(f'<replicate count="&#49;&#48;0000000">{GEOM}</replicate>'),
        name="count-references",
    ),
    attack(
        "MJCF: a replicate with a count of 5,000 digits", world(f'<replicate count="{"9" * 5000}"/>'), name="digits"
    ),
    attack(
        "MJCF: a replicate behind a comment with the sign of a comment in an attribute",
        world(f'<site name="<!--"/><replicate count="100000000">{GEOM}</replicate><site name="-->"/>'),
        name="count-in-quotes",
    ),
    attack(
        "MJCF: a height field of 10⁸ cells", asset('<hfield nrow="10000" ncol="10000" size="1 1 1 1"/>'), name="hfield"
    ),
    attack("MJCF: ten height fields of 1.6·10⁷ cells", asset('<hfield nrow="4000" ncol="4000"/>' * 10), name="hfields"),
    attack(
        "MJCF: a texture of 10⁵ × 10⁵", asset('<texture type="2d" width="100000" height="100000"/>'), name="texture"
    ),
    attack("MJCF: a cube texture of 20,000", asset('<texture builtin="flat" width="20000" height="1"/>'), name="cube"),
    attack("MJCF: a flex of 10⁹ vertices", world('<flexcomp count="1000 1000 1000"/>'), name="flex"),
    attack("MJCF: a built-in plate of 10¹⁰ vertices", asset('<mesh builtin="plate" params="1e5 1e5"/>'), name="plate"),
    attack("MJCF: a built-in cone with 10⁶ sides", asset('<mesh builtin="cone" params="1000000 .5"/>'), name="cone"),
    attack(
        "MJCF: a number field of 10⁹ values", model('<custom><numeric size="1000000000"/></custom>'), name="numeric"
    ),
    attack("MJCF: `<size memory>` of 1 TB", model('<size memory="1T"/>'), name="memory"),
    attack("MJCF: 10⁹ key frames", model('<size nkey="1000000000"/>'), name="keys"),
    attack("MJCF: 10⁵ key frames, which compile in a minute", model('<size nkey="100000"/>'), name="keys-slow"),
    attack("MJCF: 10⁹ values of user data", model('<size nuserdata="1000000000"/>'), name="userdata"),
    attack("MJCF: 10⁹ constraint rows", model('<size njmax="1000000000"/>'), name="njmax"),
    attack("MJCF: 10⁹ contacts", model('<size nconmax="1000000000"/>'), name="nconmax"),
    attack("MJCF: 10⁹ values of every body", model('<size nuser_body="1000000000"/>'), name="nuser"),
    attack(
        "MJCF: an off-screen picture of 10⁹ × 10⁹",
        model('<visual><global offwidth="1000000000" offheight="1000000000"/></visual>'),
        name="offscreen",
    ),
    attack("MJCF: a shadow map of 10⁹", model('<visual><quality shadowsize="1000000000"/></visual>'), name="shadows"),
    attack("MJCF: a camera of 10⁵ × 10⁵", world('<camera resolution="100000 100000"/>'), name="camera"),
    attack("MJCF: a sensor of 10⁹ values", model('<sensor><user dim="1000000000"/></sensor>'), name="sensor"),
    attack(
        "MJCF: a contact sensor of 10⁹ contacts", model('<sensor><contact num="1000000000"/></sensor>'), name="contacts"
    ),
    attack(
        "MJCF: a sensor that keeps 10⁹ samples", model('<sensor><clock nsample="1000000000"/></sensor>'), name="samples"
    ),
    attack(
        "MJCF: an actuator of 10⁹ states", model('<actuator><general actdim="1000000000"/></actuator>'), name="actuator"
    ),
    attack("MJCF: 50,000 bodies in the text", world("<body/>" * 50_000), name="bodies"),
    attack("URDF: 50,000 links", '<robot name="x">' + '<link name="a"/>' * 50_000 + "</robot>", name="links"),
]


@pytest.mark.parametrize("text", SIZES)
def test_a_model_that_claims_memory_is_refused(limited: Limited, tmp_path: Path, text: str, observed: Observed) -> None:
    outcome = _loaded(limited, tmp_path, text, {}, "model.urdf" if text.startswith("<robot") else "model.xml")
    observed(outcome)
    assert LARGE in outcome.message or "not well-formed" in outcome.message
    assert "line 1" in outcome.message


LAUGHS = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "ha"}">' for i in range(10))
PILE = "".join(f'<body pos="0 0 {z}"><freejoint/><geom type="box" size=".1 .1 .1"/></body>' for z in (0.05, 0.1, 0.2))
PILED = f'<worldbody><geom type="plane" size="5 5 .1"/>{PILE}</worldbody>'
APART = PILED.replace("0 0 0.1", "9 0 9").replace("0 0 0.2", "9 9 9").replace("0 0 0.05", "0 9 9")
KEYS = " ".join(f"0 0 {z} 1 0 0 0" for z in (0.05, 0.1, 0.2))
TEXTS = [
    attack(
        "MJCF: boxes that touch, and a memory of 2 kB for contacts, which ended in a traceback",
        f'<mujoco><size memory="2K"/>{PILED}</mujoco>',
        "cannot be simulated from its initial state",
        name="memory",
    ),
    attack(
        "MJCF: boxes that touch in the second keyframe, and a memory of 2 kB for contacts",
        f'<mujoco><size memory="2K"/>{APART}<keyframe><key/><key qpos="{KEYS}"/></keyframe></mujoco>',
        "cannot be simulated from its initial state",
        name="memory-of-a-keyframe",
    ),
    attack(
        "MJCF: ten levels of ten entities each",
        f"<!DOCTYPE x [{LAUGHS}]>" + model("&a9;"),
        "DOCTYPE, entities",
        name="lol",
    ),
    attack(
        "MJCF: an entity of /etc/passwd",
        '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + model("&a;"),
        "DOCTYPE, entities",
        name="entity",
    ),
    attack(
        "MJCF: a DOCTYPE with an address",
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">' + model(""),
        "DOCTYPE, entities",
        name="doctype",
    ),
    attack(
        "MJCF: an entity that is not declared",
        model('<worldbody><body name="&evil;"/></worldbody>'),
        "not well-formed",
        name="undeclared",
    ),
    attack(
        "MJCF: a CDATA section that hides a tag",
        model("<![CDATA[<!--]]><worldbody/><![CDATA[-->]]>"),
        "CDATA",
        name="cdata",
    ),
    attack("MJCF: 10⁶ opening tags", "<a>" * 1_000_000, "more than 200,000 tags", name="tags"),
    attack("MJCF: 10⁵ nested bodies", world("<body>" * 50_000 + "</body>" * 50_000), LARGE, name="nested"),
    attack("MJCF: 10⁶ comments that do not end", "<!--" * 1_000_000, "does not end", name="comments"),
    attack("MJCF: 10⁶ quotes that do not end", '<a b="' * 1_000_000, "does not end|not well-formed", name="quotes"),
    attack("MJCF: a text of 40 MB", world(" " * 40_000_000), "at most 33,554,432 are read", name="large"),
    attack("MJCF: UTF-16", world(GEOM).encode("utf-16"), "not well-formed", name="utf-16"),
    attack(
        "MJCF: a name that is no UTF-8",
        b'<mujoco><worldbody><body name="\xff"/></worldbody></mujoco>',
        "not well-formed",
        name="latin-1",
    ),
    attack("MJCF: a zero byte", b"<mujoco>\0</mujoco>", "not well-formed", name="zero"),
    attack("MJCF: an empty file", b"", "not well-formed", name="empty"),
    attack(
        "MJCF: an engine plugin",
        model('<extension><plugin plugin="evil.so"/></extension>'),
        "plugin evil.so not found",
        name="plugin",
    ),
    attack(
        "MJCF: a time step of 10⁻³⁰⁰ s",
        model('<option timestep="1e-300"/>'),
        "timestep is 1e-300 s; it must be",
        name="step",
    ),
    attack("MJCF: a time step of 0 s", model('<option timestep="0"/>'), "timestep is 0 s; it must be", name="step-0"),
    attack(
        "MJCF: a time step that is no number",
        model('<option timestep="nan"/>'),
        "timestep is nan s; it must be",
        name="step-nan",
    ),
    attack(
        "MJCF: 10⁹ solver iterations",
        model('<option tolerance="0" iterations="1000000000"/>'),
        "the option iterations is 1000000000; at most",
        name="iterations",
    ),
    attack(
        "MJCF: a mesh parameter that is no number",
        asset('<mesh name="s" builtin="plate" params="nan 100000"/>'),
        LARGE,
        name="nan",
    ),
]


@pytest.mark.parametrize(("text", "message"), TEXTS)
def test_a_hostile_model_text_is_refused(
    limited: Limited, tmp_path: Path, text: str | bytes, message: str, observed: Observed
) -> None:
    outcome = _loaded(limited, tmp_path, text, {})
    observed(outcome)
    assert any(part in outcome.message for part in message.split("|")), outcome
    assert "model.xml" in outcome.message


def _png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0" + b"\0" * 64


OTHER = "<mujoco><worldbody><body name='b'><geom size='1'/></body></worldbody></mujoco>"
ATTACH = "<frame><attach model='m' body='b' prefix='p{}'/></frame>"
CHAIN = {
    f"m{i}.xml": f"<mujoco model='m{i}'><asset><model name='m' file='m{i + 1}.xml'/></asset><worldbody><body name='b'>"
    + "".join(ATTACH.format(j) for j in range(10))
    + "</body></worldbody></mujoco>"
    for i in range(8)
} | {"m8.xml": OTHER}
FILES = [
    attack(
        "MJCF: a text that includes itself",
        model('<include file="model.xml"/>'),
        {},
        "includes or attaches itself",
        name="include-self",
    ),
    attack(
        "MJCF: two texts that include each other",
        model('<include file="a.xml"/>'),
        {"a.xml": model('<include file="model.xml"/>')},
        "includes or attaches itself",
        name="include-ring",
    ),
    attack(
        "MJCF: 40 texts, each of which includes the next",
        model('<include file="0.xml"/>'),
        {f"{i}.xml": model(f'<include file="{i + 1}.xml"/>' if i < 39 else "") for i in range(40)},
        "in more than 16 files",
        name="include-chain",
    ),
    attack(
        "MJCF: a model that attaches itself, which ended the process",
        "<mujoco><asset><model name='m' file='model.xml'/></asset><worldbody><body name='b'/>"
        + ATTACH.format(0)
        + "</worldbody></mujoco>",
        {},
        "includes or attaches itself",
        name="attach-self",
    ),
    attack(
        "MJCF: eight levels of models, each attached ten times",
        "<mujoco><asset><model name='m' file='m0.xml'/></asset><worldbody>"
        + ATTACH.format(0)
        + "</worldbody></mujoco>",
        CHAIN,
        LARGE,
        name="attach-chain",
    ),
    attack(
        "MJCF: a replicate in an included text, which is itself in a replicate",
        model('<include file="a.xml"/>'),
        {"a.xml": world(f'<replicate count="10000"><replicate count="10000">{GEOM}</replicate></replicate>')},
        LARGE,
        name="include-count",
    ),
    attack(
        "MJCF: an include of /etc/passwd",
        model('<include file="/etc/passwd"/>'),
        {},
        "outside the model's package",
        name="passwd",
    ),
    attack(
        "MJCF: an include of ../../../../../../etc/passwd",
        model('<include file="../../../../../../../../etc/passwd"/>'),
        {},
        "outside the model's package",
        name="passwd-relative",
    ),
    attack(
        "MJCF: a mesh that is /etc/passwd",
        asset('<mesh name="a" file="/etc/passwd"/>'),
        {},
        "outside the model's package",
        name="mesh-passwd",
    ),
    attack(
        "MJCF: a mesh that is /dev/zero",
        asset('<mesh file="/dev/zero" content_type="model/obj"/>'),
        {},
        "outside the model's",
        name="mesh-zero",
    ),
    attack(
        "MJCF: a mesh called passwd in a folder of meshes that is /etc",
        '<mujoco><compiler meshdir="/etc"/><asset><mesh name="a" file="passwd"/></asset></mujoco>',
        {},
        "outside the model's package",
        name="meshdir",
    ),
    attack(
        "MJCF: a picture of 10¹⁰ pixels in 100 bytes",
        asset('<texture type="2d" file="a.png"/>'),
        {"a.png": _png(100_000, 100_000)},
        "pixels",
        name="png",
    ),
    attack(
        "MJCF: a height field from a picture of 10¹⁰ pixels",
        asset('<hfield file="a.png" size="1 1 1 1"/>'),
        {"a.png": _png(100_000, 100_000)},
        "pixels",
        name="hfield-png",
    ),
    attack(
        "MJCF: a height field whose file states 10¹⁰ cells",
        asset('<hfield name="a" file="a.bin" size="1 1 1 1"/>'),
        {"a.bin": struct.pack("<ii", 100_000, 100_000) + b"\0" * 64},
        "unexpected file size",
        name="hfield-file",
    ),
    attack(
        "MJCF: a height field whose file states a negative number of rows",
        asset('<hfield name="a" file="a.bin" size="1 1 1 1"/>'),
        {"a.bin": struct.pack("<ii", -1, -1) + b"\0" * 64},
        "hfield",
        name="hfield-sign",
    ),
    attack(
        "MJCF: an STL mesh that states 10⁸ faces",
        asset('<mesh name="a" file="a.stl"/>'),
        {"a.stl": b"\0" * 80 + struct.pack("<I", 100_000_000) + b"\0" * 500},
        "a.stl has 100,000,000 faces; MuJoCo reads at most 200,000",
        name="stl",
    ),
    attack(
        "MJCF: an MSH mesh that states 2³¹ vertices",
        asset('<mesh name="a" file="a.msh"/>'),
        {"a.msh": struct.pack("<iiii", *(2**31 - 1,) * 4)},
        "MSH file",
        name="msh",
    ),
    attack(
        "URDF: a mesh at an absolute place",
        '<robot name="r"><link name="a"><visual><geometry><mesh filename="package://../../../../../../../etc/passwd"/>'
        '</geometry></visual></link><mujoco><compiler strippath="false"/></mujoco></robot>',
        {},
        "outside the model's package",
        name="urdf-mesh",
    ),
]


@pytest.mark.parametrize(("text", "files", "message"), FILES)
def test_a_model_with_hostile_files_is_refused(
    limited: Limited, tmp_path: Path, text: str, files: Files, message: str, observed: Observed
) -> None:
    outcome = _loaded(limited, tmp_path, text, files, "model.urdf" if text.startswith("<robot") else "model.xml")
    observed(outcome)
    assert message in outcome.message, outcome


NAMED = [
    ("include", model('<include file="{}"/>'), "a.xml"),
    ("mesh", asset('<mesh name="a" file="{}"/>'), "a.stl"),
    ("texture", asset('<texture type="2d" file="{}"/>'), "a.png"),
    ("height field", asset('<hfield file="{}" size="1 1 1 1"/>'), "a.bin"),
    ("skin", asset('<skin file="{}"/>'), "a.skn"),
    ("attached model", asset('<model name="m" file="{}"/>'), "a.xml"),
]


@pytest.mark.parametrize(
    ("text", "name"),
    [attack(f"MJCF: a pipe as {kind}", text, name, name=kind.replace(" ", "-")) for kind, text, name in NAMED],
)
def test_a_pipe_that_a_model_names_does_not_hang(
    limited: Limited, tmp_path: Path, text: str, name: str, observed: Observed
) -> None:
    os.mkfifo(tmp_path / name)
    outcome = _loaded(limited, tmp_path, text.format(name), {})
    observed(outcome)
    assert "is a pipe, not a regular file" in outcome.message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        attack(
            "MJCF: a mesh that is a link to a file elsewhere", "/etc/passwd", "outside the model's package", name="link"
        ),
        attack("MJCF: a mesh that is a link to itself", "a.stl", "cannot be read", name="link-ring"),
        attack(
            "MJCF: a mesh that is a link to /dev/zero", "/dev/zero", "outside the model's package", name="link-zero"
        ),
    ],
)
def test_a_link_that_a_model_names_is_refused(
    limited: Limited, tmp_path: Path, target: str, message: str, observed: Observed
) -> None:
    (tmp_path / "a.stl").symlink_to(target)
    outcome = _loaded(limited, tmp_path, asset('<mesh name="a" file="a.stl"/>'), {})
    observed(outcome)
    assert message in outcome.message


@pytest.mark.attack("MJCF: a mesh of 1 TB, all of it a hole", expected=QUICK)
def test_a_sparse_mesh_is_refused(limited: Limited, tmp_path: Path, observed: Observed) -> None:
    with (tmp_path / "a.obj").open("wb") as file:
        file.truncate(1 << 40)
    outcome = _loaded(limited, tmp_path, asset('<mesh name="a" file="a.obj"/>'), {})
    observed(outcome)
    assert "at most 268,435,456 are read" in outcome.message


TWIN = {"base": "so101_tabletop", "name": "x"}
TWINS = [
    attack("Twin: 10¹² substeps", {**TWIN, "substeps": 10**12}, "substeps: Input should be less than", name="substeps"),
    attack(
        "Twin: 10⁵ substeps of 10⁵ commands per second",
        {**TWIN, "substeps": 10**5, "control_hz": 1e5},
        "physics steps per second",
        name="rate",
    ),
    attack(
        "Twin: a command every 10⁹ s", {**TWIN, "control_hz": 1e-9}, "control_hz: Input should be greater", name="slow"
    ),
    attack(
        "Twin: infinitely many commands per second",
        {**TWIN, "control_hz": float("inf")},
        "control_hz: Input should be",
        name="infinite",
    ),
    attack(
        "Twin: a rate that is no number",
        {**TWIN, "control_hz": float("nan")},
        "control_hz: Input should be",
        name="nan",
    ),
    attack("Twin: a model that is a pipe", {**TWIN, "model": "pipe.xml"}, "is a pipe", name="pipe"),
    attack("Twin: a model that is a folder", {**TWIN, "model": "."}, "is a folder", name="folder"),
    attack("Twin: a model that is /dev/random", {**TWIN, "model": "/dev/random"}, "is a device", name="random"),
    attack("Twin: a model whose name has 5,000 characters", {**TWIN, "model": "x" * 5000}, "", name="long"),
    attack(
        "Twin: a scene's mesh that is a pipe",
        {**TWIN, "scene": {"objects": [{"name": "a", "shape": "mesh", "files": ["pipe.xml"], "position": [0.3, 0]}]}},
        "pipe.xml",
        name="scene-pipe",
    ),
    attack(
        "Twin: 10⁹ shapes of a family",
        {**TWIN, "scene": {"sets": {"a": [{"shape": "polyhedron", "size": 0.03, "count": 10**9}]}}},
        "count",
        name="shapes",
    ),
    attack("Twin: a base that is a pipe", {"base": "pipe.xml", "name": "x"}, "pipe.xml", name="base-pipe"),
    attack("Twin: a list of itself", "&a [*a]", "contains itself", name="ring"),
]


@pytest.mark.parametrize(("value", "message"), TWINS)
def test_a_hostile_twin_is_refused(
    limited: Limited, tmp_path: Path, value: Any, message: str, observed: Observed
) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    file = tmp_path / "twin.yaml"
    file.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    outcome = limited.refused("twinloop.twin:load_twin", file)
    observed(outcome)
    assert message in outcome.message


GENERATE = {"scene": {"twin": "so101_tabletop", "task": "pick_and_place"}, "randomization": "default"}
PLANS = [
    attack(
        "Plan: 10¹⁸ episodes",
        {**GENERATE, "rollout": {"parallel_envs": 1, "episodes_per_env": 10**18}},
        name="episodes",
    ),
    attack("Plan: 10¹⁸ worlds at a time", {**GENERATE, "rollout": {"parallel_envs": 10**18}}, name="worlds"),
    attack("Plan: a seed of 4,301 digits", "rollout: {seed: " + "9" * 4301 + "}\nscene: {}", name="seed"),
    attack(
        "Plan: an episode of 10¹⁸ s", {**GENERATE, "rollout": {"parallel_envs": 1, "max_time_s": 1e18}}, name="time"
    ),
]


@pytest.mark.parametrize("value", PLANS)
def test_a_plan_without_end_is_refused(limited: Limited, tmp_path: Path, value: Any, observed: Observed) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    outcome = limited.refused("main", "generate", str(file), "--output", str(tmp_path / "out"))
    observed(outcome)
    assert "plan.yaml" in outcome.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        attack(
            "Dataset: a stored model that names a file",
            asset('<mesh name="a" file="/etc/passwd"/>'),
            "is not stored with it",
            name="file",
        ),
        attack(
            "Dataset: a stored model that includes a file",
            model('<include file="x.xml"/>'),
            "is not stored",
            name="include",
        ),
        attack(
            "Dataset: a stored model of 10⁸ geoms",
            world(f'<replicate count="100000000">{GEOM}</replicate>'),
            LARGE,
            name="count",
        ),
    ],
)
def test_a_hostile_stored_model_is_refused(text: str, message: str, observed: Observed) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_model_text(text, {"a.stl": b""}, where="episode 0")
    observed(caught.value)


def test_models_as_people_write_them_are_read(tmp_path: Path) -> None:
    text = "<?xml version='1.0' encoding='utf-8'?>\n<!------- a -- b ------>\n<!-- Jürgen's -- robot -->\n" + model(
        "<compiler meshdir='../meshes'/><asset><mesh name='a' file='a.obj'/></asset><worldbody>"
        "<replicate count='20' offset='.1 0 0'><geom size='.01'/></replicate><geom type='mesh' mesh='a'/></worldbody>"
    )
    (tmp_path / "robot" / "mjcf").mkdir(parents=True)
    (tmp_path / "robot" / "meshes").mkdir()
    (tmp_path / "robot" / "meshes" / "a.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    (tmp_path / "robot" / "mjcf" / "robot.xml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_twin(tmp_path / "robot" / "mjcf" / "robot.xml").model.ngeom == 21


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<a>", "</a>", "<!--", "-->", "<a b='", "'/>", "<?x", "?>", '"', "<![CDATA[", "]]>", "x"])
    )
)
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    file = tmp_path_factory.mktemp("any") / "model.xml"
    file.write_text("".join(parts))
    with contextlib.suppress(InputError):
        check_model_file(file)
