"""Measure the distance between a twin and recorded motion, when and where it arises, and its unexplained part."""
