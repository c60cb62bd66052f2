"""Monitor a policy and its robot: detect changes since calibration, and estimate their cause and their start."""
