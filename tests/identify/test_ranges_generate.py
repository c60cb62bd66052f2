"""An identify run becomes ranges: with the calibrated factor, and with a word on everything that was not determined."""

import dataclasses
import json
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from support.swing import swing_twin
from twinloop.cli.main import main
from twinloop.core.console import markdown_text
from twinloop.core.distribution import ParamDistribution, RangeCalibration, ResidualNoise
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import read_config
from twinloop.generate.config import load_plan
from twinloop.generate.replay import replay_episode
from twinloop.identify.fit import find_wide_estimates, join_distributions
from twinloop.randomize import Plan, identified_draws, identified_notes
from twinloop.release.rules_conditions import compute_intervals
from twinloop.twin import load_twin
from twinloop.workflows.generate.generate import run_generate
from twinloop.workflows.generate.requests import GenerateRequest
from twinloop.workflows.run.taught_worlds import read_worlds, write_worlds

KP, DAMPING, OFFSET = "actuator/elbow_flex/kp", "joint/elbow_flex/damping", "sensor/elbow_flex/offset"
FILE = "scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 2, episodes_per_env: 1}\n"


def calibration(**changes):
    fields = {
        "kappa": 2.25,
        "status": "calibrated",
        "level": 0.9,
        "clips": 12,
        "needed": 2.25,
        "cap": 9.0,
        "cap_reason": "three standard deviations in place of one",
        "model_error": np.zeros(1),
    }
    return RangeCalibration(**{**fields, **changes})


FOUND = ParamDistribution(
    names=(KP, DAMPING, OFFSET),
    transforms=("log", "identity", "identity"),
    mean=np.array([np.log(9.0), 0.6, 0.0]),
    covariance=np.diag([0.01, 0.01, 1.0]),
    low=np.zeros(3),
    high=np.ones(3),
    determined=(True, True, False),
    clusters=30,
    data_hash="0123456789abcdef",
    prior_mean=np.array([np.log(9.0), 0.6, 0.0]),
    prior_sd=np.array([0.7, 0.6, 0.1]),
    noise=ResidualNoise(
        channels=("position/elbow_flex",),
        units=("deg",),
        sd=np.ones(1),
        rho=np.zeros(1),
        structured=np.zeros(1),
        hz=30.0,
    ),
    calibration=calibration(),
)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "identify"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"distribution": FOUND.to_json()}))
    (tmp_path / "g.yaml").write_text(FILE)
    return folder


def test_a_fit_that_must_not_be_trusted_says_so_where_it_is_drawn():
    twin, warned = load_twin("so101_tabletop"), replace(FOUND, warning="DO NOT TRUST THIS FIT: worse")
    again = ParamDistribution.from_json(json.loads(json.dumps(warned.to_json())))
    assert identified_notes(twin, again)[0] == warned.warning
    assert identified_notes(twin, FOUND) == identified_notes(twin, again)[1:]
    other = replace(FOUND, names=(KP, DAMPING, "sensor/gripper/offset"))
    assert join_distributions(FOUND, replace(other, warning="of the arm"), twin).warning == "of the arm"


@pytest.mark.parametrize(
    ("module", "words", "needs"),
    [
        ("train.distill", "distill", "torch"),
        ("train.reinforce", "reinforce", "stable_baselines3"),
        ("scenario.search", "scenario search --policy x", "twinloop"),
    ],
)
def test_commands_that_draw_worlds_print_the_warning(module, words, needs, run, tmp_path, monkeypatch, capsys):
    """Each prints it before it does anything else with the worlds."""
    if find_spec(needs) is None:
        pytest.skip(f"could not import '{needs}'")
    warned = replace(FOUND, warning="DO NOT TRUST THIS FIT: worse")
    (run / "result.json").write_text(json.dumps({"distribution": warned.to_json()}))
    file = tmp_path / "drawn.yaml"
    file.write_text(f"{FILE}randomization: {{identified: {run}}}\n")

    class ReachedError(Exception):
        pass

    def stop(*_):
        raise ReachedError

    monkeypatch.setattr(f"twinloop.workflows.{module}.open_task", stop)
    with pytest.raises(ReachedError):
        main([*words.split(), str(file), "--output", str(tmp_path / "out")])
    assert "Ranges: DO NOT TRUST THIS FIT: worse" in capsys.readouterr().out


def spread(draws, twin, name):
    return np.std(np.log(Plan(twin=twin, run_seed=0, draws=tuple(draws)).draw(range(4000))[name]))


def test_worlds_are_drawn_with_the_calibrated_factor_unless_another_is_asked_for():
    twin = load_twin("so101_tabletop")
    assert spread(identified_draws(twin, FOUND), twin, KP) == pytest.approx(1.5 * 0.1, rel=0.05)
    assert spread(identified_draws(twin, FOUND, kappa=1.0), twin, KP) == pytest.approx(0.1, rel=0.05)
    assert "kappa 2.25, calibrated on 12 clips for 90%" in identified_draws(twin, FOUND)[0].source
    assert "kappa 1, as asked for" in identified_draws(twin, FOUND, kappa=1.0)[0].source


def test_worlds_are_drawn_around_the_fit_in_which_undetermined_parameters_are_at_their_prior():
    twin, centred = load_twin("so101_tabletop"), np.array([np.log(7.0), 0.3, 0.0])
    found = ParamDistribution.from_json(json.loads(json.dumps(replace(FOUND, centred=centred).to_json())))
    drawn = Plan(twin=twin, run_seed=0, draws=tuple(identified_draws(twin, found))).draw(range(4000))
    assert np.median(drawn[KP]) == pytest.approx(7.0, rel=0.02)
    assert np.median(drawn[DAMPING]) == pytest.approx(0.3, rel=0.05)
    assert spread(identified_draws(twin, found), twin, KP) == pytest.approx(1.5 * 0.1, rel=0.05)
    assert found.mean.tolist() == FOUND.mean.tolist()


def test_what_the_data_know_less_well_than_the_range_is_drawn_from_the_range():
    twin, centred = load_twin("so101_tabletop"), np.array([np.log(7.0), np.nan, np.nan])
    found = ParamDistribution.from_json(json.loads(json.dumps(replace(FOUND, centred=centred).to_json())))
    assert found.drawn.tolist() == [True, False, False]
    drawn = Plan(twin=twin, run_seed=0, draws=tuple(identified_draws(twin, found))).draw(range(4000))
    ends = twin.params[DAMPING].absolute(twin.params[DAMPING].default_range, twin.params[DAMPING].op)
    assert (drawn[DAMPING].min(), drawn[DAMPING].max()) == pytest.approx(tuple(ends), rel=0.01)
    notes = identified_notes(twin, found)
    assert notes[0].startswith("1 parameters are drawn together")
    assert notes[1].startswith(
        f"Known less well from the data than by the twin's ranges, which are drawn instead: {DAMPING}"
    )
    nothing = replace(found, centred=np.full(3, np.nan))
    assert {name for draw in identified_draws(twin, nothing) for name in draw.names} >= {KP, DAMPING, OFFSET}
    assert "0 parameters" in identified_notes(twin, nothing)[0]
    assert list(compute_intervals(found, 0.95)) == [KP]
    low, high = np.log(compute_intervals(replace(found, high=np.full(3, 99.0)), 0.95)[KP])
    assert (low + high) / 2 == pytest.approx(np.log(7.0))


@pytest.mark.parametrize("name", [KP, OFFSET])
def test_an_estimate_is_wide_beside_the_range_unless_it_refutes_it(name):
    """A uniform draw has the standard deviation width / sqrt(12), of kp in logarithms."""
    twin = load_twin("so101_tabletop")
    param = twin.params[name]
    low, high = param.absolute(param.default_range, param.op)
    low, high = (np.log(low), np.log(high)) if name == KP else (low, high)
    own = (high - low) / np.sqrt(12)

    def is_wide(point, sd):
        space = SimpleNamespace(names=(name,), twin=twin)
        return find_wide_estimates(space, np.array([point]), SimpleNamespace(covariance=np.array([[sd**2]])))[0]

    assert [bool(is_wide((low + high) / 2, share * own)) for share in (0.99, 1.01)] == [False, True]
    far = [high + share * 1.01 * own for share in (3.9, 4.1)]
    assert [bool(is_wide(point, 1.01 * own)) for point in far] == [True, False]
    assert [bool(is_wide(low + high - point, 1.01 * own)) for point in far] == [True, False]


def test_what_was_not_determined_says_so_in_its_range():
    twin = load_twin("so101_tabletop")
    draw = next(draw for draw in identified_draws(twin, FOUND) if draw.names == (OFFSET,))
    assert draw.source.startswith("not determined by the data, prior range")
    others = [d for d in identified_draws(twin, FOUND) if d.source.startswith("not determined")]
    assert len(others) == 1
    low, high = twin.params[OFFSET].default_range
    first, second = identified_notes(twin, FOUND)
    assert "2 parameters are drawn together as identified from 30 episodes, kappa 2.25, calibrated" in first
    assert "100.0% of the draws are within the physical bounds" in first
    assert second == (
        f"NOT DETERMINED by the data, drawn from the twin's prior ranges: {OFFSET} [{low:.4g}, {high:.4g}] rad."
    )


def test_the_cap_and_the_model_error_are_said():
    twin = load_twin("so101_tabletop")
    capped = calibration(kappa=9.0, status="capped", needed=np.inf, model_error=np.array([0.7]))
    text = "\n".join(identified_notes(twin, dataclasses.replace(FOUND, calibration=capped)))
    assert "capped at kappa 9 (three standard deviations in place of one); 12 clips need an unlimited one" in text
    assert "MODEL ERROR beyond these ranges on real clips: position/elbow_flex 0.7 deg." in text
    never = dataclasses.replace(FOUND, calibration=None)
    assert "kappa 1, never calibrated" in identified_notes(twin, never)[0]


def test_without_a_default_range_the_fits_own_prior_is_drawn_from_inside_its_bounds(tmp_path):
    twin = swing_twin(tmp_path)
    name = "joint/swing/frictionloss"
    found = dataclasses.replace(
        FOUND,
        names=("joint/swing/damping", name, "joint/swing/stiction"),
        transforms=("identity",) * 3,
        mean=np.array([0.1, 0.05, 1.0]),
        covariance=np.diag([0.01, 0.01, 1.0]),
        determined=(True, False, False),
        prior_mean=np.array([0.6, 0.05, np.nan]),
        prior_sd=np.array([0.6, 0.1, np.nan]),
        calibration=None,
    )
    draws = identified_draws(twin, found)
    table = Plan(twin=twin, run_seed=0, draws=tuple(draws)).draw(range(4000))
    # A normal about 0.05 with spread 0.1, truncated at 0 and not clipped there: no value is on the bound.
    assert (table[name] > 0).all()
    assert table[name].mean() == pytest.approx(0.05 + 0.1 * 0.5092, rel=0.05)  # φ(½) / Φ(½) = 0.5092
    assert (table["joint/swing/stiction"] == 1.0).all()
    first, prior, kept = identified_notes(twin, found)
    assert "84.1% of the draws" in first or "84." in first  # Φ(1): damping 0.1 ± 0.1 from 0
    assert prior.endswith(f"drawn from the fit's priors: {name} 0.05 ± 0.1.")
    assert kept.endswith("without a prior range and kept nominal: joint/swing/stiction.")


def test_generate_draws_from_a_run_and_writes_down_what_it_means(run, tmp_path, capsys):
    metrics = run_generate(
        GenerateRequest(
            file=tmp_path / "g.yaml",
            output=str(tmp_path / "data"),
            episodes=None,
            seed=None,
            workers=1,
            resume=False,
            keep="all",
            randomize_from=run,
        ),
        console=Console(width=200),
    )
    printed, card = capsys.readouterr().out, (tmp_path / "data" / "README.md").read_text()
    for line in metrics["ranges"]:
        assert f"Ranges: {line}" in printed
        assert f"- {markdown_text(line)}" in card
    assert "NOT DETERMINED by the data" in card
    spec = DatasetReader(tmp_path / "data").spec
    assert spec.ranges == tuple(metrics["ranges"])
    sources = {draw["names"][0]: draw["source"] for draw in spec.config["plan"]["draws"]}
    assert sources[KP].startswith("identified from 30 episodes, data 0123456789ab, kappa 2.25, calibrated on 12 clips")
    assert sources[OFFSET].startswith("not determined by the data")


def test_the_option_takes_the_place_of_the_files_section_but_not_of_ranges_by_hand(run, tmp_path):
    asked = read_config(tmp_path / "g.yaml", randomize_from=run)
    (tmp_path / "same.yaml").write_text(FILE + f"randomization: {{identified: {run}}}\n")
    same = read_config(tmp_path / "same.yaml")
    assert asked.kappa == same.kappa == 2.25
    assert load_plan(asked).hash == load_plan(same).hash
    (tmp_path / "g.yaml").write_text(FILE + "randomization: {kappa: 1.5, physics: {object_mass_g: [20, 100]}}\n")
    with pytest.raises(InputError, match=r"replacing randomization\.physics\. Remove these"):
        read_config(tmp_path / "g.yaml", randomize_from=run)
    (tmp_path / "g.yaml").write_text(FILE + "randomization: {kappa: 1.5}\n")
    assert read_config(tmp_path / "g.yaml", randomize_from=run).kappa == 1.5
    with pytest.raises(InputError, match="does not exist"):
        read_config(tmp_path / "g.yaml", randomize_from=tmp_path / "nowhere")


def test_ranges_of_images_stand_beside_an_identified_robot(run, tmp_path):
    looks = np.full((32, 64, 3), 90, np.uint8)
    (tmp_path / "hdri").mkdir()
    Image.fromarray(looks).save(tmp_path / "hdri" / "hall.png")
    visual = "visual: {rooms: 50, panoramas: hdri}"
    (tmp_path / "both.yaml").write_text(FILE + f"randomization: {{identified: {run}, {visual}}}\n")
    plan = load_plan(read_config(tmp_path / "both.yaml"))
    (tmp_path / "alone.yaml").write_text(FILE + f"randomization: {{{visual}}}\n")
    assert load_plan(read_config(tmp_path / "alone.yaml", randomize_from=run)).hash == plan.hash
    assert plan.scenery.rooms
    assert [panorama.path for panorama in plan.scenery.panoramas] == [tmp_path / "hdri" / "hall.png"]
    assert len(set(plan.draw(range(40))[KP])) == 40
    (tmp_path / "both.yaml").write_text(FILE + f"randomization: {{identified: {run}, physics: {{}}}}\n")
    with pytest.raises(InputError, match="Remove physics"):
        read_config(tmp_path / "both.yaml")


RESIDUAL = """
base: so101_tabletop
residual:
  source: test
  joints:
    elbow_flex: {positions: [-1.0, 1.0], offsets: [0.02, -0.02], speed: 3.0, difference: 0.5, bound: 0.01, sd: 0.01}
"""


def test_generate_draws_the_amplitudes_of_an_admitted_residual(run, tmp_path):
    known = dataclasses.replace(FOUND, twin_hash=load_twin("so101_tabletop").hash)
    (run / "result.json").write_text(json.dumps({"distribution": known.to_json()}))
    (run / "twin.yaml").write_text(RESIDUAL)
    run_generate(
        GenerateRequest(
            file=tmp_path / "g.yaml",
            output=str(tmp_path / "data"),
            episodes=2,
            randomize_from=run,
            keep="all",
        ),
        Console(quiet=True),
    )
    reader = DatasetReader(tmp_path / "data")
    drawn = [reader.provenance(index).params for index in range(2)]
    amplitudes = {params[f"residual/{part}/scale"] for params in drawn for part in ("action", "disturbance")}
    assert len(amplitudes) == 4
    assert all(0.0 < amplitude < 1.0 for amplitude in amplitudes)
    assert replay_episode(tmp_path / "data", 1).equal


def test_taught_worlds_around_an_identified_robot_have_its_residual(run, tmp_path):
    known = dataclasses.replace(FOUND, twin_hash=load_twin("so101_tabletop").hash)
    (run / "result.json").write_text(json.dumps({"distribution": known.to_json()}))
    (run / "twin.yaml").write_text(RESIDUAL)
    write_worlds(tmp_path, read_config(tmp_path / "g.yaml", seed=5))
    made = load_plan(read_worlds(tmp_path, randomize_from=run))
    assert made.hash == load_plan(read_config(tmp_path / "g.yaml", seed=5, randomize_from=run)).hash
    assert "residual/action/scale" in made.twin.params
    assert load_plan(read_worlds(tmp_path, seed=6)).run_seed == 6


def test_a_residual_of_another_twin_is_refused(run, tmp_path):
    (run / "twin.yaml").write_text(RESIDUAL.replace("so101_tabletop", "so101_tabletop_geared"))
    with pytest.raises(InputError, match="residual of another twin than so101_tabletop"):
        read_config(tmp_path / "g.yaml", randomize_from=run)
