"""The truth about every picture of an episode, as tables: what, where, how far, which way, and how it moves.

Conventions (`docs/annotations.md`): SI units; camera axes x right, y down, z forward; pixel (column 0, row 0) covers
[0, 1] × [0, 1]; quaternions wxyz; ``a_from_b`` takes coordinates in b to coordinates in a.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import pyarrow as pa

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.annotations import document
from twinloop.render.annotate.frame import FrameTruth, Truth
from twinloop.render.annotate.instances import InstanceTable
from twinloop.render.annotate.tables import EpisodeRows, table_names
from twinloop.render.protocol import Fields, Renderer, SceneStates
from twinloop.twin import Twin

PICTURES = ("depth", "instance", "semantic", "normals", "flow")
PER_FRAME = (*PICTURES, "boxes", "poses")
PER_STEP = ("contacts", "joints")
ANNOTATIONS = (*PER_FRAME, *PER_STEP)
_FRAMES = 16  # rendered at once: a few MB of pictures at 640×480
_LARGEST_UNIT = 0.01


@dataclass(frozen=True, kw_only=True)
class AnnotationSettings:
    """Which annotations are wanted, by name (`ANNOTATIONS`, or ``all``), and how distances are stored.

    ``depth_unit`` (m) is one count of a depth picture: at 0.1 mm distances up to 6.5 m can be told.

    Raises:
        UnknownNameError: there is no such annotation.
        InputError: a unit of depth above 1 cm, or none.
    """

    wanted: tuple[str, ...] = ("all",)
    depth_unit: float = 1e-4

    def __post_init__(self) -> None:
        for name in self.wanted:
            if name not in (*ANNOTATIONS, "all"):
                raise UnknownNameError("annotation", name, (*ANNOTATIONS, "all"))
        if not 0.0 < self.depth_unit <= _LARGEST_UNIT:
            raise InputError(f"A unit of depth of {self.depth_unit:g} m; it lies above 0 and up to {_LARGEST_UNIT:g}.")
        chosen = ANNOTATIONS if "all" in self.wanted else self.wanted
        object.__setattr__(self, "wanted", tuple(name for name in ANNOTATIONS if name in chosen))

    @property
    def per_frame(self) -> tuple[str, ...]:
        """What `annotate_episode` makes."""
        return tuple(name for name in self.wanted if name in PER_FRAME)

    @property
    def per_step(self) -> tuple[str, ...]:
        """What `rollout.contacts.dynamics_tables` makes."""
        return tuple(name for name in self.wanted if name in PER_STEP)

    @property
    def channels(self) -> tuple[str, ...]:
        """Channels of `render.protocol.CHANNELS` that are needed of a renderer."""
        return ("depth", "geom", "normal") if "normals" in self.wanted else ("depth", "geom")


def annotate_episode(
    renderer: Renderer,
    twin: Twin,
    states: SceneStates,
    fields: Fields | None = None,
    *,
    number: int,
    settings: AnnotationSettings,
    model: mujoco.MjModel | None = None,
) -> dict[str, pa.Table]:
    """The tables of one episode's pictures, from every camera of a renderer: what `commit_block` takes as ``tables``.

    Args:
        renderer: any that makes `AnnotationSettings.channels`.
        states: of every frame, ``T``; flow of the last is empty.
        fields: as for ``renderer.render``: of one world or one per frame.
        number: the episode's number, by which the writer knows it.
        model: the variant of the twin's model that the renderer was opened with, where there is one.

    Returns:
        ``annotations/cameras`` always; ``annotations/frames`` (pictures), ``annotations/objects`` (boxes, visibility,
        poses) and ``annotations/keypoints`` where they are wanted; see `dataset.annotations` for their columns.

    Raises:
        UnknownNameError: the renderer lacks a channel.
        InputError: states or fields do not fit the model.
    """
    if not settings.per_frame:
        return {}
    things = InstanceTable.of(twin)
    truth = Truth(model or twin.model, things, renderer.cameras, height=renderer.height, width=renderer.width)
    rows = EpisodeRows(number, settings.per_frame, settings.depth_unit, things)
    before: dict[str, tuple[int, FrameTruth]] = {}
    for row, frame in enumerate(_frames(renderer, truth, states, fields, settings)):
        if frame.camera in before:
            rows.add_flow(*before[frame.camera], frame)
        rows.add(frame)
        before[frame.camera] = (row, frame)
    return rows.tables()


def annotations_document(twin: Twin, settings: AnnotationSettings) -> dict[str, Any]:
    """``twinloop/annotations.json`` (`dataset.annotations.DOCUMENT`) of a dataset with these annotations."""
    names = table_names(settings.per_frame)
    names += ["contacts", "forces"] if "contacts" in settings.wanted else []
    names += ["joints"] if "joints" in settings.wanted else []
    chosen = {"annotations": list(settings.wanted), "depth_unit": settings.depth_unit}
    return document(names, InstanceTable.of(twin).to_json(), **chosen)


def _frames(
    renderer: Renderer, truth: Truth, states: SceneStates, fields: Fields | None, settings: AnnotationSettings
) -> Iterator[FrameTruth]:
    """What is true of every picture, frame by frame and camera by camera."""
    truth.begin(states, fields)
    wanted = settings.per_frame
    parts = {"objects": bool({"boxes", "poses"} & set(wanted)), "keypoints": "poses" in wanted}
    for start in range(0, len(states), _FRAMES):
        rows = slice(start, start + _FRAMES)
        seen = renderer.observe(states.take(rows), truth.fields(rows), channels=settings.channels)
        for frame in range(start, min(start + _FRAMES, len(states))):
            truth.pose(frame)
            for camera in renderer.cameras:
                channels = {name: pictures[frame - start] for name, pictures in seen[camera].items()}
                yield truth.see(camera, channels, **parts)
