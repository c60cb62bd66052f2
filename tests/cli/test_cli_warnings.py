"""Warnings of libraries, such as MuJoCo's about a model, are one line each on standard error."""

import subprocess
import sys

MODEL = """
<mujoco model="cell">
  <asset><model name="arm" file="arm.xml"/></asset>
  <worldbody><attach model="arm" body="link" prefix=""/></worldbody>
</mujoco>
"""
ARM = """
<mujoco model="arm">
  <option integrator="implicitfast"/>
  <worldbody><body name="link"><joint name="hinge"/><geom size="0.1"/></body></worldbody>
  <actuator><position name="hinge" joint="hinge" kp="1"/></actuator>
</mujoco>
"""


def test_a_warning_of_mujoco_is_one_line_without_the_place_in_the_code(tmp_path):
    (tmp_path / "cell.xml").write_text(MODEL)
    (tmp_path / "arm.xml").write_text(ARM)
    words = [sys.executable, "-m", "twinloop", "twin", "new", "cell.xml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "Attach conflict" in line]
    assert line.startswith("Warning: Attach conflict when attaching 'arm' to 'cell'")
    assert line.endswith("(default), child has 3, keeping parent value")
    assert ".py" not in done.stderr
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
