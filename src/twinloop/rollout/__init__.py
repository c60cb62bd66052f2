"""Simulate episodes with an expert or a policy, and recompute states and sensor readings of stored episodes."""

from twinloop.rollout.actor import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.episodes import BatchResult, run_batch, software_versions
from twinloop.rollout.observing import Observation, TrackerNoise, WorldObserver, offered_contract
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.rollout.readings import BodySensors, SensorReading, reading_columns, select_sensors
from twinloop.rollout.replay import ReplayStates, initial_from_state, replay, replay_episode
from twinloop.rollout.substeps import PhysicsStepper, PhysicsSteps

__all__ = [
    "Actor",
    "BatchResult",
    "BodySensors",
    "EpisodeStart",
    "ExpertActor",
    "Observation",
    "PhysicsStepper",
    "PhysicsSteps",
    "PolicyActor",
    "ReplayStates",
    "SensorReading",
    "TrackerNoise",
    "WorldObserver",
    "initial_from_state",
    "offered_contract",
    "reading_columns",
    "replay",
    "replay_episode",
    "run_batch",
    "select_sensors",
    "software_versions",
]
