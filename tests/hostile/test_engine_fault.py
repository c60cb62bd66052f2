"""MuJoCo 4.0.0's sparse Newton solver is faulty: no submitted model is simulated with it."""

from __future__ import annotations

import ast
import json
import sys
import types
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml
from _branched import (
    DENSE,
    SPARSE,
    accelerations,
    random_states,
    relative,
    simulated,
    stationarity,
    trees,
    with_jacobian,
    written,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

import twinloop
from support.dataset_writer import SPEC, planted, write_all
from support.one_joint import joints_twin
from support.scenes import TABLE, clutter
from twinloop.catalog import Workspace
from twinloop.catalog.views import find_required_views
from twinloop.checks import run_checks
from twinloop.cli.main import main
from twinloop.core.engine_faults import ENGINE_FAULTS, SPARSE_NEWTON, SolverSettings, known_faults
from twinloop.core.errors import InputError
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.evaluate.variants import with_scene
from twinloop.hardware.arms import add_robot_gears
from twinloop.randomize import Plan
from twinloop.rollout import replay_episode, run_batch
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.protocol import state_poses
from twinloop.tasks import open_task
from twinloop.twin import builtin_names, compiling, load_twin
from twinloop.twin.compiling import MAX_DENSE_DOFS, compile_model, solver_settings
from twinloop.twin.load import _LOADED
from twinloop.twin.model_text import model_text
from twinloop.twin.scene_spec import SceneSpec
from twinloop.twin.spec import GearSpec
from twinloop.twin.variant import add_twin_gears

pytestmark = pytest.mark.skipif(
    not known_faults("mujoco", mujoco.mj_versionString()), reason="this version of MuJoCo has no known fault"
)
FAULTY_SEED = 8  # three trees of which one random state in 50 has wrong accelerations (see the first test)
CHECK = "solver agrees with dense"
_TWIN = {"schema": 1, "name": "sent", "control_hz": 50, "substeps": 10, "params": []}
_CLOTH = """<mujoco><option timestep="0.002" integrator="discrete" solver="Newton"/>{size}<worldbody>
<geom type="plane" size="3 3 0.1"/><geom type="box" size="0.1 0.1 0.1" pos="0 0 0.1"/>
<flexcomp name="cloth" type="grid" count="{n} {n} 1" spacing="0.03 0.03 0.03" dim="2" pos="0 0 0.22" radius="0.005"
 mass="0.1"><contact selfcollide="none" solref="0.005 1"/><edge equality="true"/></flexcomp></worldbody></mujoco>"""


@pytest.fixture
def faultless(monkeypatch):
    """Compile as on a version without a known fault."""
    monkeypatch.setattr(compiling, "known_faults", lambda engine, version: ())


def is_dense(model: mujoco.MjModel) -> bool:
    return not mujoco.mj_isSparse(model)


def twin_file(folder: Path, **keys) -> Path:
    path = folder / "sent.yaml"
    path.write_text(yaml.safe_dump(_TWIN | keys))
    return path


# ---- The fault itself, and the law that a compiled twin does not have it -------------------------------------------


@pytest.mark.attack(
    "three branched trees of 96 dof, solved by MuJoCo 4.0.0 alone", expected="the sparse solver is wrong"
)
def test_the_fault_is_there_without_us(observed):
    model = mujoco.MjModel.from_xml_string(trees(FAULTY_SEED))
    states = list(random_states(model, 60, FAULTY_SEED))
    sparse, dense = (accelerations(with_jacobian(model, kind), states) for kind in (SPARSE, DENSE))
    worst = max(stationarity(model, *state, qacc) for state, qacc in zip(states, sparse, strict=True))
    observed(f"sparse {relative(sparse, dense):.2g} times off, {worst:.2g} of the forces are not balanced")
    assert mujoco.mj_isSparse(model)
    assert relative(sparse, dense) > 0.1
    assert worst > 0.1


@pytest.mark.attack("random branched models from 20 to 130 dof, sparse by size or by request", expected="dense, 1e-9")
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 4),
    joints=st.integers(14, 27),
    cone=st.sampled_from(["pyramidal", "elliptic"]),
)
@example(seed=FAULTY_SEED, count=3, joints=27, cone="pyramidal")
@example(seed=3, count=1, joints=27, cone="pyramidal")
def test_a_compiled_model_has_the_accelerations_of_an_independent_solve(seed, count, joints, cone):
    xml = trees(seed, count=count, joints=joints, option=f'jacobian="sparse" cone="{cone}"')
    model = compile_model(mujoco.MjSpec.from_string(xml))
    states = list(random_states(model, 60, seed))
    reference = accelerations(with_jacobian(mujoco.MjModel.from_xml_string(xml), DENSE), states)
    found = accelerations(model, states)
    assert relative(found, reference) < 1e-9
    assert max(stationarity(model, *state, qacc) for state, qacc in zip(states, found, strict=True)) < 1e-3


@pytest.mark.attack("six trees of 197 to 257 dof in one twin, rolled out", expected="bits of plain dense MuJoCo")
@pytest.mark.parametrize("backend", ["reference", "threads"])
def test_a_rollout_equals_plain_dense_mujoco_bit_for_bit(tmp_path, backend, observed):
    xml = trees(1, count=6, joints=30)
    twin = load_twin(written(tmp_path, xml))
    nstep = 8
    result = rollout(
        open_backend(backend), twin, twin.table(1), InitialState.home(twin, 1), np.zeros((1, nstep, 0)), nstep
    )
    reference = mujoco.MjModel.from_xml_string(xml)
    reference.opt.jacobian = DENSE
    steps = simulated(reference, nstep * twin.substeps)[twin.substeps - 1 :: twin.substeps]
    observed(f"{twin.model.nv} dof, {nstep * twin.substeps} steps equal to the bit")
    np.testing.assert_array_equal(state_poses(twin.model, result.states[0])["qpos"][1:], steps)


# ---- Ways into a twin -----------------------------------------------------------------------------------------------


def sent_mjcf(folder):
    return load_twin(written(folder, trees(3, count=1, option='jacobian="sparse"')))


def sent_include(folder):
    written(folder, '<mujocoinclude><option jacobian="sparse"/></mujocoinclude>', "options.xml")
    return load_twin(written(folder, trees(3, count=1, extra='<include file="options.xml"/>')))


def sent_two_options(folder):
    extra = '<option jacobian="dense"/><option solver="Newton" jacobian="sparse"/>'
    return load_twin(written(folder, trees(3, count=1, option='solver="CG"', extra=extra)))


def sent_yaml(folder):
    written(folder, trees(FAULTY_SEED))
    return load_twin(twin_file(folder, model="trees.xml"))


def sent_based(folder):
    sent_yaml(folder)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"base": "sent.yaml", "name": "mine", "control_hz": 100}))
    return load_twin(path)


def sent_attached(folder):
    written(folder, trees(3, count=1, option='jacobian="sparse"'), "child.xml")
    parent = (
        '<mujoco><option jacobian="sparse"/><asset><model name="child" file="child.xml"/></asset><worldbody>'
        '<geom type="plane" size="9 9 0.1"/><frame><attach model="child" prefix="c_"/></frame></worldbody></mujoco>'
    )
    return load_twin(written(folder, parent, "parent.xml"))


def sent_urdf(folder):
    links = "".join(
        f'<link name="l{i}"><inertial><mass value="0.1"/><inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" '
        f'iyz="0"/></inertial></link>'
        for i in range(64)
    )
    joints = "".join(
        f'<joint name="j{i}" type="continuous"><parent link="l{(i - 1) // 2}"/><child link="l{i}"/>'
        f'<origin xyz="0.1 0 0"/><axis xyz="0 0 1"/><limit effort="1" velocity="1"/></joint>'
        for i in range(1, 64)
    )
    own = '<mujoco><option jacobian="sparse" timestep="0.002"/></mujoco>'
    return load_twin(written(folder, f'<robot name="r">{own}{links}{joints}</robot>', "r.urdf"))


def sent_scene(folder):
    written(folder, TABLE, "table.xml")
    return load_twin(twin_file(folder, model="table.xml", scene=clutter(9)))


def sent_gears(folder):
    return joints_twin(folder, joints=31, robot={"gears": {"backlash": 0.002}})


def gears_of_a_rival(folder):
    return add_twin_gears(joints_twin(folder, joints=31), GearSpec(backlash=0.002))


def gears_of_a_virtual_robot(folder):
    return add_robot_gears(joints_twin(folder, joints=31)).twin


def scene_of_a_slice(folder):
    written(folder, TABLE, "table.xml")
    return with_scene(load_twin(twin_file(folder, model="table.xml", objects=["thing"])), SceneSpec(**clutter(10)))


def sent_asleep(folder):
    extra = '<option><flag sleep="enable" island="enable"/></option>'
    return load_twin(written(folder, trees(FAULTY_SEED, extra=extra)))


def sent_cloth(folder):
    return load_twin(written(folder, _CLOTH.format(n=6, size="")))


def sent_tiny_arena(folder):
    return load_twin(written(folder, _CLOTH.format(n=12, size='<size memory="3M"/>')))


def sent_sixty(folder):
    return load_twin(written(folder, trees(0, count=2, joints=25)))


def sent_planted_mark(folder):
    text = '<custom><text name="engine_fault/sparse-newton" data="nothing to see"/></custom>'
    return load_twin(written(folder, trees(FAULTY_SEED, extra=text)))


def sent_keyed(folder):
    xml = trees(3, count=1, option='jacobian="sparse"', extra='<keyframe><key name="home"/></keyframe>')
    return load_twin(written(folder, xml))


WAYS = {
    sent_mjcf: "an MJCF of 32 dof asks for the sparse Jacobian",
    sent_include: "an included file asks for the sparse Jacobian",
    sent_two_options: "a third option element turns CG and dense into Newton and sparse",
    sent_yaml: "a twin YAML names a branched model of 96 dof",
    sent_based: "a twin YAML is based on another that names a branched model",
    sent_attached: "a model attached by another asks for the sparse Jacobian",
    sent_urdf: "a URDF of a binary tree of 63 joints has a mujoco extension",
    sent_scene: "nine clutter slots push a table over 60 dof",
    sent_gears: "play in 31 gears doubles the dof to 62",
    gears_of_a_rival: "a rival structure with gears doubles the dof to 62",
    gears_of_a_virtual_robot: "a virtual robot's gears double the dof to 62",
    scene_of_a_slice: "an evaluation's slice puts ten things on the table",
    sent_asleep: "sleeping and islands are switched on",
    sent_cloth: "a cloth of 108 dof with the discrete integrator",
    sent_tiny_arena: "a cloth of 432 dof whose arena suffices for the sparse solver only",
    sent_sixty: "exactly 60 dof, the least for which auto is sparse",
    sent_planted_mark: "the model carries our own mark already",
    sent_keyed: "a keyframe beside the request for sparse",
}


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(way, id=way.__name__, marks=pytest.mark.attack(what, expected="dense, marked, finite"))
        for way, what in WAYS.items()
    ],
)
def test_no_way_into_a_twin_ends_sparse(tmp_path, build, observed):
    twin = build(tmp_path)
    found = solver_settings(twin.model)
    observed(f"{found.jacobian}, {found.dof} dof")
    assert is_dense(twin.model)
    assert is_dense(twin.mjspec.copy().compile()), "what is compiled from the twin again is dense too"
    assert found.changed_for == (SPARSE_NEWTON.name,)
    assert np.isfinite(simulated(twin.model, 30)).all()


@pytest.mark.attack("a Menagerie robot that asks for the sparse Jacobian", expected="dense, marked")
def test_a_menagerie_robot_is_dense(tmp_path, monkeypatch):
    file = written(tmp_path, trees(3, count=1, option='jacobian="sparse"'))
    fake = types.SimpleNamespace(
        names=lambda: ["tree"], get=lambda name: types.SimpleNamespace(xml=lambda: file), MenagerieError=RuntimeError
    )
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", fake)
    assert solver_settings(load_twin("menagerie:tree").model).changed_for == (SPARSE_NEWTON.name,)


@pytest.mark.attack("a parameter named after the solver's options", expected="refused: no such parameter")
@pytest.mark.parametrize("name", ["world/option/jacobian", "option/jacobian", "opt.jacobian", "world/opt/solver"])
def test_no_parameter_reaches_the_solver(tmp_path, name, observed):
    written(tmp_path, trees(3, count=1))
    with pytest.raises(InputError) as refused:
        load_twin(twin_file(tmp_path, model="trees.xml", params=[{"name": name, "source": "sent"}]))
    observed(refused.value)


@pytest.mark.attack("a model too large for the dense solver", expected="refused with a way out")
def test_a_model_that_is_too_large_is_refused(tmp_path, observed, capsys):
    cubes = '<body pos="0 0 {}"><freejoint/><geom size="0.1"/></body>'
    xml = "".join(cubes.format(i) for i in range(MAX_DENSE_DOFS // 6 + 1))
    file = written(tmp_path, f"<mujoco><worldbody>{xml}</worldbody></mujoco>")
    with pytest.raises(InputError, match=r'1206 degrees of freedom.*up to 1200.*solver="CG"') as refused:
        load_twin(file)
    observed(refused.value)
    assert main(["twin", "check", str(file), "--json"]) == 1
    assert "degrees of freedom" in json.loads(capsys.readouterr().out.splitlines()[-1])["checks"][0]["detail"]


@pytest.mark.attack(
    "contacts that outgrow the model's memory amid a rollout", expected="that world is lost, with a reason"
)
@pytest.mark.parametrize("backend", ["reference", "threads"])
def test_a_world_that_runs_out_of_memory_is_lost_and_no_other(tmp_path, backend, observed):
    twin = load_twin(written(tmp_path, _CLOTH.format(n=8, size='<size memory="1M"/>').replace("Newton", "CG")))
    start = InitialState.home(twin, 2)
    qpos = start.qpos.copy()
    qpos[1, 2::3] -= 0.2  # into the ground: contacts everywhere
    qvel = np.zeros_like(start.qvel)
    qvel[1, 2::3] = -1.0
    model = mujoco.MjModel.from_xml_string(written(tmp_path, twin.mjspec.to_xml()).read_text())
    assert model.narena < 2**21
    result = rollout(
        open_backend(backend), twin, twin.table(2), replace(start, qpos=qpos, qvel=qvel), np.zeros((2, 5, 0)), 5
    )
    observed(result.reason)
    assert result.reason == ("", "mjWARN_CNSTRFULL")


@pytest.mark.attack("the way out: a large branched model with the CG solver", expected="compiled as it is")
def test_another_solver_is_left_alone(tmp_path):
    twin = load_twin(written(tmp_path, trees(FAULTY_SEED, option='solver="CG" jacobian="sparse"')))
    assert solver_settings(twin.model) == SolverSettings(engine="mujoco", solver="CG", jacobian="sparse", dof=96)
    assert run_checks(twin, only=[CHECK]).passed


# ---- What must not change -------------------------------------------------------------------------------------------


@pytest.mark.attack("the built-in twins, all small", expected="the bits that MuJoCo compiles, no mark")
@pytest.mark.parametrize("name", builtin_names())
def test_small_models_are_compiled_as_they_are(name):
    twin = load_twin(name)
    assert solver_settings(twin.model).changed_for == ()
    assert "jacobian" not in twin.mjspec.to_xml()
    again, plain = twin.mjspec.copy(), twin.mjspec.copy().compile()
    model = compile_model(again)
    assert again.to_xml() == twin.mjspec.to_xml()
    assert model.narena == plain.narena
    for field in ("qpos0", "body_mass", "dof_armature", "geom_size", "actuator_gainprm"):
        np.testing.assert_array_equal(getattr(model, field), getattr(plain, field))


@pytest.mark.attack("a version of MuJoCo without the fault", expected="the model's own settings")
def test_a_version_without_the_fault_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(mujoco, "mj_versionString", lambda: SPARSE_NEWTON.fixed_in)
    twin = load_twin(written(tmp_path, trees(FAULTY_SEED)))
    assert not is_dense(twin.model)
    assert twin.mjspec.option.jacobian == mujoco.mjtJacobian.mjJAC_AUTO
    assert known_faults("mujoco", "4.0.1") == known_faults("mujoco-warp", "4.0.0") == ()


@pytest.mark.attack("dataset made before the change is replayed", expected="refused: the twin has another hash")
def test_the_hash_tells_models_before_and_after_apart(tmp_path, observed):
    file = written(tmp_path, trees(FAULTY_SEED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "known_faults", lambda engine, version: ())
        before = load_twin(file)
    _LOADED.clear()  # another process has another MuJoCo
    after = load_twin(file)
    assert not is_dense(before.model)
    record = planted(3).provenance
    episode = SimEpisode(
        number=3,
        commands=np.zeros((2, 0)),
        states=np.zeros((3, 5)),
        action=np.empty(0),
        observation=np.empty(0),
        next_success=np.empty(0, dtype=bool),
        provenance=replace(record, twin=before.name, twin_hash=before.hash, extra={"initial_command": []}),
    )
    with pytest.raises(InputError, match=before.hash[:12]) as refused:
        replay_episode(after, episode)
    observed(refused.value)


@pytest.mark.attack("variants that grow over 60 dof", expected="their hash says that settings were changed")
def test_the_hash_of_a_grown_variant_tells(tmp_path):
    written(tmp_path, TABLE, "table.xml")
    table = load_twin(twin_file(tmp_path, model="table.xml", objects=["thing"]))
    joints = joints_twin(tmp_path, joints=31)

    def hashes():
        return with_scene(table, SceneSpec(**clutter(10))).hash, add_twin_gears(joints, GearSpec(backlash=0.002)).hash

    changed = hashes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "known_faults", lambda engine, version: ())
        own = hashes()
    assert changed[0] != own[0]
    assert (own[1], changed[1][: len(own[1])]) == (f"{joints.hash}+gears", own[1])
    assert changed[1] != own[1]


@pytest.mark.attack("a twin's model written as MJCF for others", expected="plain MuJoCo compiles it dense")
def test_the_text_for_others_is_dense(tmp_path):
    twin = load_twin(written(tmp_path, trees(FAULTY_SEED)))
    text = model_text(twin, twin.table(1))
    assert is_dense(mujoco.MjModel.from_xml_string(text.xml, dict(text.assets)))


@pytest.mark.attack("new code that compiles a spec for simulation itself", expected="this test names the file")
def test_every_compilation_goes_through_one_function():
    # Files that compile for another purpose than to simulate, or whose spec is one of a twin's own, dense already.
    elsewhere = {
        "twin/compiling.py": "the function itself",
        "twin/gear.py": "reads the layout of the model, before and after",
        "twin/servos.py": "reads inertias",
        "twin/shapes.py": "reads meshes",
        "twin/scene.py": "reads shapes and inertias",
        "twin/variant.py": "reads parameters; the twin keeps its model",
        "twin/twin.py": "the twin's own spec, for pictures",
        "twin/model_text.py": "the twin's own spec, as text",
        "checks/grasp.py": "the twin's own spec, compared with its model",
    }
    root = Path(twinloop.__file__).parent
    found = set()
    for file in root.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if ".compile()" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node).endswith(".compile()"):
                found.add(file.relative_to(root).as_posix())
    assert found <= set(elsewhere), f"use compile_model, or say here why not: {sorted(found - set(elsewhere))}"


# ---- `twin check`, `twin show`, `doctor` ----------------------------------------------------------------------------


@pytest.mark.attack(
    "the planted fault, with the dense solver forced", expected="the check passes and reports the fault"
)
def test_twin_check_reports_the_sparse_solver(tmp_path, observed):
    check = run_checks(load_twin(written(tmp_path, trees(1))), only=[CHECK])[CHECK]
    observed(check.summary_line())
    assert (check.status, check.metric) == ("pass", 0.0)
    assert check.metrics["sparse"] > 1e-3
    assert "sparse-newton" in check.detail


@pytest.mark.attack("the planted fault in a version that nobody knows to be faulty", expected="the check fails")
def test_twin_check_finds_the_fault_by_itself(tmp_path, faultless, observed):
    check = run_checks(load_twin(written(tmp_path, trees(1))), only=[CHECK])[CHECK]
    observed(check.summary_line())
    assert check.status == "fail"
    assert check.metric > 1e-3


@pytest.mark.attack("small twins, and large ones without the fault", expected="not affected, or equal")
def test_twin_check_finds_nothing_where_nothing_is(tmp_path, faultless):
    small = run_checks("simple_pendulum", only=[CHECK])[CHECK]
    assert small.status == "pass"
    assert small.metric is None
    assert "not affected" in small.detail
    cloth = run_checks(load_twin(written(tmp_path, _CLOTH.format(n=6, size=""))), only=[CHECK])[CHECK]
    assert cloth.status == "pass", cloth.summary_line()
    assert cloth.metric is not None


@pytest.mark.attack("a user looks at a twin whose settings were changed", expected="twin show says so")
def test_twin_show_says_that_settings_were_changed(tmp_path, capsys):
    file = written(tmp_path, trees(3, count=1, option='jacobian="sparse"'))
    assert main(["twin", "show", str(file)]) == 0
    assert "solver replaces that of the model" in " ".join(capsys.readouterr().out.split())
    assert main(["twin", "show", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["solver"]["changed_for"] == [SPARSE_NEWTON.name]
    assert main(["twin", "show", "simple_pendulum"]) == 0
    assert "solver replaces that of the model" not in " ".join(capsys.readouterr().out.split())


@pytest.mark.attack("a user asks what this machine can do", expected="doctor names the engine's faults")
def test_doctor_names_the_fault(monkeypatch, capsys):
    monkeypatch.setattr("twinloop.workflows.doctor.probe_all", list)
    assert main(["doctor"]) == 0
    assert "sparse-newton" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    engine = json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]
    assert engine["version"] == mujoco.mj_versionString()
    assert [fault["name"] for fault in engine["faults"]] == [SPARSE_NEWTON.name]
    monkeypatch.setattr(mujoco, "mj_versionString", lambda: "4.0.1")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]["faults"] == []


# ---- Datasets -------------------------------------------------------------------------------------------------------

_OURS = {"engine": "mujoco", "solver": "Newton", "jacobian": "dense", "dof": 96, "changed_for": ["sparse-newton"]}
# Name of a dataset: what its provenance holds of the solver, the version, and what the view is to answer.
DATASETS = {
    "dense": (_OURS, "4.0.0", "no"),
    "sparse": (_OURS | {"jacobian": "sparse"}, "4.0.0", "yes"),
    "cg": (_OURS | {"jacobian": "sparse", "solver": "CG"}, "4.0.0", "no"),
    "on_a_gpu": (_OURS | {"jacobian": "sparse", "engine": "mujoco-warp"}, "4.0.0", "no"),
    "before": (None, "4.0.0", "unknown"),
    "no_version": (None, "", "unknown"),
    "text": ("dense, I promise", "4.0.0", "unknown"),
    "listed": ([["dense"]], "4.0.0", "unknown"),
    "half": ({"jacobian": "dense"}, "4.0.0", "unknown"),
    "worded": (_OURS | {"dof": "many"}, "4.0.0", "no"),
    "auto": (_OURS | {"jacobian": "auto"}, "4.0.0", "unknown"),
    "nested": (_OURS | {"jacobian": {"jacobian": "dense"}}, "4.0.0", "unknown"),
    "sql": (_OURS | {"jacobian": "'); DROP TABLE known; --"}, "4.0.0", "unknown"),
    "fixed": (_OURS | {"jacobian": "sparse"}, "4.0.1", None),
    "older": (None, "3.17.0", None),
    "version_like": (None, "4.0.0' OR '1'='1", None),
}


@pytest.fixture(name="cell", scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("cell")
    with Workspace.create(root) as ws:
        for number, (name, (solver, engine, _)) in enumerate(DATASETS.items()):
            episode = planted(number)
            extra = {} if solver is None else {"solver": solver}
            versions = {"mujoco": engine} if engine else {}
            record = replace(episode.provenance, extra=extra, versions=versions)
            with DatasetWriter.open(root / "data" / name, SPEC) as writer:
                writer.commit_block(0, [replace(episode, number=0, provenance=record)])
                writer.finish({})
            ws.add(root / "data" / name)
        yield ws


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            id=name,
            marks=pytest.mark.attack(
                f"a dataset of MuJoCo {engine or 'of no version'} whose solver record is {json.dumps(solver)[:60]}",
                expected=f"affected: {answer}" if answer else "not listed",
            ),
        )
        for name, (solver, engine, answer) in DATASETS.items()
    ],
)
def test_a_query_names_the_datasets_made_with_the_fault(cell, name, observed):
    rows = cell.query("SELECT * FROM engine_faults WHERE batch = ?", [name]).to_pylist()
    observed([row["affected"] for row in rows] or "not listed")
    expected = DATASETS[name][2]
    assert [row["affected"] for row in rows] == ([expected] if expected else [])
    for row in rows:
        assert (row["fault"], row["episodes"], row["fixed_in"]) == ("sparse-newton", 1, "4.0.1")
        assert row["dof"] == (96 if name in ("dense", "sparse", "cg", "on_a_gpu", "auto", "nested", "sql") else None)


@pytest.mark.attack("a real dataset and a foreign one", expected="not listed")
def test_datasets_without_a_simulator_are_not_listed(tmp_path):
    with Workspace.create(tmp_path) as ws:
        episode = planted(3)
        record = replace(episode.provenance, source="real", twin="", twin_hash="", versions={})
        with DatasetWriter.open(tmp_path / "data" / "real", SPEC) as writer:
            writer.commit_block(0, [replace(episode, number=0, provenance=record)])
            writer.finish({})
        ws.add(tmp_path / "data" / "real")
        assert len(ws.query("SELECT * FROM engine_faults")) == 0


@pytest.mark.attack("the query from the command line", expected="one row per dataset and setting")
def test_the_query_works_from_the_command_line(tmp_path, monkeypatch, capsys):
    with Workspace.create(tmp_path / "cell") as ws:
        ws.add(write_all(tmp_path / "cell" / "data" / "planted"))
    monkeypatch.chdir(tmp_path / "cell")
    assert main(["query", "SELECT batch, fault, affected, episodes FROM engine_faults", "--format", "json"]) == 0
    assert "unknown" in capsys.readouterr().out


def test_the_view_reads_the_episode_table_alone():
    assert find_required_views("SELECT * FROM engine_faults") <= {"engine_faults", "places", "episodes"}
    for fault in ENGINE_FAULTS:
        assert "'" not in "".join([fault.name, fault.engine, *fault.versions, fault.solver, fault.jacobian])


@pytest.mark.attack("an episode of a twin with ten things on its table", expected="its provenance says dense, and why")
def test_an_episode_records_its_solver(tmp_path, observed):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"base": "so101_tabletop", "name": "mine", "scene": clutter(10)}))
    large, small = load_twin(path), load_twin("so101_tabletop")
    for twin, changed in ((large, [SPARSE_NEWTON.name]), (small, [])):
        params = Plan(twin=twin, run_seed=6, draws=()).draw([0])
        task = open_task("pick_and_place", twin)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "nstep", 2)
            made = run_batch(twin, task, params, run_seed=6, episodes=[0])
        record = made.episode(0).provenance
        observed(record.extra["solver"])
        assert record.extra["solver"] == {
            "engine": "mujoco",
            "solver": "Newton",
            "jacobian": "dense",
            "dof": twin.model.nv,
            "changed_for": changed,
        }
        assert record.versions["mujoco"] == mujoco.mj_versionString()
        warp = replace(made, versions={**made.versions, "mujoco-warp": "4.0.0"}).episode(0).provenance
        assert warp.extra["solver"]["engine"] == "mujoco-warp"


@pytest.mark.attack("mujoco-core of another version beside the package mujoco", expected="the library's own version")
def test_the_version_is_that_of_the_library(monkeypatch):
    from twinloop.rollout import software_versions

    software_versions.cache_clear()
    monkeypatch.setattr(mujoco, "mj_versionString", lambda: "4.0.1")
    assert software_versions()["mujoco"] == "4.0.1"
    software_versions.cache_clear()
    monkeypatch.undo()
    assert software_versions()["mujoco"] == version("mujoco")


@pytest.mark.slow
@pytest.mark.attack("a dense model of more than 60 dof on mujoco_warp", expected="its own sparse solver, dense results")
def test_mujoco_warp_takes_the_model(tmp_path):
    pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
    from twinloop.simulate.warp import BackendWarp

    twin = load_twin(written(tmp_path, trees(FAULTY_SEED)))
    start, nstep = InitialState.home(twin, 2), 5
    runs = [
        rollout(backend, twin, twin.table(2), start, np.zeros((2, nstep, 0)), nstep)
        for backend in (open_backend("threads"), BackendWarp("cpu"))
    ]
    dense, warp = (state_poses(twin.model, run.states)["qpos"] for run in runs)
    np.testing.assert_allclose(warp, dense, atol=1e-3)
