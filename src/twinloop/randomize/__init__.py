"""Randomize the parameters of simulated worlds: distributions of parameters, and reproducible plans of random draws."""

from twinloop.randomize.adaptive import AdaptiveDraw, run_rounds
from twinloop.randomize.constraints import Constraint
from twinloop.randomize.designs import make_design
from twinloop.randomize.options import OPTIONS, adaptive_options, parse_adaptive, parse_constraints
from twinloop.randomize.plan import Draw, JointDraw, Plan
from twinloop.randomize.section import parse_randomization, section_plan
from twinloop.randomize.sources import default_draws, identified_draws, identified_notes, read_identified

__all__ = [
    "OPTIONS",
    "AdaptiveDraw",
    "Constraint",
    "Draw",
    "JointDraw",
    "Plan",
    "adaptive_options",
    "default_draws",
    "identified_draws",
    "identified_notes",
    "make_design",
    "parse_adaptive",
    "parse_constraints",
    "parse_randomization",
    "read_identified",
    "run_rounds",
    "section_plan",
]
