"""On-policy teaching: shares, provenance, the same weights after an interruption, and clear errors."""

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.hardware.limits import command_limits
from twinloop.policies.folder import read_card
from twinloop.randomize import Draw, Plan, default_draws
from twinloop.randomize.distributions import Choice
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

torch = pytest.importorskip("torch")

from twinloop.policies import open_policy  # noqa: E402
from twinloop.release.envelope import Envelope  # noqa: E402
from twinloop.rollout.actor import EpisodeStart  # noqa: E402
from twinloop.rollout.episodes import run_batch  # noqa: E402
from twinloop.rollout.labelling import LabellingActor  # noqa: E402
from twinloop.rollout.observing import TrackerNoise, offered_contract  # noqa: E402
from twinloop.rollout.policy_actor import PolicyActor  # noqa: E402
from twinloop.train import distill as module  # noqa: E402
from twinloop.train.distill import DistillConfig, describe_weak_expert, distill  # noqa: E402

TWIN = load_twin("so101_tabletop")
PLAN = Plan(twin=TWIN, run_seed=3, draws=tuple(default_draws(TWIN)))
SMALL = {"worlds": 4, "rounds": 2, "steps": 4, "final_steps": 6, "batch": 8, "settings": {"width": 8, "depth": 1}}
EYES = {"images": {"channels": [8, 8], "halvings": 1, "per_camera": True}}
SEEING = {**SMALL, "settings": {"width": 8, "depth": 1, **EYES}, "cameras": ("front",), "height": 20, "width": 24}


@pytest.fixture
def task():
    made = open_task("pick_and_place", TWIN)
    made.nstep = 12
    return made


def test_shares_are_exact_and_the_result_says_who_acted_and_who_labelled(task, tmp_path):
    made = distill(PLAN, task, DistillConfig(**SMALL, expert_share=0.5), tmp_path / "policy")
    assert [(row["by_expert"], row["by_policy"]) for row in made["rounds"]] == [(4, 0), (2, 2)]
    assert all(row["labelled_by"] == task.expert_version and row["steps"] == 48 for row in made["rounds"])
    policy = open_policy(tmp_path / "policy")
    assert policy.hash == made["hash"]
    assert not any(name.startswith("tool") for name in policy.contract.environment)
    assert read_card(tmp_path / "policy").provenance["acted"] == "4 expert + 0 policy, 2 expert + 2 policy"
    assert sorted(path.name for path in (tmp_path / "policy").iterdir() if path.suffix in (".npz", "")) == []
    batch = run_batch(
        TWIN,
        task,
        PLAN.draw(range(2)),
        run_seed=3,
        episodes=range(2),
        actor=PolicyActor(policy=policy, task=task, twin=TWIN),
    )
    assert batch.trajectories.valid.all()


@pytest.mark.parametrize("given", [SMALL, {**SMALL, "policy": "adaptive"}, SEEING], ids=["mlp", "adaptive", "images"])
def test_an_interrupted_run_ends_with_the_same_weights(task, tmp_path, monkeypatch, given):
    config = DistillConfig(**given)
    whole = distill(PLAN, task, config, tmp_path / "whole")
    train = module.DistillRun._train

    def killed(self, learner, number):
        if number == 1:
            raise KeyboardInterrupt
        return train(self, learner, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.DistillRun, "_train", killed)
        distill(PLAN, task, config, tmp_path / "cut")
    with pytest.raises(InputError, match="--resume"):
        distill(PLAN, task, config, tmp_path / "cut")
    with pytest.raises(InputError, match="another configuration"):
        distill(PLAN, task, config.model_copy(update={"lr": 0.1}), tmp_path / "cut", resume=True)
    with pytest.raises(InputError, match="another configuration, twin, task or randomization"):
        distill(Plan(twin=TWIN, run_seed=3, draws=()), task, config, tmp_path / "cut", resume=True)
    torch.rand(1)  # another random state of the process
    assert distill(PLAN, task, config, tmp_path / "cut", resume=True)["hash"] == whole["hash"]


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_the_average_of_the_weights_acts_and_is_the_result(task, tmp_path, monkeypatch, ema):
    step, collect, mean, acted = module._Learner.step, module.DistillRun._collect, [], []

    def averaged(self, batch):
        made = step(self, batch)
        new, done = self.policy.network.head.bias.detach().clone(), len(mean)
        decay = min(ema, (1 + done) / (10 + done))
        mean.append(decay * mean[-1] + (1 - decay) * new if mean else new)
        return made

    def seen(self, number, policy):
        acted.append(None if policy is None else policy.network.head.bias.detach().clone())
        return collect(self, number, policy)

    monkeypatch.setattr(module._Learner, "step", averaged)
    monkeypatch.setattr(module.DistillRun, "_collect", seen)
    distill(PLAN, task, DistillConfig(**{**SMALL, "steps": 12}, lr=0.1, ema=ema), tmp_path / "policy")
    result = open_policy(tmp_path / "policy").network.head.bias
    torch.testing.assert_close(acted[1], mean[11], atol=1e-7, rtol=0)
    torch.testing.assert_close(result.detach(), mean[17], atol=1e-7, rtol=0)


def test_labels_are_the_experts_commands_in_the_states_that_the_policy_visits(task):
    params, initial = PLAN.draw(range(3)), task.reset(PLAN.draw(range(3)), run_seed=3, episodes=range(3))
    contract = offered_contract(TWIN, task)

    class Wrong:
        """A policy that drives one joint away."""

        contract = None
        settings = module.read_settings("mlp", module._SETTINGS)
        noise_size = 0
        observation_keys = ("observation.state", "observation.last_command")

        def predict_with_features(self, seen, noise=None, domain=None):
            return seen["observation.last_command"][:, None] + np.eye(6)[0], np.zeros((3, 1))

    policy = Wrong()
    policy.contract = contract
    actor = LabellingActor(
        task=task,
        twin=TWIN,
        contract=contract,
        settings=policy.settings,
        policy=cast("Any", policy),
        by_expert=[True, False, False],
    )
    batch = run_batch(TWIN, task, params, run_seed=3, episodes=range(3), actor=actor, initial=initial)
    steps = actor.steps.stack()
    sent = contract.action.from_si(batch.trajectories.commands)
    np.testing.assert_allclose(steps["held"][:, 1:], sent[:, :-1], atol=1e-4)
    np.testing.assert_allclose(sent[0], steps["label"][0], atol=1e-4)  # the expert acts in the first world
    np.testing.assert_allclose(sent[1:, :, 0] - steps["held"][1:, :, 0], 1.0, atol=1e-4)
    assert np.abs(steps["label"][1:] - sent[1:]).max() > 0.5
    np.testing.assert_allclose(steps["state"], batch.observation, atol=1e-4)
    pupil = task.memoryless_expert(initial, params, believed=TWIN.table(3))
    start = open_backend("threads", nthread=1).start(TWIN, params, initial, 1)
    label = contract.action.from_si(pupil.label(start, initial.command, initial.command))
    np.testing.assert_allclose(steps["label"][:, 0], label, atol=1e-4)


@pytest.mark.parametrize(("name", "kind"), [("so101_tabletop", "pick_and_place"), ("so101_press", "press")])
def test_the_expert_labels_what_the_tracker_shows(name, kind):
    """A free body is where the tracker sees it; a mocap body is displaced like the tracker's frame."""
    twin = load_twin(name)
    task, offset = open_task(kind, twin), np.array([0.02, -0.01, 0.003])
    contract, settings = offered_contract(twin, task), module.read_settings("mlp", module._SETTINGS)
    tracker = TrackerNoise(offset=tuple(offset))
    actor = LabellingActor(task=task, twin=twin, contract=contract, settings=settings, tracker=tracker)
    params = Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw(range(3))
    initial = task.reset(params, run_seed=3, episodes=range(3))
    worlds = EpisodeStart(numbers=np.arange(3), params=params, initial=initial, run_seed=3)
    start = open_backend("threads", nthread=1).start(twin, params, initial, 1)
    actor.begin(worlds)(start)
    moved = np.array(initial.qpos)
    for thing in getattr(task, "objects", {"cube": getattr(task, "object", None)}).values():
        moved[:, thing.qpos : thing.qpos + 3] += offset
    shifted = dataclasses.replace(initial, mocap_pos=initial.mocap_pos + offset)
    labels = []
    for begun, qpos in ((initial, initial.qpos), (shifted, moved)):
        expert = task.memoryless_expert(begun, params, believed=twin.table(3))
        shown = open_backend("threads", nthread=1).start(twin, params, dataclasses.replace(initial, qpos=qpos), 1)
        labels.append(contract.action.from_si(expert.label(shown, initial.command, initial.command)))
    np.testing.assert_allclose(actor.steps.stack()["label"][:, 0], labels[1], atol=1e-4)
    assert np.abs(labels[0] - labels[1]).max() > 0.1


@pytest.mark.slow
def test_the_expert_succeeds_with_the_errors_of_a_localizer():
    whole = open_task("pick_and_place", TWIN)
    contract, settings = offered_contract(TWIN, whole), module.read_settings("mlp", module._SETTINGS)
    for tracker in (TrackerNoise(wander=0.006, turn=0.15), TrackerNoise(offset=(0.005, -0.005, 0.004))):
        actor = LabellingActor(task=whole, twin=TWIN, contract=contract, settings=settings, tracker=tracker)
        batch = run_batch(TWIN, whole, PLAN.draw(range(48)), run_seed=3, episodes=range(48), actor=actor)
        assert batch.success.mean() > 0.85


def test_a_policy_from_images_sees_what_the_worlds_show_when_it_predicts(task, tmp_path):
    run = module.DistillRun(plan=PLAN, task=task, config=DistillConfig(**SEEING), folder=tmp_path)
    policy, rows = run.run()
    assert [row["by_policy"] for row in rows] == [0, 4]
    assert policy.contract.cameras == {"front": (20, 24)}
    assert policy.contract.environment == ()
    images = run.data[0]["observation.images.front"]
    assert images.shape == (4, 4, 20, 24, 3)  # 12 steps, one image for three
    columns, random = run._columns(), np.random.default_rng(0)
    batch = run._batch(columns, random)
    label = columns["action"].numpy()
    for sample in range(8):
        found = np.argwhere((label[:, ::3] == batch["action"][sample, 0].numpy()).all(axis=-1))
        assert len(found)
        world, look = found[0]
        np.testing.assert_array_equal(batch["action"][sample].numpy(), label[world, 3 * look : 3 * look + 3])
    assert not batch["action_is_pad"].any()
    shown = run._show(np.array([5, 2]), np.array([1, 3]), np.random.default_rng(0))["observation.images.front"]
    stored = [run.data[1]["observation.images.front"][1, 1], run.data[0]["observation.images.front"][2, 3]]
    for varied, image in zip(shown[:, 0].numpy(), stored, strict=True):
        share = [np.corrcoef(varied.ravel(), other.ravel())[0, 1] for other in (image, 255 - image)]
        assert share[0] > share[1]


def test_a_new_policy_begins_with_the_eyes_of_a_localizer(task, tmp_path):
    run = module.DistillRun(plan=PLAN, task=task, config=DistillConfig(**SEEING), folder=tmp_path)
    run._collect(0, None)
    settings = {"tracked": ("cube.x",), "width": 8, "depth": 1, **EYES}
    measured = run._measure()
    columns = {**measured.columns, "observation.environment_state": measured.columns["action"]}
    one = {name: dataclasses.replace(rows, **{key: value[:1] for key, value in vars(rows).items()})
           if name == "observation.environment_state" else rows for name, rows in columns.items()}  # fmt: skip
    localizer = module.new_policy(
        "localizer", run.contract, settings, dataclasses.replace(measured, columns=one), seed=9
    )
    policy = module.copy_eyes(localizer, run._make_policy())
    for name, values in policy.network.encoder.by_camera.state_dict().items():
        assert torch.equal(values, localizer.network.encoder.by_camera.state_dict()[name])
    other = module.new_policy(
        "localizer", run.contract, {**settings, "images": {"channels": [8], "per_camera": True}},
        dataclasses.replace(measured, columns=one),
    )  # fmt: skip
    with pytest.raises(InputError, match="the same cameras and settings"):
        module.copy_eyes(other, policy)


def test_a_localizer_with_a_policy_is_taught_on_end_to_end(task, tmp_path):
    from twinloop.train.localize import LocalizeConfig, train_localizer

    control = module.DistillRun(plan=PLAN, task=task, config=DistillConfig(**{**SMALL, "rounds": 1}), folder=tmp_path)
    small = {"worlds": 10, "frames": 1, "height": 20, "width": 24, "steps": 2, "batch": 4, "cameras": ("front",)}
    policy = control.run()[0]
    config = LocalizeConfig(**small, settings={"width": 8, "depth": 1, "look_every": 4, **EYES})
    train_localizer(lambda: (PLAN, task), config, tmp_path / "seeing", control=policy)
    seeing = open_policy(tmp_path / "seeing")
    config = DistillConfig(**{key: value for key, value in SMALL.items() if key != "settings"})
    run = module.DistillRun(plan=PLAN, task=task, config=config, folder=tmp_path / "on", base=seeing)
    taught, rows = run.run()
    assert rows[0]["by_policy"] == 4  # it acts from the first round on
    assert run.data[0]["observation.images.front"].shape == (4, 3, 20, 24, 3)  # 12 steps, every fourth
    before, after = seeing.state_dict(), taught.state_dict()
    for part in ("network.encoder", "network.output.weight"):
        assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith(part)), part
    for name in ("drift", "spread", *(name for name in before if name.startswith("control."))):
        assert torch.equal(before[name], after[name])
    with pytest.raises(InputError, match="or a localizer with a policy"):
        module.DistillRun(plan=PLAN, task=task, config=config, folder=tmp_path, base=_without_control(seeing))


def _without_control(policy):
    settings = policy.settings.model_copy(update={"control": None})
    return module.new_policy("localizer", policy.contract, settings, policy.statistics)


def test_what_cannot_be_taught_is_said(task, tmp_path):
    with pytest.raises(InputError, match="no expert that can label"):
        distill(PLAN, open_task("reach_moving", TWIN), DistillConfig(), tmp_path / "policy")
    with pytest.raises(UnknownNameError, match="bowl"):
        distill(PLAN, task, DistillConfig(inputs=("bowl",)), tmp_path / "policy")
    with pytest.raises(InputError, match="n_action_steps equal to chunk_size"):
        distill(PLAN, task, DistillConfig(settings={"chunk_size": 4}), tmp_path / "policy")


def test_the_policy_reads_only_the_named_bodies(task):
    offered = offered_contract(TWIN, task)
    assert module.choose_inputs(offered, ("*",)) == offered
    contract = module.choose_inputs(offered, ("cube",))
    assert contract.environment == tuple(f"cube.{part}" for part in ("x", "y", "z", "heading.cos", "heading.sin"))
    assert dataclasses.replace(contract, environment=()) == dataclasses.replace(
        offered_contract(TWIN, task), environment=()
    )


def test_exactly_a_share_of_the_worlds_is_from_the_other_distribution(task, tmp_path):
    other = Plan(twin=TWIN, run_seed=3, draws=())
    config = DistillConfig(**{**SMALL, "worlds": 6, "other_share": 1 / 3})
    run = module.DistillRun(plan=PLAN, task=task, config=config, folder=tmp_path, other=other)
    drawn = run._draw(range(6, 12))["joint/elbow_flex/damping"]
    assert (drawn == TWIN.params["joint/elbow_flex/damping"].nominal).sum() == 2
    alone = module.DistillRun(plan=PLAN, task=task, config=config, folder=tmp_path)
    assert (alone._draw(range(6, 12))["joint/elbow_flex/damping"] == drawn).sum() == 4
    assert run.facts != alone.facts


def test_commands_of_the_expert_and_of_the_policy_pass_the_envelope(task):
    settings = module.read_settings("mlp", {**module._SETTINGS, **module._limit_commands(TWIN)})
    contract, envelope = offered_contract(TWIN, task), Envelope(TWIN)
    actor = LabellingActor(task=task, twin=TWIN, contract=contract, settings=settings)
    batch = run_batch(TWIN, task, PLAN.draw(range(4)), run_seed=3, episodes=range(4), actor=actor)
    first = contract.action.to_si(actor.steps.stack()["held"][:, 0])
    for readings, commands, world in zip(batch.observation, batch.action, range(4), strict=True):
        motion = envelope.begin(readings[0])
        motion = dataclasses.replace(motion, position=first[world])
        kinds = []
        for reading, command in zip(readings, commands, strict=True):
            decision = envelope.judge(motion, command, reading)
            motion = decision.motion
            kinds.append(decision.kind)
        assert set(kinds) == {"passed"}


def test_a_policy_teaches_a_task_that_has_no_expert(tmp_path):
    """The labels are the teacher's commands, and a student of another memory visits states that it labels."""
    other = open_task("reach_moving", TWIN)
    other.nstep = 12
    offered = offered_contract(TWIN, other)
    settings = {"width": 8, "depth": 1, **module._SETTINGS}
    sizes = {"observation.state": 6, "observation.environment_state": 6, "observation.last_command": 6, "action": 6}
    samples = {key: np.random.default_rng(0).normal(size=(50, size)) for key, size in sizes.items()}
    statistics = module.Statistics.measure(samples, source="noise")
    teacher = module.new_policy("mlp", offered, settings, statistics, seed=1)
    made = distill(PLAN, other, DistillConfig(**SMALL), tmp_path / "student", teacher=teacher)
    assert {row["labelled_by"] for row in made["rounds"]} == {f"policy {teacher.hash}"}
    assert read_card(tmp_path / "student").provenance["labelled_by"] == f"policy {teacher.hash}"
    actor = LabellingActor(
        task=other, twin=TWIN, contract=offered, settings=teacher.settings, teacher=teacher, by_expert=[True, True]
    )
    batch = run_batch(TWIN, other, PLAN.draw(range(2)), run_seed=3, episodes=range(2), actor=actor)
    alone = PolicyActor(policy=teacher, task=other, twin=TWIN)
    direct = run_batch(TWIN, other, PLAN.draw(range(2)), run_seed=3, episodes=range(2), actor=alone)
    assert np.abs(np.diff(direct.action, axis=1)).max() > 0.1
    np.testing.assert_allclose(batch.action, direct.action, rtol=1e-12)
    np.testing.assert_allclose(actor.steps.stack()["label"], direct.action, rtol=1e-6)


def test_a_teacher_with_another_contract_is_refused_before_any_work(task, tmp_path):
    wrong = dataclasses.replace(offered_contract(TWIN, task), control_hz=50.0)
    samples = {"observation.state": 6, "observation.environment_state": len(wrong.environment), "action": 6}
    samples = {key: np.random.default_rng(0).normal(size=(50, size)) for key, size in samples.items()}
    statistics = module.Statistics.measure({**samples, "observation.last_command": samples["action"]}, source="noise")
    teacher = module.new_policy("mlp", wrong, {"width": 8, **module._SETTINGS}, statistics)
    with pytest.raises(InputError, match="the policy needs 50 Hz, but 30 Hz is given"):
        distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "student", teacher=teacher)
    assert not (tmp_path / "student").exists()


def test_the_teacher_knows_the_median_of_the_worlds_parameters(task, tmp_path):
    name, zero = "sensor/elbow_flex/offset", 0.02
    plan = Plan(twin=TWIN, run_seed=3, draws=(Draw(names=(name,), distribution=Choice(values=(zero,))),))
    run = module.DistillRun(plan=plan, task=task, config=DistillConfig(**SMALL), folder=tmp_path)
    run._collect(0, None)
    params = plan.draw(range(4))
    initial = task.reset(params, run_seed=0, episodes=range(4))
    start = open_backend("threads", nthread=1).start(TWIN, params, initial, 1)
    knows, guesses = (
        TWIN.units.from_si(
            task.memoryless_expert(initial, params, believed=TWIN.table(4, values)).label(
                start, initial.command, initial.command
            )
        )
        for values in ({name: zero}, {})
    )
    np.testing.assert_allclose(run.data[0]["label"][:, 0], knows, atol=1e-3)
    assert np.abs(knows - guesses).max() > 0.01


def test_teaching_continues_from_the_weights_of_a_policy_which_acts_from_the_first_round_on(task, tmp_path):
    distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "old")
    old, more = open_policy(tmp_path / "old"), {key: SMALL[key] for key in SMALL if key != "settings"}
    before = {name: value.clone() for name, value in old.state_dict().items()}
    made = distill(PLAN, task, DistillConfig(**more, seed=1, lr=1e-12), tmp_path / "same", base=old)
    assert [(row["by_expert"], row["by_policy"]) for row in made["rounds"]] == [(0, 4), (0, 4)]
    assert made["base"] == old.hash
    same = open_policy(tmp_path / "same").state_dict()
    for name, value in before.items():
        torch.testing.assert_close(same[name], value, atol=1e-8, rtol=0)
        torch.testing.assert_close(old.state_dict()[name], value, atol=0, rtol=0)
    moved = distill(PLAN, task, DistillConfig(**more, seed=1), tmp_path / "moved", base=old)
    assert moved["hash"] != made["hash"]
    with pytest.raises(InputError, match="The policy to continue from does not fit"):
        distill(PLAN, task, DistillConfig(**more, inputs=("cube",)), tmp_path / "other", base=old)
    with pytest.raises(InputError, match="its own settings"):
        distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "other", base=old)


def test_a_finished_run_is_resumed_only_with_what_made_it(task, tmp_path):
    made = distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "old")
    again = distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "old", resume=True)
    assert again == made
    other = dataclasses.replace(PLAN, run_seed=4)
    for plan, config, given in (
        (other, DistillConfig(**SMALL), {}),
        (PLAN, DistillConfig(**SMALL), {"other": other}),
        (PLAN, DistillConfig(**{**SMALL, "settings": {}}), {"base": open_policy(tmp_path / "old")}),
    ):
        with pytest.raises(InputError, match="holds a finished run with another configuration"):
            distill(plan, task, config, tmp_path / "old", resume=True, **given)


def test_the_result_describes_the_worlds_of_all_rounds(task, tmp_path):
    made = distill(PLAN, task, DistillConfig(**SMALL), tmp_path / "policy")["worlds"]
    drawn = PLAN.draw(range(8))
    assert (made["episodes"], made["twin_hash"], set(made["ranges"])) == (8, TWIN.hash, set(drawn.names))
    for name, ends in made["ranges"].items():
        assert ends == [drawn[name].min(), drawn[name].max()]


ADAPTIVE = {**SMALL, "policy": "adaptive", "settings": {"width": 8, "depth": 1, "n_obs_steps": 4}}


def test_a_policy_with_a_memory_learns_the_drawn_parameters_of_each_world(task, tmp_path):
    made = distill(PLAN, task, DistillConfig(**ADAPTIVE), tmp_path / "policy")
    policy = open_policy(tmp_path / "policy")
    names = policy.settings.estimates
    assert made["policy"] == policy.kind == "adaptive"
    assert {name.rpartition("/")[2] for name in names} >= {"kp", "delay", "damping", "frictionloss"}
    assert not any(name.startswith(("sensor/", "object/", "camera/")) for name in names)
    assert "estimates" not in made["rounds"][0]
    assert tuple(made["rounds"][1]["estimates"]) == names


def test_the_memory_of_a_batch_is_that_of_the_rollout(task, tmp_path):
    """From the stored steps the policy predicts the command that it sent in the round."""
    run = module.DistillRun(plan=PLAN, task=task, config=DistillConfig(**ADAPTIVE), folder=tmp_path)
    run._collect(0, None)
    policy = run._make_policy()
    run._collect(1, policy)
    columns = {module._KEYS[name]: torch.from_numpy(values) for name, values in run.data[1].items()}
    params = run._draw(range(4, 8))
    np.testing.assert_allclose(columns[module.PARAMETERS].T, [params[name] for name in run.estimates], rtol=1e-6)
    limits = command_limits(TWIN, TWIN.control_hz)
    for step in (0, 2, 7):
        seen = run._observe(columns, torch.arange(4), torch.full((4,), step))
        wanted = policy.predict({key: values.numpy() for key, values in seen.items()})[:, 0]
        held, sent = (run.data[1]["held"][:, at] for at in (step, step + 1))
        unlimited = np.abs(TWIN.units.to_si(wanted) - TWIN.units.to_si(held)) < limits.acceleration * limits.dt**2 / 2
        assert unlimited.any()
        np.testing.assert_allclose(sent[unlimited], wanted[unlimited], atol=2e-3)


def test_the_teacher_knows_what_the_policy_estimates_and_the_median_of_the_rest(task, tmp_path):
    gain, zero = "actuator/elbow_flex/kp", "sensor/elbow_flex/offset"
    draws = [Draw(names=(gain,), distribution=Choice(values=(8.0, 20.0)))]
    draws.append(Draw(names=(zero,), distribution=Choice(values=(-0.02, 0.02, 0.02))))
    plan = Plan(twin=TWIN, run_seed=3, draws=tuple(draws))
    run = module.DistillRun(plan=plan, task=task, config=DistillConfig(**ADAPTIVE), folder=tmp_path)
    assert run.estimates == (gain,)
    run._collect(0, None)
    params = plan.draw(range(4))
    assert len(set(params[gain])) == 2
    initial = task.reset(params, run_seed=0, episodes=range(4))
    start = open_backend("threads", nthread=1).start(TWIN, params, initial, 1)
    knows, guesses = (
        TWIN.units.from_si(
            task.memoryless_expert(initial, params, believed=TWIN.table(4, values)).label(
                start, initial.command, initial.command
            )
        )
        for values in ({gain: params[gain], zero: 0.02}, {gain: 8.0, zero: 0.02})
    )
    np.testing.assert_allclose(run.data[0]["label"][:, 0], knows, atol=1e-3)
    assert np.abs(knows - guesses).max() > 0.01


def test_wrong_estimates_are_named(task, tmp_path):
    config = DistillConfig(**{**ADAPTIVE, "settings": {"estimates": ["actuator/*/gain"]}})
    with pytest.raises(UnknownNameError, match=r"actuator/\*/gain"):
        distill(PLAN, task, config, tmp_path / "policy")
    only = module.choose_estimates(PLAN.draw(range(20)), ["actuator/elbow_flex/kp", "sensor/elbow_flex/offset"])
    assert only == ("actuator/elbow_flex/kp", "sensor/elbow_flex/offset")


def test_an_expert_that_fails_in_the_worlds_is_reported_before_the_teaching(tmp_path, capsys):
    task, config = open_task("pick_and_place", TWIN), DistillConfig(**{**SMALL, "rounds": 1})
    weak = Draw(names=("actuator/shoulder_lift/torque_limit",), distribution=Choice(values=(0.3,)))
    made = {
        name: distill(Plan(twin=TWIN, run_seed=3, draws=draws), task, config, tmp_path / name)["rounds"][0]
        for name, draws in (("nominal", ()), ("weak", (weak,)))
    }
    assert describe_weak_expert(made["nominal"]) == ""
    assert "The expert itself succeeds in only 0 of 4 worlds (0 of them" in describe_weak_expert(made["weak"])
    printed = capsys.readouterr().err.replace("\n", " ")
    assert printed.count("The expert itself") == 1
    assert describe_weak_expert({**made["weak"], "by_policy": 1}) == ""  # a policy acted in one of the worlds
