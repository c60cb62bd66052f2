"""Logs in, a distribution over the twin's parameters out, with honest uncertainty."""

from twinloop.identify.config import FitConfig, HoldoutSpec
from twinloop.identify.fit import identify
from twinloop.identify.result import Estimate, IdentifyResult

__all__ = ["Estimate", "FitConfig", "HoldoutSpec", "IdentifyResult", "identify"]
