"""Corrupted copies of a data set, for measuring robustness."""
