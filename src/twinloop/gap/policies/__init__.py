"""Compare how policies do in simulation and in reality, and one policy with another."""
