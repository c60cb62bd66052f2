"""Laws of the way from candidate to champion, and of the logs that judge it."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.releases import policy_folder, registry_of, yes
from twinloop.catalog import Workspace, audit
from twinloop.catalog.fsck_state import check_release
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.release import (
    CanaryPlan,
    CandidateStage,
    PolicyRegistry,
    ShadowLog,
    ShadowPlan,
    StagePlan,
    StageTracker,
    promote,
    rollback,
)
from twinloop.release.plan import EpisodeOutcome, judge_canary, judge_shadow

AT_ONCE = StagePlan(shadow=None, canary=None)
BOTH = StagePlan(shadow=ShadowPlan(limit=5.0, episodes=2), canary=CanaryPlan(share=0.5, episodes=4))


@pytest.fixture(name="registry")
def with_a_champion(tmp_path):
    with Workspace.create(tmp_path / "cell") as ws:
        registry = registry_of(ws)
        for number, plan in ((1, AT_ONCE), (2, BOTH)):
            reference = registry.add(policy_folder(tmp_path / str(number), number), name="pick", policy=str(number))
            yes(registry, reference, plan)
            if number == 1:
                promote(registry)
        yield registry


def standing(registry: PolicyRegistry) -> CandidateStage:
    found = StageTracker(registry).find_candidate("pick@2")
    assert found is not None
    return found


def near(value: float = 1.0, faults: int = 0) -> dict:
    return {"value": value, "joint": "gripper", "faults": faults, "fault": "gave no answer" if faults else ""}


def test_the_whole_way(registry):
    stages = StageTracker(registry)
    assert (stages.stage, stages.assign_arm(0), stages.record_outcome(0, True)) == ("offline", "champion", "go on")
    assert promote(registry).stage == "shadow"
    assert registry.aliases() == {"champion": "pick@1", "candidate": "pick@2", "shadow": "pick@2"}
    with pytest.raises(CheckFailedError, match=r"pick@2 has been in shadow since .*It moves on automatically"):
        promote(registry)
    with pytest.raises(
        InputError, match=r"Episode 0: pick@2 is in shadow, but the metrics of its commands are missing"
    ):
        stages.record_outcome(0, True)
    assert stages.assign_arm(3) == "champion"
    assert stages.record_outcome(0, True, shadow=near()) == "go on"
    with pytest.raises(InputError, match=r"Episode 0 of pick@2 in shadow is already recorded"):
        stages.record_outcome(0, True, shadow=near())
    assert stages.record_outcome(1, False, shadow=near()) == "go on"
    assert stages.stage == "canary"
    assert registry.aliases()["canary"] == "pick@2"
    acted = [number for number in range(40) if StageTracker(registry).assign_arm(number) == "canary"]
    assert 10 < len(acted) < 30
    for number in acted[:4]:
        assert stages.record_outcome(number, True) == "go on"
    assert stages.stage == "offline"
    assert standing(registry).stage == "passed"
    assert promote(registry).stage == "champion"
    assert registry.aliases() == {"champion": "pick@2", "previous": "pick@1"}
    assert standing(registry).stage == "champion"
    rollback(registry, "drift")
    assert standing(registry).stage == "rolled back"
    assert not list(check_release(registry.workspace.root, registry.workspace.state))


def test_who_is_forced_past_its_stage_is_in_none(registry):
    promote(registry)
    assert registry.aliases()["shadow"] == "pick@2"
    assert promote(registry, "pick@2", to="champion", force=True, reason="a fair").stage == "champion"
    assert registry.aliases() == {"champion": "pick@2", "previous": "pick@1"}
    rollback(registry, "drift")
    assert registry.aliases() == {"champion": "pick@1"}
    assert not list(check_release(registry.workspace.root, registry.workspace.state))


def test_a_violation_ends_a_canary_at_once_and_for_good(registry):
    promote(registry)
    stages = StageTracker(registry)
    for number in range(2):
        stages.record_outcome(number, True, shadow=near())
    acted = next(number for number in range(40) if stages.assign_arm(number) == "canary")
    idle = next(number for number in range(40) if stages.assign_arm(number) == "champion")
    assert (
        stages.record_outcome(idle, True, violations=3) == "go on"
    )  # the champion's own limits are its monitor's matter
    assert stages.record_outcome(acted, True, violations=1) == "abort"
    assert stages.assign_arm(acted) == "champion"
    assert registry.aliases() == {"champion": "pick@1"}
    assert standing(registry).reason == f"Episode {acted}: 1 control steps beyond a safety limit."
    with pytest.raises(CheckFailedError, match=r"pick@2 was aborted: Episode .*Release another version"):
        promote(registry, "pick@2")


@pytest.mark.parametrize(
    ("shadow", "reason"),
    [(near(7.0), "commands differ by 7 at the 0.95 quantile"), (near(faults=2), "gave no command at 2 steps")],
)
def test_a_shadow_that_strays_is_aborted(registry, shadow, reason):
    promote(registry)
    assert StageTracker(registry).record_outcome(0, True, shadow=shadow) == "abort"
    assert reason in standing(registry).reason


def test_a_candidate_is_retired_when_the_champion_moves(registry, tmp_path):
    promote(registry)
    third = registry.add(policy_folder(tmp_path / "3", 3), name="pick", policy="3")
    promote(registry, third, force=True, to="champion", reason="urgent")
    assert standing(registry).stage == "retired"
    assert StageTracker(registry).stage == "offline"
    with pytest.raises(CheckFailedError, match=r"compared pick@2 with pick@1, but the champion of main is now pick@3"):
        promote(registry, "pick@2")


def test_only_one_candidate_is_on_its_way(registry, tmp_path):
    promote(registry)
    third = registry.add(policy_folder(tmp_path / "3", 3), name="pick", policy="3")
    yes(registry, third, BOTH)
    with pytest.raises(InputError, match=r"pick@2 is in shadow of main\. Only one candidate"):
        promote(registry, third)


def test_a_stage_is_not_skipped_without_a_reason(registry):
    with pytest.raises(CheckFailedError, match=r"of the plan shadow, canary, champion is shadow, not champion"):
        promote(registry, to="champion")


def test_a_first_champion_has_nobody_to_be_beside(tmp_path):
    with Workspace.create(tmp_path / "cell") as ws:
        registry = registry_of(ws)
        reference = registry.add(policy_folder(tmp_path / "1", 1), name="pick", policy="1")
        yes(registry, reference, BOTH)
        with pytest.raises(InputError, match=r"main has no champion, which pick@1 needs in shadow"):
            promote(registry)


# Laws.

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "gate yes", "gate no", "promote", "force", "rollback", "good", "bad", "stray"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS)
def test_whatever_happens_the_log_tells_it_and_nobody_is_champion_without_it(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("laws")
    with Workspace.create(folder / "cell") as ws:
        registry = registry_of(ws)
        for number, (event, which) in enumerate(events):
            before = registry.aliases()
            try:
                _do(registry, folder, event, which, number)
            except (CheckFailedError, InputError):
                assert registry.aliases() == before  # a refused change moves nothing
            _hold(registry)


def _do(registry: PolicyRegistry, folder, event: str, which: int, number: int) -> None:
    stages, known = StageTracker(registry), registry.versions()
    if event == "add":
        registry.add(policy_folder(folder / str(which), which), name="pick", policy=str(which))
    elif event in ("good", "bad", "stray"):
        shadow = near(9.0 if event == "stray" else 1.0) if stages.stage == "shadow" else None
        stages.record_outcome(number, event == "good", violations=event == "bad", shadow=shadow)
    elif event == "rollback":
        rollback(registry, "planted")
    elif known:
        reference = known[which % len(known)].reference
        if event.startswith("gate"):
            plan = BOTH if "champion" in registry.aliases() else AT_ONCE
            yes(registry, reference, plan, passed=event == "gate yes")
        else:
            promote(registry, reference, force=event == "force", reason="planted")


def _hold(registry: PolicyRegistry) -> None:
    """Assert the invariants that hold after every step."""
    aliases, stages, log = registry.aliases(), StageTracker(registry), registry.audit()
    assert audit.find_chain_faults(registry.workspace.state) == []
    assert {alias: policy for (_, alias), policy in audit.resolve_aliases(log).items()} == aliases
    busy = [one for one in stages.history() if one.stage in ("shadow", "canary")]
    assert len(busy) <= 1
    assert {one.stage: one.policy for one in busy} == {k: v for k, v in aliases.items() if k in ("shadow", "canary")}
    assert all(one.champion == aliases.get("champion") and one.policy != one.champion for one in busy)
    crowned = [entry.policy for entry in log if entry.action == "promote"]
    assert aliases.get("champion") in [*crowned, None]
    assert aliases.get("previous") != aliases.get("champion") or aliases.get("champion") is None


TOLD = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 0, 0, 0, 2])), max_size=30)


@settings(max_examples=40, deadline=None)
@given(told=TOLD)
def test_a_canary_that_is_aborted_stays_so(told):
    plan = CanaryPlan(share=0.3, episodes=10, alpha=0.2)
    told = [
        EpisodeOutcome(episode=n, arm="canary" if mine else "champion", success=won, violations=v)
        for n, (mine, won, v) in enumerate(told)
    ]
    states = [judge_canary(plan, told[:n]).state for n in range(len(told) + 1)]
    if "abort" in states:
        assert set(states[states.index("abort") :]) == {"abort"}
    assert any(one.arm == "canary" and one.violations for one in told) <= (states[-1] == "abort")
    if states[-1] == "passed":
        assert sum(one.arm == "canary" for one in told) >= plan.episodes


def test_an_unknown_outcome_counts_for_no_policy_but_its_violation_does(registry):
    promote(registry)
    stages = StageTracker(registry)
    for number in range(2):
        stages.record_outcome(number, None, shadow=near())
    acted = [number for number in range(60) if stages.assign_arm(number) == "canary"]
    for number in acted[:6]:
        assert stages.record_outcome(number, None) == "go on"
    judgement = stages.judge_stage()
    assert judgement.state == "going"
    assert judgement.metrics["unknown"] == 6
    assert "0 of 4 episodes as canary, 6 more that nobody judged" in judgement.reason
    assert stages.record_outcome(acted[6], None, violations=1) == "abort"


def test_a_canary_that_is_worse_is_stopped_and_one_that_is_as_good_rarely():
    plan, random = CanaryPlan(share=0.25, episodes=10_000), np.random.default_rng(3)

    def aborted(rate: float) -> bool:
        mine = random.random(200) < plan.share
        won = random.random(200) < np.where(mine, rate, 0.8)
        pairs = zip(mine, won, strict=True)
        told = [
            EpisodeOutcome(episode=n, arm="canary" if m else "champion", success=bool(w))
            for n, (m, w) in enumerate(pairs)
        ]
        return judge_canary(plan, told).state == "abort"

    assert sum(aborted(0.3) for _ in range(15)) >= 12
    assert (
        sum(aborted(0.8) for _ in range(60)) <= 8
    )  # 5 % of 60 is three, and more than eight come by chance in 1 of 300


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5, 0.75, 0.9])
def test_blocks_take_episodes_nearly_as_they_come(share):
    mine, others = CanaryPlan(share=share).block_sizes
    assert mine / (mine + others) == pytest.approx(share, abs=0.06)


def test_episodes_go_to_the_canary_by_a_draw_that_anybody_can_repeat(registry):
    registry.workspace.state.rows("SELECT 1")
    promote(registry)
    stages = StageTracker(registry)
    for number in range(2):
        stages.record_outcome(number, True, shadow=near())
    drawn = [stages.assign_arm(number) for number in range(400)]
    assert drawn == [StageTracker(registry).assign_arm(number) for number in range(400)]
    assert 160 < drawn.count("canary") < 240


# The log of a shadow.


def test_a_shadow_log_says_how_far_and_where(tmp_path):
    log = ShadowLog(("pan", "lift"), quantile=0.9)
    for step in range(10):
        log.compare_step([1.0, 2.0], [1.0, 2.0 + (8.0 if step == 9 else 0.5)])
    found = log.summary()
    assert found["steps"] == 10
    assert found["joint"] == "lift"
    assert found["value"] == pytest.approx(np.quantile([0.5] * 9 + [8.0], 0.9))
    assert found["largest"] == 8.0
    assert found["rms"] == pytest.approx(np.sqrt((9 * 0.25 + 64) / 20))
    assert found["joints"] == pytest.approx({"pan": 0.0, "lift": found["value"]})
    log.write(tmp_path / "shadow.parquet")
    rows = pq.read_table(tmp_path / "shadow.parquet").to_pydict()
    assert rows["shadow/lift"][9] == 10.0
    assert rows["champion/pan"] == [1.0] * 10


@pytest.mark.parametrize(
    ("commands", "latency", "fault"),
    [
        (None, None, "gave no answer"),
        ([1.0], None, "gave 1 commands for 2 joints"),
        ([1.0, float("nan")], None, r"gave [1.0, nan]"),
        ([1.0, 2.0], 0.2, "answered after 0.2 s, 0.05 s were allowed"),
    ],
)
def test_a_shadow_that_could_not_have_acted_is_at_fault(commands, latency, fault):
    log = ShadowLog(budget_s=0.05)
    assert log.compare_step([0.0, 0.0], commands, latency_s=latency).fault == fault
    assert log.summary()["faults"] == 1
    assert log.summary()["fault"] == fault
    if commands is None:
        assert (log.summary()["value"], log.summary()["largest"], log.summary()["rms"]) == (0.0, 0.0, 0.0)
    told = EpisodeOutcome(episode=4, arm="champion", success=True, shadow=log.summary())
    assert judge_shadow(ShadowPlan(limit=100.0), [told]).state == "abort"


def test_a_champion_without_commands_is_no_comparison():
    with pytest.raises(InputError, match=r"Step 0: the champion's command \[nan\] must have one finite number"):
        ShadowLog().compare_step([float("nan")], [0.0])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: CanaryPlan(share=10), "share must be between 0 and 1, not 10. Write 10 % as 0.1"),
        (lambda: CanaryPlan(episodes=0), "A canary stage of 0 episodes has no result"),
        (lambda: ShadowPlan(limit=0.0), "A shadow stage needs a limit above 0"),
    ],
)
def test_plans_that_cannot_be_are_refused(made, message):
    with pytest.raises(InputError, match=message):
        made()


def test_plans_read_back():
    assert StagePlan.from_json(BOTH.to_json()) == BOTH
    assert StagePlan.from_json(AT_ONCE.to_json()) == AT_ONCE
