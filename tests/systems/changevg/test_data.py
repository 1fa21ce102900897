"""The guide's samples: classes of pixels, captions, and the lines of pairs that it cannot learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import NO_CHANGE
from idc.data.text import PAD, Vocabulary
from idc.systems.changevg.config import GuideConfig
from idc.systems.changevg.task import GuideSamples, collate, row_classes
from tests.folders import write_rows
from tests.systems.changevg.tiny import MODEL, SAME, SIDE, changed_pair, write_scenes

VOCABULARY = Vocabulary.build([SAME, "there is no difference", "a new road building appears is built"])


def samples(pairs: str, split: str = "train", **settings: Any) -> GuideSamples:
    return GuideSamples(pairs, split, load(GuideConfig, None, MODEL), VOCABULARY, 7, **settings)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    return write_scenes(tmp_path / "pairs")


def row(kind: str = "road", **cells: Any) -> dict[str, Any]:
    return {**changed_pair(0, "train", kind).to_row(), **cells}


def test_a_batch_has_images_classes_and_shifted_words(pairs: str) -> None:
    data = samples(pairs)
    batch = collate([data.get(index, 0) for index in range(3)])
    assert batch["images"].shape == (3, 2, SIDE, SIDE, 3)
    assert [np.unique(classes).tolist() for classes in batch["classes"]] == [[0, 1], [0, 2], [0]]
    assert (batch["classes"][0][:, 4:9] == 1).all()
    for ids, targets in zip(batch["ids"], batch["targets"], strict=True):
        length = int((targets != PAD).sum())
        assert ids[1:length].tolist() == targets[: length - 1].tolist()
        assert int(targets[length - 1]) == VOCABULARY.special.eos


def test_a_smaller_model_sees_classes_and_no_mixtures_of_them() -> None:
    classes = row_classes(row("building"), (SIDE, SIDE), 8)
    assert classes.shape == (8, 8)
    assert set(np.unique(classes)) == {0, 2}, "resized by averaging there would be roads around a building"


def test_captions_are_drawn_by_epoch_but_for_the_unchanged(pairs: str, tmp_path: Path) -> None:
    data = samples(pairs, no_change_caption=SAME)
    drawn = [{VOCABULARY.decode(data.get(index, epoch)["ids"]) for epoch in range(12)} for index in range(3)]
    assert drawn[0] == {"a road appears", "a new road is built"}
    assert drawn[2] == {SAME}
    assert len({VOCABULARY.decode(samples(pairs).get(2, epoch)["ids"]) for epoch in range(12)}) == 2
    stopped = replace(changed_pair(2, "train", "same"), captions=("there is no difference", f"{SAME} ."))
    written = samples(write_rows(tmp_path / "stopped", [stopped]), no_change_caption=SAME)
    assert {VOCABULARY.decode(written.get(0, epoch)["ids"]) for epoch in range(6)} == {SAME}


def test_pairs_without_captions_are_no_samples(tmp_path: Path) -> None:
    silent, other = replace(changed_pair(0, "train", "road"), captions=()), changed_pair(1, "train", "building")
    data = samples(write_rows(tmp_path / "pairs", [silent, other]))
    assert [data.rows[row]["pair_id"] for row in data.order] == ["train-1"]


@pytest.mark.parametrize(("mask", "message"), [
    (None, "has no mask"),
    (encode_png(np.zeros((8, 9), np.uint8)), ": the mask has 9x8 pixels, its image after 32x32"),
    (encode_png(np.full((SIDE, SIDE), 77, np.uint8)), r": .*1024 pixels .* first RGB \(77, 77, 77\)"),
])  # fmt: skip
def test_a_mask_that_does_not_fit_is_named_with_its_pair(mask: bytes | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"pair 'train-0' ?{message}"):
        row_classes(row(mask=mask), (SIDE, SIDE), SIDE)
    assert not row_classes(row("same", mask=None, change_type=NO_CHANGE), (SIDE, SIDE), SIDE).any()
