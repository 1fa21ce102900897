"""Sweeps: what a table of a paper varies, the trials it is made of, and what came out. No Ray, no torch."""
