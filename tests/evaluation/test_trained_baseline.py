"""The trained baseline: any evaluation of the same pairs, with its training, in every evaluation that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load, missing_inputs
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.baselines import training_of
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation, run_evaluation
from idc.evaluation.record import evaluation_table
from idc.sweep.steps import score_baselines
from tests.folders import write_rows

RED = {"size": "small", "color": "red", "material": "metal", "shape": "cube", "x": 0.0}
BLUE = {"size": "large", "color": "blue", "material": "rubber", "shape": "sphere", "x": 1.0}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with 4 training and 6 test pairs of which every second lost its red cube."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for i in range(10):
        kind = ("none", "drop")[i % 2]
        grey = encode_png(np.full((8, 8, 3), 10 * i, np.uint8))
        meta = {"before": [RED, BLUE], "after": [BLUE] if kind == "drop" else [RED, BLUE]}
        texts = ("the red cube is gone", f"the small red cube {i} is gone") if kind == "drop" else ("no change", "same")
        split = "train" if i < 4 else "test"
        rows.append(ChangePair(f"p{i}", grey, grey, texts, kind, split, source="rendered:x", meta=meta).to_row())
    store(Path("pairs"), rows)
    for name, caption in (("right", "the red cube is gone"), ("wrong", "the blue sphere is gone")):
        lines = [
            {"pair_id": f"p{i}", "caption": "no change" if i % 2 == 0 or i == 5 else caption} for i in range(4, 10)
        ]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def store(path: Path, rows: list[dict[str, Any]]) -> None:
    write_rows(path, rows, fingerprint=str(path))


def job(name: str, out: str = "", **settings: Any) -> EvaluateJob:
    given = {"predictions": f"{name}.jsonl", "pairs": "pairs", "out": out or f"out/{name}", "resamples": 0,
             "metrics": ["BLEU", "CIDEr"], "spice": False}  # fmt: skip
    return load(EvaluateJob, None, {**given, **settings})


def test_its_scores_and_claims_are_those_of_its_own_evaluation(world: Path) -> None:
    other = run_evaluation(job("right"))
    found = run_evaluation(job("wrong", trained_baseline="out/right"))
    trained = found.baselines["trained"]
    assert (trained.scores, trained.subsets, trained.types) == (other.scores, other.subsets, other.types)
    assert trained.hallucination == other.hallucination
    assert trained.hallucination is not None
    assert (trained.hallucination.object.right, trained.hallucination.object.total) == (2, 3)
    assert found.hallucination is not None
    assert found.hallucination.object.right == 0
    assert "right.jsonl" in trained.what
    text = evaluation_table(found)
    assert "baseline: trained" in text
    assert "baseline: trained: object 66.7%" in text
    assert finished_evaluation(job("wrong", trained_baseline="out/right")) == found
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(job("wrong"))


def test_the_untrained_baselines_have_claims_too(world: Path) -> None:
    found = run_evaluation(job("right", constant_candidates=5))
    nearest, constant = found.baselines["nearest"].hallucination, found.baselines["constant"].hallucination
    assert nearest is not None
    assert constant is not None
    assert constant.pairs == nearest.pairs == 6
    assert (nearest.object.right, nearest.object.total) == (3, 3), "every pair is nearest to the last training pair"
    assert found.baselines["constant"].caption == "the red cube is gone"
    assert (constant.object.right, constant.invented_change.right) == (3, 3)


@pytest.mark.parametrize(
    ("system", "config", "result", "words"),
    [
        ("toy", None, None, "toy"),
        ("toy", None, {"training_samples": 3692, "seconds": 129.6, "cores": 2},
         "toy, trained on 3,692 pairs in 130 s on 2 cores"),
        ("procap", {"job": {}}, None, "procap (supervision: captions)"),
        ("twincap", {"job": {"supervision": {"heads": 0.1, "dense": 0.3}}}, None,
         "twincap (supervision: captions and scene graphs)"),
        ("namc", {"job": {"pretrained": "runs/a/artifact"}}, None,
         "namc (supervision: captions and generated descriptions)"),
        ("sft", {}, None, "sft (supervision: captions, on a base taught before)"),
        ("zeroshot", {}, None, "zeroshot (supervision: none)"),
    ],
)  # fmt: skip
def test_how_it_was_trained_is_read_from_its_run(
    system: str, config: dict[str, Any] | None, result: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    (tmp_path / "artifact").mkdir()
    record = {"system": system, **({} if config is None else {"config": config})}
    (tmp_path / "artifact" / "config.json").write_text(json.dumps(record))
    if result is not None:
        (tmp_path / "result.json").write_text(json.dumps(result))
    assert str(training_of(str(tmp_path / "artifact"))) == words
    assert training_of("nowhere") is None


def test_another_evaluation_is_refused_with_its_difference_before_anything_is_captioned(world: Path) -> None:
    refused = [
        ({"split": "train", "nearest_train_pairs": 0}, "not the same split: here train, in out/right test"),
        ({"protocol": "levir_words"}, "not the same protocol: here levir_words, in out/right coco"),
        ({"metrics": ["ROUGE-L", "CIDEr"]}, "not the same metrics: here ROUGE-L, CIDEr, in out/right no ROUGE-L"),
        ({"max_pairs": 4}, "not the same pairs: here 4 pairs, in out/right 6; 'p8' is only in one of them"),
    ]
    run_evaluation(job("right"))
    for settings, message in refused:
        with pytest.raises(ValueError, match=f"trained_baseline: {message}"):
            run_evaluation(job("wrong", trained_baseline="out/right", **settings))
    rows = ev.load_predictions("out/right")
    ev.save(
        "out/altered", ev.load_evaluation("out/right"), [rows[0].model_copy(update={"references": ["x"]}), *rows[1:]]
    )
    with pytest.raises(ValueError, match=r"not the same references: here \['no change', 'same'\].*\['x'\] for 'p4'"):
        run_evaluation(job("wrong", trained_baseline="out/altered"))
    assert not Path("out/wrong").exists()
    assert missing_inputs(job("wrong", trained_baseline="out/nowhere")) != []


def test_a_sweep_scores_it_once_with_the_other_baselines(world: Path) -> None:
    run_evaluation(job("right"))
    settings = {"split": "test", "pairs": "pairs", "trained_baseline": "out/right", "metrics": ["BLEU", "CIDEr"],
                "spice": False, "resamples": 0}  # fmt: skip
    found = score_baselines({"job": settings}, "out/baselines", run_local)
    assert found.keys() == {"constant", "nearest", "trained"}
    assert found["trained"] == ev.load_evaluation("out/right").scores
