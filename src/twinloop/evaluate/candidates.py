"""Candidates of an evaluation (an expert, a saved policy or any actor) and the computation time of their commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.rollout import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.observing import Photograph
from twinloop.rollout.policy_actor import HashedPolicy, PolicyActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import Controller
from twinloop.tasks import Task
from twinloop.twin import Twin

EXPERT = "expert"


Maker = Callable[[Twin, Task], Actor]
# Number of textures of each kind if a suite draws textures: as many as a slice of a suite needs. Their seed is not that
# of any training, so that the policy has seen none of them.
TEXTURES, _TEXTURE_SEED = 64, 2_000_003


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A candidate of an evaluation: name, hash (empty if it has none), and a function from twin and task to its actor.

    ``pictures`` is True if its behaviour depends on images.
    """

    name: str
    make: Maker
    hash: str = ""
    pictures: bool = False


def make_candidate(who: Any, *, name: str = "") -> Candidate:
    """Return the `Candidate` for a policy, an actor, a function or the scripted expert.

    Args:
        who: ``"expert"``, a `Policy`, an actor, a function from twin and task to an actor, or a candidate.
        name: its name; by default the object's own name.

    Raises:
        InputError: ``who`` is none of these.
    """
    if isinstance(who, Candidate):
        return who
    if who == EXPERT:
        return Candidate(name=name or EXPERT, make=lambda _, task: ExpertActor(task=task))
    if hasattr(who, "predict_with_features") and hasattr(who, "contract"):
        return _make_policy_candidate(who, name)
    if hasattr(who, "begin"):
        return Candidate(name=name or who.name, make=lambda *_: who)
    if callable(who):
        return Candidate(name=name or getattr(who, "__name__", type(who).__name__), make=cast("Maker", who))
    raise InputError(f"{who!r:.80} cannot be tried. Give a policy, 'expert', or an actor (twinloop.rollout.Actor).")


def _make_policy_candidate(policy: HashedPolicy, name: str) -> Candidate:
    contract = policy.contract

    def make(twin: Twin, task: Task) -> Actor:
        photograph = TimedImages(take=_open_camera(twin, contract).take_images) if contract.cameras else None
        return PolicyActor(policy=policy, twin=twin, task=task, photograph=photograph)

    return Candidate(
        name=name or f"policy-{policy.hash[:12]}", hash=policy.hash, make=make, pictures=bool(contract.cameras)
    )


def _open_camera(twin: Twin, contract: Contract) -> WorldCamera:
    """Return the renderer of the images that a policy needs.

    Raises:
        InputError: the images have different sizes.
    """
    sizes = {tuple(size) for size in contract.cameras.values()}
    if len(sizes) > 1:
        said = ", ".join(f"{name} {w}x{h}" for name, (h, w) in contract.cameras.items())
        raise InputError(
            f"The policy's cameras have images of different sizes ({said}). Only one size can be rendered in a loop."
        )
    ((height, width),) = sizes
    cameras = tuple(contract.cameras)
    return WorldCamera(twin, cameras, height=height, width=width, texture_pool=TEXTURES, run_seed=_TEXTURE_SEED)


@dataclass(kw_only=True)
class TimedImages:
    """Renderer of images of running worlds that adds up its wall time in s; a real robot does not render."""

    take: Photograph
    seconds: float = 0.0

    def __call__(self, states: NDArray[np.float64], params: ParamTable) -> Mapping[str, NDArray[np.uint8]]:
        """Render the images of the states by camera, and add the wall time to ``seconds``."""
        began = time.perf_counter()
        taken = self.take(states, params)
        self.seconds += time.perf_counter() - began
        return taken


@dataclass(kw_only=True)
class TimedActor:
    """An actor whose commands are timed: ``seconds`` is the wall time per command, without that of rendering."""

    actor: Actor
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The actor's name."""
        return self.actor.name

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return the actor's controller with a timer."""
        inner = self.actor.begin(worlds)

        def time_command(simulation: Any) -> NDArray[np.float64]:
            began, before = time.perf_counter(), self._rendering_s
            command = inner(simulation)
            self.seconds.append(time.perf_counter() - began - (self._rendering_s - before))
            return command

        return time_command

    @property
    def _rendering_s(self) -> float:
        photograph = getattr(self.actor, "photograph", None)
        return photograph.seconds if isinstance(photograph, TimedImages) else 0.0
