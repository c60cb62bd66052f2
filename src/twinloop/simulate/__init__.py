"""Simulate many worlds at once with interchangeable backends.

All backends follow one protocol. The simple backend ``reference`` defines the correct results, and the fast
backends ``threads`` and ``warp`` must agree with it.
"""

from twinloop.simulate.protocol import Backend, Controller, InitialState, Simulation, Trajectories
from twinloop.simulate.rollout import open_backend, rollout

__all__ = ["Backend", "Controller", "InitialState", "Simulation", "Trajectories", "open_backend", "rollout"]
