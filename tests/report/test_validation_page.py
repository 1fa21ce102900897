"""The page of a data set: what was found is on it, with its pictures, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from idc.data.config import ValidateJob
from idc.data.images import encode_png
from idc.data.validation.report import validation_table
from idc.data.validation.run import ValidationFindings, validate
from idc.report.validation_page import page_path, validation_page, write_validation_page
from tests.data.readers.test_own import put


@pytest.fixture
def found(tmp_path: Path) -> ValidationFindings:
    put(tmp_path, {f"{n}.png": 20 * n for n in range(8)})
    (tmp_path / "mask.png").write_bytes(encode_png(np.eye(8, dtype=np.uint8)[:6] * 255))
    rows = [
        {"pair_id": "a<b", "before": "0.png", "after": "1.png", "captions": ["a <b>cube</b> moved"], "split": "train"},
        {"pair_id": "p2", "before": "2.png", "after": "3.png", "captions": [" ".join(["word"] * 300)], "split": "val"},
        {"pair_id": "p3", "before": "4.png", "after": "0.png", "captions": [], "split": "test", "mask": "mask.png",
         "change_type": "none"},
        {"pair_id": "p4", "before": "missing.png", "after": "7.png", "split": "test"},
    ]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return validate(ValidateJob(pairs=str(tmp_path / "pairs.jsonl"), published="levir"), progress=False)


def test_what_was_found_is_on_the_page(found: ValidationFindings, tmp_path: Path) -> None:
    page = validation_page(found).html()
    assert "1 (published 6,815)" in page
    assert "a&lt;b and p3 share an image (train and test)" in page
    assert "annotated as unchanged, but 12.50% of the mask is set" in page
    assert "before, missing.png" in page
    assert 'alt="what changed, pair p3"' in page
    assert "<b>cube" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    write_validation_page(page_path(str(tmp_path / "x.json")), found)
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == validation_page(found).html()


def test_the_terminal_and_the_page_have_the_same_errors(found: ValidationFindings) -> None:
    """A missing file, a contradiction and an image in two splits."""
    result = found.result
    assert result.errors == {"contradiction": 1, "missing file": 1, "leak between splits": 1}
    page = validation_page(found).html()
    assert "<b>3</b>" in page.partition(">errors<")[2][:40]
    line = "fit for training as it is: 3 errors (1 contradiction, 1 missing file, 1 leak between splits)"
    assert f"not {line}" in page
    assert validation_table(result).endswith(f"NOT {line}")
    nothing = result.model_copy(update={"usable_pairs": 0, "num_leaks": 0, "problems": {}})
    assert nothing.errors == {"no usable pair": 1}
