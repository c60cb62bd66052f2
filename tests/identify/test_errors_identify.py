"""Invalid words and files of identification are refused in one line, before any fit or motion."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.commands import PROGRAM
from support.swing import clips, swing_twin
from twinloop.cli.main import main
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.randomize.sources import identified_notes
from twinloop.simulate import open_backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A twin that takes positions, and a log of it as CSV: of positions, of torques, without commands."""
    place = tmp_path_factory.mktemp("swing")
    made = clips(swing_twin(place), open_backend("threads", nthread=1), {}, count=3, nframe=30)
    rows = [
        f"{e.index},{t:.6f},{a:.5f},{s:.5f}"
        for e in made
        for t, a, s in zip(e.time, e.action[:, 0], e.state[:, 0], strict=True)
    ]
    head = ["# units: swing=deg", "episode,time_s,action/swing,state/swing"]
    for name, command in (("log", []), ("torque", ["# command: torque"]), ("none", ["# command: none"])):
        (place / f"{name}.csv").write_text("\n".join([*command, *head, *rows]) + "\n")
    (place / "taken.yaml").write_text("a: 1\n")
    (place / "list.yaml").write_text("- 1\n")
    return place


def said(folder, capsys, words: str) -> str:
    """Return a command's refusal; assert one line and the exit code of invalid input."""
    assert main([word.replace("@", f"{folder}/") for word in words.split()]) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("twinloop:")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--plan --calibrate last:2 --holdout last:1",
            "--plan makes no fit, so --calibrate, --holdout would have no effect",
        ),
        ("--plan --bootstrap 50", "so --bootstrap would have no effect. Leave out one or the other"),
        ("--plan --excitation @p.yaml --duration nan", "too short to move and return home"),
        ("--plan --excitation @p.yaml --duration 1e9", "1e+09 s is too long for the search. Give at most 600 s"),
        ("--plan --excitation @p.yaml --repeat 0", "--repeat and pool must be at least 1"),
        ("--plan --excitation @p.yaml --speed-share nan", "--speed-share nan is not a share. Give more than 0"),
        ("--plan --excitation @p.csv", "p.csv is not a plan's file name. Use the suffix .yaml"),
        ("--plan --excitation @taken.yaml", "taken.yaml exists, and a log may belong to it. Choose another name"),
        ("--output @x --bootstrap -3", "--bootstrap -3: percentiles need at least 40 refits. Give as many"),
        ("--output @x --window 100", "Windows of 100 s do not fit: the longest episode lasts 0.9667 s"),
        ("--output @x --profile joint/swing/nope", "Unknown free parameter 'joint/swing/nope' in --profile. Nearest"),
        ("--output @x --compare --structures dely", "Unknown structure 'dely'. Nearest existing: delay"),
        ("--output @x --compare --folds 9", "--folds: 9 folds of 3 episodes: give from 2 to as many folds as episodes"),
        ("--output @x --drift hour", "--drift hour: the log's times begin at 0 s, which is not a clock time"),
        ("--output @x --holdout 2 --calibrate 2", "--calibrate 2: there is no episode 2 to hold out; there are 2"),
    ],
)
def test_identify_refuses_before_it_fits(folder, capsys, words: str, message: str) -> None:
    assert message in said(folder, capsys, f"identify --twin @swing.yaml --data @log.csv {words}")
    assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "torque",
            "declares its commands as torques, but the twin swing takes positions. Choose a twin with robot.control",
        ),
        ("none", "has no commands, which a replay needs. To go on, give a log that has them"),
    ],
)
def test_commands_that_the_twin_does_not_take_are_refused(folder, capsys, log: str, message: str) -> None:
    assert message in said(folder, capsys, f"identify --twin @swing.yaml --data @{log}.csv --output @y")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("import @log.csv --check --time-scale -1", "--time-scale -1 is not a finite number above 0"),
        ("import @log.csv --check --resample nan", "--resample nan is not a finite number above 0"),
        ("import @log.csv --check --shift nan", "--shift nan: nan is not a finite number"),
        ("import @log.csv --check --units rad,deg", "2 units were given. Give one unit for all, or one for each"),
        ("record --robot virtual:so101_tabletop --excitation @list.yaml --dry-run", "is not a mapping. Make one with"),
    ],
)
def test_logs_and_plans_are_refused_by_the_option_that_is_wrong(folder, capsys, words: str, message: str) -> None:
    assert message in said(folder, capsys, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("logs --only nosuch", "Unknown log 'nosuch'"),
        ("logs --trials 0", "--trials 0: give at least 1"),
    ],
)
def test_a_benchmark_of_logs_that_cannot_be_is_refused(capsys, words: str, message: str) -> None:
    assert main(words.split(), PROGRAM) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_estimate_at_a_bound_in_logarithm_does_not_round_beyond_it() -> None:
    high = 100.0
    assert np.exp(np.log(high)) > high
    found = ParamDistribution(
        names=("actuator/swing/kp",),
        transforms=("log",),
        mean=np.log([high]),
        covariance=np.eye(1),
        low=np.array([0.5]),
        high=np.array([high]),
        determined=(True,),
        clusters=3,
    )
    assert found.estimate == {"actuator/swing/kp": high}


@pytest.mark.parametrize("mean", [["x"], 3, None])
def test_a_damaged_distribution_is_refused_with_what_to_give_instead(mean) -> None:
    value = {key: [] for key in ("names", "transforms", "covariance", "low", "high", "determined")}
    with pytest.raises(InputError, match="is damaged .*Give the result that `identify` wrote, unchanged"):
        ParamDistribution.from_json({**value, "mean": mean, "clusters": "none" if mean != ["x"] else 3})


def test_ranges_that_were_identified_for_another_twin_are_refused_by_the_parameter(folder) -> None:
    found = ParamDistribution(
        names=("actuator/elbow/kp",),
        transforms=("log",),
        mean=np.zeros(1),
        covariance=np.eye(1),
        low=np.array([0.5]),
        high=np.array([2.0]),
        determined=(True,),
        clusters=3,
    )
    with pytest.raises(InputError, match="Unknown identified parameter 'actuator/elbow/kp' in the twin swing"):
        identified_notes(swing_twin(folder), found, kappa=None)
