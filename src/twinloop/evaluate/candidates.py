"""Prepare the candidates of an evaluation (saved policy, actor, or scripted expert), and time their commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.core.pool import count_cores
from twinloop.rollout import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.observing import WorldImages
from twinloop.rollout.policy_actor import HashedPolicy, PolicyActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import Controller
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.twin.places import Scenery

EXPERT = "expert"


Maker = Callable[[Twin, Task], Actor]
# Number of textures of each kind for suites that draw textures, and their seed. No training uses this seed, so that the
# policy was not trained on these textures.
TEXTURES, _TEXTURE_SEED = 64, 2_000_003


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy, scripted expert or other source of commands (actor) to be evaluated.

    Attributes:
        name: Name in the evaluation.
        make: Function from twin and task to the `rollout.Actor` that gives the commands.
        hash: Hash of the saved policy; "" if it has none.
        images: Whether its commands depend on images.
        sensors: Whether it sees them through the camera models of the twin's sensors.
    """

    name: str
    make: Maker
    hash: str = ""
    images: bool = False
    sensors: bool = False


def make_candidate(policy: Any, *, name: str = "", sensors: bool = False) -> Candidate:
    """Return the `Candidate` for a policy, the scripted expert, or another source of commands (actor).

    Args:
        policy: ``"expert"``, a `Policy`, a `rollout.Actor`, a function from twin and task to an actor, or a
            `Candidate`.
        name: Name in the evaluation; by default the object's own name.
        sensors: Whether a policy sees its images through the camera models of the twin's sensors.

    Raises:
        InputError: If ``policy`` has another type.
    """
    if isinstance(policy, Candidate):
        return policy
    if policy == EXPERT:
        return Candidate(name=name or EXPERT, make=lambda _, task: ExpertActor(task=task))
    if hasattr(policy, "predict_with_features") and hasattr(policy, "contract"):
        return _make_policy_candidate(policy, name, sensors=sensors)
    if hasattr(policy, "begin"):
        return Candidate(name=name or policy.name, make=lambda *_: policy)
    if callable(policy):
        return Candidate(name=name or getattr(policy, "__name__", type(policy).__name__), make=cast("Maker", policy))
    raise InputError(
        f"{policy!r:.80} cannot be evaluated. Give a policy, 'expert', or an actor (twinloop.rollout.Actor)."
    )


def _make_policy_candidate(policy: HashedPolicy, name: str, *, sensors: bool) -> Candidate:
    contract = policy.contract

    def make(twin: Twin, task: Task) -> Actor:
        images = TimedImages(camera=_open_camera(twin, contract, sensors=sensors)) if contract.cameras else None
        return PolicyActor(policy=policy, twin=twin, task=task, images=images)

    return Candidate(
        name=name or f"policy-{policy.hash[:12]}",
        hash=policy.hash,
        make=make,
        images=bool(contract.cameras),
        sensors=sensors,
    )


def _open_camera(twin: Twin, contract: Contract, *, sensors: bool) -> WorldCamera:
    """Return the source of the images that a policy's contract requires.

    Raises:
        InputError: If the contract's cameras have images of different sizes, or ``sensors`` is true and the twin has no
            camera models.
    """
    sizes = {tuple(size) for size in contract.cameras.values()}
    if len(sizes) > 1:
        size_texts = ", ".join(f"{name} {w}x{h}" for name, (h, w) in contract.cameras.items())
        raise InputError(
            f"The policy's cameras have images of different sizes ({size_texts}). Only one size can be rendered; "
            "evaluate a policy whose cameras have equal sizes."
        )
    ((height, width),) = sizes
    cameras = tuple(contract.cameras)
    return WorldCamera(
        twin,
        cameras,
        height=height,
        width=width,
        scenery=Scenery(texture_pool=TEXTURES, rooms=True, seed=_TEXTURE_SEED),
        sensors=sensors,
        parallel=count_cores() > 1,
    )


@dataclass(kw_only=True)
class TimedImages:
    """Images of running worlds, with the total wall time that they took.

    `TimedActor` subtracts this time, because a real robot does not render.

    Attributes:
        camera: Source of the images.
        seconds: Wall time of all calls in s.
    """

    camera: WorldImages
    seconds: float = 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def begin_worlds(self, worlds: EpisodeStart, nstep: int) -> None:
        """Forget earlier worlds, and prepare for images of these."""
        with self._timed():
            self.camera.begin_worlds(worlds, nstep)

    def watch(self, states: NDArray[np.float64]) -> None:
        """Note the states of all worlds at the next control step, ``(nworld, nstate)``."""
        with self._timed():
            self.camera.watch(states)

    def take(self, rows: NDArray[np.intp], step: int) -> Mapping[str, NDArray[np.uint8]]:
        """Return images ``(k, height, width, 3)`` by camera name of k worlds at the control step noted last."""
        with self._timed():
            return self.camera.take(rows, step)


@dataclass(kw_only=True)
class TimedActor:
    """Actor that measures the wall time of each of its commands.

    Attributes:
        actor: The actor that computes the commands.
        seconds: Wall time of each command in s, excluding the rendering of images.
    """

    actor: Actor
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the actor."""
        return self.actor.name

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Begin an episode, and return the actor's controller with a timer for its commands."""
        inner = self.actor.begin(worlds)

        def time_command(simulation: Any) -> NDArray[np.float64]:
            began, before = time.perf_counter(), self._rendering_s
            command = inner(simulation)
            self.seconds.append(time.perf_counter() - began - (self._rendering_s - before))
            return command

        return time_command

    @property
    def _rendering_s(self) -> float:
        images = getattr(self.actor, "images", None)
        return images.seconds if isinstance(images, TimedImages) else 0.0
