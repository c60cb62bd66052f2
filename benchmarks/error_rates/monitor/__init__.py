"""Measure detection rate and false alarms of the monitor for faults planted into virtual robots."""
