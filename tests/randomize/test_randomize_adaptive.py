"""Adaptive ranges find where a task stops succeeding, and follow from counts of whole rounds alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.core.pool import LocalProcesses
from twinloop.core.seeds import uniforms
from twinloop.generate import generate_states, resolve_config
from twinloop.generate.batches import adaptive_history, count_boundaries, find_ready_blocks, with_known_rounds
from twinloop.randomize import Plan, make_design, section_plan
from twinloop.randomize.plan import ADAPTIVE_BOUNDARY
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
SLIDE, MASS = "object/cube/friction/slide", "object/cube/mass"


def plan(seed=0, **options):
    section = {"adaptive": {"names": [SLIDE, MASS], "every": 64, "buffer": 16, **options}}
    return section_plan(section, SO101, run_seed=seed, episodes=10_000, where="g.yaml")


def config(parallel_envs, episodes, folder, **options):
    value = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {"adaptive": {"names": [SLIDE, MASS], "every": 64, "buffer": 16, **options}},
        "rollout": {"parallel_envs": parallel_envs},
    }
    return resolve_config(value, where="t", folder=folder, episodes=episodes)


def made_up_success(table, numbers, low=0.25, high=0.09):
    """Succeeds with certainty above a friction and below a mass, and by chance (0.3) elsewhere."""
    luck = uniforms(7, "luck", numbers)[:, 0] < 0.3
    return ((table[SLIDE] > low) & (table[MASS] < high)) | luck


def run(cfg, one, judge=made_up_success):
    """The loop of `generate`, its physics replaced by a function of the parameters."""
    outcomes = []
    while len(outcomes) * cfg.block_size < cfg.episodes:
        blocks, rounds = find_ready_blocks(cfg, one, outcomes, len(outcomes))
        for block in blocks:
            start = block * cfg.block_size
            numbers = np.arange(start, min(start + cfg.block_size, cfg.episodes))
            known = one.with_rounds(rounds)
            outcomes.append(count_boundaries(known, numbers, judge(known.draw(numbers), numbers)))
    return outcomes


def test_a_planted_boundary_of_success_is_found_and_kept(tmp_path):
    one, cfg = plan(), config(64, 6400, tmp_path)
    record = adaptive_history(cfg, one, run(cfg, one))
    (low, high), (lightest, heaviest) = record["ranges"][SLIDE], record["ranges"][MASS]
    steps = dict(zip(one.adaptive.names, one.adaptive.step, strict=True))
    assert abs(low - 0.25) <= 2 * steps[SLIDE]
    assert abs(heaviest - 0.09) <= 2 * steps[MASS]
    assert high == pytest.approx(2.0)  # nothing fails there: as far as the physical bounds
    assert lightest == pytest.approx(0.001)
    assert {row["decision"] for item in record["rounds"] for row in item["boundaries"]} >= {
        "waiting",
        "widen",
        "narrow",
        "widen: at its limit",
    }


def test_a_range_that_is_too_wide_narrows_as_far_as_its_anchor(tmp_path):
    options = {"start": {SLIDE: [0.1, 1.9], MASS: [0.02, 0.04]}, "names": [SLIDE, MASS]}
    cfg = config(64, 6400, tmp_path, **options)
    one = plan(**options)
    record = adaptive_history(cfg, one, run(cfg, one, judge=lambda table, numbers: np.zeros(len(numbers), dtype=bool)))
    nominal = SO101.params[SLIDE].nominal
    assert record["ranges"][SLIDE] == [pytest.approx(nominal), pytest.approx(nominal)]


def test_ranges_follow_from_the_episodes_and_not_from_how_they_are_blocked(tmp_path):
    one = plan()
    records = []
    for envs in (64, 16, 7):
        cfg = config(envs, 640, tmp_path)
        assert 64 % cfg.block_size == 0
        records.append(adaptive_history(cfg, one, run(cfg, one)))
    assert records[0] == records[1] == records[2]


def test_a_stopped_run_goes_on_with_the_ranges_of_an_unbroken_one(tmp_path):
    cfg, one = config(16, 640, tmp_path), plan()
    outcomes = run(cfg, one)
    for done in (0, 3, 4, 17, len(outcomes) - 1):
        blocks, rounds = find_ready_blocks(cfg, one, outcomes[:done], done)
        number = done * cfg.block_size // 64
        assert blocks[0] == done
        assert list(rounds) == [number]
        assert rounds[number] == with_known_rounds(cfg, one, outcomes).adaptive.rounds.get(number)


@settings(max_examples=20, deadline=None)
@given(episodes=st.lists(st.integers(0, 63), min_size=1, max_size=8), seed=st.integers(0, 9))
def test_an_episode_draws_the_same_alone(episodes, seed):
    one = plan(seed, start={SLIDE: [0.3, 0.9]})
    whole = one.draw(episodes).values
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(whole[row], one.draw([episode]).values[0])


def test_half_of_the_episodes_stand_at_a_boundary_and_each_as_often():
    one = plan(start={SLIDE: [0.3, 0.9], MASS: [0.02, 0.06]}, every=100_000)
    drawn = one.draw_worlds(range(8000))
    counts = np.bincount(drawn.boundary + 1, minlength=5)
    assert counts[0] == pytest.approx(4000, abs=180)
    np.testing.assert_allclose(counts[1:], 1000, atol=120)
    for index, (name, value) in enumerate([(MASS, 0.02), (MASS, 0.06), (SLIDE, 0.3), (SLIDE, 0.9)]):
        assert (drawn.table[name][drawn.boundary == index] == value).all()
    free = drawn.table[SLIDE][drawn.boundary == -1]
    assert free.min() > 0.3
    assert free.max() < 0.9
    assert free.mean() == pytest.approx(0.6, abs=0.01)
    note = one.world_notes(drawn)[int(np.flatnonzero(drawn.boundary == 3)[0])]
    assert note == {ADAPTIVE_BOUNDARY: f"{SLIDE} high"}


def test_a_round_that_was_not_reached_has_no_ranges():
    with pytest.raises(InputError, match=r"ranges of round 1 \(episodes from 64\) follow from the episodes before it"):
        plan().draw([3, 64])
    later = plan().with_rounds({1: ((0.02, 0.03), (0.2, 0.8))})
    values = later.draw(range(64, 128))[SLIDE]
    assert 0.2 <= values.min() < 0.25
    assert later.hash != plan().hash


def test_a_design_places_what_is_adaptive_too():
    one = plan(start={SLIDE: [0.3, 0.9]})
    spread = Plan(twin=SO101, run_seed=0, draws=one.draws, design=make_design("sobol", episodes=64, where="t"))
    free = spread.draw_worlds(range(64))
    inside = free.table[SLIDE][free.boundary == -1]
    strata = np.floor((inside - 0.3) / 0.6 * 64).astype(int)
    assert np.unique(strata).size == strata.size


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"names": []}, InputError, "names: List should have at least 1 item"),
        ({"names": [SLIDE], "evry": 3}, InputError, r"evry: This key does not exist.*Nearest existing: every"),
        ({"names": ["object/cube/fric"]}, UnknownNameError, "Unknown parameter 'object/cube/fric'"),
        ({"names": [SLIDE], "thresholds": [0.9, 0.6]}, InputError, "thresholds: two success rates from 0 to 1"),
        ({"names": [SLIDE], "step": 0}, InputError, "step: object/cube/friction/slide needs a positive step"),
        ({"names": [SLIDE], "step": {MASS: 0.1}}, UnknownNameError, "Unknown adaptive parameter 'object/cube/mass'"),
        ({"names": [SLIDE], "start": {SLIDE: [-1, 1]}}, BoundsError, "outside its physical bounds"),
        ({"names": [SLIDE], "limits": {SLIDE: [0.1, 0.3]}}, InputError, "starts at .* which must be within its limits"),
    ],
)
def test_a_wrong_adaptive_section_is_refused_with_its_key(section, error, message):
    with pytest.raises(error, match=message):
        section_plan({"adaptive": section}, SO101, run_seed=0, episodes=8, where="g.yaml")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"params": {SLIDE: [0.4, 1.0]}}, "object/cube/friction/slide is drawn twice"),
        ({"constraints": [f"{SLIDE} < 1"]}, "whose ranges are adaptive: the episodes that evaluate a boundary"),
        (
            {"design": {"kind": "grid", "levels": 3, "names": [SLIDE]}},
            "named by the design grid, but has adaptive ranges",
        ),
    ],
)
def test_adaptive_ranges_that_contradict_another_part_are_refused(more, message):
    section = {"adaptive": {"names": [SLIDE]}, **more}
    with pytest.raises(InputError, match=message):
        section_plan(section, SO101, run_seed=0, episodes=8, where="g.yaml")


def test_the_default_ranges_of_the_others_stay():
    section = {"default": True, "adaptive": {"names": [SLIDE]}}
    names = [
        name for draw in section_plan(section, SO101, run_seed=0, episodes=8, where="g").draws for name in draw.names
    ]
    assert names.count(SLIDE) == 1
    assert MASS in names


def test_a_round_must_divide_into_whole_batches(tmp_path):
    with pytest.raises(InputError, match="every 257 divides into batches of 1 worlds only. Choose a multiple of 64"):
        config(64, 10, tmp_path, every=257)


class Interrupted(LocalProcesses):
    """This process, until somebody presses Ctrl-C after so many batches."""

    def __init__(self, batches):
        super().__init__(1)
        self.left = batches

    def map(self, function, items):
        for pair in super().map(function, items):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield pair


@pytest.mark.slow
def test_generated_rounds_are_the_same_bytes_on_two_workers_and_after_a_stop(tmp_path):
    value = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {"default": True, "adaptive": {"names": [SLIDE], "every": 8, "buffer": 2, "step": 0.4}},
        "rollout": {"parallel_envs": 4},
    }
    full = resolve_config(value, where="t", folder=tmp_path, episodes=24)
    generate_states(full, tmp_path / "one")
    generate_states(full, tmp_path / "two", workers=2)
    with pytest.raises(KeyboardInterrupt):
        generate_states(full, tmp_path / "three", engine=Interrupted(3))
    generate_states(full, tmp_path / "three", resume=True)
    assert sha256_tree(tmp_path / "one") == sha256_tree(tmp_path / "two") == sha256_tree(tmp_path / "three")
    record = json.loads((tmp_path / "one/twinloop/adaptive.json").read_text())
    assert len(record["rounds"]) == 3
    assert record["ranges"][SLIDE] != record["rounds"][0]["ranges"][SLIDE]
    tested = [row["attempted"] for item in record["rounds"] for row in item["boundaries"]]
    assert sum(tested) > 0
