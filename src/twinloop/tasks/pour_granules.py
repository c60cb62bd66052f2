"""Define the task to pour granules, a stand-in for a liquid, from a pivoted trough into a bowl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.tasks.arm import mocap_row
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import running_maximum
from twinloop.tasks.soft import move_bodies
from twinloop.tasks.waypoints import Waypoint, WaypointExpert, set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_AT_REST, _REST_S = 0.05, 0.2  # m/s and s: granules whose mean speed is lower for so long have settled; our choice
_TIPPED = 0.1  # rad: a trough that is tipped so far was pushed
_ARC = (0.25, 0.5, 0.75, 1.0)  # shares of the angle, between which the hand moves on straight lines


@dataclass(frozen=True, kw_only=True)
class PourSettings:
    """Settings of the task, in m, rad and s; our choice, no published values.

    Attributes:
        stand: name of the mocap body that carries trough and bowl.
        hinge: name of the trough's hinge joint; its position is positive when the trough is tipped.
        handle: name of the geom at which the trough is tipped.
        bowl: name of the geom of the bowl's floor, a box.
        granules: beginning of the names of the granules' free bodies.
        behind: distance of the tool site from the handle before the push.
        contact: distance of the tool site from the handle's centre when the closed fingers touch it.
        below: distance of the tool site below the handle's centre; negative for above.
        high: height of the tool site above the handle, without contact.
        angle: angle by which the expert tips the trough.
        share: share of the granules that must be in the bowl.
        rim: height of the bowl's rim above the table.
        duration: length of an episode.
    """

    stand: str
    hinge: str
    handle: str
    bowl: str
    granules: str
    behind: float
    contact: float
    below: float
    high: float
    angle: float = 1.0
    share: float = 0.8
    rim: float = 0.04
    duration: float = 6.5


class PourGranules(MilestonePhases, OwnTask):
    """Task to pour granules from a pivoted trough into a bowl, until they rest there."""

    name = "pour_granules"
    instruction = "Pour the beads into the bowl."

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            UnknownNameError: If the twin has no such mocap body, joint, geom or granule. See `settings.read_settings`.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(PourSettings)
        model, home = twin.model, InitialState.home(twin, 1)
        self._stand = mocap_row(twin, settings.stand)
        self._origin = home.mocap_pos[0, self._stand]
        free = [int(i) for i in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)]
        names = {model.body(int(model.jnt_bodyid[joint])).name: joint for joint in free}
        joints = [joint for name, joint in names.items() if name.startswith(settings.granules)]
        geoms, hinges = (
            [find(i).name for i in range(n)] for find, n in ((model.geom, model.ngeom), (model.joint, model.njnt))
        )
        for kind, name, known in (
            ("geom", settings.handle, geoms),
            ("geom", settings.bowl, geoms),
            ("joint", settings.hinge, hinges),
            *([] if joints else [("free body", settings.granules, list(names))]),
        ):
            if name not in known:
                raise UnknownNameError(kind, name, known, where=f"the twin {twin.name}, task.{self.name}")
        self._rows, self._dofs = model.jnt_qposadr[joints].astype(np.intp), model.jnt_dofadr[joints].astype(np.intp)
        self._poses = home.qpos[0, self._rows[:, None] + np.arange(7)]
        self._poses[:, :3] -= self._origin
        self._hinge = int(model.joint(settings.hinge).qposadr[0])
        data = mujoco.MjData(model)
        data.qpos[:] = home.qpos[0]
        mujoco.mj_kinematics(model, data)
        hinge = model.joint(settings.hinge).id
        self._axis, pivot = data.xaxis[hinge].copy(), data.xanchor[hinge].copy()
        self._pivot, self._arm = pivot - self._origin, data.geom(settings.handle).xpos - pivot
        floor = model.geom(settings.bowl)
        self._bowl, self._half = floor.pos.copy(), floor.size[:2].copy()

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states; see `OwnTask`. The granules are in the trough."""
        initial = super().reset(params, run_seed=run_seed, episodes=episodes, attempt=attempt)
        return move_bodies(initial, self._rows, self._poses, self._stand)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether enough granules are in the bowl, and all have settled, for each recorded state."""
        speed = np.linalg.norm(self.qvel(states)[..., self._dofs[:, None] + np.arange(3)], axis=-1).mean(axis=-1)
        settled = (self.poured(states) >= self.settings.share) & (speed < _AT_REST)
        return self.kept(settled, _REST_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the needed granules in the bowl, and of the tipping, so far; 1 is success."""
        poured = running_maximum(self.poured(states) / self.settings.share)
        tipped = running_maximum(np.nan_to_num(self.qpos(states)[..., self._hinge]) / self.settings.angle)
        return np.where(self.success(states), 1.0, 0.3 * tipped + 0.65 * poured)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: trough tipped, granules in the bowl, settled."""
        settings, angle, poured = self.settings, self.qpos(states)[:, self._hinge], self.poured(states)
        most = f"the trough was tipped by {np.degrees(np.nanmax(angle)):.0f} deg"
        few = f"{100 * poured.max():.0f} % of the granules were in the bowl; {100 * settings.share:.0f} % are asked for"
        last = "enough granules were in the bowl, but they did not settle there"
        done = self.success(states[None])[0]
        return [
            Milestone(phase="transport", passed=angle > _TIPPED, failure="never_reached", reason=most),
            Milestone(phase="place", passed=poured >= settings.share, failure="placed_off_target", reason=few),
            Milestone(phase="retreat", passed=done, failure="timeout", reason=last),
        ]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`; those of the granules are their share in the bowl and their centre."""
        settings = self.settings
        centre = [f"{settings.granules}.centre.{axis}" for axis in "xyz"]
        return (*super().environment_names, f"{settings.hinge}.angle", f"{settings.granules}.poured", *centre)

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        angle, poured = self.qpos(states)[..., self._hinge, None], self.poured(states)[..., None]
        parts = [super().environment(states), angle, poured, self._granules(states).mean(axis=-2)]
        return np.nan_to_num(np.concatenate(parts, axis=-1))

    def poured(self, states: Array) -> Array:
        """Return the share of the granules that are in the bowl, ``(…)``; those that are not finite are not."""
        offset = self._granules(states) - self.position(states, self.settings.stand)[..., None, :]
        inside = (np.abs(offset - self._bowl)[..., :2] < self._half).all(axis=-1)
        return (inside & (offset[..., 2] < self.settings.rim)).mean(axis=-1)

    def expert(self, initial: InitialState) -> WaypointExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        settings = self.settings
        push = np.cross(self._axis, self._arm)
        push /= np.linalg.norm(push)  # horizontal, as the handle is above the hinge
        pivot = self.start(initial, settings.stand) + self._pivot - [0.0, 0.0, settings.below]

        def tool_at(angle: float, gap: float) -> Array:
            reach = np.cos(angle) * self._arm + np.sin(angle) * np.linalg.norm(self._arm) * push
            return pivot + reach - gap * push

        before = tool_at(0.0, settings.behind)
        after = tool_at(settings.angle, settings.behind)
        waypoints = [
            Waypoint(name="approach", position=set_height(before, settings.high), gripper="closed", seconds=0.8),
            Waypoint(name="descend", position=before, seconds=0.5),
            *(
                Waypoint(name="tip", position=tool_at(part * settings.angle, settings.contact), pace=0.4, seconds=0.3)
                for part in _ARC
            ),
            Waypoint(name="pour", seconds=1.0, patience=0.0),
            Waypoint(name="withdraw", position=after, seconds=0.5, patience=0.0),
            Waypoint(name="retreat", position=set_height(after, settings.high), patience=np.inf),
        ]
        return WaypointExpert(self.arm, initial, waypoints)

    def _granules(self, states: Array) -> Array:
        return self.qpos(states)[..., self._rows[:, None] + np.arange(3)]
