"""Ratios measured in one run, on the machine at hand: ``python -m benchmarks.engine``. None of them is a test."""
