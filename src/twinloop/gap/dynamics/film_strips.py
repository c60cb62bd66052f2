"""Render the worst clips as images: the measured motion and the twin's motion from the same first state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap.dynamics.clips import ErrorClip
from twinloop.gap.dynamics.motion import body_poses, joint_positions
from twinloop.render import SceneStates, open_renderer
from twinloop.simulate import Backend
from twinloop.simulate.channels import free_joint
from twinloop.simulate.replay import replay, replay_motion
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
Pictures = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class FilmStrip:
    """Images ``(n, height, width, 3)`` of one clip at ``times`` ``(n,)`` in s since the beginning of the episode.

    ``measured`` shows the twin at the measured positions, ``simulated`` at the simulated ones. ``series`` ``(nframe,)``
    are the clip's worst channel, measured and simulated, in its unit.
    """

    clip: ErrorClip
    times: Array
    measured: Pictures
    simulated: Pictures
    series: Mapping[str, Array]
    hz: float

    @property
    def blended_images(self) -> Pictures:
        """The mean of both images."""
        return ((self.measured.astype(np.uint16) + self.simulated) // 2).astype(np.uint8)


def film_strips(
    twin: Twin,
    episodes: Sequence[Episode],
    clips: Sequence[ErrorClip],
    *,
    backend: Backend,
    values: Mapping[str, float] | None = None,
    options: ReplayOptions | None = None,
    moments: int = 6,
    height: int = 180,
    width: int = 240,
    renderer: str = "auto",
) -> list[FilmStrip]:
    """Render clips from the twin's first camera.

    Args:
        twin: the twin.
        episodes: the episodes of the clips; others are ignored.
        clips: windows as they were measured with ``options``.
        backend: the backend that runs the replay.
        values: parameters of the twin, SI; the nominal ones by default.
        options: see `prepare_replay`.
        moments: number of images per clip, equally spaced, including the first and the last frame.
        height: image height in pixels.
        width: image width in pixels.
        renderer: see `open_renderer`.

    Raises:
        InputError: the twin has no camera, or the log has neither joint positions nor poses of bodies.
        MissingDependencyError: no renderer works here.
    """
    if not twin.model.ncam:
        raise InputError(f"The twin {twin.name} has no camera to render the clips with. Add one to its model.")
    camera = twin.spec.cameras[0] if twin.spec.cameras else twin.model.camera(0).name
    chosen = {episode.index: episode for episode in episodes}
    with open_renderer(renderer, twin.model, height=height, width=width, cameras=[camera]) as drawn:
        strips = []
        for clip in clips:
            windows = prepare_replay(twin, [chosen[clip.episode]], options)
            logs = windows.take([int(np.argmin(np.abs(windows.begins - clip.begin)))])
            simulated = np.asarray(replay_motion(backend, logs, logs.twin.table(1, values)).qpos[0])
            measured = measured_qpos(logs, values or {}, simulated)
            rows = np.unique(np.linspace(0, int(logs.ends[0]) - 1, moments).round().astype(np.intp))
            frames = drawn.render(SceneStates(qpos=np.concatenate([measured[rows], simulated[rows]])))[camera]
            strips.append(
                FilmStrip(
                    clip=clip,
                    times=clip.begin + rows / logs.twin.control_hz,
                    measured=frames[: len(rows)],
                    simulated=frames[len(rows) :],
                    series=_simulate_channel(backend, logs, clip, values),
                    hz=logs.twin.control_hz,
                )
            )
    return strips


def measured_qpos(logs: ReplayLogs, values: Mapping[str, float], simulated: Array) -> Array:
    """Return generalized positions ``(nframe, nq)`` of the first window as measured; those not measured as simulated.

    Raises:
        InputError: the log has neither joint positions nor poses of bodies.
    """
    qpos = simulated.copy()
    joints, bodies = joint_positions(logs, values)[0], body_poses(logs)
    if not joints.shape[-1] and not bodies:
        raise InputError("The log has neither joint positions nor poses of bodies, so its motion cannot be rendered.")
    if joints.shape[-1]:
        _replace_columns(qpos, logs.twin.encoder_qpos, joints)
    for name, poses in bodies.items():
        first = free_joint(logs.twin.model, name)[0]
        _replace_columns(qpos, np.arange(first, first + 7), poses[0])
    return qpos


def _replace_columns(qpos: Array, columns: NDArray[np.intp], known: Array) -> None:
    """Replace columns by known values."""
    qpos[:, columns] = np.where(np.isnan(known), qpos[:, columns], known)


def _simulate_channel(
    backend: Backend, logs: ReplayLogs, clip: ErrorClip, values: Mapping[str, float] | None
) -> Mapping[str, Array]:
    """Return the worst channel of a clip, measured and simulated."""
    column = next(i for i, channel in enumerate(logs.channels) if channel.name == clip.channel)
    frames = slice(0, int(logs.ends[0]))
    simulated = replay(backend, logs, logs.twin.table(1, values))[0, 0, frames, column]
    return {"measured": logs.measured[0, frames, column], "simulated": simulated}
