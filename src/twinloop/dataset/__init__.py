"""Episodes as arrays on disk: LeRobot v3 in and out, importers, provenance, and the registry of public real data."""
