"""Distances that are means of a kernel: closed forms, a slow twin, invariances, and clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf

from twinloop.core.errors import InputError
from twinloop.core.records import Embedding, require_same_encoder
from twinloop.stats import energy_distance, kid, mmd
from twinloop.stats.two_sample import min_p_value, relabel_episodes, two_samples

KINDS = (mmd, kid, energy_distance)


def sample(seed: int, episodes: int, rows: int, columns: int, shift: float = 0.0, alike: float = 0.5):
    """Rows of unit variance in which episodes explain a share ``alike``, and their episodes."""
    random = np.random.default_rng(seed)
    level = np.sqrt(alike) * random.normal(size=(episodes, 1, columns))
    values = level + np.sqrt(1 - alike) * random.normal(size=(episodes, rows, columns)) + shift
    return values.reshape(-1, columns), np.repeat(np.arange(episodes), rows)


def both(seed: int, shift: float = 0.0, *, real=(7, 4), sim=(6, 5), columns: int = 3):
    x, cx = sample(2 * seed, *real, columns)
    y, cy = sample(2 * seed + 1, *sim, columns, shift)
    return (x, y), {"real_clusters": cx, "sim_clusters": cy}


def slow(kernel, x, cx, y, cy, *, paired=False):
    """The U-statistic over pairs of episodes, term by term."""

    def mean(a, ca, b, cb, same):
        pairs = [(i, j) for i in np.unique(ca) for j in np.unique(cb) if not (same or paired) or i != j]
        return np.mean([np.mean([[kernel(u, v) for v in b[cb == j]] for u in a[ca == i]]) for i, j in pairs])

    return mean(x, cx, x, cx, True) + mean(y, cy, y, cy, True) - 2 * mean(x, cx, y, cy, False)


KERNELS = {
    mmd: lambda u, v: np.exp(-np.sum((u - v) ** 2) / (2 * 1.7**2)),
    kid: lambda u, v: (u @ v / len(u) + 1) ** 3,
    energy_distance: lambda u, v: -np.linalg.norm(u - v),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paired", [False, True])
def test_the_blocked_distance_equals_its_terms_one_by_one(kind, paired, monkeypatch):
    monkeypatch.setattr("twinloop.stats.kernel_distance._BLOCK_BYTES", 2000)  # blocks that cut episodes
    (x, y), keys = both(1, 0.4, real=(6, 4), sim=(6, 5))
    extra = {"bandwidth": 1.7} if kind is mmd else {}
    found = kind(x, y, **keys, **extra, draws=0, paired=paired).distance.estimate
    expected = slow(KERNELS[kind], x, keys["real_clusters"], y, keys["sim_clusters"], paired=paired)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_of_large_samples_is_close(kind, monkeypatch):
    (x, y), keys = both(2, 0.3, real=(8, 10), sim=(8, 10), columns=32)
    exact = kind(x, y, **keys, draws=0, resamples=50).distance.estimate
    monkeypatch.setattr("twinloop.stats.kernel_distance._MANY_ROWS", 1)
    assert kind(x, y, **keys, draws=0, resamples=50).distance.estimate == pytest.approx(exact, abs=2e-5)


def average(kind, shift, **extra):
    """Mean and standard error of estimates of many small samples of independent rows in one dimension."""
    values = []
    for seed in range(40):
        (x, y), _ = both(seed, shift, real=(60, 1), sim=(60, 1), columns=1)
        found = kind(x, y, real_clusters=np.arange(60), sim_clusters=np.arange(60), draws=0, resamples=20, **extra)
        assert found.distance.estimate == pytest.approx(found.pooled)  # every row an episode: the textbook's
        values.append(float(found.distance.estimate))
    return np.mean(values), np.std(values) / np.sqrt(len(values))


def gaussian_mmd(shift: float, sigma: float) -> float:
    """Of N(0, 1) and N(δ, 1): both kernels' means are Gaussian integrals."""
    return 2 * np.sqrt(sigma**2 / (sigma**2 + 2)) * (1 - np.exp(-(shift**2) / (2 * (sigma**2 + 2))))


def gaussian_energy(shift: float) -> float:
    """E|Z| of Z ~ N(δ, 2), twice, less 2 · 2/√π (Székely & Rizzo 2013)."""
    mean = 2 / np.sqrt(np.pi) * np.exp(-(shift**2) / 4) + shift * erf(shift / 2)
    return 2 * mean - 4 / np.sqrt(np.pi)


def gaussian_kid(shift: float) -> float:
    """(x y + 1)³ = Σ C(3, i) xⁱ yⁱ: squared differences of the first three moments."""
    moments = np.array([shift, shift**2, shift**3 + 3 * shift])  # differences from those of N(0, 1)
    return float(np.array([3, 3, 1]) @ moments**2)


@pytest.mark.parametrize("shift", [0.0, 0.7])
@pytest.mark.parametrize(
    ("kind", "truth", "extra"),
    [
        (mmd, lambda d: gaussian_mmd(d, 0.8), {"bandwidth": 0.8}),
        (energy_distance, gaussian_energy, {}),
        (kid, gaussian_kid, {"subsets": 0}),
    ],
)
def test_distances_of_gaussians_are_their_closed_forms_without_bias(kind, truth, extra, shift):
    mean, error = average(kind, shift, **extra)
    assert abs(mean - truth(shift)) < 4 * error


def test_episodes_that_resemble_themselves_add_to_the_textbook_estimate_but_not_to_ours():
    ours, theirs = [], []
    for seed in range(60):
        (x, y), keys = both(seed, real=(6, 8), sim=(6, 8))
        found = mmd(x, y, **keys, bandwidth=2.0, draws=0, resamples=20)
        ours.append(float(found.distance.estimate))
        theirs.append(found.pooled)
    error = np.std(ours) / np.sqrt(60)
    assert abs(np.mean(ours)) < 4 * error
    assert np.mean(theirs) > 6 * error


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), move=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_distances_do_not_depend_on_order_nor_on_the_zero_and_know_scale(seed, move, scale):
    (x, y), keys = both(seed, 0.3)
    order = np.random.default_rng(seed).permutation(len(x))
    mixed = {"real_clusters": keys["real_clusters"][order] * 10 - 3, "sim_clusters": keys["sim_clusters"]}
    for kind, power in ((mmd, 0), (energy_distance, 1)):
        plain = kind(x, y, **keys, draws=0, resamples=50).distance.estimate
        assert kind(x[order], y, **mixed, draws=0, resamples=50).distance.estimate == pytest.approx(plain, abs=1e-9)
        swapped = {"real_clusters": keys["sim_clusters"], "sim_clusters": keys["real_clusters"]}
        assert kind(y, x, **swapped, draws=0, resamples=50).distance.estimate == pytest.approx(plain, abs=1e-9)
        moved = kind(scale * x + move, scale * y + move, **keys, draws=0, resamples=50).distance.estimate
        assert moved == pytest.approx(scale**power * plain, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_that_is_perfect_has_distance_zero_exactly_in_pairs(kind):
    x, clusters = sample(4, 8, 5, 3)
    found = kind(x, x.copy(), real_clusters=clusters, sim_clusters=clusters, paired=True)
    assert found.distance.estimate == pytest.approx(0, abs=1e-12)
    assert found.distance.low <= 0 <= found.distance.high
    assert found.p_value == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_distances_grow_with_a_planted_shift_and_the_test_sees_it(kind):
    found = [kind(*both(5, shift)[0], **both(5, shift)[1], draws=499, resamples=500) for shift in (0.0, 1.0, 2.0)]
    estimates = [float(one.distance.estimate) for one in found]
    assert estimates == sorted(estimates)
    assert found[2].p_value < 0.02
    assert found[2].distance.low > 0


def test_few_relabellings_are_all_tried_and_their_p_value_is_exact():
    (x, y), keys = both(3, 1.0, real=(4, 3), sim=(4, 3))
    samples = two_samples(x, y, **keys)
    labels = relabel_episodes(samples, 100)
    assert labels.exact
    assert len({row.tobytes() for row in labels.real}) == 70
    found = mmd(x, y, **keys, draws=100)
    assert found.exact
    assert found.p_value * 70 == pytest.approx(round(found.p_value * 70))
    assert found.p_value >= min_p_value(4, 4) == pytest.approx(2 / 70)


def test_many_episodes_are_bundled_and_the_distance_stays_the_same_within_its_spread(monkeypatch):
    (x, y), keys = both(6, 0.5, real=(90, 2), sim=(110, 2))
    plain = mmd(x, y, **keys, bandwidth=2.0, draws=0)
    monkeypatch.setattr("twinloop.stats.two_sample.TwoSampleRows.bundle_episodes.__defaults__", (30,))
    few = mmd(x, y, **keys, bandwidth=2.0, draws=0)
    assert few.distance.estimate == pytest.approx(plain.distance.estimate, abs=2e-3)
    assert few.nreal == 90


def test_what_cannot_be_compared_is_refused_by_name():
    (x, y), keys = both(0)
    with pytest.raises(InputError, match="Real rows have 3 columns, simulated ones 2"):
        mmd(x, y[:, :2], **keys)
    broken = x.copy()
    broken[5, 1] = np.nan
    with pytest.raises(InputError, match="Row 5 of the real sample, of episode 1, has nan in column 1"):
        kid(broken, y, **keys)
    with pytest.raises(InputError, match="real sample is one episode"):
        mmd(x, y, real_clusters=np.zeros(len(x)), sim_clusters=keys["sim_clusters"])
    with pytest.raises(InputError, match="28 rows and episode numbers of shape"):
        mmd(x, y, real_clusters=[1, 2], sim_clusters=keys["sim_clusters"])
    with pytest.raises(InputError, match="Episodes 6 have no partner"):
        mmd(x, y, **keys, paired=True)
    with pytest.raises(InputError, match="Kernel widths are positive"):
        mmd(x, y, **keys, bandwidth=-1.0)


def test_too_few_episodes_for_a_test_say_how_many_it_needs():
    (x, y), keys = both(0, real=(3, 4), sim=(3, 4))
    with pytest.raises(InputError, match=r"3 real and 3 simulated .* a p-value below 0.1. It needs 4 of each, or"):
        mmd(x, y, **keys)
    with pytest.raises(InputError, match=r"3 pairs of episodes are too few .* It needs 6 pairs"):
        mmd(x, y, **keys, paired=True)
    assert np.isnan(mmd(x, y, **keys, draws=0).p_value)


def test_embeddings_of_different_encoders_are_refused():
    def embedding(encoder: str, digest: str, columns: int = 4) -> Embedding:
        return Embedding(
            values=np.ones((3, columns)), clusters=np.arange(3), encoder=encoder, encoder_hash=digest, source="a.mp4"
        )

    require_same_encoder(embedding("clip", "aa"), embedding("clip", "aa"))
    with pytest.raises(InputError, match=r"by clip \(aa, 4 numbers\).*by dino \(bb, 4 numbers\).*different encoders"):
        require_same_encoder(embedding("clip", "aa"), embedding("dino", "bb"))
    with pytest.raises(InputError, match="row 1, of episode 7, is not finite"):
        Embedding(
            values=np.array([[1.0], [np.inf]]), clusters=np.array([3, 7]), encoder="e", encoder_hash="h", source="s"
        )
