"""Terms that align features, against closed forms and a slow twin; the verdicts; a term of one's own."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import numpy as np
import pytest

from support.training import config, dataset
from twinloop.core.errors import InputError
from twinloop.train import train
from twinloop.workflows.train.page import adaptation_section, train_page

torch = pytest.importorskip("torch")

from twinloop.stats.distances import mmd  # noqa: E402
from twinloop.train.align import AlignmentTerm, Coral, Mmd, classify_alignment, relative_coral_distance  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "training.md"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("align")
    return dataset(path / "sim", range(10), length=6), dataset(path / "real", range(40, 50), real=True, length=6)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sides(real: int, sim: int):
    return torch.arange(real + sim) < real


def test_coral_is_the_squared_difference_of_covariances_and_sees_no_shift():
    features, real = drawn(30, 4), sides(12, 18)
    one, other = np.cov(features[:12].T), np.cov(features[12:].T)
    found = Coral(4)(features, real)
    assert float(found) == pytest.approx(np.square(one - other).sum() / (4 * 16))
    assert float(Coral(4)(features + 100 * real[:, None], real)) == pytest.approx(float(found))
    assert relative_coral_distance(features[:12].numpy(), features[12:].numpy()) == pytest.approx(
        np.linalg.norm(one - other) / (np.linalg.norm(one) + np.linalg.norm(other))
    )


def test_mmd_is_the_unbiased_estimate_that_the_statistics_give():
    features, real = drawn(25, 3), sides(11, 14)
    features[:11] += 0.5
    squares = torch.cdist(features, features).square()
    middle = squares[~torch.eye(25, dtype=torch.bool)].median().sqrt()
    slow = mmd(
        features[:11], features[11:], real_clusters=range(11), sim_clusters=range(14),
        bandwidth=float(middle), multiples=(0.25, 0.5, 1, 2, 4), draws=0, resamples=10,
    )  # fmt: skip
    assert float(Mmd(3)(features, real)) == pytest.approx(float(slow.distance.estimate))


@pytest.mark.slow
def test_mmd_is_zero_on_average_where_nothing_differs_and_can_be_followed_down():
    none = [float(Mmd(3)(drawn(40, 3, seed=seed), sides(20, 20))) for seed in range(200)]
    assert abs(np.mean(none)) < 4 * np.std(none) / 200**0.5
    features, real = drawn(40, 3), sides(20, 20)
    shift = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    before = Mmd(3)(features + shift * real[:, None], real)
    for _ in range(30):
        (gradient,) = torch.autograd.grad(Mmd(3)(features + shift * real[:, None], real), shift)
        shift = (shift - 2.0 * gradient).detach().requires_grad_()
    assert Mmd(3)(features + shift * real[:, None], real) < 0.1 * before


def test_a_term_grows_over_its_warmup_and_tells_kinds_by_source():
    class Seen(torch.nn.Module):
        def forward(self, features, real):
            return features[real].sum()

    term = AlignmentTerm(Seen(), torch.tensor([False, True]), weight=3.0, warmup=4)
    batch = {"source": torch.tensor([0, 1, 1]), "rows": torch.tensor([[100.0], [1.0], [2.0]])}

    def policy(given, domain):
        return None, given["rows"]

    assert [float(term(policy, batch)) for _ in range(6)] == [3 * 3 * share for share in (0.25, 0.5, 0.75, 1, 1, 1)]
    again = AlignmentTerm(Seen(), torch.tensor([False, True]), weight=3.0, warmup=4)
    again.load_state_dict(term.state_dict())
    assert int(again.step) == 6


def measured(distance, low, error):
    return {
        "mmd": {"estimate": distance}, "probe_auc": {"estimate": low + 0.1, "low": low, "high": low + 0.2},
        "real_error": error,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("after", "case", "text"),
    [
        (measured(0.1, 0.4, 2.0), "collapsed", "collapsed: the probe is at chance and the real error grew"),
        (measured(0.1, 0.6, 2.0), "discernible", "aligned yet discernible (MMD² 0.5 before and 0.1 after"),
        (measured(0.1, 0.4, 0.5), "aligned", "the probe is at chance, and the real error did not grow"),
        (measured(0.6, 0.7, 0.5), "apart", "not aligned: the distance did not fall"),
        (measured(0.6, 0.4, 2.0), "collapsed", "area of 0.5 [0.4, 0.6]"),
    ],
)
def test_the_verdict_says_which_case_it_is(after, case, text):
    found = classify_alignment(measured(0.5, 0.9, 1.0), after)
    assert found["case"] == case
    assert text in found["verdict"]


@pytest.mark.parametrize("method", ["coral", "mmd"])
def test_alignment_comes_with_its_diagnosis(method, folders, tmp_path):
    said = {"sim_fraction": 0.5, "align": {"method": method, "weight": 10.0}, "steps": 30, "lr": 1e-2, "holdout": 0.2}
    metrics = train(config(*folders, **said), tmp_path / "p").metrics
    found = metrics["adaptation"]["alignment"]
    page = train_page(metrics)
    adaptation_section(page, metrics)
    assert f"Alignment: {escape(found['verdict'])}." in page.html()
    assert found["case"] in {"collapsed", "discernible", "aligned", "apart"}
    for moment in (found["before"], found["after"]):
        assert 0 <= moment["probe_auc"]["low"] <= moment["probe_auc"]["estimate"] <= moment["probe_auc"]["high"] <= 1
        assert moment["mmd"]["low"] <= moment["mmd"]["estimate"] <= moment["mmd"]["high"]
        assert 0 <= moment["coral"] <= 1
    assert found["before"] != found["after"]


def test_with_too_little_held_out_the_diagnosis_says_so(folders, tmp_path):
    said = {"sim_fraction": 0.5, "align": {}, "steps": 1, "holdout": 0}
    found = train(config(*folders, **said), tmp_path / "p").metrics["adaptation"]["alignment"]
    assert found["verdict"].startswith("unknown: 0 real and 0 simulated episodes are held out")


@pytest.mark.slow
def test_the_adversarial_term_of_the_page_runs_and_learns(folders, tmp_path):
    code = re.search(r"```python\n# dann\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "dann.py").write_text(code.group(1))
    said = {"sim_fraction": 0.5, "holdout": 0, "align": {"method": f"{tmp_path / 'dann.py'}:Dann", "warmup": 0}}
    hashes = [
        train(config(*folders, **said, steps=steps), tmp_path / str(steps)).metrics["losses"][-1][1]
        for steps in (1, 12)
    ]
    assert np.isfinite(hashes).all()

    from twinloop.core.extension import load_class

    torch.manual_seed(0)
    term = load_class("alignment", f"{tmp_path / 'dann.py'}:Dann", [])(3)
    features, real = drawn(64, 3).float(), sides(32, 32)
    features[:32] += 1.5
    features.requires_grad_()
    optimizer = torch.optim.Adam(term.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = term(features, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    # The feature loss is the negative of the discriminator loss: along its gradient, the discriminator loss grows.
    (gradient,) = torch.autograd.grad(term(features, real), features)
    assert term((features - 5 * gradient).detach(), real) > term(features.detach(), real)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("class Mine:\n    def __init__(self, size):\n        self.size = size\n", "is not a torch.nn.Module"),
        ("class Mine:\n    def __init__(self, size):\n        1 / 0\n", r"cannot be created: ZeroDivisionError"),
        ("class Other: ...\n", "Unknown alignment class 'Mine'"),
    ],
)
def test_a_class_of_ones_own_that_is_wrong_is_named(code, text, folders, tmp_path):
    (tmp_path / "mine.py").write_text(code)
    said = {"sim_fraction": 0.5, "align": {"method": f"{tmp_path / 'mine.py'}:Mine"}}
    with pytest.raises(InputError, match=text):
        train(config(*folders, **said), tmp_path / "p")
