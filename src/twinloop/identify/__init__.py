"""Identify a twin's parameters from logs, and estimate their joint distribution."""

from twinloop.identify.config import FitConfig, HoldoutSpec
from twinloop.identify.fit import identify
from twinloop.identify.result import Estimate, IdentifyResult

__all__ = ["Estimate", "FitConfig", "HoldoutSpec", "IdentifyResult", "identify"]
