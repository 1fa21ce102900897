"""Captioning in batches: all pairs of the split in their order, on from where it was, and no bad image passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.captioning.contract import Captioner
from idc.config import load
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.schema import ChangePair
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.evaluation.split import SplitBatches, caption_split
from idc.metrics.reversal import Reversal
from tests.captioning.toy import ToyCaptioner
from tests.folders import write_rows


def make_pairs(
    path: Path, count: int = 22, bad: str | None = None, images: bool = True, silent: str | None = None
) -> Path:
    """Three parts; every second pair is a test pair; the brightness of an image is its number."""
    rows = []
    for i in range(count):
        before, after = (encode_png(np.full((8, 8, 3), i + k, np.uint8)) for k in range(2))
        if f"p{i:02d}" == bad:
            after = after[:30]
        split = ("train", "test")[i % 2]
        name = f"p{i:02d}"
        texts = () if name == silent else (f"it became {i + 1}", "it changed")
        if not images:
            before = after = b""
        rows.append(ChangePair(name, before, after, texts, split=split).to_row())
    write_rows(path, rows, rows_per_part=8, extra={} if images else {"images": False})
    return path


class Bright(ToyCaptioner):
    """Says how bright the after image is; remembers its batches; fails at a brightness, if one is given."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.seen: list[list[int]] = []
        self.fails_at = fails_at

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        values = [int(image.mean()) for image in afters]
        if self.fails_at in values:
            raise RuntimeError("out of memory")
        self.seen.append(values)
        return [f"it became {value}" for value in values]


def job(pairs: Path, out: Path, **settings: Any) -> EvaluateJob:
    values = {"pairs": str(pairs), "out": str(out), "artifact": "a", "batch_size": 3, "reversal": 0, **settings}
    return load(EvaluateJob, None, {name: value for name, value in values.items() if value is not None})


def loading(captioner: Captioner) -> Callable[[], Captioner]:
    return lambda: captioner


def quiet(*args: Any, **options: Any) -> Any:
    return run_local(*args, progress=False, **options)


def test_batches_are_full_whatever_the_parts(tmp_path: Path) -> None:
    source = SplitBatches(str(make_pairs(tmp_path / "pairs")), "test", None, 3)
    found = [source.read(i)["pair_id"] for i in range(source.num_chunks)]
    assert [len(batch) for batch in found] == [3, 3, 3, 2]
    assert [name for batch in found for name in batch] == [f"p{i:02d}" for i in range(1, 22, 2)]
    assert SplitBatches(str(tmp_path / "pairs"), "all", 7, 4).num_chunks == 2


def test_captions_of_other_weights_are_not_taken(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "pairs")
    said = caption_split(job(pairs, tmp_path / "o"), loading(Bright()), quiet, "w")
    assert said.captions == {f"p{i:02d}": f"it became {i + 1}" for i in range(1, 22, 2)}
    with pytest.raises(ValueError, match="another configuration or other inputs"):
        caption_split(job(pairs, tmp_path / "o"), loading(Bright()), quiet, "other")
    for calls in (4, 0):  # the second time all fits and is kept
        again = Bright()
        caption_split(job(pairs, tmp_path / "o"), loading(again), quiet, "other", overwrite=True)
        assert len(again.seen) == calls


class Ordered(ToyCaptioner):
    """Says which image is brighter, but of every third pair the same in both orders."""

    def __init__(self) -> None:
        pass

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        values = [(int(before.mean()), int(after.mean())) for before, after in zip(befores, afters, strict=True)]
        return ["the cube is gone" if a > b and min(a, b) % 3 else "a cube appeared" for a, b in values]


def test_the_first_pairs_are_also_captioned_swapped(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "pairs")
    captions = [
        caption_split(job(pairs, tmp_path / f"o{size}", reversal=7, batch_size=size), loading(Ordered()), quiet, "w")
        for size in (3, 4)
    ]
    assert captions[0] == captions[1]
    assert set(captions[0].captions.values()) == {"a cube appeared"}
    assert captions[0].reversal == Reversal(asked=7, read=7, turned=5, changes=7, changes_turned=5), (
        "of the pairs 1, 3 ... 13 two are multiples"
    )
    said = caption_split(job(pairs, tmp_path / "none", reversal=7), loading(Bright()), quiet, "w")
    assert said.reversal == Reversal(asked=7, read=0, turned=0, changes=0, changes_turned=0)
    assert caption_split(job(pairs, tmp_path / "off"), loading(Ordered()), quiet, "w").reversal is None


@pytest.mark.parametrize(
    ("bad", "fault"),
    [({"bad": "p05"}, "1 of 11 rows were rejected"), ({"images": False}, "imported without images: give predictions=")],
)
def test_images_that_are_unreadable_or_not_there_end_the_job(bad: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=fault):
        caption_split(job(make_pairs(tmp_path / "pairs", **bad), tmp_path / "o"), loading(Bright()), quiet, "w")


def test_pairs_without_images_are_scored_with_captions_made_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = make_pairs(tmp_path / "pairs", images=False)
    (tmp_path / "p.json").write_text(json.dumps({f"p{i:02d}": f"it became {i + 1}" for i in range(1, 22, 2)}))
    given = job(pairs, tmp_path / "o", artifact=None, predictions=str(tmp_path / "p.json"), metrics=["BLEU"],
                protocol="spot_multi", resamples=0)  # fmt: skip
    found = run_evaluation(given)
    assert "no nearest baseline: there are no images" in capsys.readouterr().err
    assert list(found.baselines) == ["constant"]
    assert found.references == 22
    assert found.protocol["references"].startswith("one: the sentences of a pair joined")
    # "it became 2. it changed" without its full stop has five words, of which the caption has three.
    assert found.scores["BLEU-1"] == pytest.approx(np.exp(1 - 5 / 3))
