"""What the monitor finds of planted faults, and how often it is wrong, on virtual robots."""
