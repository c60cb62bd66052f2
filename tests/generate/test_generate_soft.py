"""Episodes of soft bodies: every vertex is in the recorded states, datasets replay bit for bit, and images show it."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import generate_states, replay_episode, resolve_config
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.simulate.protocol import state_columns
from twinloop.twin import load_twin

TASK = '''
import numpy as np
from twinloop.simulate import InitialState

class Press:
    """Press for 0.2 s; success if the slide has moved."""
    name, version, success_version, expert_version = "press", "1", "1", "constant 1"
    instruction, nstep = "press the block", 20

    def __init__(self, twin):
        self._twin = twin

    def reset(self, params, *, run_seed, episodes, attempt=0):
        return InitialState.home(self._twin, params.nworld)

    def success(self, states):
        return states[..., 1] > 1e-3

    def expert(self, initial):
        command = np.full((initial.nworld, 1), 0.02)
        return lambda simulation: command
'''
ROPE = """<mujoco><option timestep="0.002" integrator="discrete"/><worldbody>
<body name="crane" pos="0 0 1"><joint name="crane" type="slide" axis="1 0 0"/><geom type="sphere" size=".02" mass="1"/>
<flexcomp name="rope" type="grid" dim="1" count="8 1 1" spacing=".05 .05 .05" mass=".1" pos=".175 0 0">
<elasticity young="1e7" damping=".01"/><edge equality="true"/><pin id="0"/></flexcomp></body></worldbody>
<actuator><position name="crane" joint="crane" kp="500" kv="30" ctrlrange="-.2 .2"/></actuator></mujoco>"""
RANGES = {"young": [5e4, 5e5], "damping": [0.002, 0.02], "mass": [0.05, 0.3]}


@pytest.mark.parametrize("twin", ["soft_press", "crane"])
def test_a_dataset_of_a_soft_body_replays_bit_for_bit(tmp_path, twin):
    (tmp_path / "press.py").write_text(TASK)
    (tmp_path / "crane.xml").write_text(ROPE)
    name, flex = ("crane.xml", "rope") if twin == "crane" else (twin, "block")
    ranges = {f"soft/{flex}/{key}": value for key, value in RANGES.items()}
    value = {"scene": {"twin": name, "task": "press.py:Press"}, "randomization": {"params": ranges}}
    config = resolve_config(value, where="test", folder=tmp_path, episodes=3)
    generate_states(config, tmp_path / "data")
    reader = DatasetReader(tmp_path / "data")
    assert len({reader.provenance(row).params[f"soft/{flex}/young"] for row in range(3)}) == 3
    for row in range(3):
        assert replay_episode(tmp_path / "data", row).equal
    model = load_twin(tmp_path / name if twin == "crane" else twin).model
    moved = np.ptp(reader.states(0)[:, state_columns(model, int(mujoco.mjtState.mjSTATE_QPOS))], axis=0) > 0
    assert moved.sum() > 0.5 * model.nq  # the rope hangs in a plane


def test_an_image_shows_the_deformation():
    if not (found := probe_renderer("gl")).available:
        pytest.skip(f"renderer gl is not available: {found.detail}; {found.remedy}")
    model = load_twin("soft_press").model
    pressed = np.zeros((2, model.nq))
    pressed[1, 1:] = np.tile([0.0, 0.0, -0.02], 4)  # the four upper corners
    with open_renderer("gl", model, height=96, width=128) as renderer:
        frames = renderer.render(SceneStates(qpos=pressed))["side"]
    changed = np.abs(np.diff(frames.astype(int), axis=0)).max(axis=-1)[0] > 20
    assert 20 < changed.sum() < 2000
