"""Where the hand is at every frame, by the twin's kinematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap, unit_map_from_ranges
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.twin import Twin

Array = NDArray[np.float64]


def units_by_twin(episode: Episode, twin: Twin) -> UnitMap | None:
    """The units of an episode; where the log does not say what they are in rad, by the twin's joint ranges.

    None where joints or units do not fit the twin.
    """
    joints, said = list(twin.robot.joints), [unit.unit for unit in episode.units.joints]
    if not set(episode.joints) <= set(joints) or (not episode.units.known and "unknown" in said):
        return None
    if episode.units.known:
        return episode.units
    ranges = twin.joint_ranges[[joints.index(name) for name in episode.joints]]
    return unit_map_from_ranges(episode.joints, ranges, said, source=f"joint ranges of {twin.name}")


class Hands:
    """The tool sites of the twins of episodes, each twin read once.

    Args:
        twins: the twin of an episode; None where there are none, and no hand is known.
    """

    def __init__(self, twins: Twins | None = None) -> None:
        self._twins = twins
        self._read: dict[str, tuple[mujoco.MjModel, mujoco.MjData]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what each process reads for itself."""
        return {"_twins": self._twins, "_read": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See `__getstate__`."""
        self.__dict__.update(state)

    def positions(self, recording: Recording) -> Array | None:
        """The hand in the world ``(T, 3)``, m; None without a twin, a tool site, or joints and units that fit it.

        A log whose ±100 has no calibration is read by the twin's joint ranges, as everywhere.
        """
        if self._twins is None:
            return None
        try:
            twin = self._twins(recording)
        except InputError:
            return None
        episode = recording.episode
        units = units_by_twin(episode, twin)
        if twin.robot.tcp is None or units is None:
            return None
        return self._positions(twin, episode.joints, units.to_si(episode.state))

    def _positions(self, twin: Twin, joints: Sequence[str], values: Array) -> Array:
        if twin.hash not in self._read:
            self._read[twin.hash] = (twin.model, mujoco.MjData(twin.model))
        model, data = self._read[twin.hash]
        data.qpos[:], _ = twin.home()
        address = [int(model.joint(name).qposadr[0]) for name in joints]
        site = model.site(str(twin.robot.tcp)).id
        found = np.empty((len(values), 3))
        for frame, row in enumerate(values):
            data.qpos[address] = row
            mujoco.mj_kinematics(model, data)
            found[frame] = data.site_xpos[site]
        return found
