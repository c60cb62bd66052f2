"""How many planted defects the checks of episodes find, and how often they err: one area a family of checks."""
