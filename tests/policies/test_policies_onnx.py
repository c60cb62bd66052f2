"""A policy's ONNX file gives the commands of the policy, is a policy by itself, and errors in it are named."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import yaml

from support.policies import SMALL, contract, observation, small
from support.release_commands import ASKED, OFF
from support.releases import evaluation
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError
from twinloop.policies import PolicyCard, PolicyLoop, open_policy, read_card, read_config

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from twinloop.catalog import Workspace  # noqa: E402
from twinloop.cli.main import main  # noqa: E402
from twinloop.core.files import write_json  # noqa: E402
from twinloop.policies import onnx_export  # noqa: E402
from twinloop.policies.onnx_export import export_onnx  # noqa: E402
from twinloop.policies.onnx_file import network_hash  # noqa: E402
from twinloop.release import PolicyRegistry  # noqa: E402
from twinloop.release.running_policy import LocalDecider  # noqa: E402
from twinloop.rollout.labelling import require_labels  # noqa: E402
from twinloop.rollout.policy_actor import PolicyActor  # noqa: E402
from twinloop.tasks import open_task  # noqa: E402
from twinloop.twin import load_twin  # noqa: E402
from twinloop.workflows.deploy.parts import require_compatible  # noqa: E402

_CARD = PolicyCard(name="reach by touch", provenance={"twin_hash": "ab12"})
_MORE = {"n_obs_steps": 2, "domains": ["sim", "real"], "action_space": "delta_to_command", "last_command": True}


@pytest.fixture(scope="module", name="exported")
def exported_mlp(tmp_path_factory):
    """A policy and its file."""
    policy, file = small("mlp"), tmp_path_factory.mktemp("onnx") / "bc.onnx"
    export_onnx(policy, file, _CARD)
    return policy, file


@pytest.mark.slow
@pytest.mark.parametrize("cameras", [{}, {"front": (16, 20), "arm": (16, 16)}])
@pytest.mark.parametrize("kind", SMALL)
def test_every_kind_gives_the_commands_of_torch(kind, cameras, tmp_path):
    more = _MORE | {"act": {"sample_latent": True}, "adaptive": {"n_obs_steps": 6}}.get(kind, {})
    policy = small(kind, contract(cameras=cameras), **more)
    _, difference = export_onnx(policy, tmp_path / "p.onnx")
    assert 0 < difference < 1e-5
    opened = open_policy(tmp_path / "p.onnx")
    seen = observation(policy, 40)
    noise = np.random.default_rng(0).standard_normal((40, policy.noise_size))
    for domain in (None, "", "sim", "real"):
        mine, theirs = (one.predict_with_features(seen, noise, domain) for one in (opened, policy))
        for found, wanted in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    for row in (0, 17, 39):
        alone = opened.predict_with_features({k: v[[row]] for k, v in seen.items()}, noise[[row]], "real")
        for found, wanted in zip(alone, mine, strict=True):
            np.testing.assert_array_equal(found[0], wanted[row])
    loops = [PolicyLoop(one, 3, command=np.zeros((3, 2))) for one in (policy, opened)]
    for step in range(20):  # a whole episode, in which each file remembers its own commands
        now = observation(policy, 3, seed=step, history=False)
        wanted, found = (loop.act(now) for loop in loops)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_file_alone_is_the_policy(exported):
    policy, file = exported
    opened = open_policy(file)
    assert (opened.contract, opened.settings) == (policy.contract, policy.settings)
    assert opened.statistics.to_json() == policy.statistics.to_json()
    assert opened.source_hash == policy.hash != opened.hash == read_config(file)["hash"]
    assert read_card(file).name == _CARD.name
    assert b"site-packages" not in file.read_bytes()
    seen = observation(policy, 2, history=False)
    commands = [PolicyLoop(one, 2).act(seen) for one in (policy, opened)]
    np.testing.assert_allclose(*commands, rtol=0, atol=1e-5 * np.abs(commands).max())


def test_equal_policies_give_equal_files_and_other_numbers_another_hash(exported, tmp_path):
    policy, file = exported
    assert onnx_export.make_onnx(policy, _CARD) == file.read_bytes()
    other, _ = export_onnx(small("mlp", seed=1), tmp_path / "other.onnx")
    assert other.hash != open_policy(file).hash


def test_a_file_for_another_robot_is_refused_in_one_message(exported):
    """`evaluate`, `distill --teacher` and `run` compare the contract in the file before a world or a robot moves."""
    opened, twin = open_policy(exported[1]), load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    with pytest.raises(
        InputError, match=r"cannot act on so101_tabletop at pick_and_place:\n  robot: the policy is for arm"
    ):
        PolicyActor(policy=opened, task=task, twin=twin)
    with pytest.raises(InputError, match="cannot act on so101_tabletop"):
        require_labels(task, twin, opened)
    decider = LocalDecider(opened, name=str(exported[1]))
    with pytest.raises(InputError, match=r"bc\.onnx does not fit my arm:\n  rate: the policy needs 30 Hz, but 50 Hz"):
        require_compatible(decider, contract(control_hz=50.0), "my arm")


def test_a_folder_with_the_file_is_a_policy(exported, tmp_path):
    (tmp_path / "policy.onnx").write_bytes(exported[1].read_bytes())
    assert open_policy(tmp_path).hash == open_policy(exported[1]).hash


def _change(file, tmp_path, edit, *, config=None, rehash=True):
    """Return a changed copy of a file, with a hash that fits unless ``rehash`` is false."""
    model = onnx.load_model(file)
    stored = {**json.loads(model.metadata_props[0].value), **(config or {})}
    edit(model)
    if rehash:
        stored["hash"] = network_hash(model, stored)
    if model.metadata_props:
        model.metadata_props[0].value = json.dumps(stored)
    path = tmp_path / "changed.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _external(model):
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer[0].data_location = 1


def _branch(model):
    node = model.graph.node.add(op_type="If")
    node.attribute.add(name="then_branch", type=5).g.node.add(op_type="Run", domain="evil")


def _two_samples(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def _three_joints(model):
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 3


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda model: model.ClearField("metadata_props"), "is not a policy of twinloop"),
        (_external, "data in other files"),
        (_branch, r"not of the ONNX standard: evil\.Run"),
        (lambda model: model.graph.input.pop(), "input observation.environment_state is missing"),
        (_three_joints, r"output action is float32 \(n, 4, 3\), but must be float32 \(n, 4, 2\)"),
        (
            lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2),
            r"is float32 \(2, 1",
        ),
        (lambda model: model.graph.node.pop(0), "cannot be read as ONNX"),
    ],
)
def test_a_wrong_network_is_named(exported, tmp_path, edit, message):
    with pytest.raises(InputError, match=message):
        open_policy(_change(exported[1], tmp_path, edit))


def test_a_memory_that_the_network_does_not_have_is_named(exported, tmp_path):
    longer = {
        "settings": {**json.loads(onnx.load_model(exported[1]).metadata_props[0].value)["settings"], "n_obs_steps": 8}
    }
    with pytest.raises(InputError, match=r"does not fit its own contract: .* \(n, 1, 2\), but must be .* \(n, 8, 2\)"):
        open_policy(_change(exported[1], tmp_path, lambda model: None, config=longer))


def test_wrong_metadata_are_named(exported, tmp_path):
    keep = lambda model: None  # noqa: E731
    with pytest.raises(InputError, match="schema 99; this version reads up to"):
        open_policy(_change(exported[1], tmp_path, keep, config={"schema": 99}))
    with pytest.raises(InputError, match="its content has"):
        open_policy(_change(exported[1], tmp_path, keep, config={"contract": {}}, rehash=False))
    with pytest.raises(InputError, match="contract or statistics cannot be read"):
        open_policy(_change(exported[1], tmp_path, keep, config={"contract": {}}))


def test_a_damaged_file_is_named(exported, tmp_path):
    data, path = exported[1].read_bytes(), tmp_path / "damaged.onnx"
    for cut in (0, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(InputError, match="not a complete ONNX file|is not a policy of twinloop"):
            open_policy(path)
    place = data.index(onnx.load_model(exported[1]).graph.initializer[0].raw_data[:64])
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(InputError, match="the file is damaged"):
        open_policy(path)
    with pytest.raises(InputError, match="does not exist"):
        open_policy(tmp_path / "none.onnx")


def test_a_difference_above_the_limit_leaves_no_file(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "LIMIT", 0.0)
    with pytest.raises(CheckFailedError, match="was not written"):
        export_onnx(exported[0], tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export_onnx(exported[0], tmp_path / "p.bin")


def test_the_comparison_sees_one_changed_weight_and_a_whole_episode(exported, monkeypatch):
    file, changed = exported[1], small("mlp")
    assert onnx_export.measure_difference(changed, open_policy(file)) < 1e-5
    with torch.no_grad():
        changed.network.head.bias[0] += 1e-4
    assert onnx_export.measure_difference(changed, open_policy(file)) > 1e-5
    monkeypatch.setattr(onnx_export, "_act_in_episode", lambda one, policy, _: np.full((9, 2), 1.0 + (one is policy)))
    assert onnx_export.measure_difference(small("mlp"), open_policy(file)) == 0.5


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(exported, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"twinloop\[onnx\]"):
        open_policy(exported[1])


def test_the_registry_keeps_an_onnx_file_with_the_training_of_the_exported_policy(exported, tmp_path, capfd):
    policy, file = exported
    worlds = {"episodes": 8, "twin_hash": "t1", "ranges": {"friction": [0.5, 0.9]}}
    with Workspace.create(tmp_path / "cell") as held:
        held.record_policy(policy.hash, "bc", [], extra={"worlds": worlds})
        registry = PolicyRegistry(held)
        reference = registry.add(file)
        assert reference == "bc@1" == registry.add(file)
        version = registry.version(reference)
        assert version.policy == open_policy(file).hash != policy.hash
        assert version.record["twins"] == ["t1"]
        assert list(version.record["files"]) == ["policy.onnx"]
        assert registry.load(reference).hash == version.policy
        assert registry.add(registry.folder(reference), name="copy") == "copy@1"
        assert registry.version("copy").hash == version.hash
        (tmp_path / "bc.bin").write_bytes(b"weights")
        with pytest.raises(InputError, match=r"bin is neither a folder nor an ONNX file\. Give .* ONNX file"):
            registry.add(tmp_path / "bc.bin")
    home = tmp_path / "cell"
    write_json(home / "offered.json", policy.contract.to_json())
    file.rename(home / "bc.onnx")
    evaluation("bc", np.ones(8, dtype=bool), policy_hash=version.policy).write(home / "run")
    context = {"twin": "so101_tabletop", "contract": "offered.json"}
    evidence = {"candidate": ["run"]}
    (home / "gate.yaml").write_text(
        yaml.safe_dump(
            {
                "candidate": "bc.onnx",
                "champion": None,
                "evidence": evidence,
                "success": OFF,
                **ASKED,
                "context": context,
            }
        )
    )
    code = main(["gate", str(home / "gate.yaml"), "--json"])
    decided = json.loads(capfd.readouterr().out.splitlines()[-1])
    reasons = {rule["rule"]: rule["reason"] for rule in decided["rules"]}
    assert (code, "they come from t1" in reasons["context"]) == (1, True)
