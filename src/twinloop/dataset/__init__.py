"""Store episodes on disk: LeRobot v3.0 datasets, log importers, provenance, and the registry of public real data."""
