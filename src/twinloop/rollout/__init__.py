"""Task × actor × parameters × backend → episodes, and back: the same states from what an episode records."""

from twinloop.rollout.actor import Actor, ExpertActor
from twinloop.rollout.episodes import BatchResult, run_batch, software_versions
from twinloop.rollout.readings import BodySensors, Reading, reading_columns, reporting_sensors
from twinloop.rollout.replay import Replay, initial_from_state, replay, replay_episode
from twinloop.rollout.substeps import PhysicsSteps, Restepper

__all__ = [
    "Actor",
    "BatchResult",
    "BodySensors",
    "ExpertActor",
    "PhysicsSteps",
    "Reading",
    "Replay",
    "Restepper",
    "initial_from_state",
    "reading_columns",
    "replay",
    "replay_episode",
    "reporting_sensors",
    "run_batch",
    "software_versions",
]
