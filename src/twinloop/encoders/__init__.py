"""What turns pictures and clips of trajectories into numbers that can be compared."""
