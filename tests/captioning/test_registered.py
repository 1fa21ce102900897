"""Captioners of a registry, whose aliases may move at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idc.captioning import pair, table
from idc.captioning.pair import PairJob, caption_pair
from idc.captioning.table import CaptionJob, caption_rows
from idc.data.pipeline import run_local
from idc.training.artifact import artifact_identity
from tests.captioning.registered import NAME, register_versions, version_folder
from tests.captioning.test_loading import RENDERED, write_table

Promote = Callable[[str], None]


@pytest.fixture
def promote(tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Promote:
    return register_versions(tracking_uri, tmp_path, monkeypatch)


def promoting_first(call: Callable[..., Any], promote: Promote) -> Callable[..., Any]:
    """The function, before which somebody promotes version 2."""

    def run(*arguments: Any, **options: Any) -> Any:
        promote("2")
        return call(*arguments, **options)

    return run


def test_a_pair_names_the_version_that_captioned_it(promote: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "describe_batch", promoting_first(pair.describe_batch, promote))
    before, after = map(str, RENDERED)
    result = caption_pair(PairJob(before=before, after=after, artifact=NAME))
    assert artifact_identity(result["artifact"]) == artifact_identity(version_folder("1"))
    assert result["captioner"] == NAME


def test_the_rows_of_a_table_belong_to_the_version_that_captioned_them(
    promote: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_table(tmp_path / "pairs.csv", RENDERED)
    job = CaptionJob(artifact=NAME, input=rows, out=str(tmp_path / "out"))
    quiet = partial(run_local, progress=False)
    with monkeypatch.context() as during:
        during.setattr(table, "open_rows", promoting_first(table.open_rows, promote))
        assert caption_rows(job, quiet).done == 1
    with pytest.raises(ValueError, match="of another configuration or other inputs"):
        caption_rows(job, quiet)
    promote("1")
    assert caption_rows(job, quiet).done == 0
