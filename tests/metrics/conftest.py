"""What tests of scorers share."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_system_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Java on PATH."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("IDC_JAVA", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
