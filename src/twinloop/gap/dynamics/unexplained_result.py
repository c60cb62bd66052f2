"""The unexplained error of a twin as a record: shares with intervals, events, states, hints, sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Prediction of a channel's residual by functions of a state, on held-out episodes.

    ``share`` is the predicted fraction of the power that the linear model leaves (for that model itself: of the
    residual's power). ``p_value`` is the p-value of the hypothesis that it predicts nothing, adjusted by Holm over all
    tests.
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
    """A moment at which much error arises: ``time`` s from the episode's beginning, ``error`` in the channel's unit."""

    channel: str
    episode: int
    time: float
    error: float
    events: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class UnexplainedResult(JsonRecord):
    """Error of a twin with its best parameters, by channel.

    Shares are of the mean squared error of ``reference`` (the nominal twin if its replay was given, else the identified
    one) and sum to 1: ``explained`` by parameters, ``unexplained`` beyond the noise, and ``noise``, whose size comes
    from ``noise_source``. ``predicted`` is the fraction of the residual's power that all states together predict out of
    sample, a lower bound of the possible gain of a better model. ``needed`` is the number of episodes that the tests
    need if there are too few, else "". ``part`` is the replayed part of the log, "" for all.
    """

    json_schema = 1

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
    places: tuple[EventClassError, ...]
    states: tuple[StateShare, ...]
    moments: tuple[ErrorMoment, ...]
    hints: tuple[Hint, ...]
    needed: str = ""
    part: str = ""

    @property
    def beyond_noise(self) -> NDArray[np.float64]:
        """Fraction of the best-parameter twin's mean squared error that is not noise, ``(nchannel,)``."""
        left = self.unexplained.estimate + self.noise.estimate
        return np.divide(self.unexplained.estimate, left, out=np.zeros_like(left), where=left > 0)

    def hint(self, channel: str) -> Hint | None:
        """Return the first model term to try for a channel; None if nothing is significant."""
        return next((hint for hint in self.hints if hint.channel == channel), None)

    def significant_places(self, channel: str) -> list[EventClassError]:
        """Return the events in which significantly more error arises, the largest share first."""
        found = [place for place in self.places if place.channel == channel and is_relevant(place)]
        return sorted(found, key=lambda place: -_share_size(place))

    def significant_states(self, channel: str) -> list[StateShare]:
        """Return the states on which the residual depends significantly, the largest share first."""
        found = [s for s in self.states if s.channel == channel and s.p_value <= ALPHA]
        found = [s for s in found if float(s.share.estimate) >= LEAST_SHARE]
        return sorted(found, key=lambda s: (s.state == "linear", -float(s.share.estimate)))

    def sentences(self, twin: str = "TWIN", data: str = "LOG") -> list[str]:
        """Return one sentence for each channel, the largest unexplained share first."""
        order = np.argsort(-np.nan_to_num(self.unexplained.estimate), kind="stable")
        return [self._sentence(int(i), twin, data) for i in order]

    def _sentence(self, i: int, twin: str, data: str) -> str:
        name = self.channels[i].removeprefix("position/")
        share = f"{format_percent(self.unexplained, i)} of {name}'s {self.reference} error is explained by no parameter"
        if self.reference == "nominal":
            share += f" ({self.beyond_noise[i]:.0%} of the error of the identified twin)"
        hint = self.hint(self.channels[i])
        if hint is None:
            places = self.significant_places(self.channels[i])
            where = (
                f"{format_event(places[0])}, but no state predicts it" if places else "no significant event or state"
            )
            return f"{share}; {where}." + (f" {self.needed}" if self.needed else "")
        note = hint.note()
        return (
            f"{share} and is concentrated at {hint.rule.where} ({hint.evidence[0]}): {hint.term} is the first model "
            f"term to try, `{hint.command(twin, data)}`" + (f"; {note}." if note else ".")
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return super().to_json() | {"alpha": ALPHA, "sentences": self.sentences()}


def is_relevant(place: EventClassError) -> bool:
    """Return whether significantly more error arises in an event than elsewhere, and enough to matter."""
    return place.share is not None and place.p_value <= ALPHA and float(place.share.estimate) >= LEAST_SHARE


def format_percent(interval: Interval, i: int) -> str:
    """Format an element of an interval in per cent: ``12 % (8 to 17)``."""
    values = [100 * float(part.ravel()[i]) for part in (interval.estimate, interval.low, interval.high)]
    value, low, high = (f"{v:.0f}" if abs(v) >= 1 or v == 0 else f"{v:.2g}" for v in values)
    return f"{value} %" + (f" ({low} to {high})" if np.isfinite(values).all() else "")


def _share_size(place: EventClassError) -> float:
    return 0.0 if place.share is None else float(place.share.estimate)


def format_event(place: EventClassError) -> str:
    """Return a phrase with the ratio of the error in an event; "" if nothing was tested."""
    if place.ratio is None:
        return ""
    low, high = float(place.ratio.low), float(place.ratio.high)
    return (
        f"{float(place.ratio.estimate):.1f} times ({low:.1f} to {high:.1f}) as much error arises per frame where "
        f"{EVENTS[place.event]}"
    )
