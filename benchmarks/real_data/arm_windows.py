"""Replay torque-controlled arms open loop in windows that start from past measurements only, and compute RMS errors.

For both arms an encoder step divided by the frame period is 0.19 rad/s, and a replay of half a second would be wrong by
that times half a second. Therefore a window's initial velocity is the slope of a parabola through the last positions up
to the window's first frame, which uses no later measurement.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_data.case import Errors
from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode, LoggedSignal
from twinloop.dataset.logs.resampling import resample
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import Twin
from twinloop.twin.quantities.rigid import BodyInertia
from twinloop.twin.quantities.rotation import rotation_matrix

Array = NDArray[np.float64]
WINDOW = 0.5  # s, the length that the targets are stated for
REPLAY = ReplayOptions(window=WINDOW, start="measured", torque="measured")
_LEAST = 4  # smallest number of frames for a parabola


def past_speeds(time: Array, positions: Array, span: float) -> Array:
    """Estimate velocities ``(T, n)`` of n joints from the positions ``(T, n)`` of the last ``span`` s up to each frame.

    The estimate is the slope of the least-squares parabola at the frame (the causal Savitzky–Golay filter, for uneven
    times). It is NaN where ``span`` has fewer than four frames.
    """
    speeds = np.full_like(positions, np.nan)
    begins = np.searchsorted(time, time - span - 1e-9)
    for frame, begin in enumerate(begins):
        if frame + 1 - begin < _LEAST:
            continue
        past = time[begin : frame + 1] - time[frame]
        rows = np.stack([np.ones_like(past), past, past**2], axis=-1)
        speeds[frame] = np.linalg.lstsq(rows, positions[begin : frame + 1], rcond=None)[0][1]
    return speeds


def with_past_speeds(episode: Episode, span: float) -> Episode:
    """Replace ``joint_velocity`` by `past_speeds`.

    The first frames, which have too few past positions, keep the logged velocity.
    """
    logged = episode.signals["joint_velocity"]
    speeds = past_speeds(episode.time, episode.units.to_si(episode.state), span)
    first = np.stack([np.interp(episode.time, logged.time, column) for column in logged.values.T], axis=-1)
    values = np.where(np.isnan(speeds), first, speeds)
    made = LoggedSignal(time=episode.time, values=values, columns=logged.columns, unit=logged.unit)
    return replace(episode, signals={**episode.signals, "joint_velocity": made})


def at_rate(episodes: Sequence[Episode], span: float) -> list[Episode]:
    """Resample episodes uniformly near their own rates, with velocities from past positions.

    An episode with a gap is split there. Pieces shorter than a window are omitted, and pieces are numbered from 0.
    """
    pieces = []
    for episode in episodes:
        rate = (len(episode) - 1) / float(episode.time[-1] - episode.time[0])
        pieces += resample(with_past_speeds(episode, span), rate)
    long = [piece for piece in pieces if piece.time[-1] - piece.time[0] >= WINDOW]
    return [replace(piece, index=number) for number, piece in enumerate(long)]


def one_step_per_frame(twin: Twin) -> Twin:
    """Return the twin with one physics step per control step: accurate enough for the fit, at a quarter of the cost."""
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / twin.control_hz
    return replace(twin, spec=twin.spec.model_copy(update={"substeps": 1}), model=model)


def between(episode: Episode, begin: float, end: float) -> Episode:
    """Return the part of an episode from ``begin`` to ``end`` in s; times are unchanged."""

    def rows(time: NDArray[np.float64]) -> NDArray[np.bool_]:
        return (time >= begin) & (time <= end)

    inside = rows(episode.time)
    signals = {
        name: replace(signal, time=signal.time[rows(signal.time)], values=signal.values[rows(signal.time)])
        for name, signal in episode.signals.items()
    }
    return replace(
        episode, time=episode.time[inside], action=episode.action[inside], state=episode.state[inside], signals=signals
    )


def window_errors(twin: Twin, episodes: Sequence[Episode], values: Mapping[str, float], backend: Backend) -> Array:
    """Return the mean square error of every window per joint, ``(nwindow, n)`` in rad²."""
    squares = []
    for episode in episodes:
        logs = prepare_replay(twin, [episode], REPLAY)
        read = replay(backend, logs, logs.twin.table(1, values))[0]
        squares.append(np.nanmean((read - logs.measured) ** 2, axis=1))
    return np.concatenate(squares)


def rms_errors(squares: Array, names: Sequence[str]) -> Errors:
    """Return RMS errors per joint from mean squares ``(nwindow, n)`` in rad²; intervals are over windows."""
    return Errors(
        names=tuple(f"RMS position, 0.5 s windows, {name}" for name in names),
        units=("rad",) * len(names),
        values=squares,
        weights=np.ones(len(squares)),
        squared=True,
    )


def body_inertial(twin: Twin, table: ParamTable, name: str) -> BodyInertia:
    """Return the inertial parameters of body ``name`` in every world of a table.

    Raises:
        UnknownNameError: If the twin has no such body.
    """
    names = [twin.model.body(i).name for i in range(1, twin.model.nbody)]
    if name not in names:
        raise UnknownNameError("body", name, names, where=f"twin {twin.name}")
    written, body = twin.fields(table).arrays, twin.model.body(name).id

    def column(field: str) -> NDArray[np.float64]:
        own = np.asarray(getattr(twin.model, field))
        return np.asarray(written[field] if field in written else np.repeat(own[None], table.nworld, axis=0))[:, body]

    return BodyInertia(
        mass=column("body_mass"),
        com=column("body_ipos"),
        quat=column("body_iquat"),
        inertia=column("body_inertia"),
    )


def inertia_matrix(body: BodyInertia) -> NDArray[np.float64]:
    """Return inertia matrices about the centre of mass in the body's axes, ``(n, 3, 3)`` in kg·m² for n worlds."""
    turn = rotation_matrix(body.quat)
    return np.einsum("nij,nj,nkj->nik", turn, body.inertia, turn)


def inertial_text(body: BodyInertia, world: int = 0) -> str:
    """Format one world's mass, centre of mass, and diagonal inertia about it, in one line."""
    com, inertia = body.com[world], inertia_matrix(body)[world]
    along = ", ".join(f"{inertia[i, i]:.4g}" for i in range(3))
    place = ", ".join(f"{value:.4g}" for value in com)
    return f"mass {body.mass[world]:.4g} kg, centre of mass ({place}) m, inertia about it ({along}) kg·m²"
