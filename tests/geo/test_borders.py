"""Borders of one value in images that do not say what has no data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idc.data.pipeline import run_local
from idc.geo.scene_job import SceneResult, caption_scene
from tests.geo.pairs import job
from tests.geo.scenes import ground, write
from tests.geo.toy import DifferenceCaptioner


def caption(before: Path, after: Path, **settings: Any) -> SceneResult:
    return caption_scene(job(before, after, **settings), partial(run_local, progress=False), load=DifferenceCaptioner)


@pytest.mark.parametrize(("kind", "nodata"), [("uint8", 0), ("float32", -9999)])
def test_a_border_of_one_value_is_named_and_left_out_by_a_setting(kind: str, nodata: int, tmp_path: Path) -> None:
    """Of an image without a nodata tag; in both images, and in the second wider."""
    before = ground()[:200, :200].astype(kind)
    after = before.copy()
    after[80:110, 80:110] = (190, 40, 30)
    before[:8], after[:, :30], after[-20:] = nodata, nodata, nodata
    files = write(tmp_path / "before.tif", before), write(tmp_path / "after.tif", after)
    settings: dict[str, Any] = {} if kind == "uint8" else {"scaling": "percentiles"}
    plain = caption(*files, **settings)
    assert plain.summary["compared"] == 1
    assert plain.summary["changes"] != 1
    assert [note.partition("/before.tif")[2] or note.partition("/after.tif")[2] for note in plain.summary["notes"]] == [
        f": {share} % of the image, at its border, has the value {nodata if kind == 'uint8' else float(nodata)}; if "
        f"that means no data, pass nodata={nodata if kind == 'uint8' else float(nodata)}."
        for share in (5, 24)
    ]
    assert all(note in plain.text() for note in plain.summary["notes"])
    masked = caption(*files, out=str(tmp_path / "masked"), nodata=nodata, **settings)
    assert masked.summary["changes"] == 1
    assert masked.summary["area_m2"] == pytest.approx(30 * 30 * 0.25, rel=0.01)
    assert masked.summary["compared"] == pytest.approx(170 * 172 / 200**2)
    assert masked.summary["notes"] == []
