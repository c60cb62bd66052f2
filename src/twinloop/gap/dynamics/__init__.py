"""Measure the error of a twin's replay, the events in which it arises, and the share that no parameter explains."""
