from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.readers.test_own import put
from tests.faults.outside import CANARY, Listener


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return put(tmp_path / "elsewhere", {"secret.png": CANARY}) / "secret.png"
