"""Laws of every kind of network, and what each must be able to learn."""

from __future__ import annotations

import numpy as np
import pytest

from support.policies import SMALL, batch, contract, observation, small
from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE
from twinloop.core.errors import InputError
from twinloop.policies import LAST_COMMAND, Statistics, new_policy

torch = pytest.importorskip("torch")

from twinloop.policies.act import Attention, position_encodings  # noqa: E402
from twinloop.policies.network import SpatialSoftmax  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine cost more than they give to networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_SEEN = {
    "joints": {},
    "tracker alone": {"state": None},
    "joints alone": {"environment": 0},
    "pictures alone": {"state": None, "environment": 0, "cameras": {"front": (16, 24)}},
    "all": {"cameras": {"wrist": (16, 16), "front": (16, 24)}},
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("seen", _SEEN)
def test_what_is_seen_becomes_chunks_and_gradients(kind, seen):
    of = contract(**_SEEN[seen])
    if kind == "adaptive" and of.state is None:
        pytest.skip("it remembers the joints")
    held = seen == "all" or kind == "adaptive"
    policy = small(kind, of, n_obs_steps=2, domains=["sim", "real"], last_command=held)
    rows = batch(policy, 5)
    chunk, features = policy.predict_with_features({key: rows[key] for key in policy.observation_keys})
    assert chunk.shape == (5, 4, 2)
    assert features.shape[0] == 5
    assert np.isfinite(chunk).all()
    assert np.isfinite(features).all()
    policy.train()
    total, each, parts = policy.loss({**rows, "domain": torch.tensor([0, 1, 2, 1, 0])})
    assert each.shape == (5,)
    assert torch.allclose(total, each.mean())
    assert all(value.ndim == 0 and not value.requires_grad for value in parts.values())
    total.backward()
    idle = [name for name, value in policy.named_parameters() if value.grad is None or not value.grad.isfinite().all()]
    assert not idle
    assert {name.split(".")[1] for name, _ in policy.named_parameters()} >= {"encoder", "trunk", "head"} - (
        {"encoder"} if kind != "act" and not of.cameras and not policy.settings.domains else set()
    )


@pytest.mark.parametrize("kind", SMALL)
def test_what_stands_beyond_an_episode_changes_nothing(kind):
    policy = small(kind)
    rows = batch(policy, 6)
    is_pad = torch.tensor([[False, False, True, True]] * 3 + [[False, True, True, True]] * 3)
    other = rows[ACTION].clone()
    other[is_pad] = torch.nan

    def losses(action):
        given = {**rows, ACTION: action, "action_is_pad": is_pad}
        return policy.loss(given, torch.Generator().manual_seed(0))

    (a, each_a, parts_a), (b, each_b, parts_b) = losses(rows[ACTION]), losses(other)
    assert torch.equal(a, b)
    assert torch.equal(each_a, each_b)
    assert parts_a == parts_b
    unmasked, _, _ = policy.loss(rows, torch.Generator().manual_seed(0))
    assert not torch.equal(a, unmasked)


def test_padding_is_not_seen_by_the_posterior_either():
    policy = small("act")
    posterior = policy.network.posterior
    vectors, action = torch.randn(3, 2, 32), torch.randn(3, 4, 2)
    is_pad = torch.tensor([[False, False, False, True]] * 3)
    other = action.clone()
    other[is_pad] = 100.0
    with torch.no_grad():
        for mine, theirs in zip(posterior(vectors, action, is_pad), posterior(vectors, other, is_pad), strict=True):
            assert torch.equal(mine, theirs)
        assert not torch.equal(posterior(vectors, action, ~is_pad)[0], posterior(vectors, other, ~is_pad)[0])


def test_the_divergence_is_that_of_two_normals():
    policy = small("act", kl_weight=3.0)
    rows = batch(policy, 7)
    _, each, parts = policy.loss(rows, torch.Generator().manual_seed(0))
    with torch.no_grad():
        inputs = policy._inputs(rows, None)
        action = policy.normalizer(ACTION, rows[ACTION].float())
        mean, log_variance = policy.network.posterior(
            policy.network.encoder.encode_vectors(inputs), action, torch.zeros(7, 4, dtype=torch.bool)
        )
    spread = torch.distributions.Normal(mean, (log_variance / 2).exp())
    known = torch.distributions.kl_divergence(spread, torch.distributions.Normal(0.0, 1.0)).sum(dim=-1)
    assert parts["kl"] == pytest.approx(known.mean().item(), rel=1e-5)
    assert each.mean().item() == pytest.approx((parts["l1"] + 3 * parts["kl"]).item(), rel=1e-5)


@pytest.mark.parametrize("kind", SMALL)
def test_a_row_is_answered_alike_in_any_company(kind):
    policy = small(kind)
    seen = observation(policy, 70)
    noise = np.random.default_rng(5).normal(size=(70, policy.noise_size))
    chunk, features = policy.predict_with_features(seen, noise)
    order = np.random.default_rng(0).permutation(70)
    mixed = policy.predict({key: rows[order] for key, rows in seen.items()}, noise[order])
    np.testing.assert_array_equal(mixed, chunk[order])
    alone, latent = policy.predict_with_features({key: rows[41:42] for key, rows in seen.items()}, noise[41:42])
    np.testing.assert_array_equal(alone[0], chunk[41])
    np.testing.assert_array_equal(latent[0], features[41])


@pytest.mark.parametrize("kind", SMALL)
def test_portions_give_what_the_network_gives_at_once(kind):
    policy = small(kind)
    seen = observation(policy, 37)
    with torch.no_grad():
        chunk, features = policy({key: torch.as_tensor(rows) for key, rows in seen.items()})
    again, latent = policy.predict_with_features(seen)
    np.testing.assert_allclose(again, chunk.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(latent, features.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(policy.predict(seen), again)
    np.testing.assert_array_equal(policy.predict_with_features(seen)[1], latent)


@pytest.mark.parametrize("kind", SMALL)
def test_a_seed_makes_the_weights_and_leaves_the_callers_chance(kind):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, again, other = (small(kind, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    assert first.hash == again.hash != other.hash


def test_predicting_leaves_mode_and_threads_as_they_were():
    policy = small("act")
    policy.train()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = observation(policy, 2)
        np.testing.assert_array_equal(policy.predict(seen), policy.predict(seen))  # no dropout
        assert policy.training
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", SMALL)
def test_a_domain_token_and_the_last_command_are_inputs(kind):
    policy = small(kind, domains=["sim", "real"], last_command=True)
    seen = observation(policy, 3)
    said = {name: policy.predict(seen, domain=name) for name in ("", "sim", "real")}
    assert all(not np.array_equal(said[a], said[b]) for a, b in (("", "sim"), ("sim", "real")))
    np.testing.assert_array_equal(policy.predict(seen), said[""])
    other = policy.predict({**seen, LAST_COMMAND: seen[LAST_COMMAND] + 5})
    assert not np.array_equal(other, said[""])


def test_noise_decides_where_it_should_and_nowhere_else():
    assert small("mlp").noise_size == small("act").noise_size == 0
    assert small("act", sample_latent=True).noise_size == 4
    for policy in (small("flow"), small("act", sample_latent=True)):
        seen, rng = observation(policy, 2), np.random.default_rng(0)
        a, b = (policy.predict(seen, rng.normal(size=(2, policy.noise_size))) for _ in range(2))
        assert not np.array_equal(a, b)
        np.testing.assert_array_equal(policy.predict_with_features(seen)[1], policy.predict_with_features(seen)[1])


def test_an_observation_that_does_not_fit_is_named():
    policy = small("mlp", n_obs_steps=2)
    seen = observation(policy, 3)
    with pytest.raises(InputError, match="The observation has no observation.state, which the policy needs. It has: "):
        policy.predict({ENVIRONMENT: seen[ENVIRONMENT]})
    with pytest.raises(InputError, match=r"observation.state has shape \(3, 1, 2\); the policy expects \(n, 2, 2\)"):
        policy.predict({**seen, STATE: seen[STATE][:, :1]})
    with pytest.raises(InputError, match="different numbers of rows"):
        policy.predict({**seen, STATE: seen[STATE][:2]})
    sees = small("mlp", contract(cameras={"front": (16, 16)}))
    for floats in (observation(sees, 3), batch(sees, 3)):
        floats[IMAGES + "front"] = floats[IMAGES + "front"] / 255
        with pytest.raises(InputError, match=r"observation.images.front is .*float(32|64); .*in uint8, 0 to 255"):
            sees.predict(floats)
    rows = batch(policy, 3)
    with pytest.raises(InputError, match=r"observation.state has shape \(3, 1, 2\); the policy expects \(n, 2, 2\)"):
        policy.loss({**rows, STATE: rows[STATE][:, :1]})
    with pytest.raises(InputError, match=r"action has shape \(3, 3, 2\); the policy expects \(3, 4, 2\)"):
        policy.loss({**rows, ACTION: rows[ACTION][:, :3]})


def test_keypoints_are_where_the_channel_answers():
    cells = torch.full((1, 2, 5, 9), -50.0)
    cells[0, 0, 1, 6] = 50.0
    cells[0, 1, 4, 0] = cells[0, 1, 4, 8] = 50.0
    columns, rows = SpatialSoftmax()(cells).reshape(2, 2)
    assert columns.tolist() == pytest.approx([2 * 6 / 8 - 1, 0.0], abs=1e-6)
    assert rows.tolist() == pytest.approx([2 * 1 / 4 - 1, 1.0], abs=1e-6)


def test_attention_is_its_formula():
    torch.manual_seed(0)
    attention = Attention(16, 4, 0.0).eval()
    tokens, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    seen = [7, 4, 1]
    is_pad = torch.arange(7) >= torch.tensor(seen)[:, None]
    with torch.no_grad():
        found = attention(tokens, memory, is_pad)
        for row, count in enumerate(seen):
            query, key = attention.query(tokens[row]), attention.key(memory[row, :count])
            value = attention.value(memory[row, :count])
            heads = [slice(start, start + 4) for start in range(0, 16, 4)]
            shares = [(query[:, head] @ key[:, head].T / 4**0.5).softmax(dim=-1) for head in heads]
            known = torch.cat([share @ value[:, head] for share, head in zip(shares, heads, strict=True)], dim=-1)
            assert torch.allclose(found[row], attention.out(known), atol=1e-6)


def test_places_are_the_sines_of_the_paper():
    found = position_encodings(7, 8)
    assert found[5, 2].item() == pytest.approx(np.sin(5 / 10_000 ** (2 / 8)), abs=1e-6)
    assert found[5, 7].item() == pytest.approx(np.cos(5 / 10_000 ** (6 / 8)), abs=1e-6)


class _Known(torch.nn.Module):
    """A field whose flow from 1 is exp(sin t)."""

    def forward(self, point, time, features):
        return point * time[:, None].cos()


def test_midpoint_steps_are_of_second_order():
    """Along a field whose flow is known, halving the step quarters the error, and halves it with Euler's."""
    errors = {}
    for solver in ("euler", "midpoint"):
        for steps in (8, 16):
            policy = small("flow", steps=steps, solver=solver)
            policy.network.head = _Known()
            start = torch.ones(1, policy.noise_size)
            with torch.no_grad():
                found, _ = policy.network.sample(policy._inputs(batch(policy, 1), None), start)
            errors[solver, steps] = abs(found.double().mean().item() - np.exp(np.sin(1.0)))
    assert errors["euler", 8] / errors["euler", 16] == pytest.approx(2, rel=0.2)
    assert errors["midpoint", 8] / errors["midpoint", 16] == pytest.approx(4, rel=0.2)


def _train(policy, rows, steps, lr, seed=0):
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr)
    policy.train()
    for _ in range(steps):
        optimizer.zero_grad()
        policy.loss(rows)[0].backward()
        optimizer.step()
    policy.eval()


_BY_HEART = [
    *((kind, space, {}) for kind in SMALL for space in ("absolute", "delta_to_state")),
    *((kind, "absolute", {"front": (16, 16)}) for kind in SMALL),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "space", "cameras"), _BY_HEART)
def test_every_kind_learns_a_smooth_map_by_heart(kind, space, cameras):
    images = {"channels": [8, 8]}
    policy = small(
        kind, contract(cameras=cameras), action_space=space, n_obs_steps=1, normalization="min_max", images=images
    )
    rows = batch(policy, 50)
    x = torch.cat([rows[STATE][:, 0] / 20, rows[ENVIRONMENT][:, 0] / 0.1], dim=1)
    if cameras:  # the height of a bright square is one of the numbers
        x[:, 0] = torch.linspace(-1.5, 1.5, 50)
        rows[IMAGES + "front"][:] = 0
        for number, row in enumerate(torch.linspace(0, 12, 50).int().tolist()):
            rows[IMAGES + "front"][number, 0, row : row + 4, 4:8] = 255
    step = torch.arange(4) / 4
    rows[ACTION] = 5 + 20 * torch.stack([torch.sin(x[:, :1] + step), torch.cos(x[:, 2:3] - step)], dim=-1)
    if space == "delta_to_state":
        rows[ACTION] = rows[ACTION] + rows[STATE][:, -1:]
    _train(policy, rows, {"mlp": 400, "act": 700, "flow": 1600}[kind], 3e-3)
    found = policy.predict({key: rows[key] for key in policy.observation_keys})
    mean = (rows[ACTION] - rows[ACTION].mean(dim=0)).abs().mean().item()
    assert np.abs(found - rows[ACTION].numpy()).mean() < 0.2 * mean


@pytest.mark.slow
def test_flow_matching_finds_both_ways_and_regression_the_wall_between():
    of, rng, n = contract(joints=1, environment=1), np.random.default_rng(0), 512
    left = rng.uniform(size=n) < 0.3  # two ways round an obstacle, one taken less often
    way = 5 + 20 * np.where(left, -1.0, 1.0)[:, None, None] * np.array([[0.5], [1.0]]) + rng.normal(0, 0.5, (n, 2, 1))
    known = Statistics.measure(
        {**{key: rng.normal(size=(9, 1)) for key in (STATE, ENVIRONMENT)}, ACTION: way}, source="s"
    )
    ends = {}
    for kind in ("flow", "mlp"):
        shape = {**SMALL[kind], "width": 64, "chunk_size": 2, "n_action_steps": 1, "n_obs_steps": 1}
        policy = new_policy(kind, of, {**shape, **({"steps": 5} if kind == "flow" else {})}, known)
        rows = {key: torch.zeros(n, 1, 1) for key in (STATE, ENVIRONMENT)}
        _train(policy, {**rows, ACTION: torch.as_tensor(way)}, 400, 3e-3)
        ends[kind] = policy.predict(rows, rng.normal(size=(n, policy.noise_size)))[:, 1, 0]
    near = {kind: np.abs(np.abs(found - 5) - 20) < 3 for kind, found in ends.items()}
    assert near["flow"].mean() > 0.95
    assert (ends["flow"] < 5).mean() == pytest.approx(left.mean(), abs=0.07)
    assert not near["mlp"].any()


def test_an_input_that_hardly_varied_does_not_decide_on_the_robot():
    """Its scale is 1 % of the most varied input of the vector; a constant one is ignored, and commands keep theirs."""
    of, random = contract(joints=2, environment=3), np.random.default_rng(0)
    seen = random.normal(size=(1000, 3)) * [0.1, 1e-5, 0.0] + 0.5
    joints = random.normal(size=(1000, 2)) * [20.0, 1.0]
    told = random.normal(size=(1000, 2)) * [20.0, 1e-3]
    measured = Statistics.measure(
        {STATE: joints, ENVIRONMENT: seen, ACTION: told, LAST_COMMAND: told}, source="planted"
    )
    made = new_policy("mlp", of, {**SMALL["mlp"], "last_command": True}, measured).normalizer
    off = torch.as_tensor(seen.mean(axis=0) + 0.002, dtype=torch.float32)
    sd = measured.columns[ENVIRONMENT].std[0]
    np.testing.assert_allclose(made(ENVIRONMENT, off), [0.002 / sd, 0.002 / (0.01 * sd), 0.0], rtol=1e-2)
    for key, values, wanted in ((STATE, joints, 1.0), (ACTION, told, 1.0), (LAST_COMMAND, told, 0.005)):
        spread = made(key, torch.as_tensor(values, dtype=torch.float32))[:, 1].std(correction=0)
        assert float(spread) == pytest.approx(wanted, rel=0.1)
