"""Define localizers: networks that estimate from images what a tracker would measure, with the uncertainty.

With a policy that reads a tracker, a localizer is a policy from images, in which control and seeing are learned
separately (compare arXiv 2509.25747). The estimates of several images are combined by a Kalman filter, so that an
uncertain estimate has little weight and the former one is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ENVIRONMENT, IMAGES, Contract
from twinloop.core.errors import InputError
from twinloop.policies.network import Network, NetworkInputs, VectorEncoder, make_perceptron
from twinloop.policies.policy import Batch, Policy, use_acting_mode
from twinloop.policies.settings import ControlSettings, LocalizerSettings
from twinloop.policies.statistics import LAST_COMMAND, MEMORY, Statistics

_BETA = 0.5  # share of the variance that weighs the squared errors, see `Localizer.measure_loss`
_LEAST, _MOST = -8.0, 4.0  # bounds of the logarithm of a normalized variance
_LEAST_RADIUS = 0.25  # of cosine and sine of a heading; a shorter one says that the heading is unknown
_SURPRISE = 9.0  # squared standard deviations beyond which an object has moved: three of them


class LocalizerNetwork(Network):
    """Network of a localizer: keypoints of each camera and the joints give estimates and their variances.

    Instead of cosine and sine of the heading of a body that looks the same after each of n equal turns, it estimates
    those of n times the heading: they do not jump where one of these turns ends, so that they can be learned.
    """

    def __init__(self, contract: Contract, settings: LocalizerSettings) -> None:
        super().__init__()
        alone = settings.model_copy(update={"last_command": False, "domains": ()})
        self.encoder = VectorEncoder(contract, alone)
        self.trunk = make_perceptron(self.encoder.size, settings.width, settings.depth, 0.0)
        self.output = nn.Linear(settings.width, 2 * len(settings.tracked))

    def locate(self, inputs: NetworkInputs) -> tuple[Tensor, Tensor]:
        """Return normalized estimates and the logarithms of their variances, ``(n, d)`` each."""
        estimates, spread = self.output(self.trunk(self.encoder(inputs))).chunk(2, dim=-1)
        return estimates, spread.clamp(_LEAST, _MOST)

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Raise an error: a localizer gives no commands by itself."""
        del inputs, noise
        raise InputError(_NO_CONTROL)

    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Raise an error: a localizer does not learn from commands."""
        del inputs, action, is_pad, generator
        raise InputError("A localizer learns from images with true values. Train it with `twinloop localize train`.")


_NO_CONTROL = "This localizer has no control policy, so it gives no commands. Add one with `twinloop localize attach`."


class Localizer(Policy):
    """Localizer of d tracked values, with or without a control policy; see `Policy` for observations.

    The estimates pass through a Kalman filter with one state per value. Between two images, its variance grows by
    `drift` per control step. An image with an error above three standard deviations shows that the object was moved;
    the estimate then follows it. The features of a prediction are 1, the filtered values and their variances, which
    `PolicyLoop` returns at the next control step.

    Attributes:
        drift: variance ``(d,)`` by which a value changes per control step.
        spread: factor ``(d,)`` for standard deviations of the network, by which they fit the errors in held-out worlds.
        correction: matrix ``(d, d + 1)`` that corrects the network's normalized values y for a robot: y + C · [y, 1].
        control: the policy that acts on the estimates; None if there is none.
    """

    settings: LocalizerSettings
    network: LocalizerNetwork
    drift: Tensor
    spread: Tensor
    correction: Tensor

    def __init__(
        self, contract: Contract, settings: LocalizerSettings, statistics: Statistics, control: Policy | None
    ) -> None:
        super().__init__(contract, settings, statistics, LocalizerNetwork(contract, settings))
        size = len(settings.tracked)
        self.register_buffer("drift", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.register_buffer("correction", torch.zeros(size, size + 1))
        self.control = control
        if control is not None:
            missing = [name for name in control.contract.environment if name not in settings.tracked]
            if missing:
                raise InputError(
                    f"The control policy reads {', '.join(missing)}, which this localizer does not estimate. It "
                    f"estimates {', '.join(settings.tracked)}."
                )
            columns = [settings.tracked.index(name) for name in control.contract.environment]
            self._columns = torch.tensor(columns, dtype=torch.long)
        self.eval()

    def forward(
        self, observation: Batch, noise: Tensor | None = None, domain: str | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict command chunks of the control policy, and return them with the features of the filter.

        Raises:
            InputError: If there is no control policy.
        """
        if self.control is None:
            raise InputError(_NO_CONTROL)
        features = self.update_estimates(observation)
        size = len(self.settings.tracked)
        tracked = self.normalize_headings(features[:, 1 : 1 + size])[:, self._columns]
        seen = {key: values for key, values in observation.items() if not key.startswith(IMAGES) and key != MEMORY}
        chunk, _ = self.control({**seen, ENVIRONMENT: tracked[:, None]}, noise, domain)
        return chunk, features

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the training loss of the control policy that acts on the estimates of one image; see `Policy.loss`.

        Gradients pass through the estimates, so the localizer is trained too; its variances are not.

        Raises:
            InputError: If there is no control policy, or an array is missing or has another shape.
        """
        if self.control is None:
            raise InputError(_NO_CONTROL)
        found, _ = self.locate(batch)
        tracked = self.normalize_headings(found)[:, self._columns]
        seen = {key: values for key, values in batch.items() if not key.startswith(IMAGES) and key != MEMORY}
        return self.control.loss({**seen, ENVIRONMENT: tracked[:, None]}, generator)

    def update_estimates(self, observation: Batch) -> Tensor:
        """Return the features after this control step, ``(n, 1 + 2d)``: 1, filtered values, their variances."""
        memory, size = observation[MEMORY].to(torch.float32), len(self.settings.tracked)
        looks, known = memory[:, :1] > 0, memory[:, 1:2] > 0
        before, variance = memory[:, 2 : 2 + size], memory[:, 2 + size :] + self.drift
        if not torch.compiler.is_exporting() and not bool(looks.any()):
            return torch.cat([torch.ones_like(memory[:, :1]), before, variance], dim=-1)
        found, deviation = self.locate(observation)
        noise, found = deviation.square(), self.match_turns(torch.where(known, before, self._usual_values()), found)
        error = found - before
        variance_moved = torch.where(error.square() > _SURPRISE * (variance + noise), error.square(), variance)
        gain = variance_moved / (variance_moved + noise)
        after, left = before + gain * error, (1.0 - gain) * variance_moved
        after, left = torch.where(known, after, found), torch.where(known, left, noise)
        after = self._turn_back(after)
        after, left = torch.where(looks, after, before), torch.where(looks, left, variance)
        return torch.cat([torch.ones_like(memory[:, :1]), after, left], dim=-1)

    def locate(self, observation: Batch) -> tuple[Tensor, Tensor]:
        """Return the values that one image of each camera shows, and their standard deviations, ``(n, d)`` each."""
        found, spread = self.network.locate(self.encode(observation))
        found, spread = found + found @ self.correction[:, :-1].T + self.correction[:, -1], (0.5 * spread).exp()
        values = list(self.normalizer.inverse(ENVIRONMENT, found).unbind(dim=-1))
        deviations = list((spread * self.normalizer.scale(ENVIRONMENT)).unbind(dim=-1))
        for c, s, turns in self._headings():
            if turns == 0:
                continue
            angle = torch.atan2(found[:, s], found[:, c]) / turns
            values[c], values[s] = angle.cos(), angle.sin()
            radius = torch.hypot(found[:, c], found[:, s]).clamp(min=_LEAST_RADIUS)
            deviations[c] = deviations[s] = torch.hypot(spread[:, c], spread[:, s]) / (math.sqrt(2.0) * turns * radius)
        return torch.stack(values, dim=-1), torch.stack(deviations, dim=-1) * self.spread

    def normalize_headings(self, values: Tensor) -> Tensor:
        """Return values ``(n, d)`` in which cosine and sine of each heading have the norm 1, as a tracker's have."""
        columns = list(values.unbind(dim=-1))
        for c, s, _ in self._headings():
            norm = torch.hypot(columns[c], columns[s]).clamp(min=1e-6)
            columns[c], columns[s] = columns[c] / norm, columns[s] / norm
        return torch.stack(columns, dim=-1)

    def _headings(self) -> list[tuple[int, int, int]]:
        """Return the columns of cosine and sine of each body's heading, and the number of its equal turns."""
        names = self.settings.tracked
        bodies = [name.removesuffix(".heading.cos") for name in names if name.endswith(".heading.cos")]
        pairs = {body: (f"{body}.heading.cos", f"{body}.heading.sin") for body in bodies}
        return [
            (names.index(cos), names.index(sin), self.settings.equal_turns.get(body, 1))
            for body, (cos, sin) in pairs.items()
            if sin in names
        ]

    def _usual_values(self) -> Tensor:
        """Return the mean of each value in the training worlds, ``(d,)`` in the dataset's units."""
        return self.normalizer.inverse(ENVIRONMENT, torch.zeros(len(self.settings.tracked)))

    def _turn_back(self, values: Tensor) -> Tensor:
        """Return values ``(n, d)`` with headings of the training worlds.

        A control policy knows only these, although others may look the same. A heading within a third more than half an
        equal turn from the mean is kept, so that one at the limit does not jump to and fro.
        """
        usual = self._usual_values().expand_as(values)
        turned, columns = self.match_turns(usual, values).unbind(dim=-1), list(values.unbind(dim=-1))
        for c, s, turns in self._headings():
            along = columns[c] * usual[:, c] + columns[s] * usual[:, s]
            across = columns[s] * usual[:, c] - columns[c] * usual[:, s]
            far = torch.atan2(across, along).abs() > 4.0 / 3.0 * math.pi / max(1, turns)
            columns[c], columns[s] = (torch.where(far, turned[i], columns[i]) for i in (c, s))
        return torch.stack(columns, dim=-1)

    def match_turns(self, wanted: Tensor, found: Tensor) -> Tensor:
        """Return values ``(n, d)`` with headings turned to look the same and be nearest to wanted ones, ``(n, d)``.

        All values are in the dataset's units. A body that looks the same from all sides gets the wanted heading.
        """
        columns = list(found.unbind(dim=-1))
        for c, s, turns in self._headings():
            if turns == 0:
                columns[c], columns[s] = wanted[:, c], wanted[:, s]
                continue
            angle = torch.arange(turns, device=found.device) * (2.0 * math.pi / turns)
            cos, sin = angle.cos(), angle.sin()
            turned_cos = found[:, c : c + 1] * cos - found[:, s : s + 1] * sin
            turned_sin = found[:, c : c + 1] * sin + found[:, s : s + 1] * cos
            error = (turned_cos - wanted[:, c : c + 1]).square() + (turned_sin - wanted[:, s : s + 1]).square()
            nearest = error.argmin(dim=1, keepdim=True)
            columns[c], columns[s] = (values.gather(1, nearest)[:, 0] for values in (turned_cos, turned_sin))
        return torch.stack(columns, dim=-1)

    def estimate_tracked(
        self, observation: Mapping[str, NDArray | Tensor]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the values that one image of each camera shows, and standard deviations, ``(n, d)`` each.

        Raises:
            InputError: If an array is missing, or has another shape or type.
        """
        count = len(next(iter(observation.values())))
        unused = {
            key: np.zeros((count, *self.layout.shape(key))) for key in (MEMORY, LAST_COMMAND) if key in self.layout.keys
        }

        def predict(part: Mapping[str, NDArray], _: NDArray | None) -> tuple[NDArray, NDArray]:
            made = self.locate({key: torch.as_tensor(values) for key, values in part.items()})
            return made[0].numpy(), made[1].numpy()

        with use_acting_mode(self):
            return self.layout.predict_in_tiles({**observation, **unused}, None, predict)

    def measure_loss(self, observation: Batch, truth: Tensor) -> Tensor:
        """Return the mean loss of n samples with true values ``(n, d)`` in the dataset's units.

        It is the negative logarithm of the normal density, in which each error is weighted by the square root of its
        variance, so that difficult images are learned too (Seitzer et al., "On the pitfalls of heteroscedastic
        uncertainty estimation with probabilistic neural networks", ICLR 2022).
        """
        found, spread = self.network.locate(self.encode(observation))
        wanted = list(self.normalizer(ENVIRONMENT, truth).unbind(dim=-1))
        for c, s, turns in self._headings():
            angle = turns * torch.atan2(truth[:, s], truth[:, c])
            wanted[c], wanted[s] = angle.cos(), angle.sin()
            if turns == 0:  # it cannot be seen
                wanted[c], wanted[s] = found[:, c].detach(), found[:, s].detach()
        error = found - torch.stack(wanted, dim=-1)
        each = 0.5 * (error.square() * (-spread).exp() + spread) * (_BETA * spread.detach()).exp()
        return each.mean()


# Settings that a policy from images has from its control policy.
_OF_CONTROL = ("chunk_size", "n_action_steps", "ensemble", "action_space", "last_command", "command_limits", "domains",
               "default_domain")  # fmt: skip


def attach_control(localizer: Localizer, control: Policy) -> Localizer:
    """Return a policy from images: a localizer whose estimates a policy reads instead of a tracker's values.

    Args:
        localizer: the localizer.
        control: the policy, with one step of observations and without cameras; it is not changed.

    Raises:
        InputError: If the policy reads values that the localizer does not estimate, a history, or cameras, or if
            joints, units, rate or robot differ.
    """
    of, settings = control.contract, control.settings
    if of.cameras or settings.n_obs_steps != 1 or settings.memory_size:
        raise InputError(
            "A localizer's control policy reads joints and a tracker of one control step, but this one has "
            f"{'cameras' if of.cameras else f'{settings.n_obs_steps} steps of observations'}."
        )
    unlike = _without_inputs(of).find_differences(_without_inputs(localizer.contract))
    if unlike:
        raise InputError("The control policy does not fit the localizer. " + "; ".join(unlike) + ".")
    stored = ControlSettings(**control.identity, statistics=control.statistics.to_json())  # pyright: ignore[reportArgumentType]
    taken = {name: getattr(settings, name) for name in _OF_CONTROL}
    chosen = localizer.settings.model_copy(update={**taken, "control": stored})
    columns = {**control.statistics.columns, **localizer.statistics.columns}
    statistics = Statistics(source=localizer.statistics.source, columns=columns)
    made = Localizer(localizer.contract, chosen, statistics, control)
    own = {name: values for name, values in localizer.state_dict().items() if not name.startswith("control.")}
    made.load_state_dict({**made.state_dict(), **own})
    return made


def detach_control(policy: Localizer) -> Localizer:
    """Return the localizer of a policy from images alone, with its own copies of the weights."""
    usual = LocalizerSettings(tracked=policy.settings.tracked)  # pyright: ignore[reportCallIssue]
    of_control = {name: getattr(usual, name) for name in ("control", *_OF_CONTROL)}
    settings = policy.settings.model_copy(update=of_control)
    made = Localizer(policy.contract, settings, policy.statistics, None)
    own = made.state_dict()
    made.load_state_dict({name: values for name, values in policy.state_dict().items() if name in own})
    return made


def _without_inputs(contract: Contract) -> Contract:
    return Contract(**{**vars(contract), "environment": (), "cameras": {}})
