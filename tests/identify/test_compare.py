"""Physics that generated a log is named as missing; other physics brings no improvement."""

import json

import numpy as np
import pytest
import yaml

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.identify import HoldoutSpec
from twinloop.identify.compare import StructureResult, adjust_p_values, compare_structures
from twinloop.identify.config import FitConfig
from twinloop.identify.structures import BUILTIN, read_structures, select_structures
from twinloop.simulate import open_backend
from twinloop.stats import Interval
from twinloop.twin import load_twin

STICKY = {"joint/swing/stiction": 3.0, "joint/swing/stribeck_velocity": 0.3}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def test_planted_quadratic_damping_is_named_as_missing(twin, backend):
    (structure,) = select_structures(["quadratic_damping"])
    thick = structure.apply_to(twin, [])
    log = clips(thick, backend, {**TRUTH, "joint/swing/damping_quadratic": 0.3}, count=8, nframe=50)
    found = compare_structures(
        twin,
        log,
        backend=backend,
        structures=select_structures(["quadratic_damping", "contact_softness"]),
        folds=2,
        config=FitConfig(iterations=10),
    )
    thick, contact = found.results
    assert thick.verdict == "MISSING from the base"
    assert thick.values["joint/swing/damping_quadratic"] == pytest.approx(0.3, rel=0.15)
    assert thick.added == 1
    assert thick.improvement.low > 0.2
    assert thick.per_parameter == pytest.approx(float(thick.improvement.estimate))
    without, having = thick.channel_errors["position/swing"]
    assert found.base == {"position/swing": pytest.approx(without)}
    assert having < 0.8 * without
    assert contact.reason == "the replay simulates no contacts (replay.contacts is false)"
    assert "MISSING from the base" in found.text()
    assert "not compared: the replay simulates no contacts" in found.text()
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["structures"][1]["not_applicable"] == contact.reason
    assert (found.episodes, found.folds) == (8, 2)


@pytest.mark.slow
def test_physics_that_the_log_lacks_buys_nothing_and_the_delay_it_has_is_needed(twin, backend):
    log = clips(twin, backend, TRUTH, count=12, nframe=50)
    found = compare_structures(
        twin,
        log,
        backend=backend,
        structures=select_structures(["delay", "quadratic_damping"]),
        holdout=HoldoutSpec.parse("last:6"),
        config=FitConfig(iterations=10),
    )
    delay, damping = found.results
    assert delay.in_base
    assert delay.verdict == "needed, the base has it"
    assert damping.verdict.startswith("no relevant gain")
    assert damping.p_value > 0.05
    assert found.folds == 1


@pytest.mark.slow
def test_every_structure_against_planted_stribeck_friction(twin, backend):
    log = clips(twin, backend, {**TRUTH, **STICKY}, count=12, nframe=60)
    found = compare_structures(twin, log, backend=backend, structures=BUILTIN, folds=2)
    rows = {row.name: row for row in found.results}
    assert rows["stribeck"].verdict == "MISSING from the base"
    for name, planted in STICKY.items():
        assert rows["stribeck"].values[name] == pytest.approx(planted, rel=0.2)
    for name in ("backlash", "load_friction", "voltage_limit", "flexible_joint"):
        assert "MISSING" not in rows[name].verdict
        assert rows[name].improvement.low < 0.05


@pytest.mark.slow
def test_play_is_found_where_it_was_planted(twin, backend):
    (structure,) = select_structures(["backlash"])
    geared = structure.apply_to(twin, [])
    log = clips(geared, backend, {**TRUTH, "joint/swing/backlash": 0.04}, count=10, nframe=60, noise_deg=0.05)
    found = compare_structures(twin, log, backend=backend, structures=[structure], folds=2)
    assert found.results[0].verdict == "MISSING from the base"
    assert found.results[0].values["joint/swing/backlash"] == pytest.approx(0.04, rel=0.25)


def interval(low, estimate, high):
    return Interval(estimate=np.array(estimate), low=np.array(low), high=np.array(high), level=0.95, method="given")


def row(name, low, estimate, high, p, *, in_base=False):
    return StructureResult(
        name=name,
        meaning="",
        added=2,
        in_base=in_base,
        error=interval(0, 1, 2),
        improvement=interval(low, estimate, high),
        p_value=p,
        channel_errors={},
        values={},
    )


def test_verdicts_follow_from_interval_and_adjusted_p():
    rows = adjust_p_values(
        [
            row("best", 0.2, 0.3, 0.4, 0.001),
            row("second", 0.05, 0.1, 0.2, 0.002),
            row("tiny", 0.001, 0.005, 0.008, 0.003),
            row("had", 0.1, 0.5, 0.6, 0.001, in_base=True),
            row("nothing", -0.02, -0.001, 0.004, 0.5),
            row("worse", -0.2, -0.1, -0.05, 0.99),
            row("open", -0.1, 0.1, 0.3, 0.04),
            StructureResult(name="none", meaning="", reason="it cannot", channel_errors={}, values={}),
        ]
    )
    assert [r.verdict for r in rows] == [
        "MISSING from the base",
        "helps, but best explains more",
        "no relevant gain: significant, but less than 1%",
        "needed, the base has it",
        "no relevant gain: below 1%",
        "makes it worse on new clips",
        "no significant gain on these clips (at most +30.0%)",
        "",
    ]
    assert rows[0].p_value == pytest.approx(0.007)  # of seven that were compared
    assert rows[6].p_value == pytest.approx(0.12)
    assert np.isnan(rows[7].per_parameter)


def test_structures_of_a_users_own_stand_beside_the_built_in_ones(twin, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump(
            [
                {
                    "name": "springs",
                    "meaning": "a spring in every joint",
                    "frees": ["joint/*/stiffness"],
                    "neutral": {"joint/*/stiffness": 0.0},
                    "priors": {"joint/*/stiffness": {"spread": 0.5}},
                }
            ]
        )
    )
    (springs,) = select_structures(["springs"], file)
    richer = springs.apply_to(twin, [])
    assert springs.names(richer) == ("joint/swing/stiffness",)
    assert springs.values(richer, "neutral") == {"joint/swing/stiffness": 0.0}
    assert "joint/swing/stiffness" not in twin.params
    assert len(select_structures((), file)) == len(BUILTIN) + 1
    with pytest.raises(UnknownNameError, match="structure 'spring'"):
        select_structures(["spring"], file)
    file.write_text("- {name: x, meaning: y, free: [a]}\n")
    with pytest.raises(InputError, match="Nearest existing: frees"):
        read_structures(file)
    file.write_text("name: x\n")
    with pytest.raises(InputError, match="is not a list of structures"):
        read_structures(file)


def test_every_built_in_structure_fits_an_arm_or_says_why_not():
    arm = load_twin("so101_tabletop")
    for structure in BUILTIN:
        richer = structure.apply_to(arm, [])
        names = structure.names(richer)
        assert names
        table = richer.table(1, {**structure.values(richer, "start")})
        assert table.nworld == 1
    pendulum = load_twin("double_pendulum")
    (contact,) = select_structures(["contact_softness"])
    with pytest.raises(InputError, match="the twin double_pendulum has no parameter that matches object/"):
        contact.apply_to(pendulum, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"folds": 9}, "9 folds of 3 episodes"), ({"holdout": HoldoutSpec.parse("last:1")}, "One held-out episode")],
)
def test_too_little_to_judge_on(twin, backend, changes, message):
    log = clips(twin, backend, TRUTH, count=3, nframe=20)
    with pytest.raises(InputError, match=message):
        compare_structures(twin, log, backend=backend, structures=BUILTIN[:1], **changes)
