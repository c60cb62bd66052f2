"""Number the objects of a twin for annotated images, and give each object a class.

The numbers and classes are the same in every image.
"""

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
"""Names of the classes; the number of a class is its index.

A twin's own classes (``classes:`` in its YAML file) follow in alphabetical order.
"""

_SUPPORT = "table"  # default name of the support, if the twin has no scene
DRAWN_GROUPS = 3  # MuJoCo's renderers show the geom groups 0, 1 and 2; the others are for collisions


@dataclass(frozen=True, kw_only=True)
class ObjectInstance:
    """One object of a twin in annotated images.

    Attributes:
        id: number of the object in instance images, from 1; 0 means no object.
        name: name of its body, or of its geom if it is a geom of the world body.
        class_name: name of its class.
        body: id of its body; 0 for a geom of the world body.
        geoms: ids of its geoms.
    """

    id: int
    name: str
    class_name: str
    body: int
    geoms: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class InstanceTable:
    """Numbers and classes of a twin's objects, the same in every episode of every run.

    Each body is an object, and its number is the body's id. Each geom of the world body (table, floor) is also an
    object; these numbers follow in the order of the model. A slot of the scene (body in which an episode may place a
    shape) always has one number, even if it is empty or its shape changes.

    Attributes:
        instances: objects in the order of their numbers.
        classes: class names; the number of a class is its index.
        of_geom: number of the object of each geom, ``(ngeom,)``.
    """

    instances: tuple[ObjectInstance, ...]
    classes: tuple[str, ...]
    of_geom: NDArray[np.uint16]

    @classmethod
    def of(cls, twin: Twin) -> InstanceTable:
        """Return the object numbers and classes of a twin's bodies and of its world body's geoms.

        Raises:
            UnknownNameError: If the twin's YAML file gives a class to a body or geom that does not exist.
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
            raise UnknownNameError(
                "body or geom", unknown[0], [name for _, name, _ in own], where=f"classes of {twin.name}"
            )
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
        """Class number by object number, ``(1 + number of objects,)``; entry 0 (no object) is the class background."""
        numbers = [self.classes.index(instance.class_name) for instance in self.instances]
        return np.array([0, *numbers], dtype=np.uint8)

    def to_instances(self, geom: NDArray[np.int32]) -> NDArray[np.uint16]:
        """Convert geom ids of pixels (-1 for none) to object numbers; the array may have any shape."""
        return np.concatenate([self.of_geom, np.zeros(1, dtype=np.uint16)])[geom]

    def to_classes(self, instance: NDArray[np.uint16]) -> NDArray[np.uint8]:
        """Convert an image of object numbers to class numbers."""
        return self.class_ids[instance]

    def to_json(self) -> dict[str, Any]:
        """Return the names of all objects and classes by number, as JSON values."""
        return {
            "instances": {str(item.id): {"name": item.name, "class": item.class_name} for item in self.instances},
            "classes": {str(i): name for i, name in enumerate(self.classes)},
        }


def _classes(twin: Twin) -> Mapping[str, str]:
    """Return class names by name of a body, or of a geom of the world body.

    If sources disagree, the robot's joints win over the tasks, and the tasks win over the scene.
    """
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
