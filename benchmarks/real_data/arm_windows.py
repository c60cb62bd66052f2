"""What the torque-controlled arms share: windows replayed open loop from the past alone, and their RMS error.

An encoder's step over the frame period is 0.19 rad/s for both arms, and that times half a second is what a replay would
be off by. So the speed that a window begins with is the slope of a parabola through the positions of the last moments,
the window's first frame included: what anybody standing there could have known.
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
_LEAST = 4  # frames that a parabola is put through


def past_speeds(time: Array, positions: Array, span: float) -> Array:
    """Speeds ``(T, n)`` at every frame from the positions ``(T, n)`` of the last ``span`` s up to it; NaN where few.

    The slope, at the frame itself, of the parabola that fits best (the causal filter of Savitzky and Golay, for times
    that may be uneven).
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
    """The episode with speeds of the past alone as ``joint_velocity``; as logged where the log is too young."""
    logged = episode.signals["joint_velocity"]
    speeds = past_speeds(episode.time, episode.units.to_si(episode.state), span)
    first = np.stack([np.interp(episode.time, logged.time, column) for column in logged.values.T], axis=-1)
    values = np.where(np.isnan(speeds), first, speeds)
    made = LoggedSignal(time=episode.time, values=values, columns=logged.columns, unit=logged.unit)
    return replace(episode, signals={**episode.signals, "joint_velocity": made})


def at_rate(episodes: Sequence[Episode], span: float) -> list[Episode]:
    """Episodes on uniform grids near their own rates, with speeds of the past; a piece after a gap is an episode too.

    Pieces shorter than a window are left out. Numbers are new, 0 and up.
    """
    pieces = []
    for episode in episodes:
        rate = (len(episode) - 1) / float(episode.time[-1] - episode.time[0])
        pieces += resample(with_past_speeds(episode, span), rate)
    long = [piece for piece in pieces if piece.time[-1] - piece.time[0] >= WINDOW]
    return [replace(piece, index=number) for number, piece in enumerate(long)]


def one_step_per_frame(twin: Twin) -> Twin:
    """The twin with one physics step per control step: enough to walk on, and a quarter of the work."""
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / twin.control_hz
    return replace(twin, spec=twin.spec.model_copy(update={"substeps": 1}), model=model)


def between(episode: Episode, begin: float, end: float) -> Episode:
    """Part of an episode, on its own clock."""

    def rows(time: NDArray[np.float64]) -> NDArray[np.bool_]:
        return (time >= begin) & (time <= end)

    kept = rows(episode.time)
    signals = {
        name: replace(signal, time=signal.time[rows(signal.time)], values=signal.values[rows(signal.time)])
        for name, signal in episode.signals.items()
    }
    return replace(
        episode, time=episode.time[kept], action=episode.action[kept], state=episode.state[kept], signals=signals
    )


def window_errors(twin: Twin, episodes: Sequence[Episode], values: Mapping[str, float], backend: Backend) -> Array:
    """Mean square error of every window per joint, ``(nwindow, n)`` in rad²."""
    squares = []
    for episode in episodes:
        logs = prepare_replay(twin, [episode], REPLAY)
        read = replay(backend, logs, logs.twin.table(1, values))[0]
        squares.append(np.nanmean((read - logs.measured) ** 2, axis=1))
    return np.concatenate(squares)


def rms_errors(squares: Array, names: Sequence[str]) -> Errors:
    """Root mean squares per joint of squares ``(nwindow, n)``; intervals are over windows."""
    return Errors(
        names=tuple(f"RMS position, 0.5 s windows, {name}" for name in names),
        units=("rad",) * len(names),
        values=squares,
        weights=np.ones(len(squares)),
        squared=True,
    )


def body_inertial(twin: Twin, table: ParamTable, name: str) -> BodyInertia:
    """One body in every world of a table.

    Raises:
        UnknownNameError: the twin has no such body.
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
    """Inertia about the centre of mass in the body's axes, ``(n, 3, 3)`` kg·m²."""
    turn = rotation_matrix(body.quat)
    return np.einsum("nij,nj,nkj->nik", turn, body.inertia, turn)


def inertial_text(body: BodyInertia, world: int = 0) -> str:
    """One world's body in a line: mass, centre of mass, and the inertia about it along the body's axes."""
    com, inertia = body.com[world], inertia_matrix(body)[world]
    along = ", ".join(f"{inertia[i, i]:.4g}" for i in range(3))
    place = ", ".join(f"{value:.4g}" for value in com)
    return f"mass {body.mass[world]:.4g} kg, centre of mass ({place}) m, inertia about it ({along}) kg·m²"
