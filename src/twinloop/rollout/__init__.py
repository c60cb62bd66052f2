"""Task × actor × parameters × backend → episodes, and back: the same states from what an episode records."""

from twinloop.rollout.actor import Actor, ExpertActor
from twinloop.rollout.episodes import BatchResult, run_batch, software_versions
from twinloop.rollout.replay import Replay, initial_from_state, replay, replay_episode

__all__ = [
    "Actor",
    "BatchResult",
    "ExpertActor",
    "Replay",
    "initial_from_state",
    "replay",
    "replay_episode",
    "run_batch",
    "software_versions",
]
