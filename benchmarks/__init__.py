"""Measurements of the engine, each with its own truth or reference: ``python -m benchmarks NAME``. Not shipped."""
