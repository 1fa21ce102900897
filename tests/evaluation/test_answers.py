"""Questions are put to a captioner as they are stored, dialogues after its own answers; files of answers are scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.contract import Answer, Captioner, Description, SearchOptions
from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import IMAGE, ChangePair, Instruction, Turn, instruction_arrow_schema, pair_arrow_schema
from idc.evaluation import answers as ans
from idc.evaluation.answers import ANSWERS, DIALOGUES, ask_questions
from idc.evaluation.config import AskJob
from idc.training.artifact import write_artifact
from jobs import evaluate
from tests.conftest import Command
from tests.folders import write_rows

CHANGED = f"Any change in {IMAGE} and {IMAGE}?"
HOW_MANY, WHERE = f"How many:{IMAGE} and {IMAGE}", f"Where:{IMAGE} and {IMAGE}"
Reply = Callable[[np.ndarray, Sequence[Turn]], str]


class Answering(Captioner):
    """Answers by a function of the first image and the dialogue, and remembers what it was asked."""

    capabilities = frozenset({"answer"})

    def __init__(self, reply: Reply) -> None:
        self.reply, self.asked, self.batches = reply, list[list[Turn]](), list[int]()

    def answer(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], dialogues: Sequence[Sequence[Turn]],
        *, max_tokens: int | None = None, on_text: Any = None,
    ) -> list[Answer]:  # fmt: skip
        self.batches.append(len(befores))
        self.asked += [list(turns) for turns in dialogues]
        texts = [self.reply(before, turns) for before, turns in zip(befores, dialogues, strict=True)]
        return [Answer(text, -1.0, max_tokens or 0, 1) for text in texts]

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        raise AssertionError("questions are no captions")


def image(number: int) -> bytes:
    return encode_png(np.full((8, 8, 3), number, np.uint8))


def row(name: str, number: int, turns: Sequence[tuple[str, str, str]], **more: Any) -> dict[str, Any]:
    texts = [turn for question, answer, task in turns for turn in
             (Turn("user", question), Turn("assistant", answer, task))]  # fmt: skip
    pair = {"images": (image(number), image(100 + number)), "split": "test", "of_pair": f"p{number}", **more}
    return Instruction(name, turns=tuple(texts), **pair).to_row()


def questions(folder: Path, *more: dict[str, Any]) -> str:
    rows = [
        row("p1/binary", 1, [(CHANGED, "Yes", "binary")]),
        row("p1/count-road", 1, [(HOW_MANY, "2", "count")], meta={"about": "road"}),
        row("p1/count-building", 1, [(HOW_MANY, "0", "count")], meta={"about": "building"}),
        row("p1/location-road", 1, [(WHERE, "top, left", "location")], meta={"about": "road"}),
        row("p1/caption-0", 1, [(f"Describe {IMAGE} and {IMAGE}", "a road", "caption")]),
        row("p2/binary", 2, [(CHANGED, "No", "binary")]),
        row("p1/dialogue-0", 1, [
            (CHANGED, "Yes", "binary"), ("How many roads have been changed?", "2", "count"),
            ("Where have the buildings changed?", "No change", "location"),
            ("Please describe the changes.", "a road", "caption"),
        ]),
        row("p3/binary", 3, [(CHANGED, "No", "binary")], split="train"),
        *more,
    ]  # fmt: skip
    return write_rows(folder, rows, "instructions", instruction_arrow_schema(), fingerprint=folder.name)


@pytest.fixture
def artifact(tmp_path: Path) -> str:
    return str(write_artifact(tmp_path / "artifact", system="sft", config={}, state_dict={"a": torch.zeros(1)}))


def job_of(tmp_path: Path, artifact: str, instructions: str | None = None, **settings: Any) -> AskJob:
    asked = instructions or questions(tmp_path / "questions")
    return load(AskJob, None, {"artifact": artifact, "instructions": asked, "out": str(tmp_path / "out"), **settings})


def by_image(before: np.ndarray, turns: Sequence[Turn]) -> str:
    """Right about the first pair, wrong about the second."""
    question = turns[-1].text
    if question.startswith("How many"):
        return "two" if "roads" in question else "1"
    if question.startswith("Where"):
        return "no change" if "buildings" in question else "left"
    return {1: "yes", 2: "Yes."}[int(before[0, 0, 0])]


def scores_of(scores: Any) -> dict[tuple[str, str], Any]:
    return {(measures.type, measures.of): measures for measures in scores.measures}


@pytest.mark.parametrize(("kind", "single", "in_dialogues"), [("binary", 2, 1), ("count", 2, 1), ("location", 1, 1)])
def test_a_dialogue_of_which_one_answer_is_scored_is_no_single_question(
    tmp_path: Path, artifact: str, kind: str, single: int, in_dialogues: int
) -> None:
    job = job_of(tmp_path, artifact, types=[kind])
    for _ in range(2):  # the second time from the stored answers
        scores = ask_questions(job, lambda: Answering(by_image))
        counted = [sum(measures.questions for measures in scores_of(part).values()) for part in scores]
        assert counted == [single, in_dialogues]


def test_answers_are_scored_by_type_and_class(tmp_path: Path, artifact: str) -> None:
    captioner = Answering(by_image)
    scores = ask_questions(job_of(tmp_path, artifact, batch_size=2), lambda: captioner)
    single = scores_of(scores.single)
    assert single["binary", ""].questions == 2
    assert single["binary", ""].scores["Accuracy"] == 0.5
    assert single["count", "road"].scores["MAE"] == 1.0
    assert single["count", "building"].scores["MAE"] == 1.0
    assert single["location", "road"].scores["Example-based accuracy"] == 0.5
    dialogues = scores_of(scores.dialogues)
    assert dialogues.keys() == {("binary", ""), ("count", "road"), ("location", "building")}
    assert all(measures.questions == 1 for measures in dialogues.values())
    assert dialogues["count", "road"].scores["MAE"] == 0.0
    records = [json.loads(line) for line in (tmp_path / "out" / ANSWERS).read_text().splitlines()]
    assert {record["id"] for record in records} == {
        "p1/binary/0", "p2/binary/0", "p1/count-road/0", "p1/count-building/0", "p1/location-road/0",
    }  # fmt: skip
    assert len((tmp_path / "out" / DIALOGUES / ANSWERS).read_text().splitlines()) == 3
    assert not any("escribe" in turns[-1].text for turns in captioner.asked), "captions are an evaluation's"


def test_a_dialogue_goes_on_after_the_captioners_own_answers(tmp_path: Path, artifact: str) -> None:
    captioner = Answering(lambda _, turns: f"reply {len(turns)}")
    ask_questions(job_of(tmp_path, artifact), lambda: captioner)
    last = max(captioner.asked, key=len)
    assert [turn.text for turn in last] == [
        CHANGED, "reply 1", "How many roads have been changed?", "reply 3", "Where have the buildings changed?",
    ]  # fmt: skip


def pairs_with_questions(folder: Path, *more: dict[str, Any]) -> str:
    def of(ident: str, text: str, kind: str, answer: str | None) -> dict[str, Any]:
        return {"id": ident, "question": text, "type": kind, "answer": answer}

    first = [
        of("1", "has tree changed?", "change_or_not", "yes"),
        of("2", "how much?", "change_ratio", "0_to_10"),
        of("3", "of what?", "change_to_what", None),
    ]
    second = [of("1", "has water changed?", "change_or_not", "no"), of("2", "how much?", "change_ratio", "0")]
    rows = [
        ChangePair(
            f"p{number}", image(number), image(100 + number), split="test", meta={"questions": questions}
        ).to_row()
        for number, questions in ((1, first), (2, second))
    ]
    return write_rows(folder, [*rows, *more], "pairs", pair_arrow_schema(), fingerprint=folder.name)


def test_questions_of_imported_pairs(tmp_path: Path, artifact: str) -> None:
    """CDVQA and QAG-360K: every question of a pair that has an answer is asked alone, behind both images."""
    captioner = Answering(lambda before, turns: {1: "Yes, it has.", 2: "0"}[int(before[0, 0, 0])])
    folder = pairs_with_questions(tmp_path / "cdvqa")
    scores = ask_questions(job_of(tmp_path, artifact, folder), lambda: captioner)
    assert scores.dialogues is None
    assert [turns[0].text for turns in captioner.asked] == [
        f"{IMAGE}{IMAGE}{text}" for text in ("has tree changed?", "how much?", "has water changed?", "how much?")
    ]
    single = scores_of(scores.single)
    assert single["binary", ""].scores["Accuracy"] == 0.5
    assert single["binary", ""].unreadable == 1
    assert single["change_ratio", ""].scores["Accuracy"] == scores.single.overall_accuracy == 0.5

    worded = f"In {IMAGE} and {IMAGE}, {{question}} Answer yes or no."
    reworded = job_of(
        tmp_path, artifact, folder, out=str(tmp_path / "reworded"), types=["change_or_not"], wording=worded
    )
    captioner.asked.clear()
    chosen = ask_questions(reworded, lambda: captioner).single
    assert scores_of(chosen).keys() == {("binary", "")}
    assert captioner.asked[1][0].text == f"In {IMAGE} and {IMAGE}, has water changed? Answer yes or no."


def test_an_interrupted_job_goes_on(tmp_path: Path, artifact: str) -> None:
    job = job_of(tmp_path, artifact, batch_size=2)
    calls = []

    def stopping(before: np.ndarray, turns: Sequence[Turn]) -> str:
        calls.append(turns)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return by_image(before, turns)

    with pytest.raises(KeyboardInterrupt):
        ask_questions(job, lambda: Answering(stopping))
    again = Answering(by_image)
    assert scores_of(ask_questions(job, lambda: again)[0])["binary", ""].questions == 2
    assert len(again.asked) == 4, "the second binary question and the dialogue alone"
    ask_questions(job, lambda: pytest.fail("nothing is left to ask"))
    other = ask_questions(job.model_copy(update={"split": "train"}), lambda: Answering(lambda *_: "no"))
    assert scores_of(other.single)["binary", ""].questions == 1, "of other settings nothing is taken"
    binary = ask_questions(job.model_copy(update={"types": ("binary",)}), lambda: Answering(by_image))
    assert scores_of(binary.dialogues).keys() == {("binary", "")}


ALONE = Instruction("one", (image(1),), (Turn("user", f"{IMAGE} any?"), Turn("assistant", "Yes", "binary")), "test")
ODD_PAIR = ChangePair("p4", image(3), image(4), split="test", meta={"questions": [{"id": "1"}]})


@pytest.mark.parametrize(
    ("make", "more", "settings", "fault"),
    [
        (pairs_with_questions, [], {"split": "val"}, "split 'val' has no questions with an answer"),
        (pairs_with_questions, [], {"types": ["where"]}, "split 'test' has no questions of the types where"),
        (questions, [], {"split": "val"}, "split 'val' has no questions of the types binary, count, location"),
        (questions, [], {"wording": f"{IMAGE}{IMAGE} x {{question}}"}, "instructions of .* are asked as they are"),
        (pairs_with_questions, [ODD_PAIR.to_row()], {}, "pair 'p4': meta.questions has no 'question'"),
        (questions, [row("p9/count", 9, [(HOW_MANY, "1", "count")])], {}, "row 'p9/count': .* about no class that"),
        (questions, [ALONE.to_row()], {}, "row 'one': has 1 images; a captioner answers questions about two"),
    ],
)
def test_what_cannot_be_asked_is_named(
    make: Callable[..., str], more: list[Any], settings: dict[str, Any], fault: str, tmp_path: Path, artifact: str
) -> None:
    job = job_of(tmp_path, artifact, make(tmp_path / "rows", *more), **settings)
    with pytest.raises(ValueError, match=fault):
        ask_questions(job, lambda: Answering(by_image))


def test_the_command_asks_an_artifact_that_answers(
    tmp_path: Path, artifact: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path, artifact)
    monkeypatch.setattr("idc.evaluation.answers.CaptionerLoader", lambda *_: lambda: Answering(by_image))
    command = [f"artifact={artifact}", f"instructions={job.instructions}", f"out={job.out}"]
    monkeypatch.setattr("sys.argv", ["evaluate.py", *command])
    evaluate.main()
    printed = capsys.readouterr().out
    assert "single questions: 5 answers" in printed
    assert "in dialogues: 3 answers" in printed
    silent = Answering(by_image)
    silent.capabilities = frozenset()
    monkeypatch.setattr("idc.evaluation.answers.CaptionerLoader", lambda *_: lambda: silent)
    monkeypatch.setattr("sys.argv", ["evaluate.py", *command[:2], f"out={tmp_path / 'silent'}"])
    with pytest.raises(SystemExit, match="this captioner cannot answer questions about a pair"):
        evaluate.main()


# ----------------------------------------------------------------------------------------------------- files of answers


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


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
            '{"type": "binary", "answer": "Yes", "prediction": "no", "prediction": "yes"}',
        ],
    )
    with pytest.raises(ValueError, match="line 2: not JSON") as caught:
        ans.read_answers(path)
    lines = [line.removeprefix(f"{path}, ") for line in str(caught.value).split("\n")]
    assert [line.partition(":")[0] for line in lines] == [f"line {n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)]
    assert "lacks prediction" in lines[1]
    assert "'perhaps' does not fit a binary question" in lines[2]
    assert "lacks class" in lines[3]
    assert "allow_unreadable=true" in lines[4]
    assert "in line 1 too" in lines[5]
    assert "answer must be text, got True" in lines[6]


def test_the_job(tmp_path: Path, command: Command) -> None:
    rows = [
        {"type": "binary", "answer": "Yes", "prediction": "Yes."},
        {"type": "change_or_not", "answer": "no", "prediction": "yes"},
        {"type": "count", "class": "road", "answer": 2, "prediction": "3"},
        {"type": "location", "class": "road", "answer": "top", "prediction": "somewhere"},
        {"type": "change_to_what", "answer": "Trees", "prediction": "trees."},
        {"type": "change_ratio", "answer": "0_to_10", "prediction": "10_to_20"},
        {"type": "change_ratio", "answer": "0", "prediction": "10_to_20"},
    ]
    settings = f"answers={write(tmp_path / 'answers.jsonl', [*rows])}", f"out={tmp_path / 'out'}"
    refused = command("evaluate", *settings)
    assert refused.returncode == 1
    assert "line 4: the prediction 'somewhere' cannot be read" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = command("evaluate", *settings, "allow_unreadable=true")
    assert done.returncode == 0, done.stderr
    result = ans.AnswerScores.model_validate_json((tmp_path / "out" / ans.RESULT).read_text())
    assert [(one.type, one.questions, one.unreadable) for one in result.measures] == [
        ("binary", 2, 0), ("count", 1, 0), ("location", 1, 1), ("change_to_what", 1, 0), ("change_ratio", 2, 0),
    ]  # fmt: skip
    assert result.overall_accuracy == pytest.approx(1 / 3)
    assert result.average_accuracy == pytest.approx(1 / 2)
    assert "count, road: 1 questions" in done.stdout
    assert "baseline: always 'yes'" in done.stdout
