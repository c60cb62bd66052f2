"""Suggest the first model term to try from the states and events of an error, and the command that tests it.

A rule is a suggestion: it names the term that is cheapest to rule out. The nested models of
``twinloop identify --compare`` test on held-out episodes whether the term is missing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from twinloop.twin.quantities import QUANTITIES, path_patterns


@dataclass(frozen=True, kw_only=True)
class HintRule:
    """Cause of an error that some states and events indicate.

    ``states`` are families of `unexplained_states`, ``events`` classes of `events`, the most informative first. Events
    in ``telling`` suffice without any state: few other causes occur at the same times. ``where`` completes "it is
    concentrated at …". ``structures`` are names of ``identify --structures``. Without structures, ``frees`` are
    patterns of parameters for ``identify --free``: the parameters whose declaration names the rule. ``flags`` are
    further flags of the command.
    """

    name: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    where: str
    term: str
    telling: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()
    flags: str = ""
    note: str = ""

    @property
    def free_patterns(self) -> tuple[str, ...]:
        """Patterns of the parameters that may explain such an error."""
        return path_patterns([kind for kind in QUANTITIES if kind.fit.residual == self.name])


RULES: tuple[HintRule, ...] = (
    HintRule(
        name="backlash",
        states=("turn", "load_side"),
        events=("load_reversal", "reversal"),
        where="reversals of motion or load",
        telling=("load_reversal",),
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
        telling=("contact_onset",),
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
        telling=("contact",),
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
    """A rule that applies to a channel, with evidence and the supporting ``share`` of the residual's power."""

    channel: str
    rule: HintRule
    share: float
    evidence: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def term(self) -> str:
        """The first model term to try."""
        return self.rule.term

    def command(self, twin: str = "TWIN", data: str = "LOG") -> str:
        """Return the shell command that tests the term."""
        words = f"twinloop identify --twin {twin} --data {data}"
        if self.rule.structures:
            words += f" --compare --structures {' '.join(self.rule.structures)}"
        elif self.patterns:
            words += " --free " + " ".join(f"'{pattern}'" for pattern in self.patterns)
        return " ".join(part for part in (words, self.rule.flags, "--output hypotheses") if part)

    def note(self, twin: str = "the twin's YAML") -> str:
        """Return the steps that must precede the command; "" if there are none."""
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
    tried: bool = True,
) -> tuple[Hint, ...]:
    """Return the rules that apply to a channel, the one with the strongest support first.

    A state that predicts the residual of held-out episodes shows how the error arises; an event only shows when, and
    many causes share a time. Therefore, if states were tried, events alone suffice only if they are in ``telling`` and
    the linear model predicts nothing (otherwise wrong parameters may be the cause). The linear model comes last,
    because any missing term also biases the fitted parameters.

    Args:
        channel: name.
        states: significant families with the share of the residual's power that they predict, and their evidence.
        events: significant events with the share of the new error that arises there, and their evidence.
        params: the twin's parameters, some of which a command can free.
        tried: whether states were tried for this channel.
    """
    known, off = tuple(params), any(row[0] == "linear" for row in states)
    fired = []
    for rule in RULES:
        by_state = [row for row in states if row[0] in rule.states]
        by_event = [row for row in events if row[0] in rule.events]
        alone = by_event if not tried else [row for row in by_event if row[0] in rule.telling and not off]
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
        fired.append(((rule.name == "refit", not by_state, -hint.share), hint))
    return tuple(hint for _, hint in sorted(fired, key=lambda row: row[0]))
