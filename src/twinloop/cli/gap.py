"""The command ``twinloop gap``: how far simulation is from reality, one measurement each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome
from twinloop.cli.gap_classes import GapClasses
from twinloop.cli.gap_comparison import GapCompare, GapEstimate, GapPower
from twinloop.cli.gap_data import GapData
from twinloop.cli.gap_dynamics import GapDynamics
from twinloop.cli.gap_history import GapHistory
from twinloop.cli.gap_policies import GapPolicies
from twinloop.cli.gap_predictivity import GapPredictivity
from twinloop.cli.gap_sensors import GapSensors
from twinloop.cli.gap_vision import GapVision
from twinloop.cli.gap_why import GapWhy

_HELP = ("-h", "--help")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far simulation is from reality, why, and how well it predicts; without a word, `dynamics`."""

    action: (
        Annotated[GapDynamics, tyro.conf.subcommand("dynamics", prefix_name=False)]
        | Annotated[GapWhy, tyro.conf.subcommand("why", prefix_name=False)]
        | Annotated[GapSensors, tyro.conf.subcommand("sensors", prefix_name=False)]
        | Annotated[GapVision, tyro.conf.subcommand("vision", prefix_name=False)]
        | Annotated[GapData, tyro.conf.subcommand("data", prefix_name=False)]
        | Annotated[GapPolicies, tyro.conf.subcommand("policies", prefix_name=False)]
        | Annotated[GapPredictivity, tyro.conf.subcommand("predictivity", prefix_name=False)]
        | Annotated[GapClasses, tyro.conf.subcommand("classes", prefix_name=False)]
        | Annotated[GapCompare, tyro.conf.subcommand("compare", prefix_name=False)]
        | Annotated[GapPower, tyro.conf.subcommand("power", prefix_name=False)]
        | Annotated[GapEstimate, tyro.conf.subcommand("estimate", prefix_name=False)]
        | Annotated[GapHistory, tyro.conf.subcommand("history", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


def said(words: Sequence[str]) -> list[str]:
    """The words of a command line in which ``gap --flag`` says ``gap dynamics --flag``."""
    given = list(words)
    if given[:1] == ["gap"] and len(given) > 1 and given[1].startswith("-") and given[1] not in _HELP:
        given.insert(1, "dynamics")
    return given
