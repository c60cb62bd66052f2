"""Define what all other packages share: data records, errors, seeds, units, atomic file access and progress bars."""
