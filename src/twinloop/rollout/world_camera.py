"""Render images of running worlds, each with its own randomized appearance, as its cameras would deliver them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.render import Fields, Renderer, SceneStates, open_renderer
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.camera import TwinCamera, camera_sensors
from twinloop.rollout.camera_captures import CameraCaptures, MovingWorld
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin
from twinloop.twin.places import Scenery


@dataclass(kw_only=True)
class _RunningWorlds:
    """Worlds whose images are taken while they run.

    Attributes:
        start: parameters and seeds of the worlds.
        nstep: largest number of their control steps.
        states: states of all worlds at each control step until now.
        captures: images of the camera models, by world and camera.
    """

    start: EpisodeStart
    nstep: int
    states: list[NDArray[np.float64]] = field(default_factory=list[NDArray[np.float64]])
    captures: dict[tuple[int, str], CameraCaptures] = field(default_factory=dict[tuple[int, str], CameraCaptures])


class WorldCamera:
    """Camera images of a twin's running worlds; the renderer is opened for the first image.

    Args:
        twin: twin of the worlds.
        cameras: names of the cameras to render.
        height, width: size of an image in pixels.
        renderer: name of the renderer; see `render.open_renderer`.
        scenery: random textures and rooms, from which worlds choose.
        sensors: whether images pass through the camera models of the twin's sensors (exposure, lens, noise, latency).
            Poses between control steps are interpolated, and an image is rendered once, at the middle of its exposure.
        quality: settings of the renderer, such as ``samples`` of the path tracer; see `render.open_renderer`.
        parallel: whether images of camera models are taken in one thread per camera; they are the same.

    Raises:
        UnknownNameError: If the twin has no such camera.
        InputError: If images shall pass through camera models, and the twin has none for a camera.
    """

    def __init__(
        self,
        twin: Twin,
        cameras: Sequence[str],
        *,
        height: int,
        width: int,
        renderer: str = "auto",
        scenery: Scenery | None = None,
        sensors: bool = False,
        quality: Mapping[str, Any] | None = None,
        parallel: bool = False,
    ) -> None:
        for name in cameras:
            if name not in twin.spec.cameras:
                raise UnknownNameError("camera", name, twin.spec.cameras, where=f"twin {twin.name}")
        self.cameras = tuple(dict.fromkeys(cameras))
        self._sensors = camera_sensors(twin) if sensors else {}
        without = [name for name in self.cameras if sensors and name not in self._sensors]
        if without:
            raise InputError(
                f"The twin {twin.name} has no camera sensor for {', '.join(without)}. Add `sensors:` to its YAML, or "
                "take clean images."
            )
        self._twin, self._model, self._size, self._name = twin, twin.model, (height, width), renderer
        self._scenery, self._quality = scenery or Scenery(), quality
        self._renderers: dict[tuple[int, int, tuple[str, ...]], Renderer] = {}
        self._threads = {name: ThreadPoolExecutor(1) for name in self.cameras if parallel and sensors}
        self._looks: tuple[NDArray[np.float64], Mapping[str, NDArray]] | None = None
        self._running: _RunningWorlds | None = None

    def begin(self, run_seed: int) -> None:
        """Switch to the random textures and rooms of the run with this seed."""
        if self._scenery.needs_model and run_seed != self._scenery.seed:
            self.close()
        self._scenery = replace(self._scenery, seed=run_seed)

    def take_images(self, states: NDArray[np.float64], params: ParamTable) -> dict[str, NDArray[np.uint8]]:
        """Render one image per world and camera, without camera models.

        Args:
            states: states of k worlds, ``(k, nstate)``.
            params: parameters of the worlds, k rows.

        Returns:
            Images ``(k, height, width, 3)`` uint8 sRGB by camera name.
        """
        renderer, arrays = self._open(*self._size, self.cameras), self._fields(params)
        poses, taken = state_poses(self._model, np.nan_to_num(states)), []
        for i in range(len(states)):
            pose = SceneStates(**{name: rows[[i]] for name, rows in poses.items()})
            taken.append(renderer.render(pose, {name: values[i] for name, values in arrays.items()}))
        return {name: np.concatenate([frames[name] for frames in taken]) for name in self.cameras}

    def begin_worlds(self, worlds: EpisodeStart, nstep: int) -> None:
        """Forget earlier worlds, and prepare for images of these, which run for at most ``nstep`` control steps."""
        self._running = _RunningWorlds(start=worlds, nstep=nstep)

    def watch(self, states: NDArray[np.float64]) -> None:
        """Note the states of all worlds at the next control step, ``(nworld, nstate)``, without rendering."""
        running = self._require_worlds()
        if not self._sensors:
            running.states.clear()
        running.states.append(np.nan_to_num(states))

    def take(self, rows: ArrayLike, step: int) -> dict[str, NDArray[np.uint8]]:
        """Return the newest images that some of the worlds have at the control step that was noted last.

        Args:
            rows: indices of k worlds.
            step: number of that control step.

        Returns:
            Images ``(k, height, width, 3)`` uint8 sRGB by camera name.
        """
        running, index = self._require_worlds(), np.asarray(rows, dtype=np.intp)
        params = running.start.params.take(index)
        if not self._sensors:
            return self.take_images(running.states[-1][index], params.at(np.full(len(index), step)))
        self._fields(running.start.params)  # before the threads, which share them

        def take(name: str) -> NDArray[np.uint8]:
            rows = [self._captures_of(int(row), name).take_images(range(step, step + 1))[0] for row in index]
            return np.stack(rows)

        def take_apart(name: str) -> NDArray[np.uint8]:
            images = take(name)
            for (_, _, names), renderer in tuple(self._renderers.items()):
                if names == (name,):
                    renderer.detach()
            return images

        waiting = {name: thread.submit(take_apart, name) for name, thread in self._threads.items()}
        return {name: waiting[name].result() if waiting else take(name) for name in self.cameras}

    def _require_worlds(self) -> _RunningWorlds:
        if self._running is None:
            raise InputError("No worlds are running. Call begin_worlds first.")
        return self._running

    def _fields(self, params: ParamTable) -> Mapping[str, NDArray]:
        """Return the model fields that give the appearance of worlds, one row each; the last ones are kept."""
        self._load_model()
        if self._looks is None or not np.array_equal(self._looks[0], params.values):
            self._looks = params.values, self._twin.fields(params, model=self._model, visual=True).arrays
        return self._looks[1]

    def _captures_of(self, row: int, name: str) -> CameraCaptures:
        running = self._require_worlds()
        if (row, name) not in running.captures:
            start = running.start
            seeds = SeedPath.of(start.run_seed, start.numbers[[row]], start.attempt)
            world = start.params.take([row]).with_seeds(seeds)
            fields = {key: values[row] for key, values in self._fields(start.params).items()}
            height, width = self._size
            camera = TwinCamera.of(
                self._twin, world, self._sensors[name], height=height, width=width, model=self._model, fields=fields
            )
            renderer = self._open(camera.view.height, camera.view.width, (name,))

            def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
                return renderer.observe(states, fields, channels=("linear",))[name]["linear"]

            moving = MovingWorld(
                model=self._model,
                time=np.arange(running.nstep + 1) / self._twin.control_hz,
                poses=functools.partial(self._poses, row),
                fields=lambda _: fields,
            )
            running.captures[row, name] = CameraCaptures(camera, moving, draw, most=1)
        return running.captures[row, name]

    def _poses(self, row: int, times: NDArray[np.float64]) -> SceneStates:
        """Return the poses of a world at times ``(k,)`` in s, interpolated between the noted control steps."""
        past = self._require_worlds().states
        place = np.clip(times * self._twin.control_hz, 0.0, len(past) - 1.0)
        before = np.floor(place + _ROUND_OFF).astype(int)
        after = np.minimum(before + 1, len(past) - 1)
        first, second = (state_poses(self._model, np.stack([past[k][row] for k in ks])) for ks in (before, after))
        qpos, change = first["qpos"].copy(), np.zeros(self._model.nv)
        for i, share in enumerate(place - before):
            mujoco.mj_differentiatePos(self._model, change, 1.0, qpos[i], second["qpos"][i])
            mujoco.mj_integratePos(self._model, qpos[i], change, max(float(share), 0.0))
        return SceneStates(**{**first, "qpos": qpos})

    def _load_model(self) -> None:
        if self._model is self._twin.model:
            self._model = self._twin.visual_model(self._scenery)

    def _open(self, height: int, width: int, cameras: tuple[str, ...]) -> Renderer:
        self._load_model()
        key = height, width, cameras
        if key not in self._renderers:
            self._renderers[key] = open_renderer(
                self._name, self._model, height=height, width=width, cameras=list(cameras), quality=self._quality
            )
        return self._renderers[key]

    def close(self) -> None:
        """Free the renderers. A second call does nothing."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        self._model, self._looks, self._running = self._twin.model, None, None


_ROUND_OFF = 1e-9  # control steps
