"""Suggest the physical effect to add to the model first, from the states and events in which unexplained error occurs.

The states, such as speed or load, are those that predict the residual (`unexplained_states`). The events, such as
reversals, are those in which more error arises than elsewhere (`unexplained_events`).

A rule suggests the effect that can be tested with the least work, with the command that tests it. The nested models of
``twinloop identify --compare`` then test on held-out episodes whether the effect is missing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from twinloop.twin.quantities import QUANTITIES, path_patterns


@dataclass(frozen=True, kw_only=True)
class HintRule:
    """Possible cause of an unexplained error, with the states and events that indicate it.

    Attributes:
        name: Name of the rule.
        states: Names of states in `unexplained_states`, the most informative first.
        events: Names of event classes in `events`, the most informative first.
        where: Phrase that completes "it is concentrated at …".
        term: Model term to try first.
        sufficient_events: Events that suffice even if no state predicts the error, because few other causes occur at
            the same times.
        structures: Names for ``--structures`` in the proposed command ``twinloop identify``. If empty, the command
            frees parameters by ``--free`` instead.
        flags: Further flags of the proposed command.
        note: Step that must precede the proposed command, else "".
    """

    name: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    where: str
    term: str
    sufficient_events: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()
    flags: str = ""
    note: str = ""

    @property
    def free_patterns(self) -> tuple[str, ...]:
        """Patterns, for ``identify --free``, of the parameters that model the physical effect of this rule."""
        return path_patterns([kind for kind in QUANTITIES if kind.fit.residual == self.name])


RULES: tuple[HintRule, ...] = (
    HintRule(
        name="backlash",
        states=("turn", "load_side"),
        events=("load_reversal", "reversal"),
        where="reversals of motion or load",
        sufficient_events=("load_reversal",),
        term="backlash, then stiction",
        structures=("backlash", "stribeck"),
    ),
    HintRule(
        name="stiction",
        states=("slow",),
        events=("breakaway",),
        where="starts from rest and slow motion",
        term="friction at rest above friction in motion (Stribeck)",
        structures=("stribeck", "backlash"),
    ),
    HintRule(
        name="saturation",
        states=("limit",),
        events=("saturation", "effort"),
        where="the drives' limits",
        term="voltage limit: torque that falls with speed",
        structures=("voltage_limit", "quadratic_damping", "load_friction"),
    ),
    HintRule(
        name="speed",
        states=("speed",),
        events=("fast",),
        where="fast motion",
        term="quadratic damping, then back-EMF",
        structures=("quadratic_damping", "voltage_limit"),
    ),
    HintRule(
        name="load",
        states=("load",),
        events=(),
        where="high loads",
        term="friction that grows with the load",
        structures=("load_friction",),
    ),
    HintRule(
        name="impact",
        states=(),
        events=("contact_onset",),
        where="the beginning of contacts",
        sufficient_events=("contact_onset",),
        term="contact stiffness and restitution",
        structures=("contact_softness",),
        flags="--fit FIT.yaml",
        note="FIT.yaml must replay with contacts: `replay: {contacts: true}`",
    ),
    HintRule(
        name="contact",
        states=(),
        events=("contact",),
        where="frames in contact",
        sufficient_events=("contact",),
        term="friction of contacts",
        flags="--fit FIT.yaml",
        note="FIT.yaml must replay with contacts: `replay: {contacts: true}`",
    ),
    HintRule(
        name="position",
        states=("position",),
        events=("near_limit", "still"),
        where="certain positions",
        term="gravity, an encoder's zero, or cogging",
    ),
    HintRule(
        name="heat",
        states=("time",),
        events=(),
        where="late moments of the episodes (it grows with time)",
        term="heating of the windings, or a supply that sags",
    ),
    HintRule(
        name="drift",
        states=("order",),
        events=(),
        where="some episodes (it changes with their order)",
        term="drift between episodes",
        flags="--drift 3",
    ),
    HintRule(
        name="refit",
        states=("linear",),
        events=(),
        where="commands and motion, in proportion to them",
        term="the parameters themselves: fit them again, with more of them free",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Hint:
    """A rule that applies to a channel, with its evidence.

    A rule proposes a model term (physical effect) from states, such as speed, and events, such as reversals.

    Attributes:
        channel: Name of the channel.
        rule: The rule.
        share: Largest fraction of the mean squared residual that one of the rule's states predicts. If no state is
            significant, largest fraction of the new error (change of the residual within a short span) that arises in
            one of the rule's events.
        evidence: Phrases that describe the evidence, the strongest first.
        patterns: Patterns of the twin's parameters that the proposed command frees.
    """

    channel: str
    rule: HintRule
    share: float
    evidence: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def term(self) -> str:
        """Model term (physical effect) to try first."""
        return self.rule.term

    def command(self, twin: str = "TWIN", data: str = "LOG") -> str:
        """Return the shell command that tests whether the model term is missing.

        ``twin`` and ``data`` are the paths in the command.
        """
        words = f"twinloop identify --twin {twin} --data {data}"
        if self.rule.structures:
            words += f" --compare --structures {' '.join(self.rule.structures)}"
        elif self.patterns:
            words += " --free " + " ".join(f"'{pattern}'" for pattern in self.patterns)
        return " ".join(part for part in (words, self.rule.flags, "--output hypotheses") if part)

    def note(self, twin: str = "the twin's YAML") -> str:
        """Return the step that the user must take before the proposed command; "" if there is none.

        ``twin`` names the file in which parameters must be declared.
        """
        if self.rule.free_patterns and not self.patterns and not self.rule.structures:
            return (
                f"first declare {' or '.join(self.rule.free_patterns)} under `params:` of {twin}; it has none of them"
            )
        return self.rule.note

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "channel": self.channel,
            "rule": self.rule.name,
            "where": self.rule.where,
            "term": self.term,
            "share": self.share,
            "evidence": list(self.evidence),
            "structures": list(self.rule.structures),
            "command": self.command(),
            "note": self.note(),
        }


def find_hints(
    channel: str,
    states: Sequence[tuple[str, float, str]],
    events: Sequence[tuple[str, float, str]],
    params: Iterable[str],
    *,
    states_tried: bool = True,
) -> tuple[Hint, ...]:
    """Return the rules that apply to a channel, the rule with the strongest evidence first.

    A rule proposes a missing physical effect from the states (such as speed) and events (such as reversals) on which
    the residual depends. A state that predicts the residual of held-out episodes shows how the error arises. An event
    shows only when it arises, and many effects occur at the same times. Therefore a rule needs a significant state. A
    significant event is enough in two cases:

    - No states were fitted.
    - The event is in the rule's ``sufficient_events``, and the linear model predicts nothing. Otherwise wrong
    parameters may be the cause.

    The rule for wrong parameters comes last, because any missing term also biases the fitted parameters.

    Args:
        channel: Name of the channel.
        states: Significant states: name, fraction of the mean squared residual that the state predicts, and text of the
            evidence.
        events: Significant events: name, share of the new error (change of the residual within a short span) that
            arises there, and text of the evidence.
        params: Names of the twin's parameters, some of which a command can free.
        states_tried: Whether states were fitted to this channel's residual.
    """
    known, off = tuple(params), any(row[0] == "linear" for row in states)
    matches = []
    for rule in RULES:
        by_state = [row for row in states if row[0] in rule.states]
        by_event = [row for row in events if row[0] in rule.events]
        alone = (
            by_event if not states_tried else [row for row in by_event if row[0] in rule.sufficient_events and not off]
        )
        if not by_state and not alone:
            continue
        behind = (*sorted(by_state, key=lambda row: -row[1]), *sorted(by_event, key=lambda row: -row[1]))
        hint = Hint(
            channel=channel,
            rule=rule,
            share=behind[0][1],
            evidence=tuple(row[2] for row in behind),
            patterns=tuple(pattern for pattern in rule.free_patterns if fnmatch.filter(known, pattern)),
        )
        matches.append(((rule.name == "refit", not by_state, -hint.share), hint))
    return tuple(hint for _, hint in sorted(matches, key=lambda row: row[0]))
