"""Assign instances and classes in images: one stable number for every body, and a class for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.twin import Twin

CLASSES: tuple[str, ...] = (
    "background",
    "robot",
    "object",
    "target",
    "distractor",
    "table",
    "floor",
    "fixture",
    "other",
)
"""Classes by number. A twin's own (`classes:` in its YAML) follow in alphabetical order."""

_SUPPORT = "table"  # default name of the support, if the twin has no scene
DRAWN_GROUPS = 3  # MuJoCo's renderers show the geom groups 0, 1 and 2; the others are for collisions


@dataclass(frozen=True, kw_only=True)
class ObjectInstance:
    """One object: its number in images (0 is none), name, class, body (0: the world's), geoms."""

    id: int
    name: str
    class_name: str
    body: int
    geoms: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class InstanceTable:
    """The objects of a twin, the same in every episode of every run.

    The number of a body is its number in the model. Each of the world's own geoms (table, floor) is an object; their
    numbers follow in the model's order. A slot of a scene is an object, for any shape and also if it is empty.
    """

    instances: tuple[ObjectInstance, ...]
    classes: tuple[str, ...]
    of_geom: NDArray[np.uint16]

    @classmethod
    def of(cls, twin: Twin) -> InstanceTable:
        """Return the table of a twin.

        Raises:
            UnknownNameError: its YAML gives a class to a body or geom that it does not have.
        """
        model = twin.model
        owners = model.geom_bodyid
        own = [
            (body, _body_name(model, body), tuple(np.flatnonzero(owners == body).tolist()))
            for body in range(1, model.nbody)
        ]
        own += [(0, _geom_name(model, int(geom)), (int(geom),)) for geom in np.flatnonzero(owners == 0)]
        found = _classes(twin)
        given = twin.spec.classes
        unknown = [name for name in given if name not in {name for _, name, _ in own}]
        if unknown:
            raise UnknownNameError("thing", unknown[0], [name for _, name, _ in own], where=f"classes of {twin.name}")
        instances = tuple(
            ObjectInstance(id=i, name=name, class_name=class_name, body=body, geoms=geoms)
            for i, (body, name, geoms) in enumerate(own, start=1)
            for class_name in [given.get(name) or _class(model, found, body, name, geoms)]
        )
        of_geom = np.zeros(model.ngeom, dtype=np.uint16)
        for instance in instances:
            of_geom[list(instance.geoms)] = instance.id
        classes = (*CLASSES, *sorted(set(given.values()) - set(CLASSES)))
        return cls(instances=instances, classes=classes, of_geom=of_geom)

    def __len__(self) -> int:
        return len(self.instances)

    @cached_property
    def class_ids(self) -> NDArray[np.uint8]:
        """Class number by instance number, ``(1 + len,)``; 0, no instance, is background."""
        numbers = [self.classes.index(instance.class_name) for instance in self.instances]
        return np.array([0, *numbers], dtype=np.uint8)

    def to_instances(self, geom: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Return the instance numbers of pixels from their geom ids (-1: none), of any shape."""
        return np.concatenate([self.of_geom, np.zeros(1, dtype=np.uint16)])[geom]

    def to_classes(self, instance: NDArray[np.uint16]) -> NDArray[np.uint8]:
        """Return the class numbers of an image of instances."""
        return self.class_ids[instance]

    def to_json(self) -> dict[str, Any]:
        """Return a plain form for files."""
        return {
            "instances": {str(item.id): {"name": item.name, "class": item.class_name} for item in self.instances},
            "classes": {str(i): name for i, name in enumerate(self.classes)},
        }


def _classes(twin: Twin) -> Mapping[str, str]:
    """Return the classes that follow from the twin's declarations, by name of a body or of a geom of the world."""
    scene, spec = twin.scene, twin.spec
    found = {scene.spec.support if scene else _SUPPORT: "table"}
    for slot in scene.layout.slots if scene else ():
        found[slot.body] = "distractor" if slot.group else "object"
    found |= dict.fromkeys(spec.objects, "object")
    for task in spec.task.values():
        found |= {task[key]: key for key in ("object", "target") if isinstance(task.get(key), str)}
    if spec.robot:
        model = twin.model
        roots = {int(model.body_rootid[model.jnt_bodyid[model.joint(name).id]]) for name in spec.robot.joints}
        found |= {_body_name(model, root): "robot" for root in roots}
    return found


def _class(model: mujoco.MjModel, found: Mapping[str, str], body: int, name: str, geoms: tuple[int, ...]) -> str:
    if not body:
        plane = model.geom_type[geoms[0]] == mujoco.mjtGeom.mjGEOM_PLANE
        return found.get(name) or ("floor" if plane else "fixture")
    carrier = body
    while carrier:  # its own class, or that of the nearest parent body
        if (known := found.get(_body_name(model, carrier))) is not None:
            return known
        carrier = int(model.body_parentid[carrier])
    return "other" if model.body_weldid[body] else "fixture"


def _body_name(model: mujoco.MjModel, body: int) -> str:
    return model.body(body).name or f"body_{body}"


def _geom_name(model: mujoco.MjModel, geom: int) -> str:
    return model.geom(geom).name or f"geom_{geom}"
