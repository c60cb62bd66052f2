"""Records that travel between rooms, the error tree, seeds, units, atomic files, progress."""
