"""What an evaluation says beside its scores: parts scored alone, change against no change, S_m*, other protocols, and
its limits: scores that are not defined, baselines that the pairs do not allow."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.evaluation.record import evaluation_table
from idc.evaluation.score import evaluate_captions
from idc.evaluation.significance import compare_systems
from idc.metrics.change_types import LEVIR_NO_CHANGE
from idc.metrics.protocols import ProtocolName, get_protocol
from tests.captioning.toy import ToyCaptioner
from tests.conftest import Command
from tests.evaluation.test_evaluate import QUICK, job, predictions
from tests.folders import write_rows
from tests.metrics.test_coco import PAIR_PREDICTIONS, PAIR_REFERENCES, PUBLISHED

WORDS = "the small red cube that is left of the big blue ball has moved to a new place now".split(" ")  # noqa: SIM905


def pairs() -> list[ev.Prediction]:
    """Thirty moved things with references of 3 to 18 words; ten unchanged pairs."""
    made = []
    for i in range(40):
        changed = i < 30
        length = 3 + i % 16
        texts = [" ".join(WORDS[:length]), " ".join(WORDS[-length:])] if changed else ["nothing changed at all"]
        said = " ".join(WORDS[: length - i % 3]) if changed or i % 2 else "nothing changed at all"
        made.append(ev.Prediction(pair_id=f"p{i:02d}", caption=said, references=texts, changed=changed,
                                  change_type="move" if changed else "none"))  # fmt: skip
    return made


def test_change_against_no_change_and_intervals() -> None:
    found, rows = evaluate_captions(pairs(), protocol=get_protocol("levir_words"), metrics=QUICK, resamples=20)
    assert found.change.table == {"change": {"change": 30, "no change": 0}, "no change": {"change": 10, "no change": 0}}
    for name, interval in found.intervals.items():
        assert interval.low <= found.scores[name] <= interval.high, name
    assert "document frequencies of the full set" in found.protocol["intervals"]
    text = evaluation_table(found)
    assert "says whether anything changed: 75.0% right" in text
    assert rows[0].statistics["BLEU"]


def test_a_part_of_a_data_set_is_scored_as_if_alone() -> None:
    """The real and the rendered pairs of OmniDiff, which its tables score apart; also if only one of them is there."""
    parted = [p.model_copy(update={"part": "real" if i % 3 else "render"}) for i, p in enumerate(pairs())]
    found, _ = evaluate_captions(
        parted, protocol=get_protocol("levir_words"), metrics=QUICK, constant_candidates=[WORDS[0], "a b"]
    )
    assert (found.subsets["real"].pairs, found.subsets["render"].pairs) == (26, 14)
    real = [p for p in parted if p.part == "real"]
    alone, _ = evaluate_captions(
        real, protocol=get_protocol("levir_words"), metrics=QUICK, constant_candidates=[WORDS[0], "a b"]
    )
    assert found.subsets["real"].scores == pytest.approx(alone.scores)
    assert alone.subsets["real"].scores == pytest.approx(alone.scores)
    assert found.baselines["constant"].subsets["render"].pairs == 14
    assert "real" not in evaluate_captions(pairs(), protocol=get_protocol("levir_words"), metrics=QUICK)[0].subsets


def test_levir_is_scored_by_ids_beside_words_and_tells_change_by_its_sentences(tmp_path: Path) -> None:
    rows = []
    for i in range(24):
        texts = list(LEVIR_NO_CHANGE) if i % 2 else [f"a road and a villa{' is' * k} built" for k in range(5)]
        rows.append({"pair_id": f"t{i}", "captions": texts, "split": ("train", "test")[i // 12]})
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = {f"t{i}": "there is no difference" if i > 14 else "A road and a tower is built." for i in range(12, 24)}
    (tmp_path / "p.json").write_text(json.dumps(said))
    job = load(EvaluateJob, None, {
        "references": str(tmp_path / "r.jsonl"), "predictions": str(tmp_path / "p.json"), "out": str(tmp_path / "o"),
        "protocol": "levir_ids", "metrics": ["BLEU", "CIDEr"], "resamples": 0,
    })  # fmt: skip
    found = run_evaluation(job)
    assert list(found.extra_protocols) == ["levir_words", "coco"]
    assert found.protocol["name"] == "levir_ids"
    assert "120 captions of test and train" in found.protocol["vocabulary"], "of all splits"
    assert {name: subset.pairs for name, subset in found.subsets.items()} == {"change": 6, "no change": 6}
    assert found.change.table == {"change": {"change": 2, "no change": 4}, "no change": {"change": 1, "no change": 5}}
    assert found.baselines["constant"].caption in {text for row in rows[:12] for text in row["captions"]}
    lines = evaluation_table(found).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["model", "model,", "model,"]
    assert any("<UNK> matches <UNK>" in line for line in lines)
    direct, _ = evaluate_captions(
        ev.load_predictions(tmp_path / "o"), protocol=get_protocol("levir_words"), metrics=("BLEU", "CIDEr")
    )
    assert found.extra_protocols["levir_words"] == direct.scores


def test_the_command_gives_the_published_scores_of_nlg_eval(tmp_path: Path, command: Command) -> None:
    (tmp_path / "references.json").write_text(json.dumps(PAIR_REFERENCES))
    (tmp_path / "said.json").write_text(json.dumps(PAIR_PREDICTIONS))
    settings = f"references={tmp_path / 'references.json'}", f"predictions={tmp_path / 'said.json'}"
    done = command("evaluate", *settings, f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    found = ev.load_evaluation(tmp_path / "out")
    assert {name: found.scores[name] for name in PUBLISHED} == pytest.approx(PUBLISHED, abs=1e-6)
    mean = sum(PUBLISHED[name] for name in ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr")) / 4
    assert found.scores["S_m*"] == pytest.approx(mean, abs=1e-6)
    assert "S_m*" in done.stdout
    assert "protocol coco" in done.stdout
    again = command("evaluate", *settings, f"out={tmp_path / 'out'}")
    assert again.stdout.splitlines() == [f"done before: {tmp_path / 'out'}", *done.stdout.splitlines()]
    other = command("evaluate", *settings, f"out={tmp_path / 'out'}", "constant_candidates=3")
    assert other.returncode == 2
    assert "holds an evaluation of other inputs" in other.stderr


# --------------------------------------------------------------------------------------------------------------- limits


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
