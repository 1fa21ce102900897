"""ChangeIMTI's measures against scikit-learn and by hand; the rules that parse answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.preprocessing import MultiLabelBinarizer

from idc.metrics import classification as cl

ANSWERS: dict[str, dict[str, Any]] = {
    "yes_or_no": {
        "Yes": True, "yes.": True, "**No**, there are no changes.": False, "No change": False,
        "The answer is yes.": True, "There have been changes.": None, "Yesterday": None, "": None,
    },
    "count_in": {
        "3": 3, "3.": 3, "There are 12 buildings.": 12, "Three roads have changed": 3, "No roads have changed.": 0,
        "between 3 and 4": None, "3.5": None, "-1": None, "There are \u22122 roads.": None, "- 3 roads": 3,
        "roads-3": 3, "many": None, "": None,
    },
    "places": {
        **{name.upper() + ".": {name} for name in cl.PLACES}, "top, left corner": {"top", "left"},
        "top left corner,lower right corner": {"top left corner", "lower right corner"},
        "Upper left corner and bottom.": {"top left corner", "lower"}, "the center; middle": {"center"},
        "in the top right": {"top right corner"}, "no changes.": {cl.NOTHING}, "No change, top": None,
        "on the roof": None, "top bottom": None, "": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("reader", ANSWERS)
def test_answers_are_read_as_people_write_them(reader: str) -> None:
    for text, value in ANSWERS[reader].items():
        assert getattr(cl, reader)(text) == value, text


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


def test_no_change_is_a_tenth_place() -> None:
    rows = [
        cl.ScoredAnswer(type="location", of="road", answer="No change", prediction="No change"),
        cl.ScoredAnswer(type="location", of="road", answer="top, left", prediction="top"),
    ]
    scores = cl.score_answers(rows)[0].scores
    assert scores["Micro recall"] == pytest.approx(2 / 3)
    assert scores["Example-based accuracy"] == pytest.approx(0.75)
    assert scores["Subset accuracy"] == 0.5


def test_an_unreadable_prediction_never_helps() -> None:
    def scores(kind: str, answer: str) -> dict[str, float]:
        return cl.score_answers([cl.ScoredAnswer(type=kind, of="road", answer=answer, prediction="hm")])[0].scores

    assert scores("binary", "No")["Accuracy"] == scores("binary", "Yes")["Accuracy"] == 0
    assert scores("count", "0") == {"MAE": 1}
    assert scores("count", "5") == {"MAE": 5}
    assert set(scores("location", "No change").values()) == set(scores("location", "top").values()) == {0}


def test_counts_are_scored_class_by_class_beside_their_baseline() -> None:
    rows = [
        cl.ScoredAnswer(type="count", of=of, answer=a, prediction=p)
        for of, a, p in (("road", "2", "4"), ("road", "0", "0"), ("road", "0", "1"), ("building", "7", "7"))
    ]
    road, building = cl.score_answers(rows)
    assert (road.of, road.questions, road.scores, road.baseline, road.baseline_answer) == (
        "road", 3, {"MAE": 1.0}, {"MAE": pytest.approx(2 / 3)}, "0",
    )  # fmt: skip
    assert (building.of, building.scores) == ("building", {"MAE": 0})


def test_a_type_of_yes_and_no_alone_is_parsed_as_yes_and_no() -> None:
    """A type with any other answer is compared as texts."""
    predictions = ("Yes, the second one does.", "no.", "perhaps")
    both = zip(("yes", "no", "no"), predictions, strict=True)
    rows = [cl.ScoredAnswer(type="style", answer=answer, prediction=text) for answer, text in both]
    [style] = cl.score_answers(rows)
    assert (style.scores, style.unreadable) == ({"Accuracy": pytest.approx(2 / 3)}, 1)
    [mixed] = cl.score_answers([*rows, cl.ScoredAnswer(type="style", answer="red", prediction="red")])
    assert mixed.scores == {"Accuracy": 0.5}
