"""Record the unexplained error of a twin: shares with intervals, events, states, hints and sentences for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.gap.dynamics.events import MEANINGS as EVENTS
from twinloop.gap.dynamics.unexplained_events import EventClassError
from twinloop.gap.dynamics.unexplained_rules import Hint
from twinloop.gap.dynamics.unexplained_states import MEANINGS as STATES
from twinloop.stats import Interval

ALPHA = 0.05  # chance of any false alarm among all events, states and channels of an analysis
# A state or an event with a smaller share of the residual does not justify a new model term; our choice.
LEAST_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class StateShare:
    """Share of a channel's residual that functions of a state predict on held-out episodes.

    Attributes:
        state: Name of the state, such as ``load``; ``linear`` is the linear model of commands and motion.
        channel: Name of the channel.
        share: Predicted fraction of the mean squared residual. If ``state`` is ``linear``, it is a fraction of the
            whole residual; for other states, of the residual that remains after the linear model.
        p_value: P-value of the hypothesis that the state predicts nothing, adjusted by Holm's method over all tests.
    """

    state: str
    channel: str
    share: Interval
    p_value: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {**vars(self), "share": self.share.to_json(), "meaning": STATES[self.state]}


@dataclass(frozen=True, kw_only=True)
class ErrorMoment:
    """A moment at which much error arises in a channel.

    Attributes:
        channel: Name of the channel.
        episode: Number of the episode.
        time: Time in s since the beginning of the episode.
        error: Size of the change of the residual within a short span, in the channel's unit.
        events: Names of the events at this moment.
    """

    channel: str
    episode: int
    time: float
    error: float
    events: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class UnexplainedResult(JsonRecord):
    """Error of a twin with its best parameters, divided into explained, unexplained and noise shares by channel.

    The three shares are fractions of the mean squared error of the reference twin and sum to 1.

    Attributes:
        channels: Names of the channels.
        units: Units of the channels.
        reference: Twin whose error is divided: ``nominal`` if its replay was given, else ``identified``.
        episodes: Number of episodes.
        noise_source: Text with the source of the noise's size.
        rmse: RMSE of the twin with its best parameters, in the channels' units, shape ``(nchannel,)``.
        explained: Share that the parameters explain, shape ``(nchannel,)``.
        unexplained: Share beyond the noise that no parameter explains, shape ``(nchannel,)``.
        noise: Share of the noise, shape ``(nchannel,)``.
        predicted: Fraction of the mean squared residual that all states together predict out of sample: a lower bound
            of the possible gain of a better model.
        events: Comparison of the error inside and outside each event.
        states: Share of the residual that each state (such as position, speed or load) predicts.
        moments: Moments at which most error arises.
        hints: Model terms to try first.
        needed_episodes_text: Message with the number of episodes that the tests need if there are too few, else "".
        replayed_part: Text with the replayed part of the log; "" for the whole log.
    """

    json_schema = 1
    json_names: ClassVar[Mapping[str, str | None]] = {
        "events": "places",
        "needed_episodes_text": "needed",
        "replayed_part": "part",
    }

    channels: tuple[str, ...]
    units: tuple[str, ...]
    reference: str
    episodes: int
    noise_source: str
    rmse: Interval
    explained: Interval
    unexplained: Interval
    noise: Interval
    predicted: Interval
    events: tuple[EventClassError, ...]
    states: tuple[StateShare, ...]
    moments: tuple[ErrorMoment, ...]
    hints: tuple[Hint, ...]
    needed_episodes_text: str = ""
    replayed_part: str = ""

    @property
    def beyond_noise(self) -> NDArray[np.float64]:
        """Fraction of the identified twin's mean squared error that is not noise, shape ``(nchannel,)``."""
        left = self.unexplained.estimate + self.noise.estimate
        return np.divide(self.unexplained.estimate, left, out=np.zeros_like(left), where=left > 0)

    def hint(self, channel: str) -> Hint | None:
        """Return the suggestion of the model term to try first for a channel; None if nothing is significant."""
        return next((hint for hint in self.hints if hint.channel == channel), None)

    def significant_events(self, channel: str) -> list[EventClassError]:
        """Return the events of a channel with significantly more error than outside them, the largest share first.

        Only error that arises within a short span counts, see `compute_new_errors`.
        """
        found = [place for place in self.events if place.channel == channel and is_relevant(place)]
        return sorted(found, key=lambda place: -_share_size(place))

    def significant_states(self, channel: str) -> list[StateShare]:
        """Return the states on which a channel's residual depends significantly, the largest share first.

        The entry ``linear`` comes last; it is the linear model of commands and motion, which represents parameter
        errors.
        """
        found = [s for s in self.states if s.channel == channel and s.p_value <= ALPHA]
        found = [s for s in found if float(s.share.estimate) >= LEAST_SHARE]
        return sorted(found, key=lambda s: (s.state == "linear", -float(s.share.estimate)))

    def sentences(self, twin: str = "TWIN", data: str = "LOG") -> list[str]:
        """Return one sentence for each channel, the channel with the largest unexplained share first.

        ``twin`` and ``data`` are the paths in the suggested shell commands.
        """
        order = np.argsort(-np.nan_to_num(self.unexplained.estimate), kind="stable")
        return [self._sentence(int(i), twin, data) for i in order]

    def _sentence(self, i: int, twin: str, data: str) -> str:
        name = self.channels[i].removeprefix("position/")
        share = f"{format_percent(self.unexplained, i)} of {name}'s {self.reference} error is explained by no parameter"
        if self.reference == "nominal":
            share += f" ({self.beyond_noise[i]:.0%} of the error of the identified twin)"
        hint = self.hint(self.channels[i])
        if hint is None:
            events = self.significant_events(self.channels[i])
            where = (
                f"{format_event(events[0])}, but no state predicts it" if events else "no significant event or state"
            )
            return f"{share}; {where}." + (f" {self.needed_episodes_text}" if self.needed_episodes_text else "")
        note = hint.note()
        return (
            f"{share} and is concentrated at {hint.rule.where} ({hint.evidence[0]}): {hint.term} is the first model "
            f"term to try, `{hint.command(twin, data)}`" + (f"; {note}." if note else ".")
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return super().to_json() | {"alpha": ALPHA, "sentences": self.sentences()}


def is_relevant(place: EventClassError) -> bool:
    """Return whether significantly more error arises in an event than elsewhere.

    The excess must also be at least 5 % of all new error of the channel. New error is the squared change of the
    residual between two spans of 0.05 s, see `compute_new_errors`.
    """
    return place.share is not None and place.p_value <= ALPHA and float(place.share.estimate) >= LEAST_SHARE


def format_percent(interval: Interval, i: int) -> str:
    """Format element ``i`` of an interval in per cent, such as ``12 % (8 to 17)``; NaN limits are left out."""
    values = [100 * float(part.ravel()[i]) for part in (interval.estimate, interval.low, interval.high)]
    value, low, high = (f"{v:.0f}" if abs(v) >= 1 or v == 0 else f"{v:.2g}" for v in values)
    return f"{value} %" + (f" ({low} to {high})" if np.isfinite(values).all() else "")


def _share_size(place: EventClassError) -> float:
    return 0.0 if place.share is None else float(place.share.estimate)


def format_event(place: EventClassError) -> str:
    """Return a phrase such as "2.1 times (1.5 to 3.0) as much error arises per frame where it reverses its direction".

    Returns "" if nothing was tested.
    """
    if place.ratio is None:
        return ""
    low, high = float(place.ratio.low), float(place.ratio.high)
    return (
        f"{float(place.ratio.estimate):.1f} times ({low:.1f} to {high:.1f}) as much error arises per frame where "
        f"{EVENTS[place.event]}"
    )
