"""A policy reads back bit for bit, and errors in a folder are named."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest

from support.policies import SMALL, contract, observation, small
from twinloop.core.errors import DatasetLockedError, InputError, UnknownNameError
from twinloop.policies import PolicyCard, open_policy, read_card, read_config

torch = pytest.importorskip("torch")

from safetensors.torch import load, save_file  # noqa: E402

from twinloop.dataset.storage.snapshot import FolderLock  # noqa: E402
from twinloop.policies.weights import read_weights  # noqa: E402

_CARD = PolicyCard(
    name="reach by touch",
    data=({"name": "demos@1", "episodes": 50, "sim": True}, {"name": "real@2", "episodes": 10, "share": 0.25}),
    provenance={"code": "0.1.0", "twin_hash": "ab12"},
    metrics={"held_out_error_deg": 1.2345678901},
    notes=("It has never seen | a dark room.",),
)


@pytest.fixture
def saved(tmp_path):
    """A saved policy: its folder and the policy."""
    policy = small("mlp")
    return policy.save(tmp_path / "policy", _CARD), policy


@pytest.mark.parametrize("kind", SMALL)
def test_a_policy_comes_back_bit_for_bit(kind, tmp_path):
    of = contract(cameras={"front": (16, 16)})
    policy = small(kind, of, n_obs_steps=2, domains=["sim", "real"], action_space="delta_to_state")
    again = open_policy(policy.save(tmp_path / "p"))
    assert again.hash == policy.hash
    assert again.settings == policy.settings
    assert again.contract == policy.contract
    assert again.statistics.to_json() == policy.statistics.to_json()
    seen = observation(policy, 3)
    for mine, theirs in zip(policy.predict_with_features(seen), again.predict_with_features(seen), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not again.training


def test_the_hash_covers_what_decides_the_commands_and_nothing_else(tmp_path):
    policy = small("mlp")
    same = open_policy(policy.save(tmp_path / "with_a_card", _CARD))
    assert same.hash == policy.hash == open_policy(policy.save(tmp_path / "without")).hash
    others = [
        small("mlp", seed=1),
        small("mlp", n_action_steps=3),
        small("mlp", contract(task="reach")),
        small("mlp", normalization="min_max"),
    ]
    assert len({policy.hash, *(other.hash for other in others)}) == 5
    with torch.no_grad():
        same.network.head.bias[0] += 1e-6
    assert same.hash != policy.hash


def test_saving_again_replaces_the_whole_and_keeps_what_is_not_ours(saved):
    folder, _ = saved
    (folder / "notes.txt").write_text("mine")
    other = small("flow", seed=3)
    other.save(folder)
    assert open_policy(folder).hash == other.hash
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "notes.txt",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]


def test_two_writers_do_not_mix(saved):
    folder, policy = saved
    lock = FolderLock(folder)
    with pytest.raises(DatasetLockedError, match="Another writer"):
        policy.save(folder)
    lock.release()
    policy.save(folder)


def test_the_card_says_what_it_was_told(saved):
    folder, policy = saved
    text = (folder / "README.md").read_text()
    for part in (
        "# reach by touch",
        f"hash `{policy.hash}`",
        "| `observation.state` | j0 (deg), j1 (deg) |",
        "| chunk | 4 commands, 2 executed |",
        "| name | episodes | sim | share |",
        "| real@2 | 10 |  | 0.25 |",
        "Normalized (mean_std) with the statistics of planted samples.",
        "| held_out_error_deg | 1.23457 |",
        "- It has never seen | a dark room.",
        "library_name: twinloop",
    ):
        assert part in text
    assert read_card(folder) == _CARD


@pytest.mark.parametrize("length", [640, 896, 1152, 1408])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path, length):
    """The length's first bytes are then 80 02 to 80 05, as those of a pickle of that protocol."""
    head = json.dumps({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode().ljust(length)
    values = np.arange(3, dtype=np.float32)
    (tmp_path / "model.safetensors").write_bytes(length.to_bytes(8, "little") + head + values.tobytes())
    np.testing.assert_array_equal(read_weights(tmp_path)["x"], values)


def test_the_weights_file_names_its_policy(saved):
    from safetensors import safe_open

    folder, policy = saved
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"hash": policy.hash}  # more than one would be written in a random order
        np.testing.assert_allclose(
            file.get_tensor("normalizer.columns.action.offset"), policy.statistics.columns["action"].mean, rtol=1e-6
        )


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    policy = small("mlp")
    with torch.no_grad():
        policy.network.head.weight[0, :3] = torch.nan
    with pytest.raises(InputError, match=r"This policy: network.head.weight has 3 of \d+ numbers that are not finite"):
        policy.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def _config(folder, **changes):
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def _tensors(folder, change):
    tensors = load((folder / "model.safetensors").read_bytes())
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def _weights(folder, data):
    (folder / "model.safetensors").write_bytes(data)


def _nan(tensors):
    tensors["network.trunk.0.weight"][2, 1] = float("nan")


def _settings(folder, **changes):
    _config(folder, settings={**json.loads((folder / "config.json").read_text())["settings"], **changes})


def _torch_file(folder):
    torch.save(load((folder / "model.safetensors").read_bytes()), folder / "model.safetensors")


_BROKEN = {
    "cut": (
        lambda f: _weights(f, (f / "model.safetensors").read_bytes()[:-100]),
        r"\d+ bytes\) is not a complete safetensors",
    ),
    "begun": (lambda f: _weights(f, b"\x10"), r"model.safetensors \(1 bytes\) is not a complete safetensors file"),
    "empty": (lambda f: _weights(f, b""), r"model.safetensors \(0 bytes\) is not a complete safetensors file"),
    "huge header": (
        lambda f: _weights(f, b"\xff" * 64),
        r"model.safetensors \(64 bytes\) is not a complete safetensors file",
    ),
    "pickle": (lambda f: _weights(f, pickle.dumps({"a": 1})), "model.safetensors is a pickle.*It was not opened"),
    "torch": (_torch_file, "model.safetensors is a pickle, as torch.save writes"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors does not exist: the policy has no"),
    "shape": (
        lambda f: _tensors(f, lambda t: t.update({"network.head.bias": torch.zeros(3)})),
        r"does not fit its config.json: network.head.bias is torch.float32 \(3,\) but must be torch.float32 \(8,\)",
    ),
    "type": (
        lambda f: _tensors(f, lambda t: t.update({"network.head.bias": torch.zeros(8, dtype=torch.float64)})),
        r"network.head.bias is torch.float64 \(8,\) but must be torch.float32 \(8,\)",
    ),
    "key": (
        lambda f: _tensors(f, lambda t: t.update({"network.haed.bias": t.pop("network.head.bias")})),
        "network.haed.bias is not part of the network; network.head.bias is missing",
    ),
    "nan": (lambda f: _tensors(f, _nan), "network.trunk.0.weight has 1 of 160 numbers that are not finite"),
    "one bit": (
        lambda f: _tensors(f, lambda t: t["network.head.bias"].add_(1e-3)),
        "weights, settings or contract were changed",
    ),
    "horizon": (lambda f: _settings(f, n_action_steps=1), "saved with the hash .*but its content has"),
    "newer": (lambda f: _config(f, schema=2), "config.json has schema 2; this version reads up to 1. Upgrade twinloop"),
    "no hash": (lambda f: _config(f, hash=...), "config.json has no hash: it is damaged or not from twinloop"),
    "kind": (lambda f: _config(f, kind="gpt"), "Unknown policy kind 'gpt'"),
    "settings": (lambda f: _settings(f, wdith=3), r"wdith: .*Nearest existing: width"),
    "size": (lambda f: _settings(f, width=10**9), "width: Input should be less than or equal to 8192"),
    "wider": (lambda f: _settings(f, width=64), "model.safetensors does not fit its config.json: network.head.weight"),
    "contract": (lambda f: _config(f, contract={"robot_type": "arm"}), "its contract or statistics cannot be read"),
    "statistics": (lambda f: _config(f, statistics={"source": "x"}), "its contract or statistics cannot be read"),
    "text": (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
    "list": (lambda f: (f / "config.json").write_text("[]"), "config.json has no schema, kind, settings"),
    "no config": (lambda f: (f / "config.json").unlink(), "is not a policy: it has no config.json"),
    "gone": (shutil.rmtree, "is not a policy: no such folder"),
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_what_is_wrong_with_a_folder_is_named(fault, saved):
    folder, _ = saved
    breaks, said = _BROKEN[fault]
    breaks(folder)
    with pytest.raises((InputError, UnknownNameError), match=said):
        open_policy(folder)


def test_a_folder_says_what_it_is_without_its_weights(saved):
    folder, policy = saved
    (folder / "model.safetensors").unlink()
    assert read_config(folder)["hash"] == policy.hash
    assert read_config(folder)["parameters"] == policy.parameter_count
    _config(folder, card={"data": [1]})
    with pytest.raises(InputError, match="config.json: the card is damaged"):
        read_card(folder)
