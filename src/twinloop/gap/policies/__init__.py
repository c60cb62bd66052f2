"""Compare policies in simulation and in reality, and one policy with another."""
