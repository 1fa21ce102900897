"""Dialogues through the server, with the real ``openai`` package and a small vision-language model behind it: in this
process, and behind an endpoint."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
import torch

from idc.captioning.contract import Answer
from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig
from idc.data.images import decode_image
from idc.data.schema import IMAGE, Turn
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.vlm.chat import caption_turns
from idc.vlm.config import PromptConfig
from serve.api import create_api
from serve.backend import EncodedPair
from tests.serve.bodies import picture, upload, url
from tests.serve.local import LocalBackend, local_config, serving
from tests.serve.waiting import until
from tests.vlm.artifacts import QUESTION, TEXT, speaking_folder, wrapped
from tests.vlm.endpoint import Endpoint, endpoint

FILES = picture(90, 60), picture(70, 200, shade=140)
PARTS = [{"type": "image_url", "image_url": {"url": url(file)}} for file in FILES]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    return wrapped(tmp_path_factory.mktemp("vlm") / "artifact")


@pytest.fixture(scope="module")
def behind() -> Iterator[Endpoint]:
    with endpoint(speaking_folder("qwen2_5_vl")) as one:
        yield one


def loading(behind: Endpoint, timeout_s: float = 60.0) -> LoadConfig:
    """How an artifact is loaded whose language model runs behind the endpoint."""
    return LoadConfig(endpoint=EndpointConfig(url=behind.url, attempts=1, concurrency=4, timeout_s=timeout_s))


@pytest.fixture(scope="module", params=["here", "endpoint"])
def backend(request: pytest.FixtureRequest, artifact: str, behind: Endpoint) -> LocalBackend:
    return LocalBackend(artifact, load=DEFAULTS if request.param == "here" else loading(behind))


@pytest.fixture(scope="module")
def address(artifact: str, backend: LocalBackend) -> Iterator[str]:
    with serving(create_api(local_config(artifact), backend)) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as one:
        yield one


def said(artifact: str, *turns: Turn, max_tokens: int | None = None) -> Answer:
    """The answer of the artifact itself."""
    captioner: Any = CaptionerLoader(artifact, LoadConfig())()
    before, after = (decode_image(file) for file in FILES)
    [found] = captioner.answer([before], [after], [turns], max_tokens=max_tokens)
    return found


def test_a_question_in_two_turns(client: openai.OpenAI, artifact: str) -> None:
    turns: list[Any] = [{"role": "user", "content": PARTS}]
    first = client.chat.completions.create(model="demo", messages=turns)
    caption = str(first.choices[0].message.content)
    chat = CaptionerLoader(artifact, LoadConfig())().chat
    assert caption
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (
        len(chat.prompt(caption_turns(PromptConfig(text=TEXT)), [(60, 90), (200, 70)])), len(chat.answer_ids(caption)),
    )  # fmt: skip
    turns += [{"role": "assistant", "content": caption}, {"role": "user", "content": QUESTION}]
    second = client.chat.completions.create(model="demo", messages=turns, max_tokens=2)
    expected = said(artifact, Turn("user", IMAGE * 2), Turn("assistant", caption), Turn("user", QUESTION),
                    max_tokens=2)  # fmt: skip
    (choice,) = second.choices
    assert expected.text
    assert choice.message.content == expected.text
    assert choice.finish_reason == ("length" if expected.cut_off else "stop")
    assert (choice.model_extra or {})["log_probability"] == pytest.approx(expected.log_probability, abs=1e-5)
    assert second.usage is not None
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (expected.prompt_tokens, expected.tokens)
    of_caption, of_answer = first.model_extra or {}, second.model_extra or {}
    assert expected.input_size is not None
    assert of_answer["input_size"] == of_caption["input_size"] == expected.input_size.to_dict()
    assert of_caption["verdict"] in ("changed", "unchanged")
    assert of_answer["verdict"] is None


@pytest.fixture
def door(backend: LocalBackend, behind: Endpoint) -> Iterator[threading.Event]:
    """Opened by a test: until then, no answer has a third token."""
    opened, count = threading.Event(), itertools.count(1)

    def hold(*_: object) -> None:
        if next(count) == 3:
            opened.wait(600)  # longer than a client or the test waits

    behind.between = lambda number: opened.wait(600) if number == 1 else None
    model: Any = getattr(backend._captioner.captioner, "model", None)  # none here behind an endpoint
    hooks = [model.register_forward_pre_hook(hold)] if isinstance(model, torch.nn.Module) else []
    yield opened
    opened.set()
    behind.between = lambda token: None
    for hook in hooks:
        hook.remove()


ASKED: list[Any] = [{"role": "user", "content": [*PARTS, {"type": "text", "text": TEXT.replace(IMAGE, "")}]}]


def test_an_answer_is_streamed_while_it_is_generated(client: openai.OpenAI, door: threading.Event) -> None:
    chunks = client.chat.completions.create(model="demo", messages=ASKED, stream=True)
    _, first = next(chunks), next(chunks)
    assert not door.is_set()
    door.set()
    others = list(chunks)
    whole = client.chat.completions.create(model="demo", messages=ASKED)
    text = whole.choices[0].message.content
    pieces = [choice.delta.content or "" for one in (first, *others) for choice in one.choices]
    assert "".join(pieces) == text
    assert pieces[0] != text
    assert len([piece for piece in pieces if piece]) > 3
    stopped = client.chat.completions.create(model="demo", messages=ASKED, stream=True, stop=[str(text)[2:9]])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stopped) == str(text)[:2]


def test_a_client_that_leaves_in_the_middle_of_an_answer_frees_its_place(
    address: str, client: openai.OpenAI, door: threading.Event
) -> None:
    with client.chat.completions.create(model="demo", messages=ASKED, stream=True) as chunks:
        next(chunks)
        assert "idc_pairs_waiting 1.0" in httpx2.get(f"{address}/metrics").text
    until(lambda: "idc_pairs_waiting 0.0" in httpx2.get(f"{address}/metrics").text, "the place is free")
    assert not door.is_set()


def test_several_answers_to_a_question_are_refused(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": [*PARTS, {"type": "text", "text": QUESTION}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="demo", messages=asked, n=2)
    assert (refused.value.code, refused.value.param) == ("not_answered", "n")


def failing(status: int, text: str) -> Any:
    return lambda handler: handler.reply(status, text) or True


def test_an_endpoint_that_fails_and_what_it_does_not_do(artifact: str, behind: Endpoint) -> None:
    backend = LocalBackend(artifact, load=loading(behind, timeout_s=2.0))
    hung = threading.Event()
    with serving(create_api(local_config(artifact), backend)) as address, httpx2.Client(timeout=60) as client:

        def ask(text: str = "") -> tuple[int, str]:
            content = [*PARTS, {"type": "text", "text": text}]
            body = {"messages": [{"role": "user", "content": content}]}
            reply = client.post(f"{address}/v1/chat/completions", json=body)
            assert behind.url not in reply.text, "the address of the endpoint is not for clients"
            return reply.status_code, reply.json().get("error", {}).get("code", "")

        for field, value, status, why in (
            ("change_map", True, 422, "cannot compute a change map"), ("beams", 2, 400, "behind the endpoint"),
        ):  # fmt: skip
            reply = client.post(f"{address}/v1/captions", **upload(EncodedPair(*FILES), **{field: value}))
            assert (reply.status_code, why in reply.text) == (status, True), reply.text
        (model,) = client.get(f"{address}/v1/models").json()["data"]
        assert (model["can_answer"], model["version"][:7]) == (True, "sha256:")
        try:
            assert ask()[0] == 200
            for fault, expected in (
                (failing(200, '{"choices": [{"message": {"content": "a"}}]}'), (502, "upstream_failed")),
                (failing(503, "{}"), (503, "busy")),
                (failing(400, "{}"), (400, "not_answered")),
                (lambda handler: hung.wait(30) or True, (504, "timeout")),
            ):
                behind.fault = fault
                assert ask() == expected
                assert ask(QUESTION) == expected
        finally:
            behind.fault = None
            hung.set()
        assert ask(QUESTION)[0] == 200
    behind.left.clear()
