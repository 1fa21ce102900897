"""What the parts cost: one module per figure of BENCHMARKS.md."""
