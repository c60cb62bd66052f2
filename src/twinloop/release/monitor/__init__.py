"""Monitor of a policy and its robot: detect changes since calibration, their cause and their start."""
