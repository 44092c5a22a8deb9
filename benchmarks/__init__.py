"""Measured on loopback, as ratios within one run: `python -m benchmarks`."""
