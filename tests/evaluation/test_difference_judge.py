"""The judge of differences against a real local server: what is read of its answers, counted, kept and asked again."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from idc.chat_endpoint import EndpointError, Reply
from idc.evaluation import difference_judge as dj
from idc.evaluation import judged_differences as jd
from idc.evaluation import record as ev
from idc.evaluation.judge import JudgeJob
from idc.metrics.difference_lists import F1, INVENTED, PRECISION, RECALL
from tests.chat_server import Server, serving
from tests.data.descriptions.small_pairs import write_pairs

GONE = {"pair_id": "gone", "references": ["the red car left", "the red car is gone"], "caption": "a red car left"}
TWO: dict[str, Any] = {
    "pair_id": "two",
    "references": ["the bus left and a man came", "a man appeared; the bus is gone"],
    "caption": "the bus left, a dog came and a man came",
}
NONE = {"pair_id": "none", "references": ["nothing changed"], "caption": "the tree fell"}
TRUE = {"gone": ["the red car left"], "two": ["the bus left", "a man came"], "none": []}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        one.answer = answer
        yield one


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    return saved(tmp_path / "evaluation", [GONE, TWO, NONE])


def saved(folder: Path, rows: list[dict[str, Any]], fingerprint: str = "f00d") -> Path:
    scored = [ev.ScoredCaption(**row, nearest="a man came") for row in rows]
    baselines = {
        name: ev.Baseline(what="made", caption=caption, scores={"CIDEr": 0.1}, subsets={})
        for name, caption in (("constant", "nothing changed"), ("nearest", None))
    }
    record = ev.Evaluation(
        fingerprint=fingerprint, split="test", pairs=len(rows), references=5, distinct_captions=3, empty_captions=0,
        scores={"CIDEr": 0.5}, subsets={}, baselines=baselines, protocol={"name": "coco"},
    )  # fmt: skip
    ev.save(folder, record, scored)
    return folder


def job(evaluation: Path, server: Server, **more: Any) -> JudgeJob:
    settings: dict[str, Any] = {"out": str(evaluation.parent / "judged"), "baselines": False, **more}
    return JudgeJob(criteria="differences", evaluation=str(evaluation), url=server.url, judge="judge", **settings)


def sections(prompt: str) -> tuple[str, str, list[str]]:
    """The true list, the caption, and the references of a question."""
    true = re.search(r"true and complete\.\n\n(.*?)\n\nPeople", prompt, re.DOTALL)
    caption = re.search(r"A program that saw both images wrote:\n\n(.*?)\n\nTake", prompt, re.DOTALL)
    return true[1] if true else "", caption[1] if caption else "", re.findall(r"^- (.*)$", prompt, re.MULTILINE)


def answer(number: int, prompt: str) -> tuple[int, str]:
    """A judge that splits captions at "," and "and", and compares their words with those of the list."""
    true, caption, references = sections(prompt)
    if "A program" not in prompt:
        found = next(true for pair, true in TRUE.items() if references == by_id(pair)["references"])
        return 200, json.dumps({"differences": found})
    listed = [set(line.split(". ")[1].split()) for line in true.split("\n") if ". " in line]
    claims: list[dict[str, Any]] = []
    for part in re.split(r", | and ", caption):
        if part != "nothing changed":
            words = set(part.split()) - {"a", "the"}
            number_ = next((i for i, one in enumerate(listed, 1) if words <= one), None)
            claims.append({"claim": part, "number": number_})
    return 200, json.dumps({"claims": claims})


def by_id(pair: str) -> dict[str, Any]:
    return next(row for row in (GONE, TWO, NONE) if row["pair_id"] == pair)


def instead(pair: str, reply: str | Callable[[int], str]) -> Callable[[int, Any], tuple[int, str]]:
    """The judge above, but for the caption of a pair."""
    asked: list[int] = []

    def one(number: int, prompt: str) -> tuple[int, str]:
        if sections(prompt)[1] == by_id(pair)["caption"]:
            asked.append(number)
            return 200, reply if isinstance(reply, str) else reply(len(asked))
        return answer(number, prompt)

    return one


# ---------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ('{"claims": []}', []),
        ('{"claims": [{"claim": "a", "number": 2}, {"claim": "b", "number": null}]}', [2, None]),
        ('Here {it} is:\n```json\n{"claims": [{"claim": "a {b}", "number": 1}]}\n```\nI hope it helps.', [1]),
        ("", "no JSON object"),
        ("Two of three are right.", "no JSON object"),
        ('{"claims": [{"claim": "a", "number": 1}]', 'not {"claims": [...]}'),
        ('{"claims": []} or rather {"claims": [{"claim": "a", "number": 1}]}', "2 JSON objects"),
        ('{"claims": [], "score": 5}', 'not {"claims": [...]}'),
        ('{"claims": 3}', 'not {"claims": [...]}'),
        ('{"claims": ["a"]}', 'a claim is not {"claim": "...", "number": ...} but "a"'),
        ('{"claims": [{"claim": " ", "number": 1}]}', "a claim is not"),
        ('{"claims": [{"claim": "a"}]}', "a claim is not"),
        ('{"claims": [{"claim": "\\ud83d", "number": 1}]}', "a claim is not"),
        ('{"claims": [{"claim": "a", "number": 0}]}', "the number 0 is none of the 2 true differences"),
        ('{"claims": [{"claim": "a", "number": 3}]}', "the number 3 is none of the 2 true differences"),
        ('{"claims": [{"claim": "a", "number": "1"}]}', 'the number "1" is none'),
        ('{"claims": [{"claim": "a", "number": 1.0}]}', "the number 1.0 is none"),
        ('{"claims": [{"claim": "a", "number": true}]}', "the number true is none"),
        ('{"claims": [{"claim": "a", "number": 2}, {"claim": "b", "number": 2}]}', "difference 2 is stated by several"),
    ],
)
def test_read_claims(reply: str, found: list[int | None] | str) -> None:
    if isinstance(found, str):
        with pytest.raises(ValueError, match=re.escape(found)):
            dj.read_judged_claims(Reply(reply, "m"), 2)
    else:
        assert [claim.number for claim in dj.read_judged_claims(Reply(reply, "m"), 2)] == found


def test_an_answer_that_was_cut_off_is_not_read() -> None:
    with pytest.raises(ValueError, match="cut off at max_tokens"):
        dj.read_judged_claims(Reply('{"claims": []}', "m", cut_off=True), 2)
    with pytest.raises(ValueError, match="a difference is not a text"):
        dj.read_differences(Reply('{"differences": ["a", ""]}', "m"))


# --------------------------------------------------------------------------------------------------------- the job


def test_lists_from_references_matched_and_counted(server: Server, evaluation: Path) -> None:
    result = dj.run_difference_judge(job(evaluation, server, baselines=True))
    assert (result.true, result.from_record) == (TRUE, 0)
    model = result.systems["model"]
    assert {pair: [claim.number for claim in one.claims] for pair, one in model.pairs.items()} == {
        "gone": [1], "two": [1, None, 2], "none": [None],
    }  # fmt: skip
    # of "gone" the only claim is right, of "two" two of three are, "none" has an invented one
    assert model.scores == pytest.approx(
        {PRECISION: (1 + 2 / 3 + 0) / 3, RECALL: 2 / 3, F1: (1 + 4 / 5 + 0) / 3, INVENTED: (0 + 1 / 3 + 1) / 3}
    )
    # it claims nothing, which is right where nothing changed
    assert result.systems["constant"].scores == pytest.approx({PRECISION: 1 / 3, RECALL: 1 / 3, F1: 1 / 3, INVENTED: 0})
    assert result.systems["nearest"].scores[RECALL] == pytest.approx(1 / 2 / 3)
    for name, one in model.intervals.items():
        assert one.low <= model.scores[name] <= one.high, name
    assert model.intervals[PRECISION].low < model.intervals[PRECISION].high
    assert result.asked == len(server.requests) == 3 + 9
    assert (server.requests[0]["max_tokens"], server.requests[0]["temperature"]) == (1500, 0)
    assert (result.protocol["name"], result.answered_by) == (dj.PROTOCOL, ["judge-2026"])
    assert any("abstract" in text for text in result.protocol["deviations"])
    again = dj.run_difference_judge(job(evaluation, server, baselines=True))
    assert (again.asked, len(server.requests)) == (0, 12)
    assert again == result.model_copy(update={"asked": 0})


CUBE = {"shape": "cube", "color": "red", "material": "metal", "size": "large", "radius": 0.7, "x": 2.0, "y": 2.0}
BALL = {**CUBE, "shape": "sphere", "color": "blue", "size": "small", "x": -2.0, "y": -1.0}
VIEW = {"origin": [7.5, -6.5, 5.4], "target": [0.0, 0.0, 0.0]}


def test_the_true_list_of_the_record_is_used(server: Server, evaluation: Path, tmp_path: Path) -> None:
    meta = {
        "before": [CUBE, BALL], "after": [{**BALL, "color": "green"}], "views": [VIEW, VIEW],
        "differences": [{"kind": "drop", "before": [0]}, {"kind": "color", "before": [1], "after": [0]}],
    }  # fmt: skip
    rows = {row["pair_id"]: tuple(row["references"]) for row in (GONE, TWO, NONE)}
    changed = {f"p{i:02}": {"pair_id": pair, "captions": texts, "meta": meta if pair == "two" else {}}
               for i, (pair, texts) in enumerate(rows.items())}  # fmt: skip
    pairs = write_pairs(tmp_path / "pairs", 3, **changed)
    server.answer = lambda number, prompt: (
        (200, '{"claims": [{"claim": "it is green", "number": 2}]}')
        if sections(prompt)[1] == TWO["caption"]
        else answer(number, prompt)
    )
    result = dj.run_difference_judge(job(evaluation, server, pairs=pairs))
    assert (result.from_record, result.asked) == (1, 2 + 3)
    assert result.true["two"] == [
        "removed: the large red metal cube (at the right, halfway back)",
        "color changed: the small metal sphere (at the left, halfway back): blue before, green after",
    ]
    question = next(text for text in contents(server) if str(TWO["caption"]) in text)
    assert "1. removed: the large red metal cube" in question
    assert "- the bus left and a man came" in question, "the references help to find which thing is meant"
    assert any("(nothing differs)" in text for text in contents(server)), "the pair of which nothing changed"

    other = write_pairs(tmp_path / "others", 3, **{**changed, "p01": {**changed["p01"], "captions": ("a bird",)}})
    with pytest.raises(ValueError, match=f"pairs: '{other}' has other references of two than '{evaluation}'"):
        dj.run_difference_judge(job(evaluation, server, pairs=other))
    del changed["p02"]
    fewer = write_pairs(tmp_path / "fewer", 2, **changed)
    with pytest.raises(ValueError, match=f"pairs: '{fewer}' lacks 1 evaluated pairs: none"):
        dj.run_difference_judge(job(evaluation, server, pairs=fewer))


def contents(server: Server) -> list[str]:
    return [str(request["messages"][0]["content"]) for request in server.requests]


def test_two_evaluations_compared(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("jobs.compare").main
    monkeypatch.delenv("IDC_ROOT", raising=False)
    answers = str(tmp_path / "answers.jsonl")
    better = [{**GONE}, {**TWO, "caption": "the bus left and a man came"}, {**NONE, "caption": "nothing changed"}]
    folders = {}
    for name, rows in (("a", [GONE, TWO, NONE]), ("b", better)):
        evaluated = saved(tmp_path / name / "evaluation", rows, name)
        folders[name] = dj.run_difference_judge(job(evaluated, server, answers=answers)).asked
    assert folders == {"a": 6, "b": 2}, "the lists of references, and equal captions, are not asked for again"
    sets = [f"{name}={tmp_path / name / 'judged'}" for name in "ab"]
    monkeypatch.setattr(sys, "argv", ["compare.py", *sets, f"out={tmp_path / 'found.json'}"])
    main()
    said = capsys.readouterr().out
    assert "protocol difference-lists-judge-1" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["metrics"][F1]["a"], found["metrics"][F1]["b"]) == (pytest.approx(0.6), 1)
    assert found["metrics"][INVENTED]["difference"] == pytest.approx(-4 / 9)
    assert 0 < found["metrics"][F1]["p"] <= 1

    path = tmp_path / "b" / "judged" / jd.RESULT
    record = json.loads(path.read_text())
    for change, fault in (
        (
            {"true": {**record["true"], "two": ["a bus left", "a man came"]}},
            "not the same true differences: .* 1 pairs",
        ),
        ({"true": {"gone": ["it left"]}}, "not the same pairs: 2 are in one"),
        ({"protocol": {**record["protocol"], "judge": "other"}}, "not the same judge: judge is 'judge' and 'other'"),
        ({"unusable": {"two (model)": "Hm."}}, "lacks 1 captions, whose answers were unusable"),
    ):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(SystemExit, match=f"compare: .*{fault}"):
            main()
    path.unlink()
    with pytest.raises(SystemExit, match=r"has no judged_differences\.json; `python jobs/judge\.py"):
        main()


def test_a_caption_without_words_claims_nothing_and_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    folder = saved(tmp_path / "evaluation", [{**GONE, "caption": " "}, {**TWO, "caption": "a man came"}])
    result = dj.run_difference_judge(job(folder, server))
    assert (result.asked, result.systems["model"].pairs["gone"].claims) == (3, [])
    assert result.systems["model"].scores[RECALL] == pytest.approx(1 / 2 / 2)


def test_an_unusable_answer_is_returned_with_its_fault(server: Server, evaluation: Path) -> None:
    bad = '{"claims": [{"claim": "a", "number": 7}]}'
    good = '{"claims": [{"claim": "it left", "number": 1}]}'
    server.answer = instead("gone", lambda times: bad if times == 1 else good)
    result = dj.run_difference_judge(job(evaluation, server))
    assert (result.unusable, result.asked, len(server.requests)) == ({}, 6, 7)
    turns = next(request["messages"] for request in server.requests if len(request["messages"]) > 1)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == bad
    assert "cannot be used: the number 7 is none of the 1 true differences." in turns[2]["content"]


def test_nonsense_is_named_and_asked_again(
    server: Server, evaluation: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("jobs.judge").main
    asked = [f"evaluation={evaluation}", f"out={evaluation.parent / 'judged'}", f"url={server.url}", "judge=judge"]
    monkeypatch.delenv("IDC_ROOT", raising=False)
    monkeypatch.setattr(sys, "argv", ["judge.py", "criteria=differences", "baselines=false", *asked])
    server.answer = instead("two", "Lovely weather.")
    with pytest.raises(SystemExit, match="1 answers without a usable list of differences; the same command"):
        main()
    said = capsys.readouterr()
    assert "answer for two (model): 'it has no JSON object: Lovely weather.'" in said.err
    result = jd.DifferencesJudged.model_validate_json((evaluation.parent / "judged" / jd.RESULT).read_text())
    assert result.systems["model"].pairs.keys() == {"gone", "none"}
    before = len(server.requests)
    server.answer = answer
    main()
    assert len(server.requests) == before + 1
    assert "model                       3" in capsys.readouterr().out


def test_references_of_which_no_list_can_be_taken(server: Server, evaluation: Path) -> None:
    server.answer = lambda number, prompt: (200, "Hm.") if "A program" not in prompt else answer(number, prompt)
    result = dj.run_difference_judge(job(evaluation, server))
    assert result.systems == {}
    assert result.unusable.keys() == {"gone (references)", "two (references)", "none (references)"}
    assert "judged by judge" in jd.judged_differences_table(result)


def test_an_interrupted_run_goes_on(server: Server, evaluation: Path) -> None:
    server.answer = lambda number, prompt: answer(number, prompt) if number <= 4 else (400, "context too long")
    with pytest.raises(EndpointError, match="400 Bad Request: context too long"):
        dj.run_difference_judge(job(evaluation, server, concurrency=1))
    answers = evaluation.parent / "judged" / "answers.jsonl"
    assert len(answers.read_text().splitlines()) == 4
    answers.write_text(answers.read_text() + '{"key": "cut', encoding="utf-8")
    server.answer = answer
    result = dj.run_difference_judge(job(evaluation, server))
    assert (result.asked, result.systems["model"].scores[F1]) == (2, pytest.approx(0.6))


def test_settings_of_the_other_criteria_are_refused(server: Server, evaluation: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prompt: criteria=differences has its own prompts"):
        job(evaluation, server, prompt="figure6.txt")
    with pytest.raises(ValueError, match="references: criteria=differences always gives the judge all; remove 'best'"):
        job(evaluation, server, references="best")
    with pytest.raises(ValueError, match="pairs: only criteria=differences"):
        JudgeJob(evaluation=str(evaluation), out="o", url=server.url, judge="j", pairs="p")
