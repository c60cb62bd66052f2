"""The camera of the pictures for people has the objects and the tools in its image, on any twin."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.render import SceneStates
from twinloop.twin import load_twin
from twinloop.workflows.run import pictures

BALL = '<mujoco><worldbody><body name="ball" pos="3 0 1"><freejoint/><geom size=".1"/></body></worldbody></mujoco>'


def image_places(twin, bodies):
    """Return the places of bodies in the image at home, from -1 to 1 in each direction if they are seen."""
    model = pictures._add_camera(twin, SceneStates(qpos=twin.home()[0]))
    data = mujoco.MjData(model)
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(model, data)
    camera = data.camera(pictures._CAMERA)
    seen = (np.array([data.body(name).xpos for name in bodies]) - camera.xpos) @ camera.xmat.reshape(3, 3)
    assert (seen[:, 2] < 0).all()  # in front of the camera
    half = np.tan(np.radians(model.cam_fovy[-1]) / 2) * np.array([pictures._WIDTH / pictures._HEIGHT, 1.0])
    return seen[:, :2] / -seen[:, 2:] / half


@pytest.mark.parametrize(
    ("name", "bodies"),
    [
        ("panda_peg", ["peg", "socket"]),
        ("so101_drawer", ["cabinet", "drawer"]),
        ("aloha_hand_over", ["bar", "target"]),
        ("double_pendulum", ["link1", "link2"]),
        ("cube_toss", ["cube"]),
    ],
)
def test_what_a_task_is_about_is_in_the_image(name, bodies):
    twin = load_twin(name)
    assert (np.abs(image_places(twin, bodies)) < 0.9).all()


def test_a_model_without_a_camera_has_a_picture(tmp_path):
    (tmp_path / "ball.xml").write_text(BALL)
    twin = load_twin(tmp_path / "ball.xml")
    hash_before, ncam = twin.hash, twin.model.ncam
    assert (np.abs(image_places(twin, ["ball"])) < 0.9).all()
    assert (twin.hash, twin.model.ncam, len(twin.mjspec.cameras)) == (hash_before, ncam, 0)
