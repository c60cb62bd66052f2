"""Render the clips with the largest errors as images of the measured and of the simulated motion.

Both motions begin in the same state.
"""

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
Images = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class FilmStrip:
    """Images of one clip, measured and simulated, and the time series of its worst channel.

    Attributes:
        clip: The clip.
        times: Times of the n images in s since the beginning of the episode, shape ``(n,)``.
        measured: Images of the twin at the measured positions, shape ``(n, height, width, 3)``.
        simulated: Images of the twin at the simulated positions, same shape.
        series: ``measured`` and ``simulated`` values of the clip's worst channel in its unit, shape ``(nframe,)`` each.
        hz: Frames per second of the series.
    """

    clip: ErrorClip
    times: Array
    measured: Images
    simulated: Images
    series: Mapping[str, Array]
    hz: float

    @property
    def blended_images(self) -> Images:
        """Mean of the measured and the simulated image at each time, shape ``(n, height, width, 3)``."""
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
    """Render the measured and the simulated motion of clips from the twin's first camera.

    Args:
        twin: The twin.
        episodes: The episodes of the clips; other episodes are ignored.
        clips: Windows as they were measured with ``options``.
        backend: The backend that runs the replay.
        values: Parameters of the twin in SI units; the nominal ones by default.
        options: Division of the episodes into windows, see `prepare_replay`.
        moments: Number of images per clip, equally spaced, including the first and the last frame.
        height: Image height in pixels.
        width: Image width in pixels.
        renderer: Name of the renderer, see `open_renderer`.

    Raises:
        InputError: If the twin has no camera, or the log has neither joint positions nor poses of bodies.
        MissingDependencyError: If no renderer works on this computer.
    """
    if not twin.model.ncam:
        raise InputError(f"The twin {twin.name} has no camera to render the clips with. Add one to its model.")
    camera = twin.spec.cameras[0] if twin.spec.cameras else twin.model.camera(0).name
    chosen = {episode.index: episode for episode in episodes}
    with open_renderer(renderer, twin.model, height=height, width=width, cameras=[camera]) as opened:
        strips = []
        for clip in clips:
            windows = prepare_replay(twin, [chosen[clip.episode]], options)
            logs = windows.take([int(np.argmin(np.abs(windows.start_times - clip.begin)))])
            simulated = np.asarray(replay_motion(backend, logs, logs.twin.table(1, values)).qpos[0])
            measured = measured_qpos(logs, values or {}, simulated)
            rows = np.unique(np.linspace(0, int(logs.ends[0]) - 1, moments).round().astype(np.intp))
            frames = opened.render(SceneStates(qpos=np.concatenate([measured[rows], simulated[rows]])))[camera]
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
    """Return MuJoCo's generalized positions of the first window as measured, shape ``(nframe, nq)``.

    Positions that were not measured are taken from the simulation.

    Args:
        logs: Windows; only the first one is used.
        values: Parameters of the encoders in SI units; those not given are nominal.
        simulated: Simulated positions, shape ``(nframe, nq)``.

    Raises:
        InputError: If the log has neither joint positions nor poses of bodies.
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
    """Replace columns of ``qpos`` in place by known values; NaN keeps the present value."""
    qpos[:, columns] = np.where(np.isnan(known), qpos[:, columns], known)


def _simulate_channel(
    backend: Backend, logs: ReplayLogs, clip: ErrorClip, values: Mapping[str, float] | None
) -> Mapping[str, Array]:
    """Return the measured and simulated values of a clip's worst channel, shape ``(nframe,)`` each.

    The keys are ``measured`` and ``simulated``. ``values`` are the twin's parameters in SI units; None means the
    nominal ones.
    """
    column = next(i for i, channel in enumerate(logs.channels) if channel.name == clip.channel)
    frames = slice(0, int(logs.ends[0]))
    simulated = replay(backend, logs, logs.twin.table(1, values))[0, 0, frames, column]
    return {"measured": logs.measured[0, frames, column], "simulated": simulated}
