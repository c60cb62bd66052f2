"""Recorded logs: importers, checks before anything is fitted, resampling, public sets."""
