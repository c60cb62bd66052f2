"""Read, check, resample and convert recorded logs; public sets of real data."""
