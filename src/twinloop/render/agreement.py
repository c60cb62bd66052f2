"""How far two renderers are apart, of pictures of the same states from the same camera."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.render.annotate import InstanceTable

CHANNELS_COMPARED = ("rgb", "depth", "geom", "normal")
SMALLEST = 100
"""Instances that have fewer pixels in both pictures are left out: one pixel of outline is already 10 % of these."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Numbers of one scene or of many together; means are over scenes, quantiles over all pixels.

    ``iou`` intersection over union of silhouettes: mean over the instances of a picture, and ``iou_least`` the
    smallest of any; ``same_ids`` share of pixels with the same geom; where it is the same, ``depth_m`` and
    ``depth_95_m`` median and 95 % quantile of the error of depth at a distance of 1 m, ``normal_deg`` and
    ``normal_95_deg`` of the angle between normals, ``colour`` and ``colour_95`` of the largest difference of a
    channel, in display values from 0 to 255.
    """

    scenes: int
    iou: float
    iou_least: float
    same_ids: float
    depth_m: float
    depth_95_m: float
    normal_deg: float
    normal_95_deg: float
    colour: float
    colour_95: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What two renderers make of one scene, pixel by pixel."""

    ious: NDArray[np.float64]
    same: NDArray[np.bool_]
    depth_m: NDArray[np.float32]
    normal_deg: NDArray[np.float32]
    colour: NDArray[np.float32]


def difference(one: Mapping[str, NDArray], other: Mapping[str, NDArray], instances: InstanceTable) -> Difference:
    """Compare the channels `CHANNELS_COMPARED` ``(n, height, width, …)`` of one camera."""
    same = one["geom"] == other["geom"]
    there = same & (one["geom"] >= 0)
    normals = [seen["normal"][there].astype(np.float64) for seen in (one, other)]
    chord = np.linalg.norm(normals[0] - normals[1], axis=-1)
    depth = one["depth"][there].astype(np.float64)
    colours = [seen["rgb"][same].astype(np.float32) for seen in (one, other)]
    return Difference(
        ious=_ious(instances.picture(one["geom"]), instances.picture(other["geom"])),
        same=same,
        depth_m=(np.abs(depth - other["depth"][there]) / depth).astype(np.float32),
        normal_deg=np.degrees(2.0 * np.arcsin(np.minimum(chord / 2.0, 1.0))).astype(np.float32),
        colour=np.abs(colours[0] - colours[1]).max(axis=-1),
    )


def agreement(differences: Iterable[Difference]) -> Agreement:
    """The numbers of several scenes."""
    scenes = list(differences)
    depth, normal, colour = (
        np.quantile(np.concatenate([getattr(scene, name) for scene in scenes]), [0.5, 0.95])
        for name in ("depth_m", "normal_deg", "colour")
    )
    return Agreement(
        scenes=len(scenes),
        iou=float(np.mean([scene.ious.mean() for scene in scenes])),
        iou_least=float(min(scene.ious.min() for scene in scenes)),
        same_ids=float(np.mean([scene.same.mean() for scene in scenes])),
        depth_m=float(depth[0]),
        depth_95_m=float(depth[1]),
        normal_deg=float(normal[0]),
        normal_95_deg=float(normal[1]),
        colour=float(colour[0]),
        colour_95=float(colour[1]),
    )


def _ious(one: NDArray[np.uint16], other: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Intersection over union of every instance of every frame."""
    ious = []
    for a, b in zip(one, other, strict=True):
        most = int(max(a.max(), b.max())) + 1
        areas = np.bincount(a.ravel(), minlength=most), np.bincount(b.ravel(), minlength=most)
        both = np.bincount(a[a == b], minlength=most)
        large = np.flatnonzero(np.maximum(*areas) >= SMALLEST)
        large = large[large > 0]  # 0 is nothing
        ious.append(both[large] / (areas[0] + areas[1] - both)[large])
    return np.concatenate(ious)
