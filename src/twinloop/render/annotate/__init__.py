"""Compute ground-truth annotations of rendered images (instances, boxes, poses, optical flow), and draw them.

The annotations follow from geom ids and depth, which any renderer can compute.
"""

from twinloop.render.annotate.draw import (
    depth_image,
    draw_annotations,
    flow_image,
    instance_image,
    normals_image,
)
from twinloop.render.annotate.episode import ANNOTATIONS, AnnotationSettings, annotate_episode, annotations_document
from twinloop.render.annotate.instances import InstanceTable

__all__ = [
    "ANNOTATIONS",
    "AnnotationSettings",
    "InstanceTable",
    "annotate_episode",
    "annotations_document",
    "depth_image",
    "draw_annotations",
    "flow_image",
    "instance_image",
    "normals_image",
]
