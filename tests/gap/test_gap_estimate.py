"""Real scores with the help of simulation, from tables of trials: planted rates, missing data, the command."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.core.trials import Trials
from twinloop.gap.policies.estimate import estimate_real


def planted(*, pairs=40, more=4000, agree=0.95, seed=0):
    """Policies act and dp at rates 0.8 and 0.5; simulation agrees with each real trial by chance ``agree``."""
    random, rows = np.random.default_rng(seed), []
    for policy, rate in (("act", 0.8), ("dp", 0.5)):
        for i in range(pairs):
            real = random.random() < rate
            rows.append((policy, "real", real, f"s{i}"))
            rows.append((policy, "sim", real if random.random() < agree else not real, f"s{i}"))
        share = rate * agree + (1 - rate) * (1 - agree)
        rows += [(policy, "sim", random.random() < share, f"x{i}") for i in range(more)]
    return rows


def as_trials(rows):
    policy, domain, won, pair = zip(*rows, strict=True)
    return Trials(policy=policy, domain=domain, score=np.array(won, float), success=tuple(map(bool, won)), pair=pair)


def test_planted_rates_come_back_and_trials_are_saved():
    found = estimate_real(as_trials(planted(pairs=80)))
    assert [row.policy for row in found.policies] == ["act", "dp"]
    for row, rate in zip(found.policies, (0.8, 0.5), strict=True):
        assert (row.pairs, row.more) == (80, 4000)
        assert bool(row.combined.covers(rate))
        assert row.correlation > 0.7
        assert float(row.saved.low) > 10
    assert found.policies[1].narrower > 10
    assert {metric.name for metric in found.headline()} == {
        "real/act", "real/dp", "trials_saved/act", "trials_saved/dp",
    }  # fmt: skip


def test_scores_are_bet_on():
    random = np.random.default_rng(1)
    base = random.beta(4, 2, 2060)
    real, sim = np.clip(base[:60] + random.normal(0, 0.05, 60), 0, 1), base
    trials = Trials(
        policy=("act",) * 2120,
        domain=("real",) * 60 + ("sim",) * 2060,
        score=np.concatenate([real, sim]),
        pair=tuple(f"s{i}" for i in range(60)) + tuple(f"s{i}" for i in range(2060)),
    )
    row = estimate_real(trials).policies[0]
    assert "prediction-powered betting" in row.combined.method
    assert bool(row.combined.covers(2 / 3))


def test_what_is_lacking_is_said_of_each_policy():
    rows = planted(pairs=2)
    with pytest.raises(
        InputError, match="act has 2 real and .* simulated trials with 2 pairs; it needs at least 3 pairs; dp has 2"
    ):
        estimate_real(as_trials(rows))
    with pytest.raises(InputError, match="has 10 pairs but only 5 simulated trials without a partner"):
        estimate_real(as_trials(planted(pairs=10, more=5)))
    unpaired = [(policy, domain, won, "") for policy, domain, won, _ in planted(pairs=10)]
    with pytest.raises(InputError, match="the same name in the column pair"):
        estimate_real(as_trials(unpaired))


def test_few_and_alike_trials_are_noted():
    rows = [row for i in range(6) for row in (("a", "real", True, f"s{i}"), ("a", "sim", True, f"s{i}"))]
    rows += [("a", "sim", True, f"x{i}") for i in range(60)]
    row = estimate_real(as_trials(rows)).policies[0]
    assert "there is no correlation" in row.notes[0]
    assert "With 6 pairs" in row.notes[1]
    assert float(row.combined.low) < 0.7


def test_the_command_stores_what_it_says(tmp_path, capsys):
    path = tmp_path / "trials.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "domain", "success", "pair"])
        writer.writerows([policy, domain, int(won), pair] for policy, domain, won, pair in planted())
    assert main(["gap", "estimate", str(path), "--output", str(tmp_path / "run")]) == 0
    assert "saved" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["kind"] == "estimate"
    assert result["policies"][0]["combined"]["method"] == "post-stratified exact"
    assert main(["gap", "estimate", str(path), "--fail-if", "real/act.low < 0.99"]) == 1
