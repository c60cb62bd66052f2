"""Measure how far a twin is from recorded motion, when and where, and what it cannot explain."""
