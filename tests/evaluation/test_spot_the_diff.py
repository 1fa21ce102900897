"""Spot-the-Diff's empty references: counted as the published scores count them, by either way of giving references."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load
from idc.data.config import ImportJob
from idc.data.importing import open_import
from idc.data.pipeline import run_local
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.evaluation.record import evaluation_table
from idc.metrics import java
from idc.metrics.coco import BLEU_ORDERS
from tests.folders import write_rows

QUICK = ("BLEU", "ROUGE-L", "CIDEr")
"""Everything but METEOR, whose start takes ten seconds."""

WORDS = (
    *("the", "a", "red", "black", "car", "man", "people", "person", "is", "are", "has", "gone", "moved", "left"),
    *("right", "no", "longer", "there", "in", "parking", "lot"),
)


def annotations(seed: int, count: int = 40) -> list[dict[str, Any]]:
    """Rows of the official files: every third id has a second row, every eighth id has one empty sentence alone, and
    every fifth an empty one among others."""
    rng = np.random.default_rng(seed)

    def sentences(number: int) -> list[str]:
        return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(number)]

    rows = []
    for i in range(count):
        name = str(1000 * seed + i)
        if i % 8 == 0:
            rows.append({"img_id": name, "sentences": [""]})
            continue
        rows.append({"img_id": name, "sentences": sentences(2)})
        if i % 5 == 0:
            rows[-1]["sentences"].insert(i % 3, "" if i % 2 else " ")
        if i % 3 == 0:
            rows.append({"img_id": name, "sentences": sentences(1)})
    return rows


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official layout without images, its test references in the published form, and predictions."""
    folder = tmp_path_factory.mktemp("spot")
    for seed, split in enumerate(("train", "val", "test"), start=1):
        (folder / f"{split}.json").write_text(json.dumps(annotations(seed)))
    rows = annotations(3)
    reformatted = {
        "type": "captions",
        "images": [{"filename": row["img_id"], "id": row["img_id"]} for row in rows],
        "annotations": [
            {"image_id": row["img_id"], "id": number, "caption": text}
            for number, (row, text) in enumerate((row, text) for row in rows for text in row["sentences"])
        ],
    }
    (folder / "reformat.json").write_text(json.dumps(reformatted))
    # Others' captions, and now and then a pair's own, so that words recur.
    texts = [text for row in rows for text in row["sentences"] if text.split()]
    said = [
        {"image_id": name, "caption": texts[(7 * number) % len(texts)]}
        for number, name in enumerate(dict.fromkeys(row["img_id"] for row in rows))
    ]
    (folder / "results.json").write_text(json.dumps(said))
    return folder


@pytest.fixture(scope="module")
def pairs(source: Path) -> Path:
    folder = source / "pairs"
    made, reader, stages = open_import(
        load(ImportJob, None, {"format": "spot_the_diff", "source": str(source), "out": str(folder), "images": False})
    )
    run_local(made, reader, stages, max_reject_share=0.0)
    return folder


def published(references: dict[str, list[str]], predictions: dict[str, str]) -> dict[str, float]:
    """The scores of ``pycocoevalcap`` as its own classes compute them, tokenizer included, without METEOR."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(java.java()).parent}{os.pathsep}{os.environ['PATH']}")  # it starts "java"
        gts = PTBTokenizer().tokenize({name: [{"caption": c} for c in texts] for name, texts in references.items()})
        res = PTBTokenizer().tokenize({name: [{"caption": text}] for name, text in predictions.items()})
    found = dict(zip(BLEU_ORDERS, Bleu(4).compute_score(gts, res, verbose=0)[0], strict=True))
    scorers = (("ROUGE-L", Rouge()), ("CIDEr", Cider()))
    return found | {name: float(scorer.compute_score(gts, res)[0]) for name, scorer in scorers}


def scored(source: Path, out: Path, **settings: Any) -> ev.Evaluation:
    given = {"predictions": str(source / "results.json"), "out": str(out), "protocol": "spot_single", "resamples": 0}
    return run_evaluation(load(EvaluateJob, None, {**given, "constant_candidates": 0, "metrics": QUICK, **settings}))


def test_both_ways_give_what_the_published_code_gives(source: Path, pairs: Path, tmp_path: Path) -> None:
    rows = annotations(3)
    references: dict[str, list[str]] = {}
    for row in rows:
        references.setdefault(row["img_id"], []).extend(row["sentences"])
    predictions = {row["image_id"]: row["caption"] for row in json.loads((source / "results.json").read_text())}
    official = published(references, predictions)
    by_references = scored(source, tmp_path / "a", references=str(source / "reformat.json"))
    by_pairs = scored(source, tmp_path / "b", pairs=str(pairs))
    assert by_pairs.scores == pytest.approx(official, rel=1e-12, abs=0)
    assert by_references.scores == by_pairs.scores
    assert (by_references.pairs, by_references.references) == (by_pairs.pairs, by_pairs.references)
    assert by_pairs.pairs == len(references)
    for evaluation in (by_references, by_pairs):
        line = "empty references: 12 of 40 pairs have one; it counts as a reference without words"
        assert line in evaluation_table(evaluation).splitlines()
        assert "left out" not in evaluation.protocol


def test_other_protocols_leave_such_pairs_out_and_say_so(source: Path, pairs: Path, tmp_path: Path) -> None:
    evaluation = scored(source, tmp_path / "o", pairs=str(pairs), protocol="coco", metrics=["BLEU"])
    assert evaluation.protocol["left out"] == "5 of 40 pairs, which have no reference"
    constant = scored(source, tmp_path / "c", pairs=str(pairs), metrics=["CIDEr"], constant_candidates=500)
    assert (constant.baselines["constant"].caption or "").split(), "an empty reference is no constant caption"
    with pytest.raises(ValueError, match="has an empty reference; remove it, or give protocol=spot_single"):
        scored(source, tmp_path / "p", references=str(source / "reformat.json"), protocol="coco", metrics=["BLEU"])


def test_a_folder_that_does_not_record_empty_sentences_gives_a_pair_without_captions_one(
    source: Path, tmp_path: Path
) -> None:
    rows = [
        ChangePair(name, b"", b"", captions, None, "test").to_row() for name, captions in (("a", ("x y",)), ("b", ()))
    ]
    write_rows(tmp_path / "pairs", rows)
    (tmp_path / "p.json").write_text('{"a": "x y", "b": "x"}')
    settings = {"pairs": str(tmp_path / "pairs"), "predictions": str(tmp_path / "p.json"), "nearest_train_pairs": 0}
    evaluation = scored(source, tmp_path / "o", **settings)
    assert (evaluation.pairs, evaluation.references) == (2, 2)
    assert evaluation.protocol["empty references"].startswith("1 of 2 pairs")
