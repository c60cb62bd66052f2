"""Estimate a distribution over the twin's parameters, with its uncertainty, from logs."""

from twinloop.identify.config import FitConfig, HoldoutSpec
from twinloop.identify.fit import identify
from twinloop.identify.result import Estimate, IdentifyResult

__all__ = ["Estimate", "FitConfig", "HoldoutSpec", "IdentifyResult", "identify"]
