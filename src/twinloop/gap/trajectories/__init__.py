"""Compare simulated with real trajectories as distributions."""
