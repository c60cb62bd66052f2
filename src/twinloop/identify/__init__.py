"""Logs in, a distribution over the twin's parameters out, with honest uncertainty."""

from twinloop.identify.config import FitConfig
from twinloop.identify.fit import identify
from twinloop.identify.holdout import HoldoutSpec
from twinloop.identify.result import Estimate, IdentifyResult

__all__ = ["Estimate", "FitConfig", "HoldoutSpec", "IdentifyResult", "identify"]
