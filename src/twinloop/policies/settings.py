"""Define the settings of policies: one frozen model per kind, checked on reading, saved with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin.spec import describe_errors

Kind = Literal["mlp", "act", "flow"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNKNOWN_DOMAIN = 0  # index of the token that stands for any domain

# Bounds prevent a settings file from using all memory; they are far above sizes that train on a CPU: our choice.
_Width = Annotated[int, Field(ge=4, le=8192)]
_Depth = Annotated[int, Field(ge=1, le=64)]
_Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageEncoderSettings(_Strict):
    """Settings of the convolutional image encoder, shared by all cameras: strided convolutions, then keypoints.

    ``channels`` are the channels of its layers, each of which halves the image size. The last one is the number of
    keypoints, whose expected positions are the features (spatial softmax; Finn et al., "Deep spatial autoencoders for
    visuomotor learning", ICRA 2016; 32 in robomimic). ``act`` uses the cells of the last layer as tokens instead.
    """

    channels: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(16, 32, 64, 32), min_length=1, max_length=8
    )


class CommonSettings(_Strict):
    """Settings of every kind of policy.

    ``n_obs_steps`` observations, the newest last, are the input; ``chunk_size`` commands are the output, of which
    ``n_action_steps`` are executed before the next prediction (receding horizon). With ``ensemble`` there is a
    prediction at every step, and a command is the mean of all predictions for its step with weights exp(-ensemble · i),
    i = 0 the oldest (Zhao et al. 2023, who use 0.01). ``delta_to_state`` predicts commands relative to the newest
    reading.

    ``last_command`` adds the last command to the inputs. It is off by default, because a policy with this input learns
    to repeat its last command (the copycat problem: Wen et al., "Fighting copycat agents in behavioral cloning from
    observation histories", NeurIPS 2020); longer histories have a similar effect.

    ``domains`` names the sources that have different tokens. ``default_domain`` is used if no domain is given; if it is
    empty, the token for an unknown domain is used.
    """

    n_obs_steps: int = Field(1, ge=1, le=64)
    chunk_size: int = Field(32, ge=1, le=1024)
    n_action_steps: int = Field(16, ge=1, le=1024)
    ensemble: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    action_space: Literal["absolute", "delta_to_state"] = "absolute"
    last_command: bool = False
    normalization: Literal["mean_std", "min_max", "quantile"] = "mean_std"
    domains: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), max_length=64)
    default_domain: str = ""
    pictures: ImageEncoderSettings = Field(default_factory=ImageEncoderSettings)

    @model_validator(mode="before")
    @classmethod
    def _limit_action_steps(cls, value: Any) -> Any:
        """Limit the default of ``n_action_steps`` to the length of the chunk if only the latter is given."""
        if not isinstance(value, dict) or "n_action_steps" in value or not isinstance(value.get("chunk_size"), int):
            return value
        usual = cls.model_fields["n_action_steps"].default
        return {**value, "n_action_steps": max(1, min(usual, value["chunk_size"]))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_action_steps > self.chunk_size:
            raise ValueError(f"n_action_steps ({self.n_action_steps}) is larger than chunk_size ({self.chunk_size})")
        if len(set(self.domains)) != len(self.domains):
            raise ValueError(f"domains has a name twice: {', '.join(self.domains)}")
        if self.default_domain and self.default_domain not in self.domains:
            raise ValueError(
                f"default_domain {self.default_domain!r} is not among the domains: {', '.join(self.domains) or 'none'}"
            )
        return self

    def domain_index(self, name: str | None) -> int:
        """Return the index of a domain's token: the default domain's for None, the unknown one's for an empty name.

        Raises:
            UnknownNameError: the policy has no such domain.
        """
        name = self.default_domain if name is None else name
        if not name:
            return UNKNOWN_DOMAIN
        if name not in self.domains:
            raise UnknownNameError("domain", name, self.domains, where="the policy's settings")
        return 1 + self.domains.index(name)


class MlpSettings(CommonSettings):
    """Settings of behaviour cloning by regression: ``depth`` layers of ``width`` units.

    Absolute errors (``l1``) are robust to differing demonstrations; robomimic's BC uses squared errors (``mse``).
    """

    kind: Literal["mlp"] = "mlp"
    width: _Width = 256
    depth: _Depth = 3
    dropout: _Share = 0.0
    loss: Literal["mse", "l1"] = "l1"


class ActSettings(CommonSettings):
    """Settings of action chunking with a transformer, trained as a conditional variational autoencoder.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", RSS 2023. The paper has width
    512, 8 heads, 4 and 7 layers, feed-forward 3200, chunks of 100 at 50 Hz, a latent of 32 numbers and a weight of 10
    for its divergence. The defaults keep the last two and the dropout; the other sizes fit a CPU. The latent is zero
    when acting, unless ``sample_latent``.
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

    Straight paths between noise and data (Lipman et al., "Flow matching for generative modeling", ICLR 2023; Liu et
    al., "Flow straight and fast", ICLR 2023), conditioned on the observation as in Black et al., "π0", 2024, which
    uses 10 Euler steps. The default, 5 midpoint steps, needs as many evaluations and has a higher order.
    """

    kind: Literal["flow"] = "flow"
    n_obs_steps: int = Field(2, ge=1, le=64)
    width: _Width = 192
    depth: _Depth = 3
    features: _Width = 128
    dropout: _Share = 0.0
    steps: int = Field(5, ge=1, le=1000)
    solver: Literal["euler", "midpoint"] = "midpoint"


Settings = MlpSettings | ActSettings | FlowSettings
_MODELS: dict[str, type[Settings]] = {"mlp": MlpSettings, "act": ActSettings, "flow": FlowSettings}


def read_settings(kind: str, value: Mapping[str, Any] | Settings | None = None, *, where: str = "settings") -> Settings:
    """Return checked settings of a kind from plain values; missing values are the kind's defaults.

    Raises:
        UnknownNameError: the kind does not exist.
        InputError: the kind does not have a key, or a value is out of bounds; the message names each.
    """
    if kind not in _MODELS:
        raise UnknownNameError("policy kind", kind, _MODELS)
    model = _MODELS[kind]
    try:
        return model.model_validate({**(value.model_dump() if isinstance(value, BaseModel) else value or {})})
    except ValidationError as error:
        raise InputError(describe_errors(error, where=f"{where} of a policy of kind {kind}", model=model)) from error
