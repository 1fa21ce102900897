"""One METEOR process for all tests of the scores: its start takes ten seconds of a core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from idc.metrics.java import Meteor


@pytest.fixture(scope="session")
def meteor() -> Iterator[Meteor]:
    """A METEOR process that must live through all tests and leave by itself at their end."""
    made = Meteor()
    yield made
    assert made._process.poll() is None, "one process served all tests"
    made.close()
    assert made._process.poll() == 0, "METEOR did not leave by itself when its input ended"
