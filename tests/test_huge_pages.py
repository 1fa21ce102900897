"""Huge pages are asked for before a process makes its first tensor, unless the user has decided."""

from __future__ import annotations

import os

import pytest

from idc.huge_pages import use_huge_pages


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_a_value_that_is_set_is_kept(given: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "THP_MEM_ALLOC_ENABLE"
    monkeypatch.setenv(name, "unset below")
    monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv(name, given)
    use_huge_pages()
    assert os.environ[name] == found
