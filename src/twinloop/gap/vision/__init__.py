"""Compare real with simulated images, and propose camera parameters that reduce the difference."""
