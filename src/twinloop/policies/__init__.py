"""What acts: policies as networks with a contract, saved as safetensors, and the way from observations to commands."""

from twinloop.policies.acting import Acting, Predicts, Refusal
from twinloop.policies.folder import Card, read_card, read_config
from twinloop.policies.opening import new_policy, open_policy
from twinloop.policies.settings import (
    KINDS,
    ActSettings,
    FlowSettings,
    MlpSettings,
    PictureSettings,
    Settings,
    read_settings,
)
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics, relative_actions

__all__ = [
    "KINDS",
    "LAST_COMMAND",
    "ActSettings",
    "Acting",
    "Card",
    "ColumnStatistics",
    "FlowSettings",
    "MlpSettings",
    "PictureSettings",
    "Predicts",
    "Refusal",
    "Settings",
    "Statistics",
    "new_policy",
    "open_policy",
    "read_card",
    "read_config",
    "read_settings",
    "relative_actions",
]
