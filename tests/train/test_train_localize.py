"""Training of localizers: what is collected, resumption, held-out worlds and their uncertainty, and clear errors."""

import functools
import math

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.section import section_plan
from twinloop.tasks import open_task
from twinloop.twin import load_twin

torch = pytest.importorskip("torch")

from tests.support.policies import SMALL as SMALL_POLICIES  # noqa: E402
from tests.support.policies import statistics  # noqa: E402
from twinloop.policies import new_policy, open_policy  # noqa: E402
from twinloop.policies.localizer import detach_control  # noqa: E402
from twinloop.rollout.observing import offered_contract  # noqa: E402
from twinloop.train import localize as module  # noqa: E402
from twinloop.train.distill import choose_inputs  # noqa: E402
from twinloop.train.images import augment_images, uses_devices  # noqa: E402
from twinloop.train.localize import (  # noqa: E402
    ImageSamples,
    LocalizeConfig,
    fit_uncertainty,
    held_out,
    measure_errors,
    train_localizer,
    train_network,
)
from twinloop.train.tool import ToolKinematics  # noqa: E402

SMALL = {"worlds": 12, "frames": 3, "height": 24, "width": 24, "steps": 8, "batch": 4, "holdout": 0.3}
SMALL |= {"settings": {"images": {"channels": [8, 8], "halvings": 1, "per_camera": True}, "width": 16, "depth": 1}}


def open_worlds(rooms=0):
    twin = load_twin("so101_tabletop")
    section = {"default": True, **({"visual": {"rooms": rooms}} if rooms else {})}
    task = open_task("pick_and_place", twin)
    task.nstep = 12
    return section_plan(section, twin, run_seed=3, episodes=100, where="test"), task


def make_control():
    plan, task = open_worlds()
    of = choose_inputs(offered_contract(plan.twin, task), ())
    settings = {**SMALL_POLICIES["mlp"], "chunk_size": 1, "n_action_steps": 1, "action_space": "delta_to_command"}
    settings |= {"last_command": True}
    return new_policy("mlp", of, settings, statistics(of), seed=1)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Samples of a run that stops before the training."""
    run = module.LocalizeRun(
        open_worlds=open_worlds, config=LocalizeConfig(**SMALL), folder=tmp_path_factory.mktemp("run")
    )
    return run, run.collect()


def test_samples_are_of_the_wanted_worlds_and_their_truth_is_what_the_simulation_knows(samples):
    run, found = samples
    assert np.bincount(found.world).tolist() == [3] * 12
    assert found.images["front"].shape == (36, 24, 24, 3)
    assert uses_devices(run.plan.twin, run.config)  # the example twin has models of its cameras
    assert run.tracked[:3] == ("cube.x", "cube.y", "cube.z")
    plan, task = open_worlds()
    actor = module.ExpertActor(task=task)
    batch = module.run_batch(plan.twin, task, plan.draw(range(12)), run_seed=0, episodes=range(12), actor=actor)
    for state, world in zip(found.state, found.world, strict=True):
        assert np.abs(batch.observation[world] - state).max(axis=1).min() < 1e-4  # a reading in the dataset's units
    cube, target = found.truth[:, :3], found.truth[:, 3:6]
    for world in range(12):
        one = found.world == world
        moved = batch.trajectories.states[world, :-1]
        match = np.abs(batch.observation[world][:, None] - found.state[one]).max(axis=-1).argmin(axis=0)
        tool = ToolKinematics(plan.twin)
        believed = tool.locate(plan.twin.units.to_si(found.state[one].astype(float)))
        true = task.environment(moved)[match]
        apart = true[:, task.environment_names.index("target.x")] - true[:, task.environment_names.index("tool.x")]
        np.testing.assert_allclose(target[one, 0] - believed[:, 0], apart, atol=2e-5)
        height = true[:, task.environment_names.index("target.z")]
        np.testing.assert_allclose(target[one, 2], height, atol=1e-6)
    assert (np.abs(cube[:, 2]) < 0.1).all()
    assert len({image.tobytes() for image in found.images["front"]}) > 12


def test_a_policy_from_images_is_trained_on_with_images_of_its_own_trials(tmp_path, monkeypatch):
    control = make_control()
    train_localizer(open_worlds, LocalizeConfig(**SMALL), tmp_path / "base", control=control)
    base = open_policy(tmp_path / "base")
    acted = list[str]()
    choose = module._choose_actor

    def spy(*given):
        acted.append(type(given[0].acting).__name__)
        return choose(*given)

    monkeypatch.setattr(module, "_choose_actor", spy)
    monkeypatch.setattr(module, "_BATCH", 4)
    config = LocalizeConfig(worlds=12, frames=3, steps=4, batch=4, holdout=0.3)
    made = train_localizer(open_worlds, config, tmp_path / "more", base=base)
    assert acted == ["Localizer"] * 3
    assert made["control"] == control.hash
    more = open_policy(tmp_path / "more")
    assert more.contract.cameras == {"front": (24, 24), "wrist": (24, 24)}
    assert more.control.hash == control.hash
    before, after = base.network.state_dict(), more.network.state_dict()
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert 0.0 < moved < 0.05  # four steps from the weights of the base
    for given, message in (
        ({"base": base, "control": control}, "with its own policy and settings"),
        ({"base": detach_control(base)}, "has no policy that could act"),
    ):
        with pytest.raises(InputError, match=message):
            train_localizer(open_worlds, config, tmp_path / "wrong", **given)


def test_wrong_settings_and_policies_are_refused_before_an_image_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "take_images", lambda *_: pytest.fail("images were taken"))
    for changes, control, message in (
        ({"settings": {"look_evry": 2}}, None, "look_evry"),
        ({"settings": {"images": {"pretrained": "resnet"}}}, None, "efficientnet_lite0"),
        ({"tracked": ("target",)}, make_control(), "which this localizer does not estimate"),
    ):
        with pytest.raises(InputError, match=message):
            train_localizer(open_worlds, LocalizeConfig(**{**SMALL, **changes}), tmp_path / "wrong", control=control)
    assert not (tmp_path / "wrong").exists()


def test_images_end_soon_after_the_first_success():
    chance, done = np.random.default_rng(0), np.zeros(100, dtype=bool)
    assert module._choose_steps(chance, done, 200).all()
    done[40:60] = True
    chosen = np.array([module._choose_steps(chance, done, 10) for _ in range(400)])
    assert (chosen.sum(axis=1) == 10).all()
    assert chosen[:, : 40 + module._AFTER].any(axis=0).all()
    assert not chosen[:, 40 + module._AFTER :].any()


def test_the_drift_is_that_of_moving_bodies(samples):
    run, found = samples
    plan, task = open_worlds()
    actor = module.ExpertActor(task=task)
    batch = module.run_batch(plan.twin, task, plan.draw(range(12)), run_seed=0, episodes=range(12), actor=actor)
    for column, name in enumerate(run.tracked):
        values = task.environment(batch.trajectories.states[:, :-1])[..., task.environment_names.index(name)]
        changes = np.diff(values, axis=1)
        changes = changes[np.abs(changes) > 1e-4]
        assert found.drift[column] == pytest.approx((changes**2).mean() if len(changes) else 0.0, rel=1e-6)
    assert found.drift[run.tracked.index("target.x")] == 0.0


def test_samples_do_not_depend_on_the_number_of_processes_and_stored_ones_are_used(samples, tmp_path, monkeypatch):
    run, found = samples
    monkeypatch.setattr(module, "_PART", 6)
    monkeypatch.setattr(module, "_BATCH", 6)
    other = module.LocalizeRun(open_worlds=open_worlds, config=run.config, folder=tmp_path / "a")
    first = other.collect()
    assert sorted(first.world) == sorted(found.world)
    monkeypatch.setattr(module, "take_images", lambda job: pytest.fail("the images exist"))
    again = other.collect()
    for name in ("state", "truth", "world"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_an_interrupted_training_ends_with_the_same_localizer(samples, tmp_path, monkeypatch):
    config = LocalizeConfig(**{**SMALL, "steps": 20})
    whole = train_localizer(open_worlds, config, tmp_path / "whole")
    loss = module.Localizer.measure_loss
    calls = []

    def killed(self, *given):
        calls.append(1)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return loss(self, *given)

    with monkeypatch.context() as changed:
        changed.setattr(module.Localizer, "measure_loss", killed)
        with pytest.raises(KeyboardInterrupt):
            train_localizer(open_worlds, config, tmp_path / "cut")
    resumed = train_localizer(open_worlds, config, tmp_path / "cut", resume=True)
    assert resumed["hash"] == whole["hash"] == open_policy(tmp_path / "cut").hash
    assert not (tmp_path / "cut" / "rounds").exists()
    with pytest.raises(InputError, match="another configuration"):
        train_localizer(open_worlds, LocalizeConfig(**SMALL), tmp_path / "cut", resume=True)


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_uncertainty_fits_held_out_worlds(samples):
    run, found = samples
    rng = np.random.default_rng(0)
    bright = np.repeat(rng.uniform(0.0, 1.0, (1200, 1)), len(run.tracked), axis=1)
    heading, truth = [run.tracked.index(f"cube.heading.{part}") for part in ("cos", "sin")], bright.copy()
    truth[:, heading] = np.stack([np.cos(0.7 * bright[:, 0]), np.sin(0.7 * bright[:, 0])], axis=1)
    planted = ImageSamples(
        images={name: np.broadcast_to((20 + 200 * bright[:, :1, None, None]), (1200, 24, 24, 3)).astype(np.uint8)
                for name in found.images},
        state=rng.normal(0, 1, (1200, found.state.shape[1])).astype(np.float32),
        truth=truth.astype(np.float32),
        world=np.repeat(np.arange(12), 100),
        drift=np.full(len(run.tracked), 1e-6),
    )  # fmt: skip
    config = LocalizeConfig(**{**SMALL, "steps": 300, "batch": 32, "lr": 5e-3})
    localizer = run.make_localizer(planted)
    train_network(localizer, planted, config)
    few = planted.observe(np.arange(5))
    before = localizer.estimate_tracked(few)[1]
    report = fit_uncertainty(localizer, planted, config)
    np.testing.assert_allclose(localizer.estimate_tracked(few)[1], before * localizer.spread.numpy(), rtol=1e-5)
    assert not np.allclose(localizer.spread.numpy(), 1.0, atol=1e-3)
    rows = held_out(planted.world, config)
    error = localizer.estimate_tracked(planted.observe(np.flatnonzero(rows)))[0] - planted.truth[rows]
    assert np.sqrt(np.mean(error**2)) < 0.6 * bright[:, 0].std()  # a change of brightness is among the augmentations
    assert all(0.8 < share <= 1.0 for share in report["inside_95"].values())
    turned = ImageSamples(**{**vars(planted), "truth": planted.truth.copy()})
    turned.truth[:, heading] = turned.truth[:, heading[::-1]] * [-1.0, 1.0]  # a quarter turn of a cube
    again = fit_uncertainty(localizer, turned, config)
    assert again["bodies"]["cube heading, rad"] == pytest.approx(report["bodies"]["cube heading, rad"], abs=1e-6)
    np.testing.assert_allclose(localizer.drift.numpy(), 1e-6 * localizer.settings.look_every)


def test_errors_are_distances_and_angles_with_an_interval_over_worlds():
    rng = np.random.default_rng(1)
    truth = np.zeros((400, 5))
    truth[:, 3:] = [math.cos(3.1), math.sin(3.1)]
    found = truth.copy()
    found[:, :3] = rng.normal(0, 1e-3, (400, 3))
    found[:, 3:] = [math.cos(-3.1), math.sin(-3.1)]
    names = ("a.x", "a.y", "a.z", "a.heading.cos", "a.heading.sin")
    made = measure_errors(names, found, truth, np.repeat(np.arange(40), 10))
    assert made["a, m"]["median"] == pytest.approx(1.538e-3, rel=0.1)  # median of a Maxwell distribution
    assert made["a, m"]["low"] < made["a, m"]["median"] < made["a, m"]["high"] < made["a, m"]["q90"]
    assert made["a heading, rad"]["median"] == pytest.approx(2 * math.pi - 6.2, abs=1e-9)


def test_augmented_images_stay_images_and_differ_by_sample():
    images = torch.full((64, 1, 20, 20, 3), 120, dtype=torch.uint8)
    images[:, :, 10, 10] = 255
    made = augment_images(images, torch.Generator().manual_seed(0))
    assert made.shape == images.shape
    assert made.min() >= 0
    assert made.max() <= 255
    bright = made[..., 1].flatten(1).argmax(dim=1)
    assert len(set(bright.tolist())) > 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cameras": ("side",)}, "camera 'side'"),
        ({"tracked": ("ball",)}, "tracked body 'ball'"),
    ],
)
def test_unknown_cameras_and_bodies_are_named(change, message, tmp_path):
    with pytest.raises(UnknownNameError, match=message):
        train_localizer(open_worlds, LocalizeConfig(**{**SMALL, **change}), tmp_path / "x")


def test_rooms_are_seen(tmp_path):
    run = module.LocalizeRun(
        open_worlds=functools.partial(open_worlds, 50),
        config=LocalizeConfig(**{**SMALL, "worlds": 10, "frames": 1}),
        folder=tmp_path,
    )
    corners = run.collect().images["front"][:, :6, :6].reshape(10, -1).mean(axis=1)
    assert corners.std() > 10
