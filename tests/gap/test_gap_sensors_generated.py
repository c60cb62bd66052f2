"""Generated datasets with planted sensors, compared from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.dataset.logs.formats import load_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "so101_felt.yaml"
PLANTED = """
randomization:
  default: true
  params:
    sensor/tool_imu/gyro_noise: [1.199e-3, 1.2e-3]
    sensor/elbow_flex/noise: [0.003, 0.00301]
    sensor/tool_force/force_noise_x: [2.0, 2.01]
"""


def generate(folder, seed, more=""):
    file = folder / f"{seed}.yaml"
    scene = f"scene: {{twin: {EXAMPLE}, task: pick_and_place}}\n"
    file.write_text(scene + "rollout: {parallel_envs: 6, episodes_per_env: 1, sensors: all}\n" + more)
    output = folder / f"data{seed}"
    assert main(["generate", str(file), "--output", str(output), "--seed", str(seed), "--workers", "1"]) == 0
    return output


@pytest.mark.slow
def test_planted_noise_is_found_and_its_parameters_named(tmp_path, capsys):
    sim, like, real = generate(tmp_path, 0), generate(tmp_path, 1), generate(tmp_path, 2, PLANTED)
    signals = load_log(sim)[0].signals
    assert signals["angular_velocity/tool_imu"].columns == ("x", "y", "z")
    assert signals["wrench/tool_force"].columns == ("force.x", "force.y", "force.z", "torque.x", "torque.y", "torque.z")
    assert np.median(np.diff(signals["acceleration/tool_imu"].time)) == pytest.approx(1 / 200, rel=0.02)  # its crystal
    words = ["gap", "sensors", "--sim", str(sim), "--twin", str(EXAMPLE)]
    quiet = ["--real", str(like), "--fail-if", "sensors_differ > 0.01"]
    assert main([*words, *quiet]) == 0
    loud = ["--real", str(real), "--output", str(tmp_path / "gap"), "--fail-if", "sensors_differ > 0.01"]
    assert main([*words, *loud]) == 1
    assert "FAILED sensors_differ > 0.01" in capsys.readouterr().out
    rows = json.loads((tmp_path / "gap" / "result.json").read_text())["differences"]
    closing = {row["remedy"]["parameter"]: row["remedy"]["value"] for row in rows if row["remedy"] and row["differs"]}
    assert closing["sensor/tool_imu/gyro_noise"] == pytest.approx(1.2e-3, rel=0.1)
    assert closing["sensor/elbow_flex/noise"] == pytest.approx(3e-3, rel=0.15)
    assert closing["sensor/tool_force/force_noise_x"] == pytest.approx(2.0, rel=0.1)
