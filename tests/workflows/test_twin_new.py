"""Test the twin YAML and the task that are written for a user's own model."""

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.randomize import Plan
from twinloop.randomize.sources import default_draws
from twinloop.tasks import OwnTask
from twinloop.twin import load_twin

MODEL = """<mujoco><worldbody>
  <geom name="floor" type="plane" size="2 2 .1"/>
  <body name="arm" pos="0 0 .5"><joint name="swing" axis="0 0 1"/><geom type="box" size=".15 .02 .02"/></body>
  <body name="puck" pos=".4 -.2 .03"><freejoint/><geom type="box" size=".03 .03 .03"/></body>
  <body name="bin" pos=".1 .6 .03" euler="0 0 90"><freejoint/><geom type="box" size=".03 .03 .03"/></body>
</worldbody><actuator><position name="swing" joint="swing" kp="10" kv="1"/></actuator></mujoco>"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cell.xml").write_text(MODEL)
    assert main(["twin", "new", "cell.xml", "--output", "cell.yaml"]) == 0
    return tmp_path / "cell.yaml"


def test_the_commented_lines_give_every_free_body_a_start_range(written):
    text = written.read_text()
    assert not {"object/puck/position/x", "object/bin/yaw"} & set(load_twin(written).params)
    written.write_text(text.replace("# objects:", "objects:").replace("  # - {name", "  - {name"))
    twin = load_twin(written)
    assert twin.spec.objects == ["puck", "bin"]
    for name, x, y in (("puck", 0.4, -0.2), ("bin", 0.1, 0.6)):
        for axis, place in (("x", x), ("y", y)):
            limits = twin.params[f"object/{name}/position/{axis}"].default_range
            np.testing.assert_allclose(limits, [place - 0.05, place + 0.05], atol=1e-9)
    np.testing.assert_allclose(
        twin.params["object/bin/yaw"].default_range, [np.pi / 2 - 0.5, np.pi / 2 + 0.5], atol=0.01
    )
    task, plan = OwnTask(twin), Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin)))
    initial = task.reset(plan.draw(range(32)), run_seed=3, episodes=range(32))
    spread = np.ptp(task.start(initial, "puck")[:, :2], axis=0)
    assert (spread > 0.05).all()
    assert (spread < 0.1).all()


def test_a_new_task_says_that_its_name_means_nothing(written):
    assert main(["tasks", "new", "push.py", "--twin", "cell.yaml"]) == 0
    text = (written.parent / "push.py").read_text()
    assert "class Push(OwnTask):" in text
    assert "an example that runs, whatever the class is called" in text
