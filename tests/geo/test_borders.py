"""Borders of one value in images that do not say what has no data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.data.pipeline import run_local
from idc.geo.scene_job import SceneResult, caption_scene
from tests.geo.pairs import job
from tests.geo.scenes import ground, write
from tests.geo.toy import DifferenceCaptioner


def caption(before: Path, after: Path, **settings: Any) -> SceneResult:
    return caption_scene(job(before, after, **settings), partial(run_local, progress=False), load=DifferenceCaptioner)


def test_a_border_of_one_value_is_named_and_left_out_by_a_setting(tmp_path: Path) -> None:
    """Of an image without a nodata tag; in both images, and in the second wider."""
    before = ground()[:200, :200].astype(np.float32)
    after = before.copy()
    after[80:110, 80:110] = (190, 40, 30)
    before[:8], after[:, :30], after[-20:] = -9999, -9999, -9999
    files = write(tmp_path / "before.tif", before), write(tmp_path / "after.tif", after)
    plain = caption(*files, scaling="percentiles")
    assert plain.summary["compared"] == 1
    assert plain.summary["changes"] != 1
    assert [note.partition("/before.tif")[2] or note.partition("/after.tif")[2] for note in plain.summary["notes"]] == [
        f": {share} % of the image, at its border, has the value -9999.0; if that means no data, pass nodata=-9999.0."
        for share in (5, 24)
    ]
    assert all(note in plain.text() for note in plain.summary["notes"])
    masked = caption(*files, out=str(tmp_path / "masked"), nodata=-9999, scaling="percentiles")
    assert masked.summary["changes"] == 1
    assert masked.summary["area_m2"] == pytest.approx(30 * 30 * 0.25, rel=0.01)
    assert masked.summary["compared"] == pytest.approx(170 * 172 / 200**2)
    assert masked.summary["notes"] == []
