"""Define the configuration of a training run, and read it from a YAML file and command-line flags.

::

    policy: mlp                                     # act, flow, or lerobot:NAME
    sources:
      - data: data/sim                              # a LeRobot v3.0 folder, a dataset version, or SELECT …
      - {data: data/real, units: deg}
    sim_fraction: 0.9
    steps: 20000
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.errors import InputError
from twinloop.core.extension import mark_foreign, require_reference
from twinloop.core.files import sha256_json
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin.spec import describe_errors

CHECKPOINT = "checkpoint.safetensors"  # in the policy's folder during a run
RESULT = "result.json"  # in the policy's folder after the run
_SECTIONS = {"adapt", "align", "pixels"}


class StrictConfig(BaseModel):
    """Immutable settings without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, value: Any, *, where: str = "The training configuration") -> Self:
        """Return the configuration made from a dictionary of plain values, as a YAML file contains.

        Args:
            value: the dictionary.
            where: origin of the values, for error messages.

        Raises:
            InputError: If a key or value is wrong. The message names it.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(describe_errors(error, where=where, model=cls)) from error


class SourceConfig(StrictConfig):
    """One source of training samples.

    Attributes:
        data: a LeRobot v3.0 folder, a dataset version of the workspace (``NAME``, ``NAME@VERSION``), or a query
            ``SELECT episode_id …`` over the workspace.
        name: name of the source; by default the name of the folder or dataset version.
        weight: its share of every batch relative to the other weights. If no source has a weight, each counts by its
            number of frames.
        episodes: ``episode_index`` values of the folder to use, by default all.
        units: units of a folder that does not store them: one for all joints, or one per joint.
        kind: ``real`` or ``sim``, for a folder that does not store whether its episodes are real.
    """

    data: str
    name: str = ""
    weight: float | None = Field(default=None, gt=0)
    episodes: tuple[int, ...] | None = None
    units: tuple[str, ...] | str | None = None
    kind: Literal["real", "sim"] = "real"


class CurriculumConfig(StrictConfig):
    """Curriculum that starts with weakly randomized episodes and adds the strongly randomized ones step by step.

    The share of used episodes grows linearly (Bengio et al., "Curriculum learning", ICML 2009; Hacohen & Weinshall, "On
    the power of curriculum learning", ICML 2019, whose linear and stepped paces give similar results).

    Attributes:
        begin: share of the episodes used at the start: those whose parameters are nearest to the nominal values.
        until: share of the training steps after which all episodes are used.
    """

    begin: float = Field(default=0.2, gt=0, le=1)
    until: float = Field(default=0.5, gt=0, le=1)


class DomainConfig(StrictConfig):
    """Settings of the input token that gives the policy each sample's source.

    Attributes:
        dropout: probability that the token is replaced by "unknown". With 0, the policy would never be trained on
            "unknown" (as in classifier-free guidance, Ho & Salimans 2022, which drops the condition in 10 to 20 % of
            samples).
    """

    dropout: float = Field(default=0.1, ge=0, lt=1)


class AdaptConfig(StrictConfig):
    """Settings of fine-tuning; see `train.adapt`.

    Attributes:
        base: folder of the policy to start from (``from`` in YAML).
        method: ``full`` trains all weights, ``head`` only the output layers from the features to the commands,
            ``low_rank`` adds a product of two small matrices to every matrix (Hu et al., "LoRA", ICLR 2022).
        rank: rank of these products (4 to 8 are enough in that paper).
        l2_start: weight of the squared distance to the initial weights; 0 for none (Li et al., "Explicit inductive bias
            for transfer learning with convolutional networks", ICML 2018, who use 1e-2 without tuning).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    base: str = Field(alias="from", min_length=1)
    method: Literal["full", "head", "low_rank"] = "full"
    rank: int = Field(default=8, ge=1, le=1024)
    l2_start: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class AlignConfig(StrictConfig):
    """Settings of a loss term that aligns the features of real and simulated samples; see `train.align`.

    Attributes:
        method: ``coral``, ``mmd``, or ``path/to/file.py:Class`` for a class of the user.
        weight: weight of the term after the warm-up.
        warmup: share of the steps during which the weight grows from zero.
    """

    method: str = "coral"
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    warmup: float = Field(default=0.2, ge=0, le=1)


class PixelsConfig(StrictConfig):
    """Settings for matching the pixel statistics of simulated images to those of real images; see `train.pixels`.

    Attributes:
        method: ``moments`` matches mean and standard deviation of each colour channel. ``fda`` replaces the amplitudes
            of the lowest spatial frequencies (Yang & Soatto, "FDA", CVPR 2020).
        beta: limit of the replaced frequencies, as a share of the image's shorter side (0.01 to 0.09 in that paper).
        images: number of training images of each kind (real, simulated) and camera that are measured.
    """

    method: Literal["moments", "fda"] = "moments"
    beta: float = Field(default=0.01, ge=0, le=0.5)
    images: int = Field(default=256, ge=1, validation_alias=AliasChoices("images", "pictures"))  # the former name


class TrainConfig(StrictConfig):
    """Configuration of a training run.

    Attributes:
        policy: kind of policy: mlp, act, flow, or ``lerobot:TYPE``.
        settings: settings of the policy.
        sources: data to train on.
        sim_fraction: share of all simulated sources in every batch; None to use the sources' weights.
        inputs: ``state`` (joint positions), ``environment`` (``observation.environment_state``, such as object poses),
            ``environment/NAME`` (only the values of the object NAME) or camera names; by default the state, and the
            environment if every source has it, else all cameras that every source has.
        task: name of the task, for the policy's contract.
        steps: steps of the optimizer; 0 for the value in the policy kind's recipe (`preparation.RECIPES`).
        batch: samples per step; 0 for the value in the recipe.
        lr: highest learning rate; 0 for the value in the recipe. The rate rises during ``warmup``, then falls to zero
            along a cosine.
        weight_decay: weight decay of the optimizer.
        warmup: duration of the rise of the learning rate, as a share of the steps.
        clip: largest norm of the gradient; longer gradients are scaled down.
        ema: decay of the exponential moving average of the weights; None for no average.
        seed: run seed.
        device: torch device.
        threads: threads of torch; 0 for 1.
        holdout: share of each source's episodes that is held out.
        evaluations: number of evaluations in the run.
        patience: number of consecutive evaluations without a better held-out error after which the run ends; 0 for
            never.
        keep: weights to save: those of the ``best`` evaluation, or the ``last``.
        keep_failures: whether to train on failed episodes too.
        normalization: source of the means and standard deviations that normalize data: ``pooled`` (all sources by their
            shares), or the name of one source.
        curriculum: see `CurriculumConfig`; None to use all episodes from the start.
        domain_token: see `DomainConfig`; None for a policy without this input.
        adapt: see `AdaptConfig`; kind, settings, inputs and normalization are then those of the base policy.
        align: see `AlignConfig`; None for no such loss term.
        pixels: see `PixelsConfig`; None to leave images unchanged.
    """

    policy: str = "mlp"
    settings: dict[str, Any] = {}
    sources: tuple[SourceConfig, ...]
    sim_fraction: float | None = Field(default=None, ge=0, le=1)
    inputs: tuple[str, ...] | None = None
    task: str = ""
    steps: int = Field(default=0, ge=0)
    batch: int = Field(default=0, ge=0)
    lr: float = Field(default=0.0, ge=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    warmup: float = Field(default=0.03, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    ema: float | None = Field(default=None, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    holdout: float = Field(default=0.1, ge=0, lt=1)
    evaluations: int = Field(default=20, ge=1)
    patience: int = Field(default=0, ge=0)
    keep: Literal["best", "last"] = "last"
    keep_failures: bool = False
    normalization: str = "pooled"
    curriculum: CurriculumConfig | None = None
    domain_token: DomainConfig | None = None
    adapt: AdaptConfig | None = None
    align: AlignConfig | None = None
    pixels: PixelsConfig | None = None

    @property
    def hash(self) -> str:
        """SHA-256 of the configuration in JSON."""
        return sha256_json(self.model_dump(mode="json"))


def read_config(path: Path | None, **flags: Any) -> TrainConfig:
    """Read the configuration of a YAML file; command-line flags override its values.

    Args:
        path: the file, or None for flags only.
        flags: fields of `TrainConfig`; a flag that the user did not give is None. Folders in the file are relative to
            the file's folder.

    Raises:
        InputError: If a key or value is wrong, or no training data is given.
    """
    value = {} if path is None else mark_foreign(load_yaml(path), path)
    where = "The command line" if path is None else str(path)
    if not isinstance(value, dict):
        raise InputError(f"{where} has no settings. It needs at least sources: [{{data: FOLDER}}].")
    overrides = {key: item for key, item in flags.items() if item is not None}
    for key in _SECTIONS & overrides.keys():  # a flag sets one key of a section
        overrides[key] = {**(value.get(key) or {}), **overrides[key]}
    from_file = isinstance(value.get("adapt"), dict) and "from" not in (flags.get("adapt") or {})
    value = {**value, **overrides}
    if not value.get("sources"):
        raise InputError(f"{where} names no training data. Give --data FOLDER, or sources: in a YAML file.")
    if isinstance(adapt := value.get("adapt"), dict) and "from" not in adapt:
        raise InputError(
            f"{where} has fine-tuning settings ({', '.join(adapt) or 'adapt'}), but names no policy to start from. "
            "Give --adapt FOLDER, or adapt: {from: FOLDER} in a YAML file."
        )
    config = TrainConfig.of(value, where=where)
    if config.align is not None:
        align = config.align.model_copy(update={"method": require_reference(config.align.method)})
        config = config.model_copy(update={"align": align})
    if path is not None and from_file and config.adapt is not None:
        base = config.adapt.model_copy(update={"base": _resolve_data_path(config.adapt.base, path.parent)})
        config = config.model_copy(update={"adapt": base})
    if path is None or flags.get("sources") is not None:
        return config
    sources = [
        source.model_copy(update={"data": _resolve_data_path(source.data, path.parent)}) for source in config.sources
    ]
    return config.model_copy(update={"sources": tuple(sources)})


def _resolve_data_path(data: str, folder: Path) -> str:
    return str((folder / data).resolve()) if (folder / data).is_dir() else data
