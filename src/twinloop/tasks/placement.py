"""Place clutter (distracting objects) by physics: draw positions, drop the objects, and check rest and visibility."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.settle import Contacts, settle
from twinloop.simulate.threads import make_batch
from twinloop.tasks.ground import GroundPlane
from twinloop.twin import Twin
from twinloop.twin.scene_spec import ClutterSpec

_RAYS = 24  # rays across the diameter of the object's bounding circle: about 450 in total
_ALONE = 5  # geom group of the object alone, to cast rays at it without other objects


def camera_position(twin: Twin, params: ParamTable, camera: str) -> NDArray[np.float64]:
    """Return the position of a fixed camera in every world, ``(nworld, 3)`` in m.

    Raises:
        UnknownNameError: If no camera has that name.
        InputError: If the camera is attached to a moving body.
    """
    model = twin.model
    names = [model.camera(i).name for i in range(model.ncam)]
    if camera not in names:
        raise UnknownNameError("camera", camera, names, where=f"the twin {twin.name}")
    index = model.camera(camera).id
    if model.cam_bodyid[index]:
        body = model.body(int(model.cam_bodyid[index])).name
        raise InputError(f"The camera {camera} is carried by {body}; occlusion needs a fixed camera.")
    fields = twin.fields(params, visual=True).arrays
    return fields["cam_pos"][:, index] if "cam_pos" in fields else np.tile(model.cam_pos[index], (params.nworld, 1))


def visible_fraction(
    twin: Twin, params: ParamTable, initial: InitialState, *, camera: str, body: str
) -> NDArray[np.float64]:
    """Return the fraction of an object that a camera sees without occlusion, ``(nworld,)``.

    Rays go from the camera through a grid over the object's bounding circle. The fraction is the number of rays that
    hit the object first, divided by the number that would hit the object alone. Parts outside the image count as
    visible.

    Args:
        twin: the twin.
        params: parameter values of the worlds.
        initial: states of the worlds.
        camera: name of the camera.
        body: name of the object's body.
    """
    model = twin.model
    index = model.body(body).id
    geoms = np.flatnonzero(model.geom_bodyid == index)
    batch = make_batch(twin, params, initial, 1)
    groups = batch.expand("geom_group")
    groups[:] = 0
    groups[:, geoms] = _ALONE
    row = int(model.jnt_qposadr[model.body_jntadr[index]])
    eye, centre = camera_position(twin, params, camera), initial.qpos[:, row : row + 3]
    radius = _bounding_radius(batch.expand("geom_size")[:, geoms], model, geoms)
    directions = _ray_directions(centre - eye, radius)
    origins = np.repeat(eye[:, None], directions.shape[1], axis=1)
    alone = np.zeros(mujoco.mjNGROUP, dtype=np.uint8)
    alone[_ALONE] = 1
    _, own = batch.ray(origins, directions, geomgroup=alone)
    _, first = batch.ray(origins, directions)
    meets = own >= 0
    return (meets & np.isin(first, geoms)).sum(axis=1) / np.maximum(meets.sum(axis=1), 1)


def _bounding_radius(sizes: NDArray[np.float64], model: mujoco.MjModel, geoms: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return a radius about the body's origin that contains the geoms of a body in every world, ``(nworld,)`` in m.

    It is the nominal radius times the largest ratio of a geom's size to its nominal size, and is never smaller than the
    nominal radius.

    Args:
        sizes: sizes of the geoms in every world, ``(nworld, ngeom, 3)``.
        model: the nominal model.
        geoms: indices of the geoms.
    """
    grown = (sizes / np.where(model.geom_size[geoms] > 0, model.geom_size[geoms], np.inf)).max(axis=(1, 2))
    reach = np.linalg.norm(model.geom_pos[geoms], axis=1) + model.geom_rbound[geoms]
    return reach.max() * np.maximum(grown, 1.0)


def _ray_directions(axis: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return unit vectors ``(nworld, nray, 3)`` from the camera to points of a disc around the object.

    The points are on a square grid with 24 points across the diameter. All vectors are in the world frame.

    Args:
        axis: vector from the camera to the centre of the disc, ``(nworld, 3)`` in m; it is normal to the disc.
        radius: radius of the disc, ``(nworld,)`` in m.
    """
    forward = axis / np.sqrt((axis**2).sum(axis=1, keepdims=True))
    right = np.cross(forward, [0.0, 0.0, 1.0])
    length = np.sqrt((right**2).sum(axis=1, keepdims=True))
    right = np.where(length > 1e-6, right / np.maximum(length, 1e-6), [1.0, 0.0, 0.0])
    up = np.cross(right, forward)
    line = (np.arange(_RAYS) + 0.5) * 2.0 / _RAYS - 1.0
    x, y = (grid[line[:, None] ** 2 + line**2 <= 1.0] for grid in np.meshgrid(line, line, indexing="ij"))
    across = x[:, None] * right[:, None] + y[:, None] * up[:, None]
    rays = axis[:, None] + radius[:, None, None] * across
    return rays / np.sqrt((rays**2).sum(axis=-1, keepdims=True))


DEEPEST = 5e-4  # m, largest contact depth of a valid placement; resting contacts have a tenth of it
_CANDIDATES = 64  # positions tried for one object in a draw
_GAP = 0.002  # m between bounding circles, and below an object before it falls
_MOVED = 1e-3  # m, largest displacement of placed objects while the clutter falls
_ASIDE = 0.5  # lateral offset of an occluding object from the line of sight, in radii


@dataclass(frozen=True, kw_only=True)
class KeepOut:
    """Regions that clutter avoids, and objects that must not move.

    Attributes:
        points: horizontal position of each region in every world, ``(nworld, 2)`` in m, by the name of its body.
        joints: ids of the free joints of objects that must not move.
    """

    points: Mapping[str, NDArray[np.float64]]
    joints: tuple[int, ...]

    @classmethod
    def of(cls, twin: Twin, initial: InitialState) -> KeepOut:
        """Return regions around all mocap bodies, and around free bodies that are not objects of the twin's scene."""
        model = twin.model
        slots = set() if twin.scene is None else {int(body) for body in twin.scene.bodies}
        free = [int(j) for j in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)]
        joints = tuple(j for j in free if int(model.jnt_bodyid[j]) not in slots)
        rows = {model.body(int(model.jnt_bodyid[j])).name: int(model.jnt_qposadr[j]) for j in joints}
        points = {name: initial.qpos[:, row : row + 2] for name, row in rows.items()}
        for body in np.flatnonzero(model.body_mocapid >= 0):
            points[model.body(int(body)).name] = initial.mocap_pos[:, int(model.body_mocapid[body]), :2]
        return cls(points=points, joints=joints)

    def take(self, worlds: NDArray[np.intp]) -> KeepOut:
        """Return the regions of the worlds with the given indices."""
        return KeepOut(points={name: rows[worlds] for name, rows in self.points.items()}, joints=self.joints)


class ClutterDrop:
    """One random placement of clutter in some worlds.

    Args:
        twin: twin with a scene.
        params: parameter values of the worlds.
        initial: states of the worlds without clutter.
        keep: regions that clutter avoids, and objects that must not move.

    Attributes:
        qpos: positions after the fall, ``(nworld, nq)``.
        reasons: why each world's placement is rejected, such as "no room" or "not at rest"; "" for a valid one.
        visible: fraction of an object that the camera sees, ``(nworld,)``, by the name of each object that clutter must
            partly hide from a camera.
    """

    def __init__(self, twin: Twin, params: ParamTable, initial: InitialState, keep: KeepOut) -> None:
        if twin.scene is None:
            raise ValueError("a twin without a scene has no clutter")
        self._twin, self._scene, self._params, self._initial, self._keep = twin, twin.scene, params, initial, keep
        self._there = self._scene.occupied_mask(params)
        self._radius = self._scene.shape_attribute(params, "radius")
        self._surface = GroundPlane.of(twin, params, self._scene.spec.support)
        self.qpos = initial.qpos.copy()
        self.reasons = [""] * initial.nworld
        self.visible: dict[str, NDArray[np.float64]] = {}

    def drop_clutter(self, *, run_seed: int, episodes: NDArray[np.int64], attempt: int, trial: int) -> None:
        """Draw positions, drop the objects, and check the result; set ``qpos``, ``reasons`` and ``visible``.

        Args:
            run_seed: seed of the run.
            episodes: episode number of each world.
            attempt: how often these episodes were simulated before.
            trial: number of the placement within the attempt; each has other random numbers.
        """
        for name, clutter in self._scene.spec.clutter.items():
            for order, slot in enumerate(self._scene.layout.slots_of_group(name)):
                stream = f"scene/{self._scene.layout.slots[slot].body}"
                size = 5 + 2 * _CANDIDATES
                u = uniforms(run_seed, stream, episodes, size=size, attempt=attempt, step=trial)
                self._place_object(slot, clutter, u, hides=order == 0 and clutter.occlude is not None)
        worlds = np.flatnonzero([not reason for reason in self.reasons])
        if len(worlds):
            self._simulate_fall(worlds)
            self._check_positions()
            self._check_visibility()

    def _simulate_fall(self, worlds: NDArray[np.intp]) -> None:
        """Simulate the fall of the clutter in the worlds with the given indices, and reject invalid placements."""
        start = replace(self._initial, qpos=self.qpos).take(worlds)
        slots = self._twin.model.body_jntadr[self._scene.bodies]
        fixed = [*np.delete(slots, self._scene.clutter), *self._keep.joints]
        joints = np.array([*slots, *self._keep.joints], dtype=np.intp)
        falling = np.zeros((len(worlds), len(joints)), dtype=bool)
        falling[:, self._scene.clutter] = self._there[worlds][:, self._scene.clutter]
        settled = settle(self._twin, self._params.take(worlds), start, joints, falling)
        moved = self._largest_displacement(worlds, settled.qpos, fixed) > _MOVED
        self._copy_settled(worlds, settled.qpos)
        for row, world in enumerate(worlds):
            there, contacts = self._there[world], settled.contacts[row]
            self._reject_world(world, not settled.at_rest[row], "not at rest")
            self._reject_world(world, contacts.deepest(self._scene.bodies[there]) > DEEPEST, "penetrates a body")
            self._reject_world(world, not self._is_supported(contacts, there), "not on the support")
            self._reject_world(world, bool(moved[row]), "moved a placed object")

    def _reject_world(self, world: int, invalid: bool, reason: str) -> None:
        if invalid and not self.reasons[world]:
            self.reasons[world] = reason

    def _place_object(self, slot: int, clutter: ClutterSpec, u: NDArray[np.float64], *, hides: bool) -> None:
        """Place one object above a free position; reject worlds without a free position, with the reason "no room".

        Args:
            slot: index of the object in the scene.
            clutter: its group's settings.
            u: uniform random numbers of the object, one row per world.
            hides: whether the object must occlude another object.
        """
        there, radius = self._there[:, slot], self._radius[:, slot]
        places = self._occluding_positions(clutter, u[:, 5:], radius) if hides else _region_positions(clutter, u[:, 5:])
        free = self._find_free_positions(slot, clutter, places, hides=hides)
        for world in np.flatnonzero(there & ~free.any(axis=1)):
            self._reject_world(int(world), True, "no room")
        xy = places[np.arange(len(places)), np.argmax(free, axis=1)]
        column = self._scene.qpos[slot]
        height = self._surface.height(xy) + (radius + _GAP) / self._surface.normal[:, 2]
        if clutter.overlap:
            below = [i for i in self._scene.layout.slots_of_group(self._scene.layout.slots[slot].group) if i < slot]
            height = height + (2 * (self._radius[:, below] + _GAP) * self._there[:, below]).sum(axis=1)
        pose = np.concatenate([xy, height[:, None], _random_quaternions(u[:, :3], upright=clutter.upright)], axis=1)
        self.qpos[there, column : column + 7] = pose[there]

    def _find_free_positions(
        self, slot: int, clutter: ClutterSpec, places: NDArray[np.float64], *, hides: bool
    ) -> NDArray[np.bool_]:
        """Return a mask ``(nworld, n)`` of positions far enough from regions to avoid and from objects placed before.

        Args:
            slot: index of the object in the scene.
            clutter: settings of the object's group.
            places: n candidate positions x, y in each world, ``(nworld, n, 2)`` in m.
            hides: whether the object must occlude another object; it may then be near that object.
        """
        radius = self._radius[:, slot, None]
        free = np.ones(places.shape[:2], dtype=bool)
        for name, point in self._keep.points.items():
            hidden = hides and clutter.occlude is not None and name == clutter.occlude.object
            free &= hidden | (_distance(places, point) >= radius + clutter.clear)
        for other in range(slot):
            if clutter.overlap and self._scene.layout.slots[other].group == self._scene.layout.slots[slot].group:
                continue
            column = self._scene.qpos[other]
            apart = _distance(places, self.qpos[:, column : column + 2])
            free &= (apart >= radius + self._radius[:, other, None] + _GAP) | ~self._there[:, other, None]
        return free

    def _occluding_positions(
        self, clutter: ClutterSpec, u: NDArray[np.float64], radius: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return positions x, y between an object and a camera, ``(nworld, n, 2)`` in m in the world frame.

        Args:
            clutter: settings, which name the object and the camera.
            u: uniform random numbers ``(nworld, 2 n)``.
            radius: radius of the occluding object, ``(nworld,)`` in m.
        """
        occlude = clutter.occlude
        if occlude is None:
            return _region_positions(clutter, u)
        model = self._twin.model
        column = int(model.joint(int(model.body_jntadr[model.body(occlude.object).id])).qposadr[0])
        centre = self._initial.qpos[:, column : column + 2]
        way = camera_position(self._twin, self._params, occlude.camera)[:, :2] - centre
        way = way / np.sqrt((way**2).sum(axis=1, keepdims=True))
        low, high = occlude.distance
        ahead = low + (high - low) * u[:, ::2] + radius[:, None]
        aside = _ASIDE * radius[:, None] * (2 * u[:, 1::2] - 1)
        across = np.stack([-way[:, 1], way[:, 0]], axis=1)
        return centre[:, None] + ahead[..., None] * way[:, None] + aside[..., None] * across[:, None]

    def _copy_settled(self, worlds: NDArray[np.intp], settled: NDArray[np.float64]) -> None:
        """Copy the poses of the fallen clutter into ``qpos``; the robot and the placed objects keep their poses.

        Args:
            worlds: indices of the worlds.
            settled: their positions after the fall, one row per world.
        """
        for slot in self._scene.clutter:
            columns = slice(self._scene.qpos[slot], self._scene.qpos[slot] + 7)
            there = self._there[worlds, slot]
            self.qpos[worlds[there], columns] = settled[there, columns]

    def _largest_displacement(
        self, worlds: NDArray[np.intp], settled: NDArray[np.float64], joints: list[int]
    ) -> NDArray[np.float64]:
        """Return the largest displacement of objects during the fall, one value in m per world.

        Args:
            worlds: indices of the worlds.
            settled: their positions after the fall, one row per world.
            joints: ids of the objects' free joints.
        """
        furthest = np.zeros(len(settled))
        for joint in joints:
            row = int(self._twin.model.jnt_qposadr[joint])
            way = settled[:, row : row + 3] - self._initial.qpos[worlds, row : row + 3]
            furthest = np.maximum(furthest, np.sqrt((way**2).sum(axis=1)))
        return furthest

    def _is_supported(self, contacts: Contacts, there: NDArray[np.bool_]) -> bool:
        """Return whether all clutter of a world rests on the support or on other clutter, and touches nothing else.

        ``there`` marks the objects that the world has.
        """
        bodies = {int(self._scene.bodies[i]) for i in self._scene.clutter if there[i]}
        touched = {partner for body in bodies for partner in contacts.find_partners(body)}
        foreign = [body for body, geom in touched if body not in bodies and geom != self._surface.geom]
        return not foreign and bodies <= contacts.find_supported(self._surface.geom)

    def _check_positions(self) -> None:
        for name, clutter in self._scene.spec.clutter.items():
            for order, slot in enumerate(self._scene.layout.slots_of_group(name)):
                column, radius = self._scene.qpos[slot], self._radius[:, slot]
                xy, there = self.qpos[:, column : column + 2], self._there[:, slot]
                hides = clutter.occlude.object if clutter.occlude and order == 0 else None
                outside = np.zeros(len(xy), dtype=bool) if hides else _is_outside(clutter, xy, radius)
                near = np.zeros(len(xy), dtype=bool)
                for point, centre in self._keep.points.items():
                    if point != hides:
                        near |= _distance(xy[:, None], centre)[:, 0] < radius + clutter.clear - _GAP
                for world in np.flatnonzero(there & (outside | near)):
                    reason = "left its region" if outside[world] else "too near to another object"
                    self._reject_world(int(world), True, reason)

    def _check_visibility(self) -> None:
        start = replace(self._initial, qpos=self.qpos)
        for name, clutter in self._scene.spec.clutter.items():
            if clutter.occlude is None:
                continue
            fraction = visible_fraction(
                self._twin, self._params, start, camera=clutter.occlude.camera, body=clutter.occlude.object
            )
            self.visible[clutter.occlude.object] = fraction
            low, high = clutter.occlude.visible
            occupied = self._there[:, self._scene.layout.slots_of_group(name)[0]]
            for world in np.flatnonzero(occupied & ((fraction < low) | (fraction > high))):
                self._reject_world(int(world), True, "visible fraction out of range")


def _distance(places: NDArray[np.float64], point: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(((places - point[:, None]) ** 2).sum(axis=-1))


def _region_positions(clutter: ClutterSpec, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return random positions ``(nworld, n, 2)`` in the region of a clutter group, in m.

    ``u`` are uniform random numbers, ``(nworld, 2 n)``.
    """
    low, high = np.array([clutter.x, clutter.y]).T
    return low + (high - low) * u.reshape(len(u), -1, 2)


def _is_outside(clutter: ClutterSpec, xy: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.bool_]:
    low, high = np.array([clutter.x, clutter.y]).T
    return ((xy < low - radius[:, None]) | (xy > high + radius[:, None])).any(axis=1)


def _random_quaternions(u: NDArray[np.float64], *, upright: bool) -> NDArray[np.float64]:
    """Return uniform random unit quaternions from uniform random numbers ``u`` ``(nworld, 3)``.

    If ``upright`` is true, they are rotations about the vertical. K. Shoemake, "Uniform random rotations", Graphics
    Gems III, 1992.
    """
    one, two = 2 * np.pi * u[:, 1], 2 * np.pi * u[:, 2]
    if upright:
        zero = np.zeros(len(u))
        return np.stack([np.cos(one / 2), zero, zero, np.sin(one / 2)], axis=1)
    low, high = np.sqrt(1 - u[:, 0]), np.sqrt(u[:, 0])
    return np.stack([low * np.sin(one), low * np.cos(one), high * np.sin(two), high * np.cos(two)], axis=1)


TRIALS = 30  # draws of a world's clutter before its scene counts as impossible


def place_clutter(
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    *,
    run_seed: int,
    episodes: Sequence[int],
    attempt: int = 0,
    keep: KeepOut | None = None,
) -> InitialState:
    """Return the initial states with the clutter of their scene placed at random and at rest.

    Worlds without clutter are unchanged. If a placement is invalid, for example because objects penetrate each other,
    another one is tried, up to ``TRIALS`` (30) times. A world depends only on its parameters, the run seed, its episode
    number and the attempt. ``notes`` of the result has one number per world for ``scene/trials`` (how many placements
    were tried) and for ``scene/visible/<object>`` (visible fraction of an object that clutter must partly hide).
    ``refused`` of the result holds the most frequent reason for each world without a valid placement.

    Args:
        twin: the twin.
        params: parameter values of the worlds.
        initial: states of the worlds without clutter.
        run_seed: seed of the run.
        episodes: episode number of each world.
        attempt: how often these episodes were simulated before; each attempt has other random numbers.
        keep: regions that clutter avoids; by default all other free bodies and all mocap bodies.
    """
    scene = twin.scene
    if scene is None or not scene.spec.clutter:
        return initial
    keep = keep or KeepOut.of(twin, initial)
    numbers = np.asarray(episodes)
    waiting = np.flatnonzero(scene.occupied_mask(params)[:, scene.clutter].any(axis=1))
    qpos, notes = initial.qpos.copy(), {"scene/trials": np.zeros(initial.nworld)}
    notes |= {f"scene/visible/{name}": np.ones(initial.nworld) for name in scene.occluded_objects}
    reasons = [Counter[str]() for _ in range(initial.nworld)]
    for trial in range(TRIALS):
        if not len(waiting):
            break
        drop = ClutterDrop(twin, params.take(waiting), initial.take(waiting), keep.take(waiting))
        drop.drop_clutter(run_seed=run_seed, episodes=numbers[waiting], attempt=attempt, trial=trial)
        qpos[waiting] = drop.qpos
        notes["scene/trials"][waiting] += 1
        for name, fraction in drop.visible.items():
            notes[f"scene/visible/{name}"][waiting] = fraction
        for world, reason in zip(waiting, drop.reasons, strict=True):
            reasons[world].update([reason] if reason else [])
        waiting = waiting[[bool(reason) for reason in drop.reasons]]
    refused = [""] * initial.nworld
    for world in waiting:
        ((reason, _),) = reasons[world].most_common(1)
        refused[world] = f"clutter could not be placed: {reason}"
    return dataclasses.replace(
        initial, qpos=qpos, notes={**initial.notes, **notes}, refused=tuple(refused) if len(waiting) else ()
    )
