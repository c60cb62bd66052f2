"""Create, save and open policies, and run them in a loop from observations to commands.

A policy is a network with a contract: the joints, cameras, units and rate of its inputs and outputs.
"""

from twinloop.policies.factory import new_policy, open_policy
from twinloop.policies.folder import PolicyCard, read_card, read_config
from twinloop.policies.policy_loop import CommandRefusal, PolicyLoop, Predictor
from twinloop.policies.settings import (
    KINDS,
    ActSettings,
    AdaptiveSettings,
    FlowSettings,
    ImageEncoderSettings,
    LocalizerSettings,
    MlpSettings,
    Settings,
    read_settings,
)
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics, relative_actions

__all__ = [
    "KINDS",
    "LAST_COMMAND",
    "ActSettings",
    "AdaptiveSettings",
    "ColumnStatistics",
    "CommandRefusal",
    "FlowSettings",
    "ImageEncoderSettings",
    "LocalizerSettings",
    "MlpSettings",
    "PolicyCard",
    "PolicyLoop",
    "Predictor",
    "Settings",
    "Statistics",
    "new_policy",
    "open_policy",
    "read_card",
    "read_config",
    "read_settings",
    "relative_actions",
]
