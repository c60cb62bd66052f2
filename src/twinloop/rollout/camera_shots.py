"""The pictures that a twin's camera delivers along an episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.render import Fields, SceneStates
from twinloop.rollout.camera import TwinCamera
from twinloop.rollout.camera_motion import PictureMotion, subframes_needed
from twinloop.sensors.camera.shutter import Shutter, subframe_times

MOST_SUBFRAMES = 16  # of a picture; beyond that nothing changes that one sees at 640×480

Draw = Callable[[SceneStates, Fields], NDArray[np.float32]]
"""Linear light ``(n, h', w', 3)`` of the camera's view in every state."""


@dataclass(frozen=True, kw_only=True)
class MovingWorld:
    """What a camera looks at: where everything is at any times, and how it looks at control steps.

    ``time`` ``(nstep,)`` are the true times of the control steps in s, rising; ``poses`` takes times ``(k,)``,
    ``fields`` numbers of control steps and gives model fields, of all or one by one.
    """

    model: mujoco.MjModel
    time: NDArray[np.float64]
    poses: Callable[[NDArray[np.float64]], SceneStates]
    fields: Callable[[NDArray[np.intp]], Fields]

    def at(self, times: ArrayLike) -> tuple[SceneStates, Fields]:
        """States and fields at times ``(k,)``; a time before the beginning counts as the beginning."""
        asked = np.atleast_1d(np.asarray(times, dtype=np.float64))
        steps = np.clip(np.searchsorted(self.time, asked, side="right") - 1, 0, len(self.time) - 1)
        return self.poses(asked), self.fields(steps)


class CameraShots:
    """One camera before one world, from the first control step to the last.

    A picture that stands before the robot at several steps is taken once. How often the world is looked at while it is
    taken follows from how far things move in it: see `camera_motion`.
    """

    def __init__(self, camera: TwinCamera, world: MovingWorld, draw: Draw, *, most: int = MOST_SUBFRAMES) -> None:
        self.camera, self.world = camera, world
        self._draw, self._most = draw, most
        self._sensor = camera.open()
        self.captures = camera.captures(world.time)
        self._motion = PictureMotion(world.model, camera.camera) if self._moves else None
        self._number, self._picture = -1, np.zeros((0, 0, 3), dtype=np.uint8)

    @property
    def _moves(self) -> bool:
        """Whether anything could move while a picture is taken."""
        model = self.camera.model
        return self._most > 1 and (self.camera.shutter.skew > 0.0 or model.exposure_time > 0.0)

    def pictures(self, rows: range) -> NDArray[np.uint8]:
        """What stands before the robot at the control steps that follow, ``(n, height, width, 3)``."""
        target = self.camera.target
        out = np.empty((len(rows), target.height, target.width, 3), dtype=np.uint8)
        for place, row in enumerate(rows):
            number = int(self.captures.number[0, row])
            if number != self._number:
                self._picture = self.shoot(float(self.captures.taken[0, row]), number)
                self._number = number
            out[place] = self._picture
        return out

    def shoot(self, time: float, number: int) -> NDArray[np.uint8]:
        """The capture of a number, taken at a time in s, later than the one before."""
        light = self.light(time)
        return self._sensor.develop(light[None], time=[time], numbers=[number])[0]

    def stages(self, light: NDArray[np.float32], time: float) -> list[tuple[str, NDArray[np.uint8]]]:
        """One capture of light on the sensor after each stage, by the stage's name; `Camera.steps`."""
        return next(self._sensor.steps(light[None], time=[time], numbers=[self._number + 1]))

    def light(self, time: float) -> NDArray[np.float32]:
        """Linear light on the sensor of the next capture, taken at a time in s, ``(height, width, 3)``."""
        shutter, times = self.subframes_at(time)
        states, fields = self.world.at(times)
        subframes = self._draw(states, self.camera.view_fields(self.world.model, fields))
        return self.camera.light(subframes, shutter)

    def subframes_at(self, time: float) -> tuple[Shutter, NDArray[np.float64]]:
        """The shutter of the next capture, and the times of the subframes that it needs, in s."""
        shutter = self.camera.exposed(self._sensor.gathers(time) or 0.0)
        count = 1
        if self._motion is not None and shutter.span > 0.0:
            begin = time - shutter.middle
            states, fields = self.world.at([begin, begin + shutter.span])
            fields = self.camera.view_fields(self.world.model, fields)
            count = subframes_needed(self._motion.pixels(states, fields, self.camera.view), self._most)
        return shutter, time - shutter.middle + subframe_times(shutter, count)
