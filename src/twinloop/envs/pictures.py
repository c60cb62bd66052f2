"""Pictures of running worlds, each with its own drawn appearance."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.envs.options import EnvOptions
from twinloop.randomize import Plan
from twinloop.render import Renderer, SceneStates, open_renderer
from twinloop.simulate.protocol import state_poses


class Photographer:
    """A renderer for the worlds of a plan, opened when the first picture is asked for.

    Attributes:
        cameras: those that pictures are taken from.
        camera: the one of ``render``.

    Raises:
        UnknownNameError: a camera that the twin does not name.
        InputError: pictures of a twin that names none.
    """

    def __init__(self, plan: Plan, options: EnvOptions) -> None:
        self._plan, self._options, self._renderer = plan, options, None
        self._model = plan.twin.model
        existing = plan.twin.spec.cameras
        wanted = list(options.cameras)
        if options.render_mode is not None:
            if not existing:
                raise InputError(
                    f"The twin {plan.twin.name} names no camera to render from. Add `cameras:` to its YAML."
                )
            wanted.append(options.camera or existing[0])
        for name in wanted:
            if name not in existing:
                raise UnknownNameError("camera", name, existing, where=f"twin {plan.twin.name}")
        self.cameras = tuple(dict.fromkeys(wanted))
        self.camera = wanted[-1] if wanted else ""

    def begin(self, run_seed: int) -> None:
        """The textures of another run."""
        if self._plan.texture_pool and run_seed != self._plan.run_seed:
            self.close()
        self._plan = dataclasses.replace(self._plan, run_seed=run_seed)

    def pictures(self, states: NDArray[np.float64], params: ParamTable) -> dict[str, NDArray[np.uint8]]:
        """Pictures ``(k, height, width, 3)`` by camera, of worlds with one row of each argument."""
        renderer = self._renderer = self._renderer or self._open()
        arrays = self._plan.twin.fields(params, model=self._model, visual=True).arrays
        poses, taken = state_poses(self._model, np.nan_to_num(states)), []
        for i in range(len(states)):
            pose = SceneStates(**{name: rows[[i]] for name, rows in poses.items()})
            taken.append(renderer.render(pose, {name: values[i] for name, values in arrays.items()}))
        return {name: np.concatenate([frames[name] for frames in taken]) for name in self.cameras}

    def _open(self) -> Renderer:
        options = self._options
        self._model = self._plan.twin.visual_model(texture_pool=self._plan.texture_pool, seed=self._plan.run_seed)
        return open_renderer(
            options.renderer, self._model, height=options.height, width=options.width, cameras=self.cameras
        )

    def close(self) -> None:
        """Free the renderer; a second call does nothing."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
