"""Read a generate file in YAML, and resolve it into the configuration and the plan of a run.

::

    scene: {robot: so101, task: pick_and_place}     # or twin: NAME | FILE
    randomization: {physics: {object_mass_g: [20, 100]}}    # or default, or {identified: RUN}; see randomize.options
    rollout: {parallel_envs: 256, episodes_per_env: 4}      # and sensors: all, or names: see docs/guides/sensors.md
    render: {cameras: [front, wrist], height: 240, width: 320, episodes: 30}   # optional second pass
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.extension import mark_foreign, require_reference, resolve_reference
from twinloop.core.files import sha256_json
from twinloop.core.seeds import MAX_EPISODES
from twinloop.core.yaml_documents import load_yaml
from twinloop.generate.render_settings import RenderConfig
from twinloop.randomize import (
    OPTIONS,
    Constraint,
    Plan,
    adaptive_options,
    identified_notes,
    read_identified,
    section_plan,
)
from twinloop.randomize.section import PANORAMAS
from twinloop.tasks import open_task
from twinloop.twin import TWINS, Twin, load_twin
from twinloop.twin.residual_spec import RESIDUAL_TWIN
from twinloop.twin.robot_names import ROBOTS
from twinloop.twin.spec import describe_errors


def use_identified(section: Any, run: Path, *, where: str) -> dict[str, Any]:
    """Return a ``randomization:`` section that draws from an identification run instead of manual ranges.

    Args:
        section: the section of the generate file.
        run: folder of the identification run.
        where: generate file, for messages.

    Raises:
        InputError: If the section has manual ranges other than those of images, which the run would replace.
    """
    options = {key: item for key, item in section.items() if key != "default"} if isinstance(section, dict) else {}
    manual = sorted(set(options) - set(OPTIONS) - {"visual"})
    if manual:
        raise InputError(
            f"{where}: --randomize-from {run} draws identified parameters, and prior ranges for the others, replacing "
            f"randomization.{', randomization.'.join(manual)}. Remove these, or leave the option out."
        )
    return {**options, "identified": str(run.resolve())}


def load_identified(section: Any, where: str, folder: Path) -> tuple[dict[str, Any] | None, float]:
    """Load the distribution that a section ``randomization: {identified: RUN}`` refers to.

    Args:
        section: the section of the generate file.
        where: generate file, for messages.
        folder: folder to which the path of the run is relative.

    Returns:
        The distribution as a dictionary (None if the section refers to no run), and kappa, the factor on its
            covariance. If the section gives no ``kappa``, it is the factor that the calibration of the identification
            run computed.

    Raises:
        InputError: If the section also has manual ranges other than those of images, if the run is not a path, or kappa
            is not a finite number ≥ 0.
    """
    if not isinstance(section, dict) or "identified" not in section:
        return None, 1.0
    extra = set(section) - (set(OPTIONS) - {"default"}) - {"visual"}
    if extra:
        raise InputError(
            f"{where}: randomization.identified draws determined parameters, and default ranges for the others. Remove "
            f"{', '.join(sorted(extra))}."
        )
    run = section["identified"]
    if not isinstance(run, str) or not run:
        raise InputError(
            f"{where}: randomization.identified is the folder that `twinloop identify --output` wrote; given {run!r}."
        )
    result = read_identified(folder / run)
    given = "kappa" in section
    kappa = section["kappa"] if given else ParamDistribution.from_json(result["distribution"]).kappa
    if isinstance(kappa, bool) or not isinstance(kappa, int | float) or not 0 <= kappa < math.inf:
        raise InputError(
            f"{where}: randomization.kappa is a number from 0, a factor on the covariance; given {kappa!r}."
        )
    return result["distribution"], float(kappa)


def identified_range_notes(config: GenerateConfig, twin: Twin) -> list[str]:
    """Return notes for the user on draws from the identified distribution of an identification run.

    The notes give the factor kappa and how it was calibrated, and name the parameters that the run could not determine.
    The result is empty if there is no identification run.

    Args:
        config: the resolved generate file.
        twin: twin whose parameters are drawn.
    """
    if config.identified is None:
        return []
    return identified_notes(twin, ParamDistribution.from_json(config.identified), kappa=config.kappa)


# Worlds simulated at once by one worker: a larger batch is no faster on C threads, as benchmarks/speed/generate.py
# measures. A larger batch is faster on a device; its limit is the memory for the states in the process that writes
# them.
MAX_BATCH = 128
MAX_BATCH_DEVICE = 2048
# Batches are committed in blocks of one set of files, so a crash loses at most one block. The cost of a commit grows
# with the number of files; with a limited number of blocks a long run commits at a constant rate. The number of
# episodes of a block is limited by the memory of the process that writes it.
BLOCKS = 256
MAX_BLOCK = 1024


# Datasets store seeds as 64-bit integers.
_SEED: int = Field(default=0, ge=0, lt=2**63)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SceneConfig(_Strict):
    """Twin and task of a run; exactly one of ``robot`` and ``twin`` is given.

    Attributes:
        robot: short name of a built-in twin, for example ``so101``.
        twin: name or file of a twin.
        task: name of a built-in task, or ``path/to/file.py:Task``.
    """

    robot: str | None = None
    twin: str | None = None
    task: str


class RolloutConfig(_Strict):
    """Size and backend of a run, and the readings to record.

    Attributes:
        parallel_envs: number of worlds that are simulated at a time.
        episodes_per_env: number of episodes per world; the run attempts ``parallel_envs`` times this number.
        backend: implementation that steps the worlds: ``reference``, ``threads`` or ``warp``.
        sensors: inertial units, force sensors and servos of the twin whose readings are recorded in addition to joint
            positions: a list of names, or ``all``. By default none, because reading them simulates every stored episode
            a second time.
        environment_state: whether to record the tracked poses of the scene at each frame, as
            ``observation.environment_state``. They are the training input of policies without cameras.
    """

    parallel_envs: int = Field(default=256, ge=1)
    episodes_per_env: int = Field(default=1, ge=1)
    backend: str = "threads"
    sensors: list[str] | Literal["all"] = []
    environment_state: bool = False

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit newer fields that have their default values, so that the hash of an older run does not change."""
        later = ("sensors", "environment_state")
        return {key: value for key, value in handler(self).items() if key not in later or value}


class GenerateFile(_Strict):
    """Content of a generate file.

    Attributes:
        scene: twin and task.
        randomization: ranges of parameters and options of the draws, or ``default`` for the default ranges.
        rollout: size and backend of the run.
        render: settings of the second pass, which renders images; None for a dataset without images.
        units: unit of each joint in the dataset; by default that of the twin.
        seed: seed of the run.
    """

    scene: SceneConfig
    randomization: dict[str, Any] | Literal["default"] = "default"
    rollout: RolloutConfig = RolloutConfig()
    render: RenderConfig | None = None
    units: list[str] | None = None
    seed: int = _SEED


class GenerateConfig(_Strict):
    """Resolved configuration of a run. All fields except ``render`` determine the states, and are stored and hashed.

    Attributes:
        file: content of the generate file, except ``render``.
        twin: argument of `load_twin`; a path is absolute.
        task: argument of `open_task`; a path is absolute.
        episodes: number of attempts.
        seed: seed of the run.
        render: settings of the second pass; None for a dataset without images.
        keep: episodes to store: the successful ones, or all with their outcome.
        identified: distribution of an identification run from which parameters are drawn; None if there is no run.
        kappa: factor on the covariance of this distribution.
    """

    file: GenerateFile
    twin: str
    task: str
    episodes: int
    seed: int = _SEED
    render: RenderConfig | None = Field(default=None, exclude=True)
    keep: Literal["success", "all"] = "success"
    identified: dict[str, Any] | None = None
    kappa: float = 1.0

    @property
    def most_worlds(self) -> int:
        """Largest number of worlds that a worker may simulate at once, limited by the file and by the backend."""
        most = MAX_BATCH_DEVICE if self.file.rollout.backend.partition(":")[0] == "warp" else MAX_BATCH
        return min(self.file.rollout.parallel_envs, most)

    @property
    def batch_size(self) -> int:
        """Number of worlds that a worker simulates at once; if ranges are adaptive, a divisor of the round size."""
        wanted = self.most_worlds
        return _largest_divisor(self.round_size, wanted) if self.round_size else wanted

    @property
    def round_size(self) -> int:
        """Number of episodes between two changes of adaptive ranges; 0 if no ranges are adaptive."""
        section = self.file.randomization
        if not isinstance(section, dict) or "adaptive" not in section:
            return 0
        return adaptive_options(section["adaptive"], where="generate file").every

    @property
    def block_size(self) -> int:
        """Number of episodes that are written to the dataset together, a multiple of the batch size.

        It is at most 1024 (or one batch). If ranges are adaptive, it divides the round size, the number of episodes
        between two changes of the ranges.
        """
        batches = -(-self.episodes // self.batch_size)
        wanted = min(-(-batches // BLOCKS), max(1, MAX_BLOCK // self.batch_size))
        return self.batch_size * (
            _largest_divisor(self.round_size // self.batch_size, wanted) if self.round_size else wanted
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the configuration, excluding ``render``."""
        return sha256_json(self.model_dump(mode="json"))


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of ``number`` that is at most ``limit``."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def read_config(
    path: Path,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    backend: str | None = None,
    keep: Literal["success", "all"] = "success",
    randomize_from: Path | None = None,
) -> GenerateConfig:
    """Read a generate file, and return the resolved configuration of a run.

    Args:
        path: the YAML file.
        episodes: number of attempts; by default parallel_envs × episodes_per_env.
        seed: seed of the run; by default that of the file.
        backend: backend; by default ``rollout.backend`` of the file.
        keep: store only successful episodes, or all episodes with their outcome.
        randomize_from: folder of an identification run to draw from, instead of the ranges in the file's
            ``randomization``. Its options ``design`` (how the draws are distributed, for example a grid),
            ``constraints`` and ``kappa`` still apply.

    Raises:
        InputError: If a key or a value is wrong; the message names the file and the key.
    """
    value, folder = mark_foreign(load_yaml(path), path), path.parent
    if randomize_from is not None and isinstance(value, dict):
        value = {**value, "randomization": use_identified(value.get("randomization"), randomize_from, where=str(path))}
    return resolve_config(
        value, where=str(path), folder=folder, episodes=episodes, seed=seed, backend=backend, keep=keep
    )


def resolve_config(
    value: Any,
    *,
    where: str,
    folder: Path,
    episodes: int | None = None,
    seed: int | None = None,
    backend: str | None = None,
    keep: Literal["success", "all"] = "success",
) -> GenerateConfig:
    """Return the resolved configuration from the content of a generate file.

    Args:
        value: content of the file.
        where: name of the file, for messages.
        folder: folder to which paths in the file are relative.
        episodes: number of attempts; see `read_config` for this and the remaining arguments.
        seed: seed of the run.
        backend: backend.
        keep: store only successful episodes, or all episodes with their outcome.

    Raises:
        InputError: If a key or a value is wrong; the message names the file and the key.
    """
    try:
        given = value if seed is None or not isinstance(value, dict) else {**value, "seed": seed}
        file = GenerateFile.model_validate(given)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=GenerateFile)) from error
    if backend is not None:
        file = file.model_copy(update={"rollout": file.rollout.model_copy(update={"backend": backend})})
    if episodes is not None and episodes < 1:
        raise InputError(f"--episodes {episodes}: at least one episode is needed.")
    file = file.model_copy(update={"randomization": _place_panoramas(file.randomization, folder)})
    identified, kappa = load_identified(file.randomization, where, folder)
    config = GenerateConfig(
        file=file.model_copy(update={"render": None}),
        render=None if file.render is None else _approve_renderer(file.render),
        twin=_add_residual(_twin_reference(file.scene, where, folder), file.randomization, identified, folder, where),
        task=require_reference(resolve_reference(file.scene.task, folder)),
        episodes=episodes or file.rollout.parallel_envs * file.rollout.episodes_per_env,
        seed=file.seed,
        keep=keep,
        identified=identified,
        kappa=kappa,
    )
    if config.episodes > MAX_EPISODES:
        raise InputError(f"{where}: {config.episodes:.3g} episodes are more than a run can number, {MAX_EPISODES}.")
    _check_rounds(config, where)
    return config


def _place_panoramas(section: Any, folder: Path) -> Any:
    """Return a ``randomization:`` section with absolute paths of panoramas, which are relative to a folder."""
    visual = section.get("visual") if isinstance(section, dict) else None
    if not isinstance(visual, dict) or not isinstance(given := visual.get(PANORAMAS), str | list):
        return section
    named = given if isinstance(given, list) else [given]
    paths = [str((folder / item).resolve()) if isinstance(item, str) else item for item in named]
    return {**section, "visual": {**visual, PANORAMAS: paths}}


def _check_rounds(config: GenerateConfig, where: str) -> None:
    """Raise an `InputError` if no suitable batch size divides the round size (episodes per round of adaptive ranges).

    A suitable batch size is at least half of the largest possible one.
    """
    wanted = config.most_worlds
    if config.round_size > wanted and 2 * config.batch_size < wanted:
        raise InputError(
            f"{where}: randomization.adaptive.every {config.round_size} divides into batches of {config.batch_size} "
            f"worlds only. Choose a multiple of {wanted}."
        )


def _approve_renderer(render: RenderConfig) -> RenderConfig:
    return render.model_copy(update={"renderer": require_reference(render.renderer)})


def _twin_reference(scene: SceneConfig, where: str, folder: Path) -> str:
    if (scene.robot is None) == (scene.twin is None):
        raise InputError(f"{where}: scene must have exactly one of the keys robot and twin. Give one of the two.")
    if scene.twin is not None:
        file = folder / scene.twin
        return str(file.resolve()) if file.is_file() else scene.twin
    if scene.robot in ROBOTS:
        return ROBOTS[str(scene.robot)]
    if scene.robot in TWINS:
        return str(scene.robot)
    raise UnknownNameError("robot", str(scene.robot), [*ROBOTS, *TWINS], where=f"{where}: scene.robot")


def _add_residual(reference: str, section: Any, identified: Mapping[str, Any] | None, folder: Path, where: str) -> str:
    """Return the twin with the residual that an identification run admitted, or ``reference`` if there is none.

    Raises:
        InputError: If the run identified another twin than ``reference``.
    """
    if identified is None or not (path := folder / section["identified"] / RESIDUAL_TWIN).is_file():
        return reference
    if load_twin(reference).hash not in (identified["twin_hash"], load_twin(path).hash):
        raise InputError(
            f"{where}: {path} has a residual of another twin than {reference}. Identify this twin with --residual, or "
            f"delete {path} to draw the parameters without a residual."
        )
    return str(path.resolve())


def make_plan(config: GenerateConfig, twin: Twin) -> Plan:
    """Return the plan of a run: everything that varies between its worlds.

    Raises:
        TwinloopError: If the ``randomization`` section is wrong; see `randomize.section_plan`.
    """
    return section_plan(
        config.file.randomization,
        twin,
        run_seed=config.seed,
        episodes=config.episodes,
        where="generate file",
        identified=None if config.identified is None else ParamDistribution.from_json(config.identified),
        kappa=config.kappa,
        named=lambda: _task_constraints(config, twin),
    )


def _task_constraints(config: GenerateConfig, twin: Twin) -> Mapping[str, Constraint]:
    """Return the named constraints of the task; empty if a user's task defines none."""
    return getattr(open_task(config.task, twin), "constraints", {})


def load_plan(config: GenerateConfig) -> Plan:
    """Compile the twin of a run, and return the run's plan."""
    return make_plan(config, load_twin(config.twin))
