"""Define the settings of the task to push an object."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PushSettings:
    """Settings of the task, in m, rad and s; our choice, no published values.

    Attributes:
        object: name of the object.
        target: name of the target's mocap body.
        radius: distance from the target within which the object's centre must be.
        heading_tolerance: largest difference between the headings of object and target. None: any heading is accepted.
        symmetry: number of equal turns after which the object counts as unchanged: 2 for a bar, 4 for a cube.
        behind: distance of the fingers before a push, without contact: from the object's centre, or with a heading
            tolerance from the side that is pushed.
        low: height of the tool site during a push.
        begin: height of the tool site below which a push begins; the hand must not touch the object's top there.
        high: height of the tool site above the object.
        fingers: centre of the closed fingers in the frame of the tool site.
        reach: least and largest horizontal distance of the fingers from the arm's first joint at which a push to a
            heading may begin.
        duration: length of an episode.
    """

    object: str
    target: str
    radius: float
    behind: float
    low: float
    begin: float
    high: float
    fingers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    heading_tolerance: float | None = None
    symmetry: int = 1
    reach: tuple[float, float] = (0.0, np.inf)
    duration: float = 10.0
