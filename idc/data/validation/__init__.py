"""Checks of a data set: what is wrong with it, and what was published about it."""
