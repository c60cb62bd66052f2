"""Records shared by all packages, error classes, seeds, units, atomic files, and progress bars."""
