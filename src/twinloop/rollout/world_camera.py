"""Render images of running worlds, each with its own randomized appearance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.render import Renderer, SceneStates, open_renderer
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin


class WorldCamera:
    """Camera images of a twin's running worlds; the renderer is opened for the first image.

    Args:
        twin: twin of the worlds.
        cameras: names of the cameras to render.
        height, width: size of an image in pixels.
        renderer: name of the renderer; see `render.open_renderer`.
        texture_pool: number of random textures of each kind from which worlds choose; 0 for no random textures.
        rooms: whether worlds choose random rooms, see `twin.places`.
        run_seed: seed of the random textures and rooms.

    Raises:
        UnknownNameError: If the twin has no such camera.
    """

    def __init__(
        self,
        twin: Twin,
        cameras: Sequence[str],
        *,
        height: int,
        width: int,
        renderer: str = "auto",
        texture_pool: int = 0,
        rooms: bool = False,
        run_seed: int = 0,
    ) -> None:
        for name in cameras:
            if name not in twin.spec.cameras:
                raise UnknownNameError("camera", name, twin.spec.cameras, where=f"twin {twin.name}")
        self.cameras = tuple(dict.fromkeys(cameras))
        self._twin, self._model, self._size, self._name = twin, twin.model, (height, width), renderer
        self._pool, self._rooms, self._run_seed = texture_pool, rooms, run_seed
        self._looks: tuple[NDArray[np.float64], Mapping[str, NDArray]] | None = None
        self._renderer: Renderer | None = None

    def begin(self, run_seed: int) -> None:
        """Switch to the random textures and rooms of the run with this seed."""
        if (self._pool or self._rooms) and run_seed != self._run_seed:
            self.close()
        self._run_seed = run_seed

    def take_images(self, states: NDArray[np.float64], params: ParamTable) -> dict[str, NDArray[np.uint8]]:
        """Render one image per world and camera.

        Args:
            states: states of k worlds, ``(k, nstate)``.
            params: parameters of the worlds, k rows.

        Returns:
            Images ``(k, height, width, 3)`` uint8 sRGB by camera name.
        """
        renderer = self._renderer = self._renderer or self._open()
        if self._looks is None or not np.array_equal(self._looks[0], params.values):
            self._looks = params.values, self._twin.fields(params, model=self._model, visual=True).arrays
        arrays = self._looks[1]
        poses, taken = state_poses(self._model, np.nan_to_num(states)), []
        for i in range(len(states)):
            pose = SceneStates(**{name: rows[[i]] for name, rows in poses.items()})
            taken.append(renderer.render(pose, {name: values[i] for name, values in arrays.items()}))
        return {name: np.concatenate([frames[name] for frames in taken]) for name in self.cameras}

    def _open(self) -> Renderer:
        self._model = self._twin.visual_model(texture_pool=self._pool, rooms=self._rooms, seed=self._run_seed)
        height, width = self._size
        return open_renderer(self._name, self._model, height=height, width=width, cameras=self.cameras)

    def close(self) -> None:
        """Free the renderer. A second call does nothing."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = self._looks = None
