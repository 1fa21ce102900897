"""Image difference captioning: the pure library (no Ray, no MLflow)."""

import os

__version__ = "0.1.0"

SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "4000"
"""How often a thread of torch asks whether the others are ready before it sleeps. The library's own number, 300,000, is
milliseconds in which it keeps a core from the work of others: beside busy processes a step takes longer, at times many
times as long (BENCHMARKS.md). Read when torch is loaded."""
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
