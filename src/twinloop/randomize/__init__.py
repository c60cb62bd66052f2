"""What varies between two worlds: distributions, frozen plans of draws, and where their ranges come from."""

from twinloop.randomize.config import parse_randomization
from twinloop.randomize.plan import Draw, JointDraw, Plan
from twinloop.randomize.sources import default_draws, identified_draws, read_identified

__all__ = ["Draw", "JointDraw", "Plan", "default_draws", "identified_draws", "parse_randomization", "read_identified"]
