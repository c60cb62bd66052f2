"""Read, check, resample and convert recorded robot logs, and provide public sets of real data."""
