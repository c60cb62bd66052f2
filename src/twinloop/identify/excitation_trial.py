"""What a motion would tell, and whether a robot may make it: many motions at many plausible robots, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.hardware.limits import Clearance, MotionLimits
from twinloop.identify.assembly import at_physics, fit_problem
from twinloop.identify.config import FitConfig
from twinloop.identify.fisher import Information, Noise, excitation, information
from twinloop.identify.problem import Linearization, Problem, linearize
from twinloop.identify.space import Space
from twinloop.simulate import Backend, InitialState, rollout
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
_SETTLE_S = 1.2  # s at home before a motion: as long as virtual robots are given (hardware.arms.SETTLE_S)
_LOOK = 3  # a moving arm is looked at every so many frames for what it comes near to


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Motions tried on a twin at several points ``(npoint, p)`` of what its parameters may be.

    ``space`` says what the points' columns are; ``noise`` is that of the joints' readings in the twin's units.
    """

    twin: Twin
    space: Space
    points: Array
    noise: Noise
    config: FitConfig
    backend: Backend
    limits: MotionLimits

    @property
    def home(self) -> Array:
        """The command at which every motion begins and ends, SI."""
        return self.twin.home()[1]

    def told(self, commands: Array, *, alone: bool = False) -> Information:
        """What motions ``(nmotion, T, n)``, each from rest, tell at every point, ``(npoint, nmotion, p, p)``.

        ``alone`` moves every parameter in a world of its own, see `problem.linearize`: dear, and exact.
        """
        each = [information(problem, here, self.noise) for problem, here in self._looked(commands, alone=alone)]
        return Information(matrix=np.stack([i.matrix for i in each]), score=np.stack([i.score for i in each]))

    def excited(self, commands: Array) -> Array:
        """How far they move the readings at every point, see `fisher.excitation`, ``(npoint, p)``."""
        return np.stack([excitation(problem, here, self.noise) for problem, here in self._looked(commands, alone=True)])

    def _looked(self, commands: Array, *, alone: bool) -> Iterator[tuple[Problem, Linearization]]:
        """Motions as a fit would see them, at every point."""
        for point, start in zip(self.points, self._at_rest(), strict=True):
            logs = self._logs(commands, start)
            problem = fit_problem(self.backend, logs, replace(self.space, twin=logs.twin), point, self.config)
            yield problem, linearize(problem, point, alone=alone)

    def _logs(self, commands: Array, start: Array) -> ReplayLogs:
        """Motions as logs of a robot that reads ``start`` ``(n,)`` at their beginning."""
        twin, torque = self.twin, self.twin.robot.control == "torque"
        time = np.arange(commands.shape[1]) / twin.control_hz
        episodes = [
            Episode(
                index=number,
                time=time,
                action=rows if torque else twin.units.from_si(rows),
                state=np.tile(start, (len(rows), 1)),
                units=twin.units,
                command="torque" if torque else "position",
                source="sim",
            )
            for number, rows in enumerate(commands)
        ]
        options = replace(self.config.replay, window=None, stride=None, start="rest", compare=("position",))
        options = replace(options, torque="command", conditions={}, local={})
        return at_physics(prepare_replay(twin, episodes, options), self.config.physics_hz)

    def _at_rest(self) -> Array:
        """What the robot reads at rest at home, at every point, ``(npoint, n)``."""
        held = np.tile(self.home, (1, round(_SETTLE_S * self.twin.control_hz), 1))
        logs = self._logs(held, self.twin.units.from_si(self.twin.home()[0][self.twin.joint_qpos]))
        return replay(self.backend, logs, self.space.table(self.points))[:, 0, -1]

    def admissible(self, commands: Array) -> tuple[NDArray[np.bool_], Array]:
        """Which motions ``(nmotion, T, n)`` the robot may make whatever it is among the points, with contacts on.

        Its joints stay within their ranges and speeds, its drives under the limit of their torque, and nothing comes
        near that is not near at home. Also how far readings lag behind commands at most, ``(nmotion, n)`` in rad or m.
        """
        nmotion, npoint = len(commands), len(self.points)
        issued = np.repeat(commands, npoint, axis=0)
        rows = np.tile(np.arange(npoint), nmotion)
        table = replace(self.space, twin=self.twin).table(self.points).take(rows)
        initial = InitialState.home(self.twin, len(issued))
        run = rollout(self.backend, self.twin, table, initial, issued, issued.shape[1], record=("actuator_force",))
        positions = run.qpos[:, 1:, self.twin.joint_qpos]
        speeds = run.qvel[:, 1:, self.twin.joint_qvel]
        torque = np.sqrt(np.mean(run.records["actuator_force"][:, 1:] ** 2, axis=1))
        fine = run.valid & (torque <= self.limits.torque).all(axis=1) & self._in_range(positions)
        fine &= (np.abs(speeds) <= self._overshoot() * self.limits.speed).all(axis=(1, 2))
        clearance = Clearance(self.twin, self.limits.clearance / 2)  # half of it is for the lag behind the command
        for world in np.flatnonzero(fine):
            fine[world] = clearance.first_touch(positions[world, ::_LOOK]) is None
        lag = np.abs(positions - issued).max(axis=1)
        return fine.reshape(nmotion, npoint).all(axis=1), lag.reshape(nmotion, npoint, -1).max(axis=1)

    def _in_range(self, positions: Array) -> NDArray[np.bool_]:
        """Joints that have stops stay between them, ``(nworld,)``."""
        model = self.twin.model
        limited = [bool(model.jnt_limited[model.joint(name).id]) for name in self.twin.robot.joints]
        low, high = np.where(np.array(limited)[:, None], self.twin.joint_ranges, [-np.inf, np.inf]).T
        return ((positions >= low) & (positions <= high)).all(axis=(1, 2))

    def _overshoot(self) -> float:
        """A servo that oscillates passes its command's speed; a torque-controlled arm has no such speed to pass."""
        return 1.0 if self.twin.robot.control == "torque" else 1.5
