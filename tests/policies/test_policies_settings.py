"""Settings are checked where they are written, and normalization is invertible for any column."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.policies import SMALL, contract, observation, small, statistics
from twinloop.core.contract import ACTION, ENVIRONMENT, STATE
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.policies import (
    LAST_COMMAND,
    Statistics,
    new_policy,
    open_policy,
    read_settings,
    relative_actions,
)

_COLUMN = st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=30)


def test_settings_name_what_is_wrong():
    with pytest.raises(UnknownNameError, match="Unknown policy kind 'diffusion'"):
        read_settings("diffusion")
    with pytest.raises(InputError, match=r"widht: .*Nearest existing: width"):
        read_settings("mlp", {"widht": 3})
    assert read_settings("act", {"chunk_size": 8}).n_action_steps == 8
    with pytest.raises(InputError, match="chunk_size: Input should be greater than or equal to 1"):
        read_settings("act", {"chunk_size": 0})
    with pytest.raises(InputError, match=r"n_action_steps \(9\) is larger than chunk_size \(8\)"):
        read_settings("flow", {"chunk_size": 8, "n_action_steps": 9})
    with pytest.raises(InputError, match=r"width \(100\) must be a multiple of 4 times the heads \(16\)"):
        read_settings("act", {"width": 100})
    with pytest.raises(InputError, match="default_domain 'real' is not among the domains: sim"):
        read_settings("mlp", {"domains": ["sim"], "default_domain": "real"})


@pytest.mark.parametrize("kind", SMALL)
def test_settings_survive_their_plain_form(kind):
    chosen = read_settings(kind, {"domains": ["sim", "real"], "images": {"channels": [8, 16]}})
    assert read_settings(kind, chosen.model_dump(mode="json")) == chosen


@pytest.mark.parametrize("kind", SMALL)
def test_stored_settings_with_the_former_name_of_images_are_read(kind):
    assert read_settings(kind, {"pictures": {"channels": [8, 16]}}) == read_settings(
        kind, {"images": {"channels": [8, 16]}}
    )


def test_a_domain_has_an_index_and_none_is_unknown():
    chosen = read_settings("mlp", {"domains": ["sim", "real"], "default_domain": "real"})
    assert [chosen.domain_index(name) for name in ("", "sim", "real", None)] == [0, 1, 2, 2]
    with pytest.raises(UnknownNameError, match="Unknown domain 'rael'.*Nearest existing: real"):
        chosen.domain_index("rael")


@settings(max_examples=50)
@given(column=_COLUMN, mode=st.sampled_from(["mean_std", "min_max", "quantile"]), at=st.floats(-1e4, 1e4))
def test_a_normal_form_is_finite_and_goes_back(column, mode, at):
    found = Statistics.measure({"x": np.array(column)[:, None]}, source="s").columns["x"]
    (offset,), (scale,) = found.affine(mode)
    assert np.isfinite([offset, scale]).all()
    assert scale >= 0
    if np.ptp(column) > 1e-6 * np.abs(column).max():
        assert scale > 0
        normal = (np.array(column) - offset) / scale
        assert np.isfinite(normal).all()
        np.testing.assert_allclose(offset + scale * normal, column, rtol=1e-9, atol=1e-9)
        if mode == "min_max":
            assert np.abs(normal).max() == pytest.approx(1)
    else:
        assert scale == 0
        assert offset == min(column)


def test_modes_are_what_they_are_called():
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(3, 2, 5000), np.where(np.arange(5000) < 20, 1.0, 0.0)], axis=1)
    found = Statistics.measure({"x": values}, source="s").columns["x"]
    for mode in ("mean_std", "min_max", "quantile"):
        offset, scale = found.affine(mode)
        normal = (values - offset) / scale
        if mode == "mean_std":
            np.testing.assert_allclose([normal.mean(axis=0), normal.std(axis=0)], [[0, 0], [1, 1]], atol=1e-9)
        elif mode == "min_max":
            np.testing.assert_allclose([normal.min(axis=0), normal.max(axis=0)], [[-1, -1], [1, 1]], atol=1e-9)
        else:
            assert np.quantile(normal[:, 0], [0.01, 0.99]) == pytest.approx([-1, 1])
            # 1 and 99 % coincide in the second column: its range is taken
            assert set(np.round(normal[:, 1], 9)) == {-1.0, 1.0}


@pytest.mark.parametrize("kind", SMALL)
def test_a_constant_column_says_nothing_and_is_commanded_as_it_was(kind):
    pytest.importorskip("torch")
    of = contract()
    measured = statistics(of).columns
    rng = np.random.default_rng(0)
    samples = {STATE: rng.normal(size=(50, 2)), ENVIRONMENT: rng.normal(size=(50, 3)), ACTION: rng.normal(size=(50, 2))}
    samples[STATE][:, 1], samples[ACTION][:, 0] = 7.0, -4.25
    assert set(samples) < set(measured)
    policy = new_policy(kind, of, {"chunk_size": 4, "n_action_steps": 2}, Statistics.measure(samples, source="s"))
    seen = observation(policy, 5)
    chunk = policy.predict(seen)
    assert np.isfinite(chunk).all()
    assert (chunk[..., 0] == -4.25).all()
    seen[STATE][..., 1] += 1000.0
    np.testing.assert_array_equal(policy.predict(seen), chunk)


def test_statistics_survive_their_plain_form_and_name_what_is_wrong():
    made = statistics(contract())
    again = Statistics.from_json(made.to_json())
    assert again.to_json() == made.to_json()
    with pytest.raises(UnknownNameError, match=r"Unknown statistic 'actoin' in the statistics of planted samples"):
        made.require("actoin", 2)
    with pytest.raises(InputError, match="have 2 columns of action, but the policy's contract has 6"):
        made.require(ACTION, 6)
    with pytest.raises(InputError, match="x has 1 values that are not finite, the first in row 1, column 0"):
        Statistics.measure({"x": [[1.0], [np.nan]]}, source="s")
    with pytest.raises(InputError, match="x has no samples"):
        Statistics.measure({"x": np.empty((0, 3))}, source="s")


def test_relative_actions_are_what_the_policy_adds_to_the_reading():
    pytest.importorskip("torch")
    absolute, relative = (small("mlp", action_space=space) for space in ("absolute", "delta_to_state"))
    seen = observation(absolute, 3)
    chunk = relative.predict(seen)
    np.testing.assert_allclose(relative_actions(chunk, seen[STATE][:, -1]), absolute.predict(seen), atol=1e-4)


def test_actions_relative_to_the_last_command_are_added_to_it_and_need_it():
    pytest.importorskip("torch")
    policy = small("mlp", action_space="delta_to_command", last_command=True)
    seen = observation(policy, 3)
    shifted = {**seen, LAST_COMMAND: seen[LAST_COMMAND] * 0}
    policy.network.head.weight.data.zero_()
    moved = policy.predict(seen) - policy.predict(shifted)
    np.testing.assert_allclose(moved, np.repeat(seen[LAST_COMMAND][:, None], moved.shape[1], axis=1), atol=1e-4)
    with pytest.raises(InputError, match="delta_to_command needs last_command: true"):
        read_settings("mlp", {"action_space": "delta_to_command"})


def test_a_policy_is_made_of_what_fits_together():
    pytest.importorskip("torch")
    blind = contract(state=None, environment=0)
    with pytest.raises(InputError, match="needs an observation"):
        new_policy("mlp", blind, {}, statistics(blind))
    with pytest.raises(InputError, match=r"action has j0, j1, observation.state has none. Choose absolute"):
        new_policy("mlp", contract(state=None), {"action_space": "delta_to_state"}, statistics(contract()))
    tiny = contract(cameras={"front": (4, 64)})
    with pytest.raises(
        InputError, match="Camera front gives 64x4 pixels; the layers of .* that halve an image need at least 16"
    ):
        new_policy("mlp", tiny, {}, statistics(tiny))
    bare = Statistics(
        columns={k: v for k, v in statistics(contract()).columns.items() if k != LAST_COMMAND}, source="s"
    )
    with pytest.raises(UnknownNameError, match="Unknown statistic 'observation.last_command'"):
        new_policy("mlp", contract(), {"last_command": True, "action_space": "delta_to_state"}, bare)


@pytest.mark.parametrize("missing", ["torch", "safetensors.torch"])
def test_without_torch_it_says_what_to_install(missing, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    said = {"schema": 1, "kind": "mlp", "settings": {}, "contract": {}, "statistics": {}, "hash": ""}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(MissingDependencyError, match=r"pip install 'twinloop\[train\]'"):
        open_policy(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"Policies need torch and safetensors"):
        new_policy("mlp", contract(), {}, statistics(contract()))
