"""Texts that end before others, also while they are still being written."""

from __future__ import annotations

from collections.abc import Sequence


def before(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of the stop texts in it."""
    return text[: min((start for start in map(text.find, stops) if start >= 0), default=None)]


def settled(text: str, stops: Sequence[str]) -> str:
    """The beginning of an unfinished text that :func:`before` returns whatever follows: without a stop text, and
    without the beginning of one at its end."""
    begun = (
        len(text) - size
        for stop in stops
        for size in range(1, min(len(stop), len(text) + 1))
        if text.endswith(stop[:size])
    )
    return before(text, stops)[: min(begun, default=None)]
