"""ChangeIMTI's measures against scikit-learn and by hand; the rules that read answers; files with faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.preprocessing import MultiLabelBinarizer

from idc.metrics import classification as cl

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Yes", True),
        ("yes.", True),
        ("**No**, there are no changes.", False),
        ("No change", False),
        ("The answer is yes.", True),
        ("There have been changes.", None),
        ("Yesterday", None),
        ("", None),
    ],
)
def test_yes_or_no(text: str, value: bool | None) -> None:
    assert cl.yes_or_no(text) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.", 3),
        ("There are 12 buildings.", 12),
        ("Three roads have changed", 3),
        ("No roads have changed.", 0),
        ("0", 0),
        ("between 3 and 4", None),
        ("3.5", None),
        ("many", None),
        ("", None),
    ],
)
def test_counted(text: str, value: int | None) -> None:
    assert cl.counted(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("top, left corner", {"top", "left"}),
        ("top left corner,lower right corner", {"top left corner", "lower right corner"}),
        ("Upper left corner and bottom.", {"top left corner", "lower"}),
        ("the center; middle", {"center"}),
        ("in the top right", {"top right corner"}),
        ("No change", set()),
        ("no changes.", set()),
        ("No change, top", None),
        ("on the roof", None),
        ("top bottom", None),
        ("", None),
    ],
)
def test_places(text: str, value: set[str] | None) -> None:
    assert cl.places(text) == (None if value is None else frozenset(value))


def test_every_place_reads_as_itself() -> None:
    for name in cl.PLACES:
        assert cl.places(name) == {name}
        assert cl.places(name.upper() + ".") == {name}


def test_binary_measures_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.random(200) < 0.4, rng.random(200) < 0.3
    found = cl.binary_measures(truth.tolist(), predicted.tolist())
    precision, recall, f1, _ = sk.precision_recall_fscore_support(truth, predicted, average="binary")
    expected = {"Accuracy": sk.accuracy_score(truth, predicted), "Precision": precision, "Recall": recall, "F1": f1}
    assert found == pytest.approx(expected)


def test_set_measures_are_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    draw = [frozenset(np.array(cl.PLACES)[rng.random(9) < 0.25].tolist()) or frozenset({"none"}) for _ in range(300)]
    truth, predicted = draw[:150], [a if rng.random() < 0.4 else b for a, b in zip(draw[:150], draw[150:], strict=True)]
    matrix = MultiLabelBinarizer().fit([set().union(*draw)])
    t, p = matrix.transform(truth), matrix.transform(predicted)
    precision, recall, f1, _ = sk.precision_recall_fscore_support(t, p, average="micro")
    assert cl.set_measures(truth, predicted) == pytest.approx(
        {
            "Example-based accuracy": sk.jaccard_score(t, p, average="samples"),
            "Micro precision": precision,
            "Micro recall": recall,
            "Micro F1": f1,
            "Subset accuracy": sk.accuracy_score(t, p),
        }
    )


def test_no_change_is_a_label_or_no_label() -> None:
    rows = [
        cl.Answer(type="location", of="road", answer="No change", prediction="No change"),
        cl.Answer(type="location", of="road", answer="top, left", prediction="top"),
    ]
    label, empty = (cl.score_answers(rows, way)[0].scores for way in ("label", "empty"))
    assert label["Micro recall"] == pytest.approx(2 / 3)
    assert empty["Micro recall"] == pytest.approx(1 / 2)
    assert label["Example-based accuracy"] == empty["Example-based accuracy"] == pytest.approx(0.75)
    assert label["Subset accuracy"] == empty["Subset accuracy"] == 0.5


def test_an_unreadable_prediction_never_helps() -> None:
    def scores(kind: str, answer: str) -> dict[str, float]:
        return cl.score_answers([cl.Answer(type=kind, of="road", answer=answer, prediction="hm")])[0].scores

    assert scores("binary", "No")["Accuracy"] == scores("binary", "Yes")["Accuracy"] == 0
    assert scores("count", "0") == {"MAE": 1}
    assert scores("count", "5") == {"MAE": 5}
    assert set(scores("location", "No change").values()) == set(scores("location", "top").values()) == {0}


def test_counts_are_scored_class_by_class_beside_their_floor() -> None:
    rows = [
        cl.Answer(type="count", of=of, answer=a, prediction=p)
        for of, a, p in (("road", "2", "4"), ("road", "0", "0"), ("road", "0", "1"), ("building", "7", "7"))
    ]
    road, building = cl.score_answers(rows)
    assert (road.of, road.questions, road.scores, road.baseline, road.baseline_answer) == (
        "road", 3, {"MAE": 1.0}, {"MAE": pytest.approx(2 / 3)}, "0",
    )  # fmt: skip
    assert (building.of, building.scores) == ("building", {"MAE": 0})


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_key_that_occurs_twice_is_a_faulty_line_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"type": "binary", "answer": "Yes", "prediction": "no"}'
    path.write_bytes(("\ufeff" + good).encode())
    assert [row.prediction for row in cl.read_answers(path)] == ["no"]
    path.write_text(good + "\n" + good.replace('"prediction"', '"prediction": "yes", "prediction"'))
    with pytest.raises(ValueError, match="line 2: not usable as JSON: the key 'prediction' occurs twice"):
        cl.read_answers(path)


def test_every_faulty_line_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "answers.jsonl",
        [
            {"type": "binary", "answer": "Yes", "prediction": "no", "id": 1},
            "{broken",
            "",
            {"type": "binary", "answer": "Yes"},
            {"type": "binary", "answer": "perhaps", "prediction": "no"},
            {"type": "count", "answer": "1", "prediction": "1"},
            {"type": "count", "class": "road", "answer": "1", "prediction": "many"},
            {"type": "binary", "answer": "No", "prediction": "no", "id": 1},
            {"type": "binary", "answer": True, "prediction": "no"},
            [],
        ],
    )
    with pytest.raises(ValueError, match="line 2: not JSON") as caught:
        cl.read_answers(path)
    lines = [line.removeprefix(f"{path}, ") for line in str(caught.value).split("\n")]
    assert [line.partition(":")[0] for line in lines] == [f"line {n}" for n in (2, 4, 5, 6, 7, 8, 9, 10)]
    assert "lacks prediction" in lines[1]
    assert "'perhaps' is none to a binary question" in lines[2]
    assert "lacks class" in lines[3]
    assert "allow_unreadable=true" in lines[4]
    assert "in line 1 too" in lines[5]


def test_the_job(tmp_path: Path) -> None:
    rows = [
        {"type": "binary", "answer": "Yes", "prediction": "Yes."},
        {"type": "change_or_not", "answer": "no", "prediction": "yes"},
        {"type": "count", "class": "road", "answer": 2, "prediction": "3"},
        {"type": "location", "class": "road", "answer": "top", "prediction": "somewhere"},
        {"type": "change_to_what", "answer": "Trees", "prediction": "trees."},
        {"type": "change_ratio", "answer": "0_to_10", "prediction": "10_to_20"},
        {"type": "change_ratio", "answer": "0", "prediction": "10_to_20"},
    ]
    path = write(tmp_path / "answers.jsonl", [*rows])

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "jobs/score_answers.py"), f"answers={path}", f"out={tmp_path / 'out'}", *more],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    refused = run()
    assert refused.returncode == 2
    assert "line 4: the prediction 'somewhere' cannot be read" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = run("allow_unreadable=true")
    assert done.returncode == 0, done.stderr
    result = cl.AnswerScores.model_validate_json((tmp_path / "out" / cl.RESULT).read_text())
    assert [(one.type, one.questions, one.unreadable) for one in result.measures] == [
        ("binary", 2, 0), ("count", 1, 0), ("location", 1, 1), ("change_to_what", 1, 0), ("change_ratio", 2, 0),
    ]  # fmt: skip
    assert result.overall_accuracy == pytest.approx(1 / 3)
    assert result.average_accuracy == pytest.approx(1 / 2)
    assert "count, road: 1 questions" in done.stdout
    assert "baseline: always 'yes'" in done.stdout
