"""What reads rendered pairs reads those with several changes too: no single truth where there is none, no crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.data.pipeline import run_local
from idc.data.schema import CHANGE_TYPES
from idc.rendered.config import RenderJob, SeveralConfig
from idc.rendered.render import open_rendering
from idc.robustness.build import open_corruption as open_corruption
from idc.systems.twincap.truth import PARTS, UNKNOWN, pair_truth
from tests.rendered.test_several import TINY
from tests.robustness.test_robustness import rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("several") / "pairs")
    render = TINY.model_copy(
        update={"num_scenes": 12, "several": SeveralConfig(max_changes=3), "val_share": 0.3, "test_share": 0.3}
    )
    run_local(*open_rendering(RenderJob(out=out, chunk_size=12, render=render)), progress=False)
    return out


def test_twincap_learns_all_objects_that_changed(folder: str) -> None:
    several = single = 0
    for row in rows(Path(folder)).values():
        meta = json.loads(row["meta"])
        truth = pair_truth(row["change_type"], row["captions"], meta, (36, 48))
        gone = [thing for thing in meta["before"] if thing not in meta["after"]]
        new = [thing for thing in meta["after"] if thing not in meta["before"]]
        assert (truth.kind == UNKNOWN) == (row["change_type"] not in CHANGE_TYPES)
        assert truth.has_scene
        for image, (side, changed) in enumerate((("before", gone), ("after", new))):
            assert truth.differs[image].tolist() == [thing in changed for thing in meta[side]]
            for number, label in enumerate(truth.parts[image]):
                kinds = [record["kind"] for record in meta["differences"] if number in record[side]]
                assert [PARTS[label]] == (kinds or ["none"])
        if max(len(gone), len(new)) > 1:
            several += 1
            assert (truth.changed == UNKNOWN).all()
        else:
            single += len(gone) + len(new) > 0
            assert [(labels != UNKNOWN).all() for labels in truth.changed] == [bool(gone), bool(new)]
    assert several >= 3
    assert single >= 2
