"""One picture of a small scene, made in a process of its own: ``python -m twinloop.render.trial NAME``.

Several renderers end the process when a library is missing or wrong, so nobody tries them in a process that matters.
"""

from __future__ import annotations

import sys

import mujoco
import numpy as np

from twinloop.core.errors import TwinloopError
from twinloop.render.catalog import open_renderer
from twinloop.render.protocol import SceneStates

_SCENE = """
<mujoco>
  <asset><texture name="grid" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="16" height="16"/>
    <material name="grid" texture="grid"/></asset>
  <worldbody>
    <light pos="0 0 2"/>
    <camera name="front" pos="0 -1 0.6" xyaxes="1 0 0 0 0.5 1"/>
    <geom type="plane" size="1 1 0.1" material="grid"/>
    <body pos="0 0 0.2"><freejoint/><geom type="box" size="0.1 0.1 0.1" rgba="0 1 0 1"/></body>
  </worldbody>
</mujoco>
"""


def main(name: str) -> int:
    """Render the scene and say so; 0 when the picture shows the green box, 3 when something is missing."""
    model = mujoco.MjModel.from_xml_string(_SCENE)
    try:
        with open_renderer(name, model, height=48, width=64) as renderer:
            picture = renderer.render(SceneStates(qpos=model.qpos0))["front"][0].astype(int)
    except TwinloopError as error:
        sys.stderr.write(str(error))
        return 3
    green = np.sum(picture[..., 1] > picture[..., 0] + picture[..., 2])
    if green < 50:
        sys.stderr.write(f"The picture is wrong: {green} pixels show the box, at least 50 should.")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
