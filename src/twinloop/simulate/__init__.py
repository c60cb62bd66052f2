"""Run worlds: one protocol, a simple reference backend, and fast backends that must agree with it."""

from twinloop.simulate import log
from twinloop.simulate.protocol import Backend, Controller, InitialState, Simulation, Trajectories
from twinloop.simulate.rollout import open_backend, rollout

__all__ = ["Backend", "Controller", "InitialState", "Simulation", "Trajectories", "open_backend", "rollout"]

log.install()
