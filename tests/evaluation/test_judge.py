"""The judge against a real local server that speaks the protocol: cache, resume, retries, refusals, no key on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idc.endpoint.chat_endpoint import EndpointError
from idc.evaluation import judge as jd
from idc.evaluation import record as ev
from tests.chat_server import Server, serving
from tests.conftest import Command

KEY = "sk-test-0123456789"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    rows = [
        ev.ScoredCaption(
            pair_id=f"p{i}", caption=f"car {i} left", references=[f"the car {i} is gone", f"no car {i}"],
            nearest=f"bus {i} left",
        )
        for i in range(4)
    ]  # fmt: skip
    baselines = {
        name: ev.Baseline(what="made", caption=caption, scores={"CIDEr": 0.1}, subsets={})
        for name, caption in (("constant", "no change"), ("nearest", None))
    }
    record = ev.Evaluation(
        fingerprint="f00d", split="test", pairs=4, references=8, distinct_captions=4, empty_captions=0,
        scores={"CIDEr": 0.5}, subsets={}, baselines=baselines, protocol={"name": "coco"},
    )  # fmt: skip
    ev.save(tmp_path / "evaluation", record, rows)
    return tmp_path / "evaluation"


def job(evaluation: Path, server: Server, **more: Any) -> jd.JudgeJob:
    out = evaluation.parent / "judge"
    return jd.JudgeJob(evaluation=str(evaluation), out=str(out), url=server.url, judge="judge", **more)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 75\nIt misses the place.", 75), ("**Score:** 66.7", 66.7), ("The score is 40. Two of 5 aspects.", 40),
        ("80\nGood.", 80), ("Score: 85/100", 85), ("**85%**", 85), ("Score: 3/5", None), ("Score: 3 out of 5.", None),
        ("Score: 0.8", None), ("0", 0), ("1. Read both texts with care.\n2. List the aspects.", None),
        ("Read 2 texts.", None), ("Score: -5", None), ("Score: 120", None), ("", None),
    ],
)  # fmt: skip
def test_read_score(reply: str, score: float | None) -> None:
    assert jd.read_score(reply) == score


def test_scores_beside_baselines_and_nothing_is_asked_twice(
    server: Server, evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def answer(number: int, prompt: str) -> tuple[int, str]:
        said = prompt.rsplit("Program's text: ", 1)[1]
        return 200, f"Score: {70 if 'car 0' in said else 60 if 'car' in said else 20 if 'bus' in said else 0}"

    server.answer = answer
    result = jd.run_judge(job(evaluation, server))
    assert {name: (one.pairs, one.mean) for name, one in result.scores.items()} == {
        "model": (4, 62.5), "constant": (4, 0), "nearest": (4, 20),
    }  # fmt: skip
    assert result.scores["model"].std == pytest.approx(5)
    assert result.per_pair == {"p0": 70, "p1": 60, "p2": 60, "p3": 60}
    assert (result.judge, result.answered_by, result.prompt) == ("judge", ["judge-2026"], jd.PROMPT_NAME)
    assert (result.evaluation_fingerprint, result.split, result.asked) == ("f00d", "test", 12)
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert set(server.paths) == {"/v1/chat/completions"}
    first = server.requests[0]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("judge", 0, 300)
    assert jd.run_judge(job(evaluation, server)).model_copy(update={"asked": 12}) == result
    assert len(server.requests) == 12
    assert not any(KEY in path.read_text() for path in evaluation.parent.rglob("*") if path.is_file())


def test_the_first_reference_counts(server: Server, evaluation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # Of the first pair the second reference is the better one, of the others the first.
    server.answer = lambda number, prompt: (
        200, "Score: 90" if ("True text: no car" in prompt) == ("car 0" in prompt) else "Score: 30"
    )  # fmt: skip
    result = jd.run_judge(job(evaluation, server, baselines=False))
    assert (result.scores["model"].mean, result.asked) == (75, 4)
    assert set(server.keys) == {None}


def test_an_endpoint_gets_no_answers_of_another_whose_model_has_the_same_name(server: Server, evaluation: Path) -> None:
    with serving() as other:
        other.answer = lambda number, prompt: (200, "Score: 90")
        first, second = (jd.run_judge(job(evaluation, one, baselines=False)) for one in (server, other))
        again = jd.run_judge(job(evaluation, server, baselines=False).model_copy(update={"url": server.url + "/"}))
    assert [one.scores["model"].mean for one in (first, second, again)] == [50, 90, 50]
    assert [one.asked for one in (first, second, again)] == [4, 4, 0]


def test_another_prompt_word_for_word(server: Server, evaluation: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "figure6.txt"
    prompt.write_text("GT: {standard_answer} Model: {assistant_response}")
    result = jd.run_judge(job(evaluation, server, prompt=str(prompt), baselines=False))
    assert server.requests[0]["messages"][0]["content"].startswith("GT: the car ")
    assert result.prompt == "figure6.txt"
    assert result.prompt_sha256 != jd.run_judge(job(evaluation, server, baselines=False)).prompt_sha256
    prompt.write_text("{standard_answer}")
    assert [*job(evaluation, server, prompt=str(prompt)).preflight()] == [
        f"prompt: '{prompt}' has no {{assistant_response}}"
    ]


def test_the_job_names_what_went_wrong(
    server: Server, evaluation: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    asked = [f"evaluation={evaluation}", f"out={evaluation.parent / 'judge'}", f"url={server.url}", "judge=judge"]
    asked += ["baselines=false", "api_key_variable=MY_KEY"]
    server.answer = lambda number, prompt: (401, "bad key")
    refused = command("evaluate", *asked)
    assert refused.returncode == 1
    assert "401 Unauthorized: bad key; the key is read from $MY_KEY" in refused.stderr
    assert KEY not in refused.stderr + refused.stdout
    server.answer = lambda number, prompt: (200, "Nice." if "car 2" in prompt else "Score: 80")
    unusable = command("evaluate", *asked)
    assert "1 answers without a score" in unusable.stderr
    assert "no score in the answer for p2 (model): 'Nice.'" in unusable.stderr
    server.answer = lambda number, prompt: (200, "Score: 40")
    done = command("evaluate", *asked)
    assert "4 judgements, 1 requests" in done.stdout
    assert "model               70.00  (standard deviation over 4 pairs 20.00)" in done.stdout


def test_a_run_that_was_cut_goes_on(server: Server, evaluation: Path) -> None:
    server.answer = lambda number, prompt: (200, "Score: 10") if number <= 2 else (400, "context too long")
    with pytest.raises(EndpointError, match="400 Bad Request: context too long"):
        jd.run_judge(job(evaluation, server, concurrency=1, baselines=False))
    answers = evaluation.parent / "judge" / jd.ANSWERS
    assert len(answers.read_text().splitlines()) == 2
    answers.write_text(answers.read_text() + '{"key": "cut', encoding="utf-8")
    server.answer = lambda number, prompt: (200, "Score: 30")
    result = jd.run_judge(job(evaluation, server, baselines=False))
    assert (result.asked, result.scores["model"].mean) == (2, 20)
    assert len(answers.read_text().splitlines()) == 4


def test_a_pair_whose_references_are_empty_is_not_judged(
    server: Server, evaluation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ev.load_predictions(evaluation)
    rows[0] = rows[0].model_copy(update={"references": [""]})
    ev.save(evaluation, ev.load_evaluation(evaluation), rows)
    result = jd.run_judge(job(evaluation, server, baselines=False))
    assert (result.per_pair.keys(), result.asked) == ({"p1", "p2", "p3"}, 3)
    assert "not judged: 1 of 4 pairs, whose references are all empty" in capsys.readouterr().out
