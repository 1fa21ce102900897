"""Rendered pairs."""
