"""Benchmarks and error-rate studies of twinloop: ``python -m benchmarks NAME``. Not part of the installed package."""
