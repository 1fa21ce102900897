"""Benchmarks: one module per section of BENCHMARKS.md."""
