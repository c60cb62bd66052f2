"""From a candidate to the champion and back: registry, gate, stages, safety envelope, monitor."""

from twinloop.release.plan import CanaryPlan, ShadowPlan, StagePlan
from twinloop.release.promotion import Moved, promote, rollback
from twinloop.release.registry import Registry
from twinloop.release.shadow import Divergence, ShadowLog
from twinloop.release.stages import Stages, Standing
from twinloop.release.version import Version

__all__ = [
    "CanaryPlan",
    "Divergence",
    "Moved",
    "Registry",
    "ShadowLog",
    "ShadowPlan",
    "StagePlan",
    "Stages",
    "Standing",
    "Version",
    "promote",
    "rollback",
]
