"""Compare policies from images on robots that look and move differently: ``python -m benchmarks transfer --pixels``.

Every policy is taught in simulated worlds only, once per training run, and serves all robots. Robots, trials and
initial conditions are those of the study of policies from states, with the cameras of the robot (`hardware.hidden`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.parts import DONE
from benchmarks.transfer.pixel_settings import (
    CAMERAS,
    CONTROL,
    DEMONSTRATIONS,
    END,
    LOCALIZER,
    LOOKS,
    Look,
    PixelSettings,
    PolicyKind,
)
from benchmarks.transfer.settings import DEMONSTRATED, PLACES
from twinloop.core.contract import IMAGES, STATE
from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.hardware import make_hidden_cell
from twinloop.policies import open_policy
from twinloop.randomize import Plan, default_draws
from twinloop.randomize.section import section_plan
from twinloop.rollout import EpisodeStart, ExpertActor, run_batch
from twinloop.rollout.episodes import BatchResult
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import open_backend
from twinloop.tasks import Task, open_task
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.twin import Twin, load_twin
from twinloop.twin.places import Scenery
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors

TWIN, TASK = "so101_tabletop", "pick_and_place"
_MOMENTS = (0, 15, 30)  # steps of each demonstration at which images are taken
# An image of 96 rows averages the noise of about 5×5 pixels of a camera with 480 rows. The ranges of the camera models
# are for full images; these are for the small ones, with a margin.
_NOISE = (0.2, 0.4)


_POSES = {
    "camera/front/position/*": [-0.03, 0.03],
    "camera/front/rotation/*": [-0.07, 0.07],
    "camera/wrist/position/*": [-0.01, 0.01],
    "camera/wrist/rotation/*": [-0.05, 0.05],
}
_LENSES = {f"sensor/{name}/noise_scale": list(_NOISE) for name in CAMERAS}


def open_worlds(nominal: bool, seed: int) -> tuple[Plan, Task]:
    """Return the worlds in which a policy from images is trained, and the task.

    Args:
        nominal: whether all worlds look like the nominal twin, seen by its own cameras.
        seed: run seed.
    """
    twin = _twin()
    section: dict[str, Any] = {"default": True, "params": {**_POSES, **_LENSES}, "visual": {"rooms": 1000}}
    task = open_task(TASK, twin)
    plan = section_plan(section, twin, run_seed=seed, episodes=100_000, where="the study of policies from images")
    if not nominal:
        return plan, task
    kept = tuple(draw for draw in plan.draws if draw.names[0] in _LENSES or not _is_look(twin, draw.names[0]))
    return replace(plan, draws=kept), task


def _is_look(twin: Twin, name: str) -> bool:
    """Return whether a parameter only changes images: appearance, pose and model of a camera."""
    cameras = tuple(f"sensor/{camera}/" for camera in CAMERAS)
    return twin.params[name].quantity.visual or name.startswith(cameras)


PartKind = Literal["control", "split", "nominal", "end", "adapted", "trials"]


def open_localizer(path: Path) -> Any:
    """Open a localizer with its policy."""
    from twinloop.policies.localizer import Localizer

    made = open_policy(path)
    assert isinstance(made, Localizer)
    return made


@functools.cache
def _twin() -> Twin:
    return load_twin(TWIN)


@dataclass(frozen=True, kw_only=True)
class PixelPart:
    """One part of the study, whose files are in one folder; see `parts.StudyPart`.

    Attributes:
        kind: ``control`` (policy from states), ``split`` (localizer with control), ``nominal`` (the same on the nominal
            look), ``end`` (policy end to end), ``adapted`` (localizer corrected for a robot), or ``trials``.
        folder: folder of the study.
        seed: seed of the training run.
        robot: seed of the robot; -1 for none.
        policy: kind of the policy of trials.
        settings: settings of the study.
    """

    kind: PartKind
    folder: str
    settings: PixelSettings
    seed: int
    robot: int = -1
    policy: PolicyKind = "split"

    @property
    def path(self) -> Path:
        """Folder of the part."""
        look = f"{self.settings.family}-{self.settings.look}"
        name = {
            "adapted": f"{look}/robot{self.robot}-seed{self.seed}",
            "trials": f"{look}/{self.policy}-robot{self.robot}-seed{self.seed}",
        }.get(self.kind, f"seed{self.seed}")
        return Path(self.folder) / self.kind / name

    @property
    def done(self) -> bool:
        """True if the part is complete."""
        return (self.path / DONE).is_file()

    def part(self, kind: PartKind) -> PixelPart:
        """Return another part of the same training run."""
        return replace(self, kind=kind, robot=self.robot if kind == "adapted" else -1, policy="split")

    @property
    def acting(self) -> PixelPart:
        """The part with the policy of these trials."""
        return self.part(self.policy)

    @property
    def needs(self) -> tuple[PixelPart, ...]:
        """Parts that must be complete before this one can be made."""
        if self.kind == "trials":
            return (self.acting,)
        needed: dict[str, tuple[PixelPart, ...]] = {
            "split": (self.part("control"),),
            "nominal": (self.part("control"),),
            "end": (self.part("split"),),
            "adapted": (self.part("split"),),
        }
        return needed.get(self.kind, ())

    @property
    def resumable(self) -> bool:
        """Whether an interrupted part is continued: a training is."""
        return self.kind in ("control", "split", "nominal", "end")

    def build(self) -> None:
        """Make the files of the part."""
        makers: dict[str, Callable[[], None]] = {
            "control": self._teach_control,
            "split": functools.partial(self._train_localizer, nominal=False),
            "nominal": functools.partial(self._train_localizer, nominal=True),
            "end": self._teach_end_to_end,
            "adapted": self._adapt,
            "trials": self._try,
        }
        makers[self.kind]()

    @property
    def _begun(self) -> bool:
        """Whether an interrupted training left a checkpoint or its result."""
        return (self.path / CHECKPOINT).exists() or (self.path / RESULT).exists()

    def _teach_control(self) -> None:
        from twinloop.train.distill import DistillConfig, distill

        plan = Plan(twin=_twin(), run_seed=self.seed, draws=tuple(default_draws(_twin())))
        distill(plan, open_task(TASK, _twin()), DistillConfig(**CONTROL, seed=self.seed), self.path, resume=self._begun)

    def _train_localizer(self, *, nominal: bool) -> None:
        from twinloop.train.localize import LocalizeConfig, train_localizer

        worlds = functools.partial(open_worlds, nominal, self.seed)
        config = LocalizeConfig(**LOCALIZER, seed=self.seed)
        control = open_policy(self.part("control").path)
        train_localizer(worlds, config, self.path, control=control, resume=self._begun)

    def _teach_end_to_end(self) -> None:
        from twinloop.train.distill import DistillConfig, distill

        plan, task = open_worlds(False, self.seed)
        base = open_policy(self.part("split").path)
        distill(plan, task, DistillConfig(**END, seed=self.seed), self.path, base=base, resume=self._begun)

    def _adapt(self) -> None:
        from twinloop.train.photos import adapt_localizer

        localizer = open_localizer(self.part("split").path)
        report = adapt_localizer(localizer, take_demonstration_images(self.robot, LOOKS[self.settings.look], localizer))
        localizer.save(self.path)
        write_json(self.path / "report.json", report)

    def _try(self) -> None:
        policy = open_policy(self.acting.path)
        run = try_on_drake if self.settings.family == "drake" else try_on_hidden
        success = run(policy, self.robot, range(self.settings.episodes), LOOKS[self.settings.look])
        write_json(self.path / "trials.json", {"success": success.tolist()})

    def read_success(self) -> float:
        """Return the success rate of trials."""
        return float(np.mean(read_json(self.path / "trials.json")["success"]))


def _with_devices(look: Look) -> Twin:
    sensors = {name: SensorSpec(device=device) for name, device in look.devices.items()}
    return add_twin_sensors(_twin(), sensors) if sensors else _twin()


def dress(table: ParamTable, look: Look, robot: int, numbers: Sequence[int]) -> ParamTable:
    """Return the parameters of trials of a robot with those of a look.

    Args:
        table: parameters of the trials, one row each.
        look: the look.
        robot: seed of the robot; its front camera is shifted by the same in all trials.
        numbers: numbers of the trials, each in another room.
    """
    values, rng = table.values.copy(), generator(robot, "pixels/look")
    direction, axis = (row / np.linalg.norm(row) for row in rng.standard_normal((2, 3)))
    shift = np.concatenate([rng.uniform() * look.shift[0] * direction, rng.uniform() * look.shift[1] * axis])
    names = [f"camera/front/{part}/{xyz}" for part in ("position", "rotation") for xyz in "xyz"]
    for name, change in zip(names, shift, strict=True):
        values[:, table.names.index(name)] += change
    drawn = np.stack([generator(robot, "pixels/trial", number).uniform(size=3) for number in numbers])
    first, last = look.rooms
    values[:, table.names.index("place/room")] = first + np.floor(drawn[:, 0] * (last - first + 1))
    for column, name in enumerate(CAMERAS):
        low, high = _NOISE
        values[:, table.names.index(f"sensor/{name}/noise_scale")] = low + drawn[:, 1 + column] * (high - low)
    return replace(table, values=values)


def open_camera(twin: Twin, look: Look, size: tuple[int, int]) -> WorldCamera:
    """Return the cameras of a robot in a look, with images of a height and width in pixels."""
    return WorldCamera(
        twin, CAMERAS, height=size[0], width=size[1], renderer=look.renderer, sensors=True,
        scenery=Scenery(rooms=True, seed=PLACES), quality=look.quality,
    )  # fmt: skip


def try_on_hidden(policy: Any, robot: int, numbers: Sequence[int], look: Look) -> NDArray[np.bool_]:
    """Return the outcomes of trials on a robot with hidden parameters, ``(ntrial,)``."""
    return run_on_hidden(policy, robot, numbers, look)[1].success


def run_on_hidden(policy: Any, robot: int, numbers: Sequence[int], look: Look) -> tuple[Twin, BatchResult]:
    """Run trials on a robot with hidden parameters; return its twin and the trials."""
    cell = make_hidden_cell(_with_devices(look), robot)
    task, start = open_task(TASK, cell.twin), cell.plan(PLACES).draw(numbers)
    camera = open_camera(cell.twin, look, policy.contract.cameras[CAMERAS[0]])
    batch = run_batch(
        cell.twin,
        task,
        dress(cell.table(start), look, robot, numbers),
        run_seed=PLACES,
        episodes=numbers,
        actor=PolicyActor(policy=policy, task=task, twin=cell.twin, images=camera),
        backend=open_backend("threads", nthread=1),
    )
    camera.close()
    return cell.twin, batch


def try_on_drake(policy: Any, robot: int, numbers: Sequence[int], look: Look) -> NDArray[np.bool_]:
    """Return the outcomes of trials on a robot that Drake simulates, ``(ntrial,)``."""
    from benchmarks.transfer.drake_so101 import run_trials

    twin = _with_devices(look)
    camera = open_camera(twin, look, policy.contract.cameras[CAMERAS[0]])
    params = functools.partial(dress, look=look, robot=robot, numbers=numbers)
    batch = run_trials(robot, policy, numbers, images=camera, twin=twin, change=params)
    camera.close()
    return batch.success


def take_demonstration_images(robot: int, look: Look, localizer: Any) -> Any:
    """Return images of demonstrations on a robot, labelled by the arm itself.

    Where the tool was when the object was lifted, the object lay before; where it was released, the target is. Both
    follow from the readings of the joints and the nominal geometry.
    """
    from twinloop.train.photos import LabelledPhotos
    from twinloop.train.tool import ToolKinematics

    cell = make_hidden_cell(_with_devices(look), robot)
    task, numbers = open_task(TASK, cell.twin), range(DEMONSTRATIONS)
    params = dress(cell.table(cell.plan(DEMONSTRATED).draw(numbers)), look, robot, numbers)
    batch = run_batch(
        cell.twin, task, params, run_seed=DEMONSTRATED, episodes=numbers, actor=ExpertActor(task=task),
        backend=open_backend("threads", nthread=1),
    )  # fmt: skip
    size, states = localizer.contract.cameras[CAMERAS[0]], batch.trajectories.states
    camera, kept = open_camera(cell.twin, look, size), np.flatnonzero(batch.success)
    start = EpisodeStart(numbers=np.array(numbers), params=params, initial=batch.initial, run_seed=DEMONSTRATED)
    camera.begin_worlds(start, states.shape[1])
    frames: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in CAMERAS}
    readings = list[NDArray[np.float64]]()
    for step in range(max(_MOMENTS) + 1):
        camera.watch(states[:, step])
        if step in _MOMENTS:
            for name, images in camera.take(kept, step).items():
                frames[name].append(images)
            readings.append(batch.observation[kept, step])
    camera.close()
    truth = np.full((len(kept), len(localizer.settings.tracked)), np.nan)
    joints, tool = _twin().units.to_si(batch.observation), ToolKinematics(_twin())
    for row, world in enumerate(kept):
        moments = dict(task.phases(states[world], cell.twin.control_hz))  # pyright: ignore[reportAttributeAccessIssue]
        for body, phase in (("cube", "lift"), ("target", "release")):
            columns = [localizer.settings.tracked.index(f"{body}.{axis}") for axis in "xy"]
            truth[row, columns] = tool.locate(joints[world, [moments[phase] - 1]])[0, :2]
    seen: dict[str, NDArray[Any]] = {
        f"{IMAGES}{name}": np.concatenate(images)[:, None] for name, images in frames.items()
    }
    seen[STATE] = np.concatenate(readings)[:, None].astype(np.float32)
    return LabelledPhotos(
        observation=seen,
        truth=np.tile(truth, (len(_MOMENTS), 1)),
        names=localizer.settings.tracked,
        files=tuple(f"demonstration {number}" for number in np.tile(kept, len(_MOMENTS))),
    )
