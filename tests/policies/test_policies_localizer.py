"""Localizers: the filter of the estimates, its memory in the policy loop, attached policies, saving and ONNX."""

import dataclasses
import math

import numpy as np
import pytest

from tests.support.policies import SMALL, contract, small, statistics
from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.core.errors import InputError
from twinloop.policies import new_policy, open_policy
from twinloop.policies.policy_loop import PolicyLoop
from twinloop.policies.statistics import MEMORY

torch = pytest.importorskip("torch")

from twinloop.policies.localizer import attach_control  # noqa: E402
from twinloop.policies.network import ConvolutionalEncoder  # noqa: E402
from twinloop.policies.settings import ImageEncoderSettings  # noqa: E402

TRACKED = ("thing.0", "thing.1", "thing.2")
SEEING = dataclasses.replace(contract(cameras={"eye": (16, 20)}), environment=())
IMAGES_OF = {"channels": (8, 8), "halvings": 1, "per_camera": True}


def make_localizer(**changes):
    settings = {"tracked": TRACKED, "images": IMAGES_OF, "width": 16, "depth": 1, "look_every": 1, **changes}
    of = statistics(contract(environment=len(settings["tracked"])))
    return new_policy("localizer", SEEING, settings, of, seed=3)


def make_control(**changes):
    settings = {**SMALL["mlp"], "chunk_size": 1, "n_action_steps": 1, "action_space": "delta_to_state"}
    of = dataclasses.replace(contract(), environment=("thing.2", "thing.0"))
    return new_policy("mlp", of, {**settings, **changes}, statistics(of), seed=1)


def see(count=2, seed=0):
    rng = np.random.default_rng(seed)
    return {STATE: rng.normal(0, 20, (count, 2)), f"{IMAGES}eye": rng.integers(0, 256, (count, 16, 20, 3), np.uint8)}


def remember(policy, memory, found, deviation, monkeypatch, *, looks=True):
    """One update of the filter with given estimates of an image."""
    values = [torch.tensor(np.array([row]), dtype=torch.float32) for row in (found, deviation)]
    monkeypatch.setattr(policy, "locate", lambda observation: tuple(values))
    row = torch.tensor([[float(looks), *memory]])
    with torch.inference_mode():
        return policy.update_estimates({MEMORY: row})[0].numpy()


def test_estimates_of_a_resting_object_become_their_weighted_mean(monkeypatch):
    policy, memory = make_localizer(), np.zeros(7)
    seen = np.array([[0.1, 0.2, 0.3], [0.11, 0.19, 0.32], [0.105, 0.21, 0.3]])
    spread = np.array([[0.01, 0.02, 0.03], [0.02, 0.02, 0.01], [0.01, 0.04, 0.02]])
    for found, deviation in zip(seen, spread, strict=True):
        memory = remember(policy, memory, found, deviation, monkeypatch)
    weights = 1 / spread**2
    np.testing.assert_allclose(memory[1:4], (seen * weights).sum(axis=0) / weights.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(memory[4:], 1 / weights.sum(axis=0), rtol=1e-4)


def test_between_images_estimates_are_held_and_their_variance_grows(monkeypatch):
    policy = make_localizer()
    policy.drift.copy_(torch.tensor([1e-4, 0.0, 1e-6]))
    memory = remember(policy, np.zeros(7), (0.1, 0.2, 0.3), (0.01, 0.01, 0.01), monkeypatch)
    held = remember(policy, memory, (9.0, 9.0, 9.0), (0.01, 0.01, 0.01), monkeypatch, looks=False)
    np.testing.assert_array_equal(held[:4], memory[:4])
    np.testing.assert_allclose(held[4:] - memory[4:], [1e-4, 0.0, 1e-6], atol=1e-9)


def test_an_object_that_was_moved_is_followed_and_an_uncertain_image_is_not(monkeypatch):
    policy = make_localizer()
    start = np.array([1.0, 0.1, 0.1, 0.1, 1e-6, 1e-6, 1e-6])
    moved = remember(policy, start, (0.2, 0.1, 0.2), (0.005, 0.005, 0.5), monkeypatch)
    assert abs(moved[1] - 0.2) < 0.001
    assert abs(moved[3] - 0.1) < 0.001


TURNED = ("cube.x", "cube.heading.cos", "cube.heading.sin")


@pytest.mark.parametrize("turns", [0, 1, 2, 4])
def test_the_heading_of_a_symmetric_body_is_known_up_to_a_turn(turns):
    policy = make_localizer(tracked=TURNED, equal_turns={"cube": turns})
    angle = torch.tensor([0.1, 0.7, -2.9, 1.6])
    wanted = torch.stack([torch.zeros(4), angle.cos(), angle.sin()], dim=1)
    away = angle + torch.tensor([np.pi / 2, -np.pi / 2, np.pi, 0.3])
    found = policy.match_turns(wanted, torch.stack([torch.ones(4), away.cos(), away.sin()], dim=1))
    assert (found[:, 0] == 1).all()
    error = (torch.atan2(found[:, 2], found[:, 1]) - angle + np.pi).remainder(2 * np.pi) - np.pi
    expected = {
        0: [0] * 4,
        1: [np.pi / 2, -np.pi / 2, -np.pi, 0.3],
        2: [-np.pi / 2, np.pi / 2, 0, 0.3],
        4: [0, 0, 0, 0.3],
    }
    both = np.abs(np.abs(error.numpy()) - np.abs(expected[turns]))
    np.testing.assert_allclose(both, 0, atol=1e-5)


def estimate(policy, output, spread, monkeypatch):
    """Give a network's output ``(n, d)`` and the logarithm of its variances."""
    rows = [torch.tensor(values, dtype=torch.float32) for values in (output, spread)]
    monkeypatch.setattr(policy.network, "locate", lambda _: tuple(rows))
    monkeypatch.setattr(policy, "encode", lambda _: None)


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_the_network_estimates_as_many_times_the_heading_as_a_body_has_equal_turns(turns, monkeypatch):
    policy = make_localizer(tracked=TURNED, equal_turns={"cube": turns})
    heading, radius = np.random.default_rng(0).uniform(-math.pi, math.pi, 50), 0.8
    folded = radius * np.stack([np.cos(turns * heading), np.sin(turns * heading)], axis=1)
    logarithm = np.full((50, 3), 2 * math.log(0.02))
    estimate(policy, np.column_stack([np.zeros(50), folded]), logarithm, monkeypatch)
    values, deviation = (each.numpy() for each in policy.locate({}))
    found = np.arctan2(values[:, 2], values[:, 1])
    assert np.abs(found).max() < math.pi / turns + 1e-6
    np.testing.assert_allclose(np.exp(1j * turns * found), np.exp(1j * turns * heading), atol=1e-5)
    np.testing.assert_allclose(deviation[:, 1:], 0.02 / (turns * radius), rtol=1e-5)

    def losses(error):
        """Loss of each sample with a heading that is wrong by an error."""
        made = np.empty(50)
        for row in range(50):
            estimate(policy, [[0.0, *folded[row] / radius]], logarithm[[row]], monkeypatch)
            truth = [0.0, math.cos(heading[row] + error), math.sin(heading[row] + error)]
            made[row] = policy.measure_loss({}, torch.tensor([truth]))
        return made

    right, wrong = losses(0.0), losses(0.1)
    assert (wrong > right + 0.01).all()
    np.testing.assert_allclose(wrong, wrong[0], rtol=1e-3)  # as bad at every heading
    np.testing.assert_allclose(losses(2.0 * math.pi / turns), right, atol=1e-4)


def test_a_heading_that_cannot_be_seen_costs_nothing_and_gets_the_wanted_one(monkeypatch):
    policy = make_localizer(tracked=TURNED, equal_turns={"cube": 0})
    losses = []
    for angle in (0.0, 1.0, 3.0):
        estimate(policy, [[0.0, 0.3, -0.4]], np.zeros((1, 3)), monkeypatch)
        losses.append(float(policy.measure_loss({}, torch.tensor([[0.0, math.cos(angle), math.sin(angle)]]))))
    assert losses[0] == losses[1] == losses[2]


def test_the_loop_shows_an_image_only_when_it_is_due_and_forgets_at_a_restart():
    policy = attach_control(make_localizer(look_every=3), make_control())
    loop, seeing, features = PolicyLoop(policy, 2), [], []
    for step in range(7):
        if step == 5:
            loop.restart([1])
        seeing.append(loop.find_seeing_worlds().tolist())
        loop.act(see(seed=step))
        features.append(loop.features.copy())
    assert [row[0] for row in seeing] == [True, False, False, True, False, False, True]
    assert [row[1] for row in seeing[5:]] == [True, False]
    np.testing.assert_array_equal(features[1][:, 1:4], features[0][:, 1:4])
    assert not np.array_equal(features[3][:, 1:4], features[2][:, 1:4])
    alone = PolicyLoop(policy, 2)
    alone.act(see(seed=5))
    np.testing.assert_array_equal(features[5][1], alone.features[1])


def test_the_control_policy_acts_on_the_estimates_in_its_own_order():
    localizer, control = make_localizer(), make_control()
    policy, seen = attach_control(localizer, control), see()
    loop = PolicyLoop(policy, 2)
    commands = loop.act(seen)
    tracked = loop.features[:, 1:4]
    found = localizer.estimate_tracked({key: values[:, None] for key, values in seen.items()})[0]
    np.testing.assert_allclose(tracked, found, rtol=1e-6)
    commanded = attach_control(localizer, make_control(last_command=True, action_space="delta_to_command"))
    again = commanded.estimate_tracked({key: values[:, None] for key, values in seen.items()})[0]
    np.testing.assert_array_equal(again, found)
    wanted = control.predict({STATE: seen[STATE][:, None], ENVIRONMENT: tracked[:, None, [2, 0]]})[:, 0]
    np.testing.assert_allclose(commands, wanted, rtol=1e-5)
    assert policy.contract.environment == ()
    assert policy.settings.action_space == "delta_to_state"


def test_saved_and_exported_it_gives_the_same_commands(tmp_path):
    pytest.importorskip("onnxscript")
    from twinloop.policies.onnx_export import export_onnx

    policy = attach_control(make_localizer(look_every=2), make_control())
    policy.save(tmp_path / "policy")
    opened = open_policy(tmp_path / "policy")
    assert opened.hash == policy.hash
    exported, difference = export_onnx(opened, tmp_path / "policy.onnx")
    assert difference < 1e-5
    loops = [PolicyLoop(one, 2) for one in (policy, opened, exported)]
    for step in range(4):
        rows = [loop.act(see(seed=step)) for loop in loops]
        np.testing.assert_array_equal(rows[0], rows[1])
        np.testing.assert_allclose(rows[0], rows[2], rtol=1e-4, atol=1e-4)


def test_the_loss_is_least_for_the_true_values_and_the_true_spread():
    policy = make_localizer()
    seen = {key: torch.as_tensor(values[:, None]) for key, values in see(64).items()}
    with torch.inference_mode():
        found, spread = policy.locate(seen)
        near = policy.measure_loss(seen, found)
        far = policy.measure_loss(seen, found + 3 * spread)
    assert near < far


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_localizer().predict({**{k: v[:, None] for k, v in see().items()}, MEMORY: np.zeros((2, 8))}),
         "no control policy.*localize attach"),
        (lambda: attach_control(make_localizer(), make_control(n_obs_steps=2)), "2 steps of observations"),
        (lambda: attach_control(make_localizer(), small("mlp", SEEING)), "has cameras"),
        (lambda: attach_control(make_localizer(tracked=("thing.0",)), make_control()), "reads thing.2, which"),
        (lambda: attach_control(make_localizer(), small("mlp", contract(joints=3))), "does not fit"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_filter_keeps_the_heading_of_a_cube_that_an_image_shows_turned_by_a_quarter(monkeypatch):
    policy = make_localizer(tracked=TURNED, equal_turns={"cube": 4})
    start = np.array([1.0, 0.1, np.cos(0.1), np.sin(0.1), 1e-4, 1e-4, 1e-4])
    seen = (0.1, np.cos(0.1 + np.pi / 2), np.sin(0.1 + np.pi / 2))
    after = remember(policy, start, seen, (0.01, 0.01, 0.01), monkeypatch)
    np.testing.assert_allclose(after[1:4], start[1:4], atol=1e-6)


def test_control_gets_headings_on_the_unit_circle():
    policy = make_localizer(tracked=TURNED)
    found = policy.normalize_headings(torch.tensor([[0.3, 0.3, 0.4], [0.1, 0.0, -2.0]]))
    np.testing.assert_allclose(found.numpy(), [[0.3, 0.6, 0.8], [0.1, 0.0, -1.0]], rtol=1e-6)


def test_dilated_layers_cost_nothing_and_keep_the_size_of_the_feature_map():
    encoders = [
        ConvolutionalEncoder(ImageEncoderSettings(channels=(8, 8, 8, 8), halvings=2, dilated=dilated))
        for dilated in (False, True)
    ]
    dilations = [[layer.dilation[0] for layer in one.layers if isinstance(layer, torch.nn.Conv2d)] for one in encoders]
    assert dilations == [[1, 1, 1, 1], [1, 1, 2, 4]]
    maps = [one(torch.zeros(2, 3, 48, 64)) for one in encoders]
    assert maps[0].shape == maps[1].shape == (2, 8, 12, 16)
    assert "dilated" not in ImageEncoderSettings().model_dump_json()  # so hashes of earlier policies remain


def test_headings_are_those_of_the_training_worlds_and_do_not_jump_at_their_limit(monkeypatch):
    policy = make_localizer(tracked=TURNED, equal_turns={"cube": 4})
    middle = 0.3  # rad: mean heading of the training worlds
    usual = torch.tensor([0.0, math.cos(middle), math.sin(middle)])
    monkeypatch.setattr(policy, "_usual_values", lambda: usual)

    def see(degrees, memory=(0.0,) * 7):
        angle = math.radians(degrees)
        found = [0.0, math.cos(angle), math.sin(angle)]
        after = remember(policy, memory, found, [1e-3, 1e-3, 1e-3], monkeypatch)
        return after, math.degrees(math.atan2(after[3], after[2]))

    first, seen = see(middle * 57.3 + 30 + 180)
    assert seen == pytest.approx(middle * 57.3 + 30, abs=0.1)
    memory = first
    for beyond in (40.0, 50.0, 55.0):  # more than half a turn from the mean, and kept
        memory, seen = see(middle * 57.3 + beyond, memory)
        assert seen == pytest.approx(middle * 57.3 + beyond, abs=6.0)
    memory, seen = see(middle * 57.3 + 75.0, memory)
    assert seen == pytest.approx(middle * 57.3 - 15.0, abs=6.0)
