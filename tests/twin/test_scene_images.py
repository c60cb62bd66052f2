"""Images show what physics has: moved, turned and exchanged shapes are posed as the engine poses them."""

from __future__ import annotations

import mujoco
import numpy as np

from support.scenes import clutter, table_twin
from twinloop.render.protocol import SceneStates
from twinloop.render.scene import PosedScene
from twinloop.simulate import InitialState
from twinloop.simulate.threads import make_batch

POSES = ("geom_xpos", "geom_xmat")


def test_every_shape_and_a_turned_table_are_posed_as_in_the_simulation(tmp_path):
    twin = table_twin(tmp_path, clutter(2))
    values = {"scene/stuff/count": 2.0, "scene/stuff_0/shape": np.arange(7), "scene/stuff_1/shape": np.arange(7)[::-1]}
    turned = {"geom/table/position/z": 0.02, "geom/table/rotation/x": np.linspace(-0.1, 0.1, 7)}
    table, start = twin.table(7, values | turned), InitialState.home(twin, 7)
    qpos = start.qpos.copy()
    for row in twin.scene.qpos:
        qpos[:, row : row + 7] = [0.1, 0.2, 0.3, 0.5, -0.5, 0.1, np.sqrt(0.49)]
    batch = make_batch(twin, table, start, 1)
    batch.bind("qpos")[...] = qpos
    visual = twin.fields(table, visual=True).arrays
    posed = PosedScene(twin.model)
    for world in range(7):
        model, data = batch.get_model(world), batch.get_data(world)
        mujoco.mj_kinematics(model, data)
        posed.set_fields({name: rows[world] for name, rows in visual.items()})
        posed.pose(SceneStates(qpos=qpos[world : world + 1]), 0)
        for name in POSES:
            np.testing.assert_allclose(getattr(posed.data, name), getattr(data, name), atol=1e-12, err_msg=name)
        shown = posed.model.geom_rgba[:, 3] > 0
        solid = (model.geom_contype != 0) | (model.geom_bodyid == 0)
        assert not (shown & ~solid).any()
        np.testing.assert_array_equal(posed.model.geom_type[shown], model.geom_type[shown])
        np.testing.assert_array_equal(posed.model.geom_dataid[shown], model.geom_dataid[shown])
        np.testing.assert_array_equal(posed.model.geom_size[shown], model.geom_size[shown])
