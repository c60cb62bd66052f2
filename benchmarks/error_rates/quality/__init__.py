"""Measure detection rate and false alarms of the episode checks; one module per family of checks."""
