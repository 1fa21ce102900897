"""Limits of an evaluation: scores that are not defined, baselines that the pairs do not allow, flags in words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.job import run_evaluation
from idc.evaluation.record import evaluation_table
from idc.evaluation.score import evaluate_captions
from idc.evaluation.significance import compare_systems
from idc.metrics.protocols import ProtocolName, get_protocol
from tests.captioning.toy import ToyCaptioner
from tests.evaluation.test_evaluate import QUICK, job, predictions
from tests.folders import write_rows


def test_what_cider_is_not_defined_for_is_a_dash_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = evaluation_table(evaluate_captions(predictions(), metrics=QUICK)[0])
    cells = next(line for line in table.splitlines() if line.startswith("  no change")).split()
    assert cells[:3] == ["no", "change", "12"]
    assert cells[-1] == "–"
    assert "undefined: CIDEr (and S_m*) of no change (12 pairs)" in table
    single, rows = evaluate_captions(predictions()[:1], metrics=QUICK, resamples=10)
    assert "CIDEr (and S_m*) of all pairs (1): every n-gram of the references" in caplog.text
    assert set(single.intervals) == {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L"}
    ev.save(tmp_path, single, rows)
    assert json.loads((tmp_path / "evaluation.json").read_text())["scores"]["CIDEr"] is None
    (read,) = ev.load_predictions(tmp_path)
    assert math.isnan(read.scores["CIDEr"])
    assert set(compare_systems([read], [read], "coco", resamples=10).metrics) == set(single.intervals)
    assert math.isnan(ev.aggregate([single, single]).scores["CIDEr"].std)


@pytest.mark.parametrize(
    ("references", "protocol_name", "limit"),
    [
        (["a b", "c d"], "coco", {"few pairs": "here of 2 pairs only"}),
        ([f"word{i}" for i in range(10)], "coco", {}),
        (["图中", *(f"word{i}" for i in range(9))], "coco", {"no spaces": "1 of 10 pairs.*protocol=characters takes"}),
        (["图中", *(f"word{i}" for i in range(9))], "characters", {}),
    ],
)
def test_captions_that_say_little_are_named(
    references: list[str], protocol_name: ProtocolName, limit: dict[str, str]
) -> None:
    rows = [ev.Prediction(pair_id=str(i), caption=text, references=[text]) for i, text in enumerate(references)]
    scored, _ = evaluate_captions(rows, protocol=get_protocol(protocol_name), metrics=("CIDEr",))
    limits = {
        name: scored.protocol[name] for name in ("undefined", "few pairs", "no spaces") if name in scored.protocol
    }
    assert limits.keys() == limit.keys()
    assert all(re.search(text, limits[name]) for name, text in limit.items())


@pytest.mark.parametrize("train", ["absent", "without captions"])
def test_pairs_without_training_captions_have_no_baselines_which_is_said_before_captioning(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grey = encode_png(np.full((20, 30, 3), 100, np.uint8))
    splits = ["test", "test"] if train == "absent" else ["test", "test", "train"]
    rows = [
        ChangePair(f"p{i}", grey, grey, () if split == "train" else (f"no change {i}",), "none", split).to_row()
        for i, split in enumerate(splits)
    ]
    write_rows(tmp_path / "pairs", rows)

    def captions(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        said.append(capsys.readouterr().err)
        return ["no change"] * len(afters)

    said: list[str] = []
    evaluation = run_evaluation(job(tmp_path / "pairs", tmp_path / "out"), lambda: ToyCaptioner(captions))
    assert evaluation.baselines == {}
    for name in ("constant", "nearest"):
        assert f"no {name} baseline: {tmp_path / 'pairs'} has no training captions" in said[0]


def test_a_change_flag_is_read_as_people_write_it(tmp_path: Path) -> None:
    flags: list[Any] = ["true", "False", True, 0, "1", "0", "0.0", " yes", "no", "perhaps", None]
    changed = [True, False, True, False, True, False, False, True, False, None, None]
    grey = encode_png(np.full((20, 30, 3), 100, np.uint8))
    rows = [
        ChangePair(f"p{i}", grey, grey, (f"a {i}",), None, "test", meta={"changeflag": flag}).to_row()
        for i, flag in enumerate(flags)
    ]
    write_rows(tmp_path / "pairs", rows)
    file = tmp_path / "p.json"
    file.write_text(json.dumps({f"p{i}": "a" for i in range(len(flags))}))
    out = tmp_path / "out"
    run_evaluation(job(tmp_path / "pairs", out, artifact=None, predictions=str(file), nearest_train_pairs=0))
    assert [row.changed for row in ev.load_predictions(out)] == changed
