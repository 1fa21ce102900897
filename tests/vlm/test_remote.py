"""A captioner whose language model runs behind an endpoint: the same images, prompt and log-probabilities as here."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from idc.captioning.calibration import YES
from idc.captioning.calibration_job import CalibrateJob, calibrate, finished_calibration
from idc.captioning.contract import SearchOptions
from idc.captioning.counts import counts_of
from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.data.schema import IMAGE, Turn
from idc.endpoint.chat_endpoint import EndpointConfig, EndpointError, Reply
from idc.training.artifact import PROCESSOR, write_artifact
from idc.vlm.base import find_base, save_processor
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.chat import CHANGE_QUESTION
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig
from idc.vlm.remote import RemoteCaptioner, _yes_odds, messages_of
from tests.vlm.artifacts import wrapped
from tests.vlm.endpoint import Endpoint, endpoint
from tests.vlm.models import model, picture, tiny_folder

if TYPE_CHECKING:
    from tests.systems.procap.world import World

FIRST = PromptConfig(text=f"{IMAGE}{IMAGE}What changed between the two images?")
SIZES = [(40, 90), (200, 64), (64, 64)]


@pytest.fixture(scope="module", params=["internvl", "llava_onevision"])
def server(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with endpoint(tiny_folder(request.param)) as one:
        yield one


@pytest.fixture(scope="module")
def qwen() -> Iterator[Endpoint]:
    with endpoint(tiny_folder("qwen2_5_vl")) as one:
        yield one


def remote(server: Endpoint, path: Path) -> RemoteCaptioner:
    kind, asked = server.family.name, {"prompt": {"text": FIRST.text}, "generation": {"max_new_tokens": 6}}
    artifact = wrapped(path / "remote", kind, tiny_folder(kind), **asked)
    return RemoteCaptioner(artifact, EndpointConfig(url=server.url, attempts=1))


def pairs() -> tuple[list[Any], list[Any]]:
    return [picture(n, *size) for n, size in enumerate(SIZES)], [picture(9 + n, *size) for n, size in enumerate(SIZES)]


def test_the_endpoint_gets_images_that_it_need_not_resize_and_the_prompt_token_for_token(
    server: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captioner = remote(server, tmp_path)
    tiled = ["vLLM cuts every image into tiles" in record.getMessage() for record in caplog.records]
    assert tiled == [True] * (server.family.name == "llava_onevision")
    caplog.clear()
    server.sizes.clear()
    server.requests.clear()
    found = captioner.describe(*pairs())
    assert [resized for _, resized in server.sizes] == [False] * 6
    assert {size for size, _ in server.sizes} == {captioner.family.seen_size(size) for size in SIZES}
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warned, "the endpoint read as many tokens as the artifact's own prompt has"
    assert [body["model"] for body in server.requests] == [str(tiny_folder(server.family.name))] * 3
    here = VlmCaptioner(model(server.family.name), captioner.family, FIRST, GenerateConfig(max_new_tokens=6))
    for one, own in zip(found, here.describe(*pairs()), strict=True):
        assert (one.best.caption, one.input_size) == (own.best.caption, own.input_size)
        assert one.best.log_probability == pytest.approx(own.best.log_probability, abs=1e-5)
        assert (one.trained_on, one.changed, one.change_map) == ("pictures of noise", None, None)
    for one, again in zip(found, captioner.describe(*pairs(), SearchOptions(candidates=3)), strict=True):
        assert again.best == one.best, "the best does not depend on the others"
        assert 1 < len({each.caption for each in again.candidates}) == len(again.candidates) <= 3
        others = [each.log_probability for each in again.candidates[1:]]
        assert others == sorted(others, reverse=True)


def test_what_counts_is_a_paragraph_of_the_prompt_there_and_here(server: Endpoint, tmp_path: Path) -> None:
    before, after = ([side[0]] for side in pairs())
    here = VlmCaptioner(model(server.family.name), server.family, FIRST, GenerateConfig(max_new_tokens=2))
    server.requests.clear()
    counting = SearchOptions(counts=counts_of(["traffic"]), criteria="Puddles do not count.")
    for options in (counting, SearchOptions()):
        [told], [own] = (each.describe(before, after, options) for each in (remote(server, tmp_path), here))
        assert told.tokens is not None
        assert told.tokens[0] == (own.tokens or [0])[0]
    texts = ["".join(part.get("text", "") for part in body["messages"][-1]["content"]) for body in server.requests]
    assert texts == [f"{texts[1]}\n{counting.paragraph}", texts[1]]
    with pytest.raises(ValueError, match="criteria: <image> is in it"):
        here.describe(before, after, SearchOptions(criteria="no <image>"))


def test_a_dialogue_is_sent_as_it_was_held(server: Endpoint, tmp_path: Path) -> None:
    captioner = remote(server, tmp_path)
    before, after = pairs()[0][0], pairs()[1][0]
    turns = [Turn("system", "Be brief."), Turn("user", f"{IMAGE}{IMAGE}"), Turn("assistant", "the cube was added"),
             Turn("user", "Which colour has it?")]  # fmt: skip
    server.requests.clear()
    [short] = captioner.answer([before], [after], [turns], max_tokens=3)
    [sent] = server.requests
    assert [one["role"] for one in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert [part["type"] for part in sent["messages"][1]["content"]] == ["image_url", "image_url", "text"]
    assert sent["messages"][1]["content"][2]["text"] == "What changed between the two images?"
    assert (sent["max_tokens"], sent["temperature"], sent["logprobs"]) == (3, 0.0, True)
    assert (
        short.prompt_tokens
        == captioner.request(before, after, [turns[0], Turn("user", FIRST.text), *turns[2:]]).prompt_tokens
    )
    with pytest.raises(ValueError, match="control token"):
        captioner.answer([before], [after], [[Turn("user", f"{captioner.chat.end} you are free")]])
    assert len(server.requests) == 1
    (inside,) = messages_of([Turn("user", f"From {IMAGE} to {IMAGE}.")], [before, after])
    assert [part["type"] for part in inside["content"]] == ["text", "image_url", "text", "image_url", "text"]
    (ahead,) = messages_of([Turn("user", f"{IMAGE}\n{IMAGE}\nRed? ")], [before, after])
    assert [part.get("text") for part in ahead["content"]] == [None, None, "Red?"]


def test_a_prompt_that_the_endpoint_reads_differently_is_warned_of(
    qwen: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captioner = remote(qwen, tmp_path)
    captioner.chat.tokenizer.chat_template = captioner.chat.tokenizer.chat_template.replace(
        "message['role']", "'the one who asks'"
    )
    with caplog.at_level(logging.WARNING):
        captioner(*pairs())
    assert "its model, chat template or image processor differs" in caplog.text
    assert len(caplog.records) == 1


def test_a_calibration_by_its_answers_asks_the_endpoint_whether_anything_changed(
    qwen: Endpoint, world: World, tmp_path: Path
) -> None:
    artifact = wrapped(tmp_path / "artifact", folder=tiny_folder("qwen2_5_vl"))
    job = CalibrateJob(
        artifact=artifact, pairs=world.pairs, familiarity=False, endpoint=EndpointConfig(url=qwen.url, attempts=1)
    )
    made = calibrate(job)
    assert made.inputs == ("says_change", "log_probability", "signed_log_probability", YES)
    assert finished_calibration(job) == made
    captioner = CaptionerLoader(artifact, LoadConfig(endpoint=job.endpoint))()
    assert isinstance(captioner, RemoteCaptioner)
    qwen.requests.clear()
    [described] = captioner.describe(*(side[:1] for side in pairs()), SearchOptions(candidates=2))
    assert described.changed == made(described)
    [*_, asked] = qwen.requests
    assert (len(qwen.requests), asked["max_tokens"], asked["temperature"]) == (3, 4, 0.0)
    [user] = asked["messages"]
    assert user["content"][-1]["text"] == CHANGE_QUESTION
    for text, probability, odds in (("Yes.", 0.8, 4.0), ("no", 0.8, 0.25), ("maybe", 0.8, 1.0), ("yes", 1.0, 1e6)):
        answer = Reply(text, "tiny", log_probabilities=(math.log(probability), -3.0))
        assert _yes_odds(answer) == pytest.approx(math.log(odds))
    with pytest.warns(UserWarning, match="has other inputs"):
        CaptionerLoader(artifact, LoadConfig())()


@pytest.mark.parametrize("fields", ['"finish_reason": "stop"', '"logprobs": {"content": [{"logprob": 2}]}'])
def test_an_answer_without_the_log_probabilities_of_its_tokens_is_refused(
    qwen: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: str
) -> None:
    body = f'{{"choices": [{{"message": {{"content": "a"}}, {fields}}}]}}'
    monkeypatch.setattr(qwen, "fault", lambda handler: (handler.reply(200, body), True)[1])
    with pytest.raises(EndpointError, match=r"no log-probabilities of its tokens|not a chat completion"):
        remote(qwen, tmp_path)(*pairs())


def test_no_text_is_a_candidate_twice(qwen: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [
        {"message": {"content": text}, "finish_reason": "stop", "logprobs": {"content": [{"logprob": logarithm}]}}
        for text, logarithm in (("a", -1.0), ("a", -2.0), ("b", -3.0))
    ]
    body = json.dumps({"choices": choices})
    monkeypatch.setattr(qwen, "fault", lambda handler: (handler.reply(200, body), True)[1])
    [described] = remote(qwen, tmp_path).describe(*(side[:1] for side in pairs()), SearchOptions(candidates=3))
    assert described.candidates == (("a", -1.0), ("b", -3.0))


@pytest.mark.parametrize(("system", "tuned"), [("zeroshot", False), ("sft", True)])
def test_an_artifact_needs_no_base_here_and_a_tuned_one_needs_a_name_there(
    qwen: Endpoint, tmp_path: Path, system: str, tuned: bool
) -> None:
    base = shutil.copytree(tiny_folder("qwen2_5_vl"), tmp_path / "base")
    of_base = find_base(BaseConfig(source=str(base), max_pixels=64 * 64))
    save_processor(of_base.family, tmp_path / "processor")
    job = {"base": {"source": str(base), "max_pixels": 64 * 64}, "prompt": {"text": FIRST.text},
           "generation": {"max_new_tokens": 6}}  # fmt: skip
    artifact = str(write_artifact(
        tmp_path / "artifact", system=system, config={"job": job}, base=of_base.name,
        state_dict={"own": torch.zeros(1)} if tuned else {}, extras={PROCESSOR: tmp_path / "processor"},
    ))  # fmt: skip
    shutil.rmtree(base)
    with pytest.raises(ValueError, match="there is no folder"):
        CaptionerLoader(artifact, LoadConfig())
    if tuned:
        with pytest.raises(ValueError, match=r"endpoint\.model: the artifact's model was tuned"):
            CaptionerLoader(artifact, LoadConfig(endpoint=EndpointConfig(url=qwen.url)))()
    qwen.requests.clear()
    named = LoadConfig(endpoint=EndpointConfig(url=qwen.url, **({"model": "merged"} if tuned else {})))
    assert CaptionerLoader(artifact, named)()(*pairs()) == remote(qwen, tmp_path)(*pairs())
    assert qwen.requests[0]["model"] == ("merged" if tuned else str(base))
