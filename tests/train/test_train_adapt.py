"""Fine-tuning: what moves and what stays, the change that is merged, and a run that is broken and resumed."""

from __future__ import annotations

import json

import pytest

from support.training import config, dataset
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.policies.factory import open_policy
from twinloop.train import TrainConfig, read_config, train
from twinloop.train.preparation import prepare, resolve_config

torch = pytest.importorskip("torch")

from twinloop.train.adapt import L2Start, LowRank, make_additions, merge_low_rank, select_trained_weights  # noqa: E402
from twinloop.train.loop import TrainingLoop  # noqa: E402


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A simulated folder, a real one, and a policy trained on the simulated one."""
    path = tmp_path_factory.mktemp("adapt")
    sim, real = dataset(path / "sim", range(4)), dataset(path / "real", range(20, 24), real=True)
    train(config(sim, steps=2, holdout=0), path / "base")
    return sim, real, path / "base"


def adapting(folders, output, method="full", **said):
    adapt = {"from": str(folders[2]), "method": method, **said.pop("adapt", {})}
    sources = said.pop("sources", [{"data": str(folders[1])}])
    plain = {"sources": sources, "steps": 4, "batch": 8, "holdout": 0, "evaluations": 2, "lr": 3e-3, "adapt": adapt}
    return train(TrainConfig.of({**plain, **said}), output)


def changes(folders, trained) -> dict[str, bool]:
    before = open_policy(folders[2]).state_dict()
    return {name: not torch.equal(value, before[name]) for name, value in trained.policy.state_dict().items()}


@pytest.mark.parametrize("method", ["full", "head", "low_rank"])
def test_a_method_moves_what_it_says_and_the_folder_opens_like_any_other(method, folders, tmp_path):
    trained = adapting(folders, tmp_path / "p", method)
    moved = changes(folders, trained)
    opened, base = open_policy(tmp_path / "p"), open_policy(folders[2])
    assert opened.hash == trained.metrics["hash"] != base.hash
    assert set(opened.state_dict()) == set(base.state_dict())
    assert not any(did for name, did in moved.items() if name.startswith("normalizer"))
    matrices = {f"network.{n}.weight" for n, m in base.network.named_modules() if isinstance(m, torch.nn.Linear)}
    expected = {
        "full": {name for name in moved if name.startswith("network.")},
        "head": {name for name in moved if name.startswith("network.head.")},
        "low_rank": matrices,
    }[method]
    assert {name for name, did in moved.items() if did} == expected
    facts = trained.metrics["adaptation"]
    assert (facts["base_hash"], facts["method"]) == (base.hash, method)
    assert opened.statistics.source == base.statistics.source
    assert base.hash in (tmp_path / "p" / "README.md").read_text()


def test_a_low_rank_change_begins_at_nothing_has_its_rank_and_merges_to_the_same_commands(folders):
    policy = open_policy(folders[2])
    generator = torch.Generator().manual_seed(0)
    rows = {"observation.state": torch.randn(5, 1, 2, generator=generator)}
    before, weight = policy(rows)[0].detach(), policy.network.head.weight.detach().clone()
    moving = select_trained_weights(policy, "low_rank", 2, seed=3)
    assert torch.equal(policy(rows)[0], before)
    assert sum(p.numel() for p in moving) == sum(
        2 * sum(module.weight.shape) for module in policy.network.modules() if isinstance(module, torch.nn.Linear)
    )
    with torch.no_grad():
        for parameter in moving:
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    changed = policy(rows)[0].detach()
    merge_low_rank(policy)
    torch.testing.assert_close(policy(rows)[0], changed)
    assert torch.linalg.matrix_rank(policy.network.head.weight - weight, atol=1e-4) == 2
    assert not any(isinstance(module, LowRank) for module in policy.modules())


@pytest.mark.parametrize("method", ["full", "low_rank"])
def test_the_distance_to_the_start_is_half_the_weight_times_its_square(method, folders):
    policy = open_policy(folders[2])
    select_trained_weights(policy, method, 4, seed=0)
    term = L2Start(policy, 0.5)
    assert term(policy, {}) == 0
    with torch.no_grad():
        change = policy.network.head.parametrizations.weight[0] if method == "low_rank" else policy.network.head
        (change.up if method == "low_rank" else change.bias).add_(2.0)
    moved = change.up @ change.down if method == "low_rank" else torch.full_like(change.bias, 2.0)
    torch.testing.assert_close(term(policy, {}), 0.25 * moved.square().sum())


def test_with_a_large_weight_of_the_distance_the_policy_stays_nearer(folders, tmp_path):
    start = open_policy(folders[2]).network.head.weight
    far = [
        (
            adapting(folders, tmp_path / str(weight), adapt={"l2_start": weight}).policy.network.head.weight - start
        ).norm()
        for weight in (0.0, 100.0)
    ]
    assert far[1] < 0.9 * far[0]


def test_where_the_base_was_better_the_result_says_so(tmp_path):
    sim, real = dataset(tmp_path / "sim", range(12), length=6), dataset(tmp_path / "real", range(20, 32), real=True)
    train(config(sim, real, steps=25, evaluations=1), tmp_path / "base")
    made = (sim, real, tmp_path / "base")
    worse = adapting(made, tmp_path / "p", holdout=0.2, steps=5, lr=1.0).metrics
    before, after = worse["adaptation"]["held_out_before"][0]["scaled"], worse["held_out"][0]["scaled"]
    assert after > before
    assert f"the held-out error on real grew from {before:.3g} to {after:.3g} standard deviations" in worse["notes"][0]
    better = adapting(made, tmp_path / "q", holdout=0.2, steps=15, lr=3e-3).metrics
    assert not any("grew" in note for note in better["notes"])


@pytest.mark.parametrize("method", ["full", "low_rank"])
def test_a_run_that_is_broken_and_resumed_gives_the_same_policy(method, folders, tmp_path, monkeypatch):
    said = {"adapt": {"l2_start": 0.1}, "align": {"method": "coral"}, "sim_fraction": 0.5}
    said["sources"] = [{"data": str(folder)} for folder in folders[:2]]
    whole = adapting(folders, tmp_path / "whole", method, **dict(said))
    step = TrainingLoop._step

    def breaks(self):
        if self.progress.step == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(TrainingLoop, "_step", breaks)
    with pytest.raises(KeyboardInterrupt):
        adapting(folders, tmp_path / "broken", method, **dict(said))
    monkeypatch.setattr(TrainingLoop, "_step", step)
    again = train(TrainConfig.of(whole.metrics["config"]), tmp_path / "broken", resume=True)
    assert again.metrics["hash"] == whole.metrics["hash"]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"policy": "act"}, "is a policy of kind mlp, not act. Leave --policy out"),
        ({"settings": {"width": 99}}, "has width=16, and fine-tuning keeps the settings of a policy; width=99"),
        ({"domain_token": {}}, "domain_token makes new tokens"),
        ({"adapt": {"rank": 3}}, "rank is a setting of method low_rank, but the method is full"),
        ({"method": "head", "align": {}}, "method head keeps them fixed"),
        ({"align": {}}, "a batch of 8 has 0 simulated samples"),
        ({"pixels": {}}, "pixels changes images, but the policy uses none"),
        ({"adapt": {"from": "nowhere"}}, "nowhere"),
    ],
)
def test_what_does_not_fit_the_base_is_refused(said, text, folders, tmp_path):
    with pytest.raises(InputError, match=text):
        adapting(folders, tmp_path / "p", **said)


def test_the_rate_is_a_tenth_and_the_file_is_read_beside_itself(folders, tmp_path):
    (tmp_path / "a.yaml").write_text(f"sources: [{{data: x}}]\nadapt: {{from: {folders[2]}, l2_start: 1e-2}}\n")
    made = [resolve_config(read_config(tmp_path / "a.yaml", adapt={"method": m})) for m in ("full", "head", "low_rank")]
    assert [(c.lr, c.steps, c.adapt.method) for c in made] == [
        (pytest.approx(1e-4), 100, method) for method in ("full", "head", "low_rank")
    ]
    assert all(c.adapt.l2_start == 1e-2 and c.inputs == ("state",) for c in made)


def test_tokens_of_the_base_are_given_by_name_else_by_kind(folders, tmp_path):
    sim, real, _ = folders
    train(config(sim, real, steps=1, holdout=0, domain_token={}), tmp_path / "base")
    sources = [{"data": str(real), "name": "robot-b"}, {"data": str(sim)}, {"data": str(sim), "name": "other"}]
    adapt = {"from": str(tmp_path / "base")}
    prepared = prepare(resolve_config(TrainConfig.of({"sources": sources, "holdout": 0, "adapt": adapt})))
    policy = open_policy(tmp_path / "base")
    assert policy.settings.domains == ("sim", "real")
    transform = make_additions(policy, prepared).transform
    assert transform is not None
    assert transform({"source": torch.tensor([0, 1, 2])})["domain"].tolist() == [2, 1, 0]


def test_in_a_workspace_the_policy_names_its_base(tmp_path, capsys):
    Workspace.create(tmp_path / "cell").close()
    sim = dataset(tmp_path / "cell" / "data" / "sim", range(4))
    real = dataset(tmp_path / "cell" / "data" / "real", range(20, 24), real=True)
    small = ["--set", "width=8", "depth=1", "chunk_size=4", "--steps", "1", "--batch", "4", "--holdout", "0"]
    out = tmp_path / "cell" / "policies"
    assert main(["train", "--data", str(sim), "--output", str(out / "base"), *small, "--json"]) == 0
    words = ["train", "--adapt", str(out / "base"), "--method", "low_rank", "--data", str(real), str(sim)]
    words += ["--sim-fraction", "0.25", "--steps", "2", "--batch", "8", "--holdout", "0", "--output", str(out / "own")]
    assert main([*words, "--rank", "2", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["samples"] for row in metrics["sources"]] == [12, 4]
    with Workspace.open(tmp_path / "cell") as held:
        rows = held.query("SELECT policy, base FROM policies WHERE name = 'own'").to_pylist()
    assert rows == [{"policy": metrics["hash"], "base": open_policy(out / "base").hash}]
    page = (out / "own" / "report.html").read_text()
    assert f"hash {rows[0]['base'][:16]}. A change of rank 2 was added to every matrix," in page
