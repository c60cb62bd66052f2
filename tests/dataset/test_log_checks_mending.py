"""What the checks find in a file on the command line, and what each flag mends."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import UnknownNameError
from twinloop.core.records import LoggedSignal
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.checks.check import check_log
from twinloop.dataset.logs.checks.repairs import LogRepairs
from twinloop.dataset.logs.importers.protocol import RawEpisode

UNITS = UnitMap(joints=tuple(JointUnit(joint=j, unit="rad", scale=1.0, offset=0.0) for j in "ab"), source="test")


def servo(*, seconds: float = 8.0) -> RawEpisode:
    """Two joints that follow sums of sines 0.1 s late, in closed form; with the velocity of both."""
    time = np.arange(0, seconds, 0.02)

    def motion(at, order=0):
        rates = ((1.1, 2.3), (1.7, 0.9))
        return np.stack(
            [sum(0.4 * w**order * np.sin(w * at + order * math.pi / 2) for w in pair) for pair in rates], axis=1
        )

    velocity = LoggedSignal(time=time, values=motion(time - 0.1, 1), columns=("a", "b"), unit="rad/s")
    return RawEpisode(
        index=0, time=time, action=motion(time), state=motion(time - 0.1), units=UNITS,
        signals={"joint_velocity": velocity},
    )  # fmt: skip


def changed(**fields) -> RawEpisode:
    return replace(servo(), **fields)


def with_rows(**rows) -> RawEpisode:
    record = servo()
    arrays = {name: np.array(getattr(record, name)) for name in ("time", "state", "action")}
    for name, (index, value) in rows.items():
        arrays[name][index] = value
    return replace(record, **arrays)


TURNED = np.array([-1.0, 1.0])


@pytest.mark.parametrize(
    ("broken", "kind", "mending"),
    [
        (changed(state=servo().state * TURNED, signals={}), "wrong_sign", LogRepairs(flip=["a"])),
        (changed(action=servo().action * TURNED), "wrong_sign", LogRepairs(flip=["action/a"])),
        (
            changed(signals={"joint_velocity": replace(servo().signals["joint_velocity"],
                                                       values=servo().signals["joint_velocity"].values * TURNED)}),
            "velocity_sign",
            LogRepairs(flip=["joint_velocity/a"]),
        ),
        (with_rows(state=((50, 1), np.nan)), "not_finite", LogRepairs(drop_missing=True)),
        (with_rows(time=(60, servo().time[59])), "time_duplicate", LogRepairs(drop_duplicates=True)),
        (changed(time=1e3 * servo().time, signals={}), "time_unit", LogRepairs(time_scale=1e-3)),
        (changed(state=np.mod(servo().state + 0.1, 2 * math.pi), signals={}), "wraps", LogRepairs(unwrap=["a", "b"])),
    ],
)  # fmt: skip
def test_each_defect_is_gone_after_its_remedy(broken, kind, mending):
    assert check_log([servo()]).findings == ()
    assert check_log([broken]).select_kind(kind)
    mended = mending.repair_episode(broken)
    assert check_log([mended]).errors == ()
    mended.to_episode()


def test_a_shift_moves_measurements_and_keeps_commands():
    ahead = changed(time=servo().time - 0.4, action_time=servo().time)
    assert {f.column for f in check_log([ahead]).select_kind("ahead")} == {"a", "b"}
    mended = LogRepairs(shift={"": 0.4}).repair_episode(ahead)
    report = check_log([mended])
    assert report.errors == ()
    assert all(lag == pytest.approx(0.1, abs=0.01) for lag in report.lags.values())
    episode = mended.to_episode()
    np.testing.assert_array_equal(episode.state, servo().state)


def test_one_joint_shifts_alone_and_a_signal_by_its_clock():
    mended = LogRepairs(shift={"a": 0.2}).repair_episode(servo())
    inner = slice(0, len(mended.time))
    np.testing.assert_allclose(
        mended.state[inner, 0], np.interp(mended.time - 0.2, servo().time, servo().state[:, 0]), atol=1e-12
    )
    np.testing.assert_array_equal(mended.state[:, 1], servo().state[servo().time >= 0.2 - 1e-12][:, 1])
    assert LogRepairs(shift={"joint_velocity": 0.3}).repair_episode(servo()).signals["joint_velocity"].time[
        0
    ] == pytest.approx(0.3)


def test_a_limit_that_cuts_off_is_seen():
    level = 0.45
    report = check_log([changed(state=np.minimum(servo(seconds=8.0).state, level), signals={})])
    assert {f.column for f in report.select_kind("cut_off")} == {"a", "b"}
    assert "stays at exactly 0.45" in report.select_kind("cut_off")[0].evidence


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="Unknown joint or signal 'elbow'"):
        LogRepairs(flip=["elbow"]).repair_episode(servo())
    with pytest.raises(UnknownNameError, match="Unknown signal 'imu'"):
        LogRepairs(scale={"imu": 2.0}).repair_episode(servo())


def write(path, record: RawEpisode) -> None:
    rows = ["time_s,action/a,action/b,state/a,state/b"]
    rows += [",".join(f"{x:.9f}" for x in row) for row in np.column_stack([record.time, record.action, record.state])]
    path.write_text("\n".join(rows) + "\n")


def run(capsys, *arguments) -> tuple[int, dict, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out.splitlines()[-1]), captured.err


def test_check_says_no_and_the_flag_that_it_names_mends(capsys, tmp_path):
    path, output = tmp_path / "log.csv", tmp_path / "dataset"
    write(path, changed(state=servo().state * TURNED))
    code, metrics, shown = run(capsys, "import", path, "--units", "rad", "--check", "--output", output, "--json")
    assert code == 1
    assert not metrics["check"]["passed"]
    assert not output.exists()
    assert "error: wrong_sign: a, episode 0 from" in shown
    code, metrics, _ = run(
        capsys, "import", path, "--units", "rad", "--check", "--flip", "a", "--output", output, "--json"
    )
    assert (code, metrics["check"]["findings"], metrics["frames"]) == (0, [], 400)
    assert len(DatasetReader(output)) == 1


def test_resampling_on_the_way_in_splits_at_gaps(capsys, tmp_path):
    record = servo()
    kept = (record.time < 3) | (record.time > 4)
    write(
        tmp_path / "log.csv",
        replace(record, time=record.time[kept], action=record.action[kept], state=record.state[kept]),
    )
    code, metrics, _ = run(
        capsys,
        "import",
        tmp_path / "log.csv",
        "--units",
        "rad",
        "--resample",
        "25",
        "--output",
        tmp_path / "d",
        "--json",
    )
    assert (code, metrics["episodes"], metrics["fps"]) == (0, 2, 25.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Nothing to do: give --output DIR"),
        (["--check", "--shift", "soon"], "--shift soon: give NAME=NUMBER, or a number for all joints."),
        (["--check", "--scale", "9.81"], "--scale 9.81: name what the number is for, as NAME=9.81."),
        (["--check", "--quaternions", "zyx"], "--quaternions zyx: give wxyz or xyzw."),
    ],
)
def test_flags_that_mean_nothing_are_refused(capsys, tmp_path, flags, message):
    path = tmp_path / "log.csv"
    write(path, servo())
    code, _, shown = run(capsys, "import", path, "--units", "rad", *flags, "--json")
    assert code == 2
    assert message in shown
