"""Release trained policies: version registry, gate, deployment stages, safety envelope and monitor."""

from twinloop.release.plan import CanaryPlan, ShadowPlan, StagePlan
from twinloop.release.promotion import StageChange, promote, rollback
from twinloop.release.registry import PolicyRegistry
from twinloop.release.shadow import ShadowDifference, ShadowLog
from twinloop.release.stages import CandidateStage, StageTracker
from twinloop.release.version import PolicyVersion

__all__ = [
    "CanaryPlan",
    "CandidateStage",
    "PolicyRegistry",
    "PolicyVersion",
    "ShadowDifference",
    "ShadowLog",
    "ShadowPlan",
    "StageChange",
    "StagePlan",
    "StageTracker",
    "promote",
    "rollback",
]
