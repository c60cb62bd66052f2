"""Edits of LeRobot v3.0 datasets: from one or several folders into a new one, never in place."""
