"""Define the settings of policies, one immutable pydantic model per kind; they are saved with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinloop.core.contract import STATE
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.joint_limits import JointLimits
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.twin.spec import describe_errors

Kind = Literal["mlp", "act", "flow", "adaptive", "localizer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNKNOWN_DOMAIN = 0  # index of the embedding of an unknown domain

# Bounds prevent a settings file from using all memory; they are far above sizes that train on a CPU: our choice.
_Width = Annotated[int, Field(ge=4, le=8192)]
_Depth = Annotated[int, Field(ge=1, le=64)]
_Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_ROUND_OFF = 1e-6
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageEncoderSettings(_Strict):
    """Settings of the convolutional image encoder.

    For ``mlp``, ``flow`` and ``localizer`` policies, each channel of the last layer gives one keypoint: the expected
    position of the channel's activation (spatial softmax; Finn et al., "Deep spatial autoencoders for visuomotor
    learning", ICRA 2016). ``act`` policies use each cell of the last layer's feature map as a token.

    Attributes:
        channels: number of channels of each layer. The last number is the number of keypoints (32 in robomimic).
        halvings: number of layers, the first ones, that halve the image size; None for all. Keypoints of a larger
            feature map are more precise, and cost more time.
        dilated: whether the layers after the halvings have dilation 2, 4, 8, … A keypoint then depends on a larger part
            of the image at no cost.
        pretrained: ``efficientnet_lite0`` for its first layers before the others, with weights from ImageNet that
            training does not change; they halve an image twice. ``channels`` and ``halvings`` are those of the other
            layers.
        per_camera: whether each camera has its own encoder; by default all cameras share one. Keypoints then also have
            their strength, the largest activation of the channel, which is small if the camera does not see the object.
    """

    channels: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(16, 32, 64, 32), min_length=1, max_length=8
    )
    halvings: Annotated[int, Field(ge=0, le=8)] | None = Field(default=None, exclude_if=lambda value: value is None)
    dilated: bool = Field(default=False, exclude_if=lambda value: not value)
    pretrained: Literal["", "efficientnet_lite0"] = Field(default="", exclude_if=lambda value: not value)
    per_camera: bool = Field(default=False, exclude_if=lambda value: not value)

    @property
    def smallest_image(self) -> int:
        """Smallest side of an image in pixels that leaves a feature map of one cell."""
        own = len(self.channels) if self.halvings is None else min(self.halvings, len(self.channels))
        return 2 ** (own + (2 if self.pretrained else 0))


class CommandLimits(_Strict):
    """Limits that the commands of a policy keep, one number per joint, in rad or m and s.

    They act on every command, in training and on the robot, so that a robot's safety envelope with the same limits
    sends the commands unchanged.

    Attributes:
        low: lower bounds.
        high: upper bounds.
        speed: largest speeds.
        acceleration: largest accelerations.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    speed: tuple[_Positive, ...]
    acceleration: tuple[_Positive, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({len(self.low), len(self.high), len(self.speed), len(self.acceleration)}) != 1:
            raise ValueError("low, high, speed and acceleration have different numbers of joints")
        return self

    @classmethod
    def from_joints(cls, limits: JointLimits) -> Self:
        """Return limits that are smaller than given ones by far more than the round-off of a command's unit."""
        margin = _ROUND_OFF * (limits.high - limits.low)
        values = {"low": limits.low + margin, "high": limits.high - margin}
        values |= {name: (1 - _ROUND_OFF) * getattr(limits, name) for name in ("speed", "acceleration")}
        return cls.model_validate({name: tuple(column.tolist()) for name, column in values.items()})

    def to_joints(self, hz: float) -> JointLimits:
        """Return the limits as arrays; ``hz`` is the number of commands per second."""
        arrays = {name: np.array(values) for name, values in self.model_dump().items()}
        return JointLimits(**arrays, dt=1.0 / hz)


class CommonSettings(_Strict):
    """Settings that every kind of policy has.

    Attributes:
        n_obs_steps: number of control steps of observations that the policy reads, the newest last.
        chunk_size: number of control steps for which one prediction has commands.
        n_action_steps: number of steps of a chunk that are executed before the next prediction (receding horizon). The
            default is at most ``chunk_size``. It has no effect if ``ensemble`` is set.
        ensemble: if set, there is a prediction at every step, and the command is the weighted mean of all predictions
            for its step. The weights are exp(-ensemble · i) with i = 0 for the oldest prediction (temporal ensembling,
            Zhao et al. 2023, who use 0.01).
        action_space: ``absolute``; ``delta_to_state`` to predict commands relative to the newest joint reading; or
            ``delta_to_command`` to predict them relative to the last command, which then is an input.
        last_command: whether the last command is an input. It is off by default, because a policy with this input
            learns to repeat its last command (the copycat problem: Wen et al., "Fighting copycat agents in behavioral
            cloning from observation histories", NeurIPS 2020). Longer histories have a similar effect.
        normalization: how inputs and outputs are normalized, see `ColumnStatistics.affine`.
        domains: names of the domains (sources of the data), each of which has a learned embedding as an input.
        default_domain: domain that is used if no domain is given; if empty, the embedding of an unknown domain is used.
        command_limits: limits that every command keeps; None for none.
        images: settings of the image encoder; the former name ``pictures`` is also read.
        command_history: whether the policy reads the command before each of the ``n_obs_steps`` readings of the joints,
            and of everything else the newest observation only; it depends on the kind of policy alone.
    """

    command_history: ClassVar[bool] = False
    n_obs_steps: int = Field(1, ge=1, le=64)
    chunk_size: int = Field(32, ge=1, le=1024)
    n_action_steps: int = Field(16, ge=1, le=1024)
    ensemble: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    action_space: Literal["absolute", "delta_to_state", "delta_to_command"] = "absolute"
    last_command: bool = False
    normalization: Literal["mean_std", "min_max", "quantile"] = "mean_std"
    domains: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), max_length=64)
    default_domain: str = ""
    command_limits: CommandLimits | None = Field(default=None, exclude_if=lambda limits: limits is None)
    images: ImageEncoderSettings = Field(
        default_factory=ImageEncoderSettings,
        validation_alias=AliasChoices("images", "pictures"),  # the second is the former name
    )

    @model_validator(mode="before")
    @classmethod
    def _limit_action_steps(cls, value: Any) -> Any:
        """Limit the default of ``n_action_steps`` to ``chunk_size``, if only ``chunk_size`` is given."""
        if not isinstance(value, dict) or "n_action_steps" in value or not isinstance(value.get("chunk_size"), int):
            return value
        usual = cls.model_fields["n_action_steps"].default
        return {**value, "n_action_steps": max(1, min(usual, value["chunk_size"]))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_action_steps > self.chunk_size:
            raise ValueError(f"n_action_steps ({self.n_action_steps}) is larger than chunk_size ({self.chunk_size})")
        if self.action_space == "delta_to_command" and not self.last_command:
            raise ValueError("action_space delta_to_command needs last_command: true")
        if len(set(self.domains)) != len(self.domains):
            raise ValueError(f"domains has a name twice: {', '.join(self.domains)}")
        if self.default_domain and self.default_domain not in self.domains:
            raise ValueError(
                f"default_domain {self.default_domain!r} is not among the domains: {', '.join(self.domains) or 'none'}"
            )
        return self

    def count_steps(self, key: str) -> int:
        """Return how many steps of an observation's array the policy reads, the newest last."""
        if (key in (STATE, LAST_COMMAND)) if self.command_history else (key != LAST_COMMAND):
            return self.n_obs_steps
        return 1

    @property
    def look_interval(self) -> int:
        """Number of control steps from one use of images to the next, for a policy that predicts at every step."""
        return 1

    @property
    def steps_between_images(self) -> int:
        """Number of control steps from one used image to the next, if the policy reads one observation."""
        return self.n_action_steps * self.look_interval

    @property
    def memory_size(self) -> int:
        """Number of features of the previous prediction that the policy reads again; 0 for none."""
        return 0

    def domain_index(self, name: str | None) -> int:
        """Return the index of a domain's embedding.

        Args:
            name: name of the domain; None for the default domain, an empty text for an unknown domain (index 0).

        Raises:
            UnknownNameError: If the policy has no such domain.
        """
        name = self.default_domain if name is None else name
        if not name:
            return UNKNOWN_DOMAIN
        if name not in self.domains:
            raise UnknownNameError("domain", name, self.domains, where="the policy's settings")
        return 1 + self.domains.index(name)


class MlpSettings(CommonSettings):
    """Settings of behaviour cloning with a multilayer perceptron.

    Attributes:
        width: number of units of each layer.
        depth: number of layers.
        dropout: dropout probability.
        loss: ``l1``, absolute errors, which are robust to differing demonstrations; or ``mse``, squared errors, as in
            robomimic's BC.
    """

    kind: Literal["mlp"] = "mlp"
    width: _Width = 256
    depth: _Depth = 3
    dropout: _Share = 0.0
    loss: Literal["mse", "l1"] = "l1"


class ActSettings(CommonSettings):
    """Settings of ACT, action chunking with transformers, trained as a conditional variational autoencoder.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", RSS 2023. The paper has width
    512, 8 heads, 4 encoder and 7 decoder layers, 3200 feed-forward units, chunks of 100 at 50 Hz, a latent variable of
    32 numbers and a weight of 10 for its divergence. The defaults keep the size and the weight of the latent variable,
    and the dropout. The other sizes fit a CPU.

    Attributes:
        width: number of features of a token; a multiple of 4 times ``heads``.
        heads: number of attention heads.
        feed_forward: number of hidden units of the feed-forward networks.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
        posterior_layers: number of layers of the encoder of demonstrations, which only training uses.
        latent: number of elements of the latent variable.
        kl_weight: weight of the Kullback-Leibler divergence of the latent variable in the loss.
        dropout: dropout probability.
        sample_latent: whether the latent variable is drawn when acting; if false, it is zero.
    """

    kind: Literal["act"] = "act"
    width: _Width = 128
    heads: int = Field(4, ge=1, le=64)
    feed_forward: _Width = 256
    encoder_layers: _Depth = 2
    decoder_layers: _Depth = 1
    posterior_layers: _Depth = 1
    latent: int = Field(32, ge=1, le=1024)
    kl_weight: _Weight = 10.0
    dropout: _Share = 0.1
    sample_latent: bool = False

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.width % (4 * self.heads):
            raise ValueError(f"width ({self.width}) must be a multiple of 4 times the heads ({4 * self.heads})")
        return self


class FlowSettings(CommonSettings):
    """Settings of flow matching: a learned velocity field transforms noise to a chunk of commands.

    The paths between noise and data are straight (Lipman et al., "Flow matching for generative modeling", ICLR 2023;
    Liu et al., "Flow straight and fast", ICLR 2023). The field is conditioned on the observation, as in Black et al.,
    "π0", 2024, which uses 10 Euler steps. The default, 5 midpoint steps, needs as many evaluations of the field and has
    a higher order of accuracy.

    Attributes:
        n_obs_steps: number of control steps of observations that the policy reads, the newest last; 2 by default.
        width: number of units of each layer.
        depth: number of residual layers of the velocity field.
        features: number of features of an observation.
        dropout: dropout probability.
        steps: number of integration steps from noise to commands.
        solver: ``euler`` or ``midpoint``; a midpoint step evaluates the field twice.
    """

    kind: Literal["flow"] = "flow"
    n_obs_steps: int = Field(2, ge=1, le=64)
    width: _Width = 192
    depth: _Depth = 3
    features: _Width = 128
    dropout: _Share = 0.0
    steps: int = Field(5, ge=1, le=1000)
    solver: Literal["euler", "midpoint"] = "midpoint"


class AdaptiveSettings(CommonSettings):
    """Settings of a policy with a memory, which adapts to the robot that it controls.

    An encoder of the last ``n_obs_steps`` joint readings and commands estimates parameters of the robot, and a
    multilayer perceptron reads the newest observation and these estimates. Kumar et al., "RMA: rapid motor adaptation
    for legged robots", RSS 2021, who estimate from 50 steps by convolutions over time. Parameters are estimated only if
    the training data has their true values, as in ``distill``. Further features of the history are learned from the
    errors of commands alone; they can represent other quantities, such as speeds.

    Attributes:
        n_obs_steps: number of control steps of the memory, the newest last; 32 by default.
        last_command: always true.
        estimates: names of the parameters that the encoder estimates, in SI units.
        estimate_weight: weight of the squared error of the estimates in the loss; each parameter is normalized.
        estimate_dropout: dropout probability of the layers of the estimates. A history also shows which of the training
            worlds it is from, so that without dropout the estimates are memorized instead of measured.
        channels: number of channels of the convolution over time.
        hidden: number of units of the hidden layer of the estimates.
        latent: number of further features of the history.
        width: number of units of each layer of the perceptron.
        depth: number of layers of the perceptron.
        dropout: dropout probability.
        loss: ``l1`` or ``mse``, see `MlpSettings`.
    """

    kind: Literal["adaptive"] = "adaptive"
    command_history: ClassVar[bool] = True
    n_obs_steps: int = Field(32, ge=1, le=64)
    last_command: Literal[True] = True  # pyright: ignore[reportIncompatibleVariableOverride]
    estimates: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), max_length=1024)
    estimate_weight: _Weight = 1.0
    estimate_dropout: _Share = 0.3
    channels: int = Field(32, ge=1, le=1024)
    hidden: _Width = 128
    latent: int = Field(16, ge=1, le=1024)
    width: _Width = 256
    depth: _Depth = 3
    dropout: _Share = 0.0
    loss: Literal["mse", "l1"] = "l1"


class ControlSettings(_Strict):
    """Policy that acts on the estimates of a localizer: kind, settings, contract and statistics as in its folder."""

    kind: Kind
    settings: dict[str, Any]
    contract: dict[str, Any]
    statistics: dict[str, Any]


class LocalizerSettings(CommonSettings):
    """Settings of a localizer: a network that estimates from images what a tracker would measure.

    With a policy that reads a tracker (``control``), it is a policy from images. Estimates of several images are
    combined by a Kalman filter, see `localizer.Localizer`.

    Attributes:
        tracked: names of the estimated values, as in ``observation.environment_state``.
        images: settings of the image encoder.
        width: number of units of each layer of the perceptron that reads keypoints and joints.
        depth: number of layers of the perceptron.
        equal_turns: number of turns about the vertical under which a body looks the same, by body: 4 for a cube, 0 for
            a cylinder; its heading is estimated up to such a turn.
        look_every: number of control steps from one image to the next; estimates are held between them.
        control: the policy that acts on the estimates; None for a localizer that does not act.
    """

    kind: Literal["localizer"] = "localizer"
    tracked: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, max_length=1024)
    images: ImageEncoderSettings = ImageEncoderSettings(
        channels=(16, 32, 32, 32), halvings=2, dilated=True, per_camera=True
    )
    width: _Width = 256
    depth: _Depth = 2
    equal_turns: dict[str, Annotated[int, Field(ge=0, le=360)]] = Field(default_factory=dict)
    look_every: int = Field(3, ge=1, le=1000)
    control: ControlSettings | None = None

    @property
    def look_interval(self) -> int:
        """Number of control steps from one use of images to the next."""
        return self.look_every

    @property
    def memory_size(self) -> int:
        """Number of features of the previous prediction: whether there are estimates, they and their variances."""
        return 1 + 2 * len(self.tracked)


Settings = MlpSettings | ActSettings | FlowSettings | AdaptiveSettings | LocalizerSettings
_MODELS: dict[str, type[Settings]] = {
    "mlp": MlpSettings,
    "act": ActSettings,
    "flow": FlowSettings,
    "adaptive": AdaptiveSettings,
    "localizer": LocalizerSettings,
}


def read_settings(kind: str, value: Mapping[str, Any] | Settings | None = None, *, where: str = "settings") -> Settings:
    """Return checked settings of one kind of policy; missing values get the kind's defaults.

    Args:
        kind: one of `KINDS`.
        value: settings as a mapping or a settings object; None for the defaults.
        where: origin of the settings, for error messages.

    Raises:
        UnknownNameError: If the kind does not exist.
        InputError: If a key does not exist for this kind, or a value is out of bounds.
    """
    if kind not in _MODELS:
        raise UnknownNameError("policy kind", kind, _MODELS)
    model = _MODELS[kind]
    try:
        return model.model_validate({**(value.model_dump() if isinstance(value, BaseModel) else value or {})})
    except ValidationError as error:
        raise InputError(describe_errors(error, where=f"{where} of a policy of kind {kind}", model=model)) from error
