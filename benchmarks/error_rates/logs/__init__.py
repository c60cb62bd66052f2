"""How many planted defects the checks of logs find, and how often they err."""
