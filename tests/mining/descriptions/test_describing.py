"""The describe job against a real local server: rows, refusals, tokens, resume, and an endpoint that misbehaves."""

from __future__ import annotations

import base64
import importlib
import io
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.schema import ChangePair
from idc.data.store import Manifest, iter_rows, read_rejects
from idc.endpoint.chat_endpoint import EndpointError, NotAnswered
from idc.mining.descriptions.asking import data_url
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.describing import ANSWERS, describe_pairs
from idc.mining.descriptions.description_statistics import summarise_descriptions
from tests.chat_server import MODEL, Server, serving
from tests.mining.descriptions.small_pairs import described, good, job, number_in, write_pairs

COUNT = 12


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        one.answer = lambda number, content: described(number_in(content))
        yield one


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    return write_pairs(tmp_path / "pairs", COUNT)


def run_job(one: DescribeJob, overwrite: bool = False) -> Manifest:
    return describe_pairs(one, run_local, overwrite)


def numbers(server: Server) -> list[int]:
    return [number_in(body["messages"][0]["content"]) for body in server.requests]


def answer_of(server: Server, **others: tuple[int, str]) -> None:
    """The server describes pairs, but for some (``p04``), whose answers these are."""
    server.answer = lambda number, content: others.get(f"p{number_in(content):02}") or described(number_in(content))


def test_every_pair_gets_one_caption_of_the_model(server: Server, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    one = job(pairs, server.url)
    manifest = run_job(one)
    assert (manifest.num_rows, manifest.num_rejected) == (COUNT, 0)
    old = {row["pair_id"]: ChangePair.from_row(row) for row in iter_rows(pairs)}
    for number, row in enumerate(iter_rows(one.out)):
        pair, before = ChangePair.from_row(row), old[row["pair_id"]]
        assert pair.captions == (good(number),)
        assert pair.caption_origins[0].source == f"{MODEL}, structured prompt"
        assert pair.meta == {"number": number, "description": {"instruction": "cc3m", "question": 1}}
        kept = ("before", "after", "split", "source")
        assert [getattr(pair, name) for name in kept] == [getattr(before, name) for name in kept]
    body = server.requests[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("Qwen2-VL", 0.7, 300)
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "image_url", "text"]
    assert "describe the difference between the two images" in body["messages"][0]["content"][2]["text"]
    assert set(server.keys) == {"Bearer sk-test-0123456789"}
    files = [path for path in Path(pairs).parent.rglob("*") if path.is_file()]
    assert not any(b"sk-test-0123456789" in path.read_bytes() for path in files)


def test_what_is_done_is_asked_no_more_and_more_pairs_later_pay_only_for_those(
    server: Server, pairs: str, tmp_path: Path
) -> None:
    few = job(pairs, server.url, max_pairs=5, log=str(tmp_path / "log.jsonl"))
    assert run_job(few).num_rows == run_job(few).num_rows == 5
    run_job(few, overwrite=True)  # the log outlives the folder
    all_of_them = few.model_copy(update={"max_pairs": None, "out": str(tmp_path / "all")})
    assert run_job(all_of_them).num_rows == COUNT
    some = few.model_copy(update={"max_pairs": None, "splits": ("val",), "out": str(tmp_path / "val")})
    assert run_job(some).rows_by_split == {"val": 3}
    assert Counter(numbers(server)) == dict.fromkeys(range(COUNT), 1)
    with pytest.raises(ValueError, match="of another configuration"):
        run_job(few.model_copy(update={"temperature": 0.5}))


def test_a_refused_answer_is_asked_for_again_and_counted(server: Server, pairs: str) -> None:
    seen: Counter[int] = Counter()

    def answer(number: int, content: Any) -> tuple[int, str]:
        pair = number_in(content)
        seen[pair] += 1
        bad = {3: "The cubes are gone.", 7: good(7).replace("has 7 blue", "has no")}
        return (200, bad[pair]) if pair in bad and seen[pair] <= (2 if pair == 7 else 1) else described(pair)

    server.answer = answer
    describing = job(pairs, server.url)
    assert run_job(describing).num_rows == COUNT
    questions = [ChangePair.from_row(row).meta["description"]["question"] for row in iter_rows(describing.out)]
    assert [questions[3], questions[7], sum(questions)] == [2, 3, COUNT + 3]
    asked = summarise_descriptions(describing).asked
    assert (asked.answers, asked.refused) == (COUNT + 3, {"only denies": 2, "off template": 1})
    assert (asked.refused_share, asked.by_question) == (pytest.approx(3 / 15), {1: 10, 2: 1, 3: 1})
    assert (asked.prompt_tokens, asked.completion_tokens) == (1500, 300)
    assert asked.examples["off template"] == ["p03: The cubes are gone."]


def test_a_pair_that_is_always_refused_is_a_reject_and_is_not_asked_again(server: Server, pairs: str) -> None:
    answer_of(server, p04=(200, "Nice."))
    one = job(pairs, server.url, asks=2, max_reject_share=0.1)
    assert run_job(one).num_rows == COUNT - 1
    (reject,) = read_rejects(one.out)
    assert reject.row_id == "p04"
    assert reject.reason.startswith("off template: there is no 'the difference between the two images")
    assert Counter(numbers(server))[4] == 2
    run_job(one, overwrite=True)
    assert len(server.requests) == COUNT + 1


def test_an_answer_that_is_cut_off_is_refused_and_an_unreadable_image_is_a_reject(
    server: Server, tmp_path: Path
) -> None:
    server.finish_reason = "length"
    pairs = write_pairs(tmp_path / "pairs", 4, p02={"after": b"no image"})
    reasons = run_job(job(pairs, server.url, asks=1, max_reject_share=1.0)).reject_reasons
    assert reasons == {"cut off": 3, "not an image": 1}


def test_nonsense_and_silence_end_the_run_early(server: Server, tmp_path: Path, waited: list[float]) -> None:
    pairs = write_pairs(tmp_path / "many", 60)
    server.answer = lambda number, content: (200, "I cannot see images.")
    with pytest.raises(EndpointError, match=r"20 of 20 answers were refused, .* off template: .*prompt=conventional"):
        run_job(job(pairs, server.url, endpoint={"concurrency": 4}))
    assert 20 <= len(server.requests) <= 24
    server.answer = lambda number, content: (500, "oops")
    with pytest.raises(NotAnswered, match="3 requests in a row without an answer"):
        run_job(job(pairs, server.url, temperature=0.1, endpoint={"concurrency": 1, "attempts": 1}), overwrite=True)


def test_a_pair_without_an_answer_ends_the_run_after_all_others(
    server: Server, pairs: str, waited: list[float]
) -> None:
    answer_of(server, p06=(500, "oops"))
    one = job(pairs, server.url, endpoint={"attempts": 2}, max_reject_share=0.1)
    with pytest.raises(NotAnswered, match=r"1 of 12 pairs have no answer, the first one, p06: .*500 .*: oops"):
        run_job(one)
    assert Counter(numbers(server)) == {**dict.fromkeys(range(COUNT), 1), 6: 2}


def test_a_pair_that_the_endpoint_refuses_is_a_reject_and_too_many_end_the_run(server: Server, pairs: str) -> None:
    answer_of(server, p02=(400, "bad image"))
    manifest = run_job(job(pairs, server.url, max_reject_share=0.1))
    assert (manifest.num_rows, manifest.reject_reasons) == (COUNT - 1, {"refused by the endpoint": 1})
    server.answer = lambda number, content: (400, "no such parameter")
    other = job(pairs, server.url, max_reject_share=0.1, temperature=0.1, endpoint={"concurrency": 1})
    asked = len(server.requests)
    with pytest.raises(EndpointError, match=r"2 of 12 pairs cannot be asked for, .*400 Bad Request: no such parameter"):
        run_job(other.model_copy(update={"out": other.out + "2"}))
    assert len(server.requests) - asked <= 3


def test_images_are_sent_upright_small_and_in_common_formats() -> None:
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:20] = 255
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 3  # upside down

    def sent(name: str, max_side: int | None = None, **more: Any) -> tuple[str, bytes, bytes]:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, name, **more)
        head, _, data = data_url(stream.getvalue(), max_side).partition(";base64,")
        return head, base64.b64decode(data), stream.getvalue()

    for name, max_side in (("PNG", 80), ("JPEG", None)):
        head, data, original = sent(name, max_side)
        assert (head, data) == (f"data:image/{name.lower()}", original)
    head, bmp, _ = sent("BMP")
    assert (head, decode_image(bmp).tolist()) == ("data:image/png", pixels.tolist())
    assert decode_image(sent("PNG", 20)[1]).shape == (10, 20, 3)
    head, upright, _ = sent("JPEG", exif=turned)
    assert (head, decode_image(upright)[0].mean() < 10) == ("data:image/png", True)


def test_the_conventional_prompt_takes_any_text(server: Server, pairs: str) -> None:
    said = {0: "  The cubes\n turned blue. ", 1: " "}
    server.answer = lambda number, content: (200, said.get(number_in(content), "Nothing changed."))
    one = job(pairs, server.url, prompt="conventional", asks=1, max_reject_share=0.1)
    assert run_job(one).reject_reasons == {"empty": 1}
    captions = [row["captions"] for row in iter_rows(one.out)]
    assert captions[:2] == [["The cubes turned blue."], ["Nothing changed."]]
    assert summarise_descriptions(one).words_per_image is None


def test_the_command_names_what_went_wrong_and_continues(
    server: Server, pairs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("IDC_ROOT", raising=False)
    main = importlib.import_module("jobs.describe_pairs").main
    out = Path(pairs).parent / "described"
    asked = [f"pairs={pairs}", f"out={out}", f"endpoint.url={server.url}", "endpoint.model=m", "endpoint.concurrency=1"]
    monkeypatch.setattr(sys, "argv", ["describe_pairs.py", *asked])
    written: list[int] = []

    def answer(number: int, content: Any) -> tuple[int, str]:
        """What a kill at this moment would leave in the log."""
        written.append(len((out / ANSWERS).read_bytes().splitlines()) if (out / ANSWERS).exists() else 0)
        return described(number_in(content)) if number <= 2 else (403, "not yours")

    server.answer = answer
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert written == [*range(len(written))], "each answer is on disk before the next question"
    said = capsys.readouterr().err
    assert "403 Forbidden: not yours; the key is read from $OPENAI_API_KEY" in said
    assert f"The answers so far are in {out / ANSWERS}; the same command continues." in said
    answer_of(server)
    main()
    assert "12 of 12 pairs described by m, structured prompt" in capsys.readouterr().out
    assert len(server.requests) == COUNT + 1
