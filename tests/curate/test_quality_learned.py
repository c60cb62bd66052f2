"""Discriminators: promised rates of false alarms, planted shifts found, the features that give a fake away."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.demonstrations import changed, flagged, many, recordings
from twinloop.core.errors import InputError
from twinloop.curate.learned.clips import _compute_pair_features
from twinloop.curate.learned.realism import LooksSimulated, OutOfSupport
from twinloop.stats.conformal import conformal_p_values
from twinloop.stats.discriminant import cross_fit
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.novelty import score_novelty, shrunk_covariance


def clustered(rng: np.random.Generator, count: int, *, shift: float = 0.0, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``count`` episodes of four clips each: the variance within episodes equals the variance between them."""
    rows = rng.normal(size=(count, 1, d)) + rng.normal(size=(count, 4, d)) + shift
    return rows.reshape(-1, d), np.repeat(np.arange(count), 4)


def test_conformal_p_values_count_what_is_as_large() -> None:
    assert conformal_p_values([1.0, 2.0, 3.0], [0.0, 2.0, 2.5, 9.0]) == pytest.approx([1.0, 0.75, 0.5, 0.25])
    with pytest.raises(InputError, match="no score may be NaN"):
        conformal_p_values([1.0, np.nan], [0.0])
    rng = np.random.default_rng(0)
    drawn = np.concatenate([conformal_p_values(rng.normal(size=19), rng.normal(size=50)) for _ in range(400)])
    for level in (0.05, 0.1, 0.2):
        assert np.mean(drawn <= level) <= level + 0.01


@pytest.mark.parametrize("kind", ["neighbours", "density"])
def test_good_episodes_are_called_new_no_more_often_than_promised(kind: str) -> None:
    alarms, trials = {0.05: 0, 0.2: 0}, 0
    certified = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        (known, label), (given, other) = clustered(rng, 40), clustered(rng, 30)
        found = score_novelty(known, given, reference_clusters=label, clusters=other, kind=kind, seed=seed)  # pyright: ignore[reportArgumentType]
        trials += len(found.p_values)
        for level in alarms:
            alarms[level] += int(np.sum(found.p_values <= level))
        certified += int(np.any(benjamini_hochberg(found.p_values) <= 0.05))
    for level, count in alarms.items():
        assert count / trials <= level + 3 * np.sqrt(level * (1 - level) / (15 * 6)), (level, count / trials)
    assert certified <= 4  # less than one of 15 is expected


@pytest.mark.parametrize("kind", ["neighbours", "density"])
def test_a_planted_shift_is_found_by_episode(kind: str) -> None:
    false, alarms, missed = 0, 0, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        known, label = clustered(rng, 100)
        (like, a), (unlike, b) = clustered(rng, 20), clustered(rng, 10, shift=4.0)
        given, clusters = np.concatenate([like, unlike]), np.concatenate([a, b + 20])
        found = score_novelty(known, given, reference_clusters=label, clusters=clusters, kind=kind)  # pyright: ignore[reportArgumentType]
        called = benjamini_hochberg(found.p_values) <= 0.05
        false, alarms, missed = false + called[:20].sum(), alarms + called.sum(), missed + np.sum(~called[20:])
    assert missed == 0
    assert false / alarms <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / alarms)


def test_the_nearest_rows_are_those_of_the_obvious_loop() -> None:
    rng = np.random.default_rng(0)
    (known, label), (given, clusters) = clustered(rng, 30), clustered(rng, 10, shift=1.0)
    found = score_novelty(known, given, reference_clusters=label, clusters=clusters)
    distance, place = found.space.find_neighbours(given[:1], 3)
    obvious = np.linalg.norm(
        (found.space.scale_rows(known) - found.space.scale_rows(given[:1])) @ found.space.whiten, axis=1
    )
    assert place[0].tolist() == np.argsort(obvious)[:3].tolist()
    assert distance[0] == pytest.approx(np.sort(obvious)[:3], rel=1e-4)
    with pytest.raises(InputError, match="9 reference episodes are too few"):
        score_novelty(known[:36], given, reference_clusters=label[:36], clusters=clusters)


@pytest.mark.slow
def test_the_shrunk_covariance_is_ledoit_and_wolfs() -> None:
    sklearn = pytest.importorskip("sklearn.covariance")
    rows = np.random.default_rng(0).normal(size=(30, 12)) @ np.diag(np.linspace(0.2, 3.0, 12))
    assert shrunk_covariance(rows) == pytest.approx(sklearn.LedoitWolf().fit(rows).covariance_, rel=1e-8, abs=1e-10)


@pytest.mark.slow
def test_ten_thousand_clips_are_judged_in_seconds() -> None:
    rng = np.random.default_rng(0)
    known, label = clustered(rng, 2500, d=60)
    given, clusters = clustered(rng, 2500, d=60)
    begin = time.process_time()
    found = score_novelty(known, given, reference_clusters=label, clusters=clusters)
    assert time.process_time() - begin < 30.0
    assert found.scores.shape == (2500,)


def test_cross_fitted_scores_are_sums_of_their_parts_and_fair_without_a_difference() -> None:
    rng = np.random.default_rng(0)
    (real, a), (sim, b) = clustered(rng, 60), clustered(rng, 60)
    found = cross_fit(real, sim, real_clusters=a, sim_clusters=b)
    assert found.sim_parts.sum(axis=1) == pytest.approx(found.sim)
    assert np.mean(found.sim[:, None] > found.real[None, :]) == pytest.approx(0.5, abs=0.08)
    shifted = sim + np.eye(6)[2] * 3.0
    found = cross_fit(real, shifted, real_clusters=a, sim_clusters=b)
    assert np.mean(found.sim[:, None] > found.real[None, :]) > 0.9
    assert int(np.argmax(found.sim_parts.mean(axis=0))) == 2


@pytest.fixture(scope="module")
def episodes() -> tuple[list, list]:
    """Real demonstrations and simulated ones of the same kind, 24 of each."""
    return many(24, seed=1), many(24, seed=2, source="sim")


@pytest.mark.slow
def test_simulation_like_reality_is_left_alone(episodes: tuple[list, list], tmp_path: Path) -> None:
    real, sim = episodes
    found = recordings(tmp_path / "alike", [*real, *sim])
    assert len(flagged(LooksSimulated(), found)) <= 1  # of 24
    assert len(flagged(OutOfSupport(), found)) <= 1


def test_simulation_without_noise_gives_itself_away(episodes: tuple[list, list], tmp_path: Path) -> None:
    real, _ = episodes
    clean = many(24, seed=2, source="sim", noise=0.0)
    found = recordings(tmp_path / "clean", [*real, *clean])
    scores = list(LooksSimulated().score(found))
    assert {s.verdict for s in scores} == {"good", "suspect"}  # to look simulated is no fault
    wrong = {s.episode_id for s in scores if s.verdict == "suspect"}
    assert wrong == {recording.episode_id for recording in found[24:]}
    said = scores[-1].reason
    assert "one feature is enough" in said
    assert "90 % of real clips have" in said
    assert any(word in said for word in ("jerk", "above 4 Hz", "equal to the one before", "acceleration"))


def test_episodes_elsewhere_have_no_support_and_the_nearest_real_clip_is_named(
    episodes: tuple[list, list], tmp_path: Path
) -> None:
    real, sim = episodes
    elsewhere = []
    for episode in sim[:10]:
        shift = np.array([1.5, 0.0, 0.0, 0.0])
        elsewhere.append(changed(episode, state=episode.state + shift, action=episode.action + shift))
    found = recordings(tmp_path / "elsewhere", [*real, *elsewhere, *sim[10:20]])
    scores = list(OutOfSupport().score(found))
    far = {recording.episode_id for recording in found[24:34]}
    assert {s.verdict for s in scores} == {"good", "suspect"}  # to be elsewhere is no fault
    wrong = {s.episode_id for s in scores if s.verdict == "suspect"}
    assert far <= wrong
    assert len(wrong - far) <= 1
    said = next(s for s in scores if s.episode_id == found[24].episode_id and s.verdict == "suspect")
    assert "real data supports it" in said.reason
    assert "the nearest real clip" in said.reason
    assert "of elsewhere" in said.reason
    assert said.first_frame is not None


@pytest.mark.slow
def test_what_cannot_be_compared_is_unknown(episodes: tuple[list, list], tmp_path: Path) -> None:
    real, sim = episodes
    few = recordings(tmp_path / "few", [*real[:5], *sim[:5]])
    assert "too few for training" in list(LooksSimulated().score(few))[-1].reason
    assert "real episodes of this robot are too few" in list(OutOfSupport().score(few))[-1].reason
    short = recordings(tmp_path / "short", [changed(e, state=e.state[:40], action=e.action[:40]) for e in real[:3]])
    assert {score.verdict for score in OutOfSupport().score(short)} == {"unknown"}
    slow = [replace(e, time=e.time * 2) for e in sim[:2]]
    mixed = recordings(tmp_path / "slow", slow)
    both = [*recordings(tmp_path / "fast", real[:2]), *mixed]
    assert "rates differ (15 to 30 Hz)" in list(OutOfSupport().score(both))[-1].reason


def test_numbers_of_images_say_what_was_planted() -> None:
    rng = np.random.default_rng(0)
    flat = np.full((48, 64, 3), 100, dtype=np.uint8)
    noisy = [np.clip(flat + rng.normal(0, 5.0, size=flat.shape), 0, 255).round().astype(np.uint8) for _ in range(2)]
    still, live = _compute_pair_features(flat, flat), _compute_pair_features(*noisy)
    names = ("brightness", "contrast", "saturation", "warmth", "grain", "flicker", "unchanged", "edges")
    clean, grainy = dict(zip(names, still, strict=True)), dict(zip(names, live, strict=True))
    assert clean["unchanged"] == 1.0
    assert clean["grain"] == 0.0
    # BT.601 weighs three independent channels: sqrt(.299² + .587² + .114²) = 0.669
    assert grainy["grain"] == pytest.approx(5.0 * 0.669, rel=0.1)
    assert grainy["unchanged"] < 0.01
    assert grainy["brightness"] == pytest.approx(100.0, abs=0.5)
    red = flat.copy()
    red[..., 0] = 160
    assert dict(zip(names, _compute_pair_features(red, red), strict=True))["warmth"] == pytest.approx(60.0)
