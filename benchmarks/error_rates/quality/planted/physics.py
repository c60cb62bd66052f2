"""Plant physics defects: impossible motions, states and parameters."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.quality.planted.defect import Defect, defect, moving_joint, reach
from benchmarks.error_rates.quality.planted.edited import Edited
from twinloop.core.records import Provenance
from twinloop.curate.recording import Array, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.simulate.protocol import state_columns
from twinloop.stats import delay_series
from twinloop.twin import load_twin

PHYSICS: dict[str, Defect] = {}
_BIT = mujoco.mjtState
Columns = tuple[NDArray[np.intp], NDArray[np.intp]]


def _free_body_columns(recording: RecordedEpisode) -> Columns | None:
    """Return the state columns of the first free body's position and velocity; None if there is none."""
    if recording.states is None or recording.provenance is None:
        return None
    model = load_twin(recording.provenance.twin).model
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    if not len(free):
        return None
    qpos, qvel = (state_columns(model, int(bit)) for bit in (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_QVEL))
    place, dof = int(model.jnt_qposadr[free[0]]), int(model.jnt_dofadr[free[0]])
    return qpos[place : place + 3], qvel[dof : dof + 6]


def _choose_resting_frame(
    recording: RecordedEpisode, columns: Columns, random: np.random.Generator, frames: int
) -> int | None:
    """Choose a random frame from which the body rests for ``frames`` frames; None if there is none."""
    states = recording.states
    assert states is not None
    speed = np.linalg.norm(states[:, columns[1]], axis=1)
    still = np.convolve(speed < 1e-3, np.ones(frames + 2), mode="valid") >= frames + 2
    found = np.flatnonzero(still)[1:]
    return int(random.choice(found)) + 1 if len(found) else None


@defect(PHYSICS, "object teleports", (3.0, 10.0, 50.0), "mm", "physics/teleport")
def _teleport(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    columns = _free_body_columns(recording)
    if columns is None or recording.states is None:
        return None
    at = int(random.integers(10, len(recording.states) - 10))
    angle = random.uniform(0, 2 * np.pi)

    def change(states: Array) -> Array:
        states[at:, columns[0][:2]] += 1e-3 * size * np.array([np.cos(angle), np.sin(angle)])
        return states

    return Edited(recording, states=change)


@defect(PHYSICS, "object floats", (0.1, 0.3, 1.0), "s", "physics/float")
def _float(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    columns, frames = _free_body_columns(recording), max(1, round(size * recording.fps))
    at = None if columns is None else _choose_resting_frame(recording, columns, random, frames)
    if columns is None or at is None:
        return None

    def change(states: Array) -> Array:
        states[at : at + frames, columns[0][2]] += 0.02
        states[at : at + frames, columns[1]] = 0.0
        return states

    return Edited(recording, states=change)


@defect(PHYSICS, "object pushed into the table", (2.0, 5.0, 10.0), "mm", "physics/penetration")
def _sunk(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    columns = _free_body_columns(recording)
    at = None if columns is None else _choose_resting_frame(recording, columns, random, 5)
    if columns is None or at is None:
        return None

    def change(states: Array) -> Array:
        states[at : at + 5, columns[0][2]] -= 1e-3 * size
        return states

    return Edited(recording, states=change)


@defect(PHYSICS, "joint gains speed from nothing", (1.0, 3.0, 10.0), "rad/s", "physics/energy")
def _kick(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    if recording.states is None or recording.provenance is None:
        return None
    twin = load_twin(recording.provenance.twin)
    column = int(random.choice(state_columns(twin.model, int(_BIT.mjSTATE_QVEL))[twin.joint_qvel]))
    at = int(random.integers(10, len(recording.states) - 10))

    def change(states: Array) -> Array:
        states[at, column] += size * random.choice([-1, 1])
        return states

    return Edited(recording, states=change)


@defect(PHYSICS, "recorded gain is not the one simulated", (1.01, 1.05, 1.2), "times", "physics/next_state")
def _gain(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    names = sorted(name for name in recording.params if name.endswith("/kp"))
    if not names:
        return None
    name = str(random.choice(names))

    def change(record: Provenance) -> Provenance:
        return replace(record, params={**record.params, name: record.params[name] * size})

    return Edited(recording, provenance=change)


@defect(
    PHYSICS, "motion sped up", (1.5, 2.0, 3.0), "times",
    "physics/torque", "physics/velocity", "physics/acceleration", "physics/jerk", "physics/replay",
)  # fmt: skip
def _faster(recording: RecordedEpisode, size: float, _random: np.random.Generator) -> Edited | None:
    rows = np.arange(0, recording.frame_count, size, dtype=np.float64)

    def change(raw: RawEpisode) -> RawEpisode:
        at = np.arange(recording.frame_count)
        state, action = (_resampled(values, at, rows) for values in (raw.state, raw.action))
        time = raw.time[0] + float(np.median(np.diff(raw.time))) * np.arange(len(rows))
        return replace(raw, time=time, state=state, action=action)

    return Edited(recording, raw=change)


def _resampled(values: Array, at: NDArray[np.intp], rows: Array) -> Array:
    return np.column_stack([np.interp(rows, at, column) for column in values.T])


@defect(
    PHYSICS, "joint jerks aside and back", (0.05, 0.15, 0.4), "of its range",
    "physics/acceleration", "physics/jerk", "physics/torque", "physics/velocity",
)  # fmt: skip
def _jolt(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None
    at = int(random.integers(20, recording.frame_count - 20))
    shape = np.array([0.5, 1.0, 1.0, 0.5])  # four frames, because a single spike is another defect

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[at : at + 4, joint] += size * reach(recording)[joint] * shape
        return raw

    return Edited(recording, raw=change)


@defect(PHYSICS, "joint beyond its range", (0.1, 0.2, 0.5), "of its range", "physics/joint_range")
def _beyond(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    record = recording.provenance
    if record is None or not record.twin or recording.raw.units.names != load_twin(record.twin).units.names:
        return None
    twin = load_twin(record.twin)
    joint = int(random.integers(len(recording.raw.joints)))
    low, high = twin.joint_ranges[joint]

    def change(raw: RawEpisode) -> RawEpisode:
        position = raw.units.to_si(raw.state)
        position[:, joint] += high + size * (high - low) - position[:, joint].max()
        state = raw.units.from_si(position)
        return replace(raw, state=state, action=raw.action + (state - raw.state))

    return Edited(recording, raw=change)


@defect(PHYSICS, "measurements late", (2.0, 3.0, 5.0), "frames", "physics/lag", "physics/replay")
def _late(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    def change(raw: RawEpisode) -> RawEpisode:
        return replace(raw, state=delay_series(raw.state, np.full(raw.state.shape[1], size)))

    return Edited(recording, raw=change) if moving_joint(recording, random) is not None else None


@defect(PHYSICS, "a weak drive", (0.05, 0.15, 0.4), "s of lag", "physics/replay", "physics/lag")
def _weak(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        gain = 1 - np.exp(-float(np.median(np.diff(raw.time))) / size)
        series = raw.state[:, joint]
        for row in range(1, len(series)):  # first-order lag of the original motion
            series[row] = series[row - 1] + gain * (series[row] - series[row - 1])
        return raw

    return Edited(recording, raw=change)
