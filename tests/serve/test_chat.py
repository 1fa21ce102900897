"""Conversations by the real ``openai`` package: what its clients do with two images, and dialogues with a small
vision-language model, in this process and behind an endpoint."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
import torch

from idc.captioning.contract import sentence_without_model
from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig
from idc.data.images import decode_image
from idc.data.schema import IMAGE, Turn
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.training.artifact import artifact_identity
from idc.vlm.chat import caption_turns
from idc.vlm.config import PromptConfig
from tests.serve.bodies import BOTTLES, CAPTIONS, CHAT, PAIR, RENDERED, Pair, conversation, picture, result, upload, url
from tests.serve.local import TOKEN, LocalBackend, client_of
from tests.serve.waiting import until
from tests.vlm.artifacts import QUESTION, TEXT, speaking_folder, wrapped
from tests.vlm.endpoint import Endpoint, endpoint


@pytest.fixture(scope="module")
def package(closed: httpx2.Client) -> Iterator[openai.OpenAI]:
    """A client as users make it."""
    with openai.OpenAI(base_url=f"{closed.base_url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def ask(package: openai.OpenAI, *files: bytes, model: str = "demo", **fields: Any) -> Any:
    messages: Any = conversation(*map(url, files or PAIR))["messages"]
    return package.chat.completions.create(model=model, messages=messages, **fields)


def test_a_pair_is_captioned_as_by_the_other_route(
    package: openai.OpenAI, closed: httpx2.Client, artifact: str
) -> None:
    answer = ask(package, temperature=0, max_tokens=50, seed=1, stop=["#"], user="me")
    (expected,) = result(closed)["candidates"]
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.role) == (expected["caption"], "assistant")
    assert choice.model_extra == {name: expected[name] for name in ("confidence", "log_probability")}
    assert (answer.model, answer.system_fingerprint) == ("demo", f"sha256:{artifact_identity(artifact)[:12]}")
    assert answer.usage.completion_tokens == answer.usage.total_tokens == len(expected["caption"].split())
    assert answer.id == f"chatcmpl-{answer._request_id}"


def test_captions_end_before_the_first_text_of_stop(package: openai.OpenAI, closed: httpx2.Client) -> None:
    text, *others = [each["caption"] for each in result(closed, candidates=3)["candidates"]]
    for stop, end in ((text[-2:], text.index(text[-2:])), (["#", text[-1], text[0]], 0)):
        choices = ask(package, n=3, stop=stop).choices
        assert choices[0].message.content == text[:end]
        assert [choice.finish_reason for choice in choices] == ["stop"] * (1 + len(others))


def test_a_stream_adds_up_to_the_answer(package: openai.OpenAI) -> None:
    whole = ask(package, n=2)
    chunks = list(ask(package, n=2, stream=True, stream_options={"include_usage": True}))
    assert {(chunk.object, chunk.id) for chunk in chunks} == {("chat.completion.chunk", chunks[0].id)}
    for choice in whole.choices:
        pieces = [piece for chunk in chunks for piece in chunk.choices if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert [piece.delta.role for piece in pieces if piece.delta.role] == ["assistant"]
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    assert {repr(chunk.model_extra) for chunk in chunks if chunk.model_extra} == {repr(whole.model_extra)}


def test_of_an_unfamiliar_pair_objects_speaks_before_a_model_that_was_named(
    package: openai.OpenAI, closed: httpx2.Client
) -> None:
    """With ``auto``: test_interfaces.py."""
    unknown = result(closed, BOTTLES, model="shipped", candidates=2)
    answer = ask(package, *BOTTLES, model="shipped", n=2)
    first, *others = (choice.message.content for choice in answer.choices)
    assert first == (
        f"{sentence_without_model(unknown)}\nBy the model, which has not seen such images: {unknown['caption']}"
    )
    assert (others, unknown["verdict"]) == ([unknown["candidates"][1]["caption"]], "unsure")
    for field in ("captioner", "chosen", "claims", "objects_text", "verdict"):
        assert answer.model_extra[field] == unknown[field]
    familiar = ask(package, *RENDERED, model="shipped")
    assert familiar.choices[0].message.content == result(closed, RENDERED, model="shipped")["caption"]
    assert [familiar.model_extra[name] for name in ("claims", "objects_text")] == [None, None]


def test_objects_is_asked_about_unfamiliar_pairs_or_about_all(closed: httpx2.Client) -> None:
    for pair, familiar, asked in ((RENDERED, True, [0, 0, 1]), (BOTTLES, False, [0, 1, 1])):
        of_all = [result(closed, pair, model="shipped", objects=when) for when in ("never", "unfamiliar", "always")]
        assert {(each["familiar"], each["captioner"]) for each in of_all} == {(familiar, None)}
        for field in ("claims", "regions", "objects_text"):
            assert [each[field] is not None for each in of_all] == asked


def test_models_are_listed_and_found(package: openai.OpenAI, artifact: str) -> None:
    model = package.models.list().data[0]
    assert (model.id, model.object) == ("demo", "model")
    extra = model.model_extra or {}
    assert (extra["version"], extra["can_answer"]) == (f"sha256:{artifact_identity(artifact)[:12]}", False)
    assert package.models.retrieve("demo") == model
    with pytest.raises(openai.NotFoundError, match="demo"):
        package.models.retrieve("dem")


def test_errors_are_those_of_the_package_and_name_the_way_out(package: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        package.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(package, model="dmo")
    assert (unknown.value.param, unknown.value.code) == ("model", "unknown_model")
    with pytest.raises(openai.NotFoundError, match="did you mean '/v1/models'"):
        package.with_options(base_url=str(package.base_url).removesuffix("v1/")).models.list()


# -- dialogues

FILES = Pair(picture(90, 60), picture(70, 200, shade=140))
PARTS = [{"type": "image_url", "image_url": {"url": url(file)}} for file in FILES]


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return wrapped(tmp_path_factory.mktemp("vlm") / "artifact")


@pytest.fixture(scope="module")
def behind() -> Iterator[Endpoint]:
    with endpoint(speaking_folder("qwen2_5_vl")) as server:
        yield server


def far(vlm: str, behind: Endpoint, timeout_s: float = 60.0) -> LocalBackend:
    """The artifact, whose language model runs behind the endpoint."""
    config = EndpointConfig(url=behind.url, attempts=1, concurrency=4, timeout_s=timeout_s)
    return LocalBackend({"demo": vlm}, LoadConfig(endpoint=config))


@pytest.fixture(scope="module", params=["here", "endpoint"])
def speaker(request: pytest.FixtureRequest, vlm: str, behind: Endpoint) -> LocalBackend:
    return LocalBackend({"demo": vlm}, DEFAULTS) if request.param == "here" else far(vlm, behind)


@pytest.fixture(scope="module")
def http(speaker: LocalBackend) -> Iterator[httpx2.Client]:
    with client_of(speaker) as client:
        yield client


@pytest.fixture
def speaking(http: httpx2.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0, timeout=120) as package:
        yield package


def test_a_question_in_two_turns(speaking: openai.OpenAI, vlm: str) -> None:
    turns: list[Any] = [{"role": "user", "content": PARTS}]
    first: Any = speaking.chat.completions.create(model="demo", messages=turns)
    caption = first.choices[0].message.content
    captioner: Any = CaptionerLoader(vlm, DEFAULTS)()
    assert caption
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (
        len(captioner.chat.prompt(caption_turns(PromptConfig(text=TEXT)), [(60, 90), (200, 70)])),
        len(captioner.chat.answer_ids(caption)),
    )
    turns += [{"role": "assistant", "content": caption}, {"role": "user", "content": QUESTION}]
    second: Any = speaking.chat.completions.create(model="demo", messages=turns, max_tokens=2)
    asked = (Turn("user", IMAGE * 2), Turn("assistant", caption), Turn("user", QUESTION))
    [expected] = captioner.answer(*([decode_image(file)] for file in FILES), [asked], max_tokens=2)
    (choice,) = second.choices
    assert choice.message.content == expected.text != ""
    assert choice.finish_reason == ("length" if expected.cut_off else "stop")
    assert choice.model_extra["log_probability"] == pytest.approx(expected.log_probability, abs=1e-5)
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (expected.prompt_tokens, expected.tokens)
    assert second.model_extra["input_size"] == first.model_extra["input_size"] == expected.input_size.to_dict()
    assert first.model_extra["verdict"] in ("changed", "unchanged")
    assert second.model_extra["verdict"] is None


@pytest.fixture
def door(speaker: LocalBackend, behind: Endpoint) -> Iterator[threading.Event]:
    """Opened by a test: until then, no answer has a third token."""
    opened, count = threading.Event(), itertools.count(1)

    def hold(*_: object) -> None:
        if next(count) == 3:
            opened.wait(600)  # longer than a client or the test waits

    behind.between = lambda number: opened.wait(600) if number == 1 else None
    model: Any = getattr(speaker.captioner("demo").captioner, "model", None)  # none here behind an endpoint
    hooks = [model.register_forward_pre_hook(hold)] if isinstance(model, torch.nn.Module) else []
    yield opened
    opened.set()
    behind.between = lambda token: None
    for hook in hooks:
        hook.remove()


ASKED: list[Any] = [{"role": "user", "content": [*PARTS, {"type": "text", "text": TEXT.replace(IMAGE, "")}]}]


def test_an_answer_is_streamed_while_it_is_generated(speaking: openai.OpenAI, door: threading.Event) -> None:
    chunks = speaking.chat.completions.create(model="demo", messages=ASKED, stream=True)
    _, first = next(chunks), next(chunks)
    assert not door.is_set()
    door.set()
    others = list(chunks)
    text = str(speaking.chat.completions.create(model="demo", messages=ASKED).choices[0].message.content)
    pieces = [choice.delta.content or "" for chunk in (first, *others) for choice in chunk.choices]
    assert "".join(pieces) == text != pieces[0]
    assert len([piece for piece in pieces if piece]) > 3
    stopped = speaking.chat.completions.create(model="demo", messages=ASKED, stream=True, stop=[text[2:9]])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stopped) == text[:2]


def test_a_client_that_leaves_in_the_middle_of_an_answer_frees_its_place(
    http: httpx2.Client, speaking: openai.OpenAI, door: threading.Event
) -> None:
    with speaking.chat.completions.create(model="demo", messages=ASKED, stream=True) as chunks:
        next(chunks)
        assert "idc_pairs_waiting 1.0" in http.get("/metrics").text
    until(lambda: "idc_pairs_waiting 0.0" in http.get("/metrics").text, "the place is free")
    assert not door.is_set()


def test_what_the_model_refuses_is_named_and_fails_alone(http: httpx2.Client) -> None:
    """Qwen's processor takes images of aspect ratios up to 200."""
    thin = FILES._replace(after=picture(900, 3))
    first, refused, third = http.post(CAPTIONS, **upload(FILES, thin, FILES)).json()["results"]
    assert "aspect ratio" in refused["error"]
    assert first["caption"] == third["caption"] != ""
    asked = conversation(*map(url, FILES), text=QUESTION)
    for body, why in (
        (conversation(*map(url, thin), text=QUESTION), "aspect ratio"),
        ({**asked, "n": 2}, "one answer"),
        (conversation(*map(url, FILES), text=f"what is {IMAGE}?"), f"the text has {IMAGE} in it"),
        ({"messages": [*asked["messages"], {"role": "assistant", "content": "a cube"}]}, "end with the user's"),
        ({"messages": [{"role": "assistant", "content": "Hello"}, *asked["messages"]]}, "begin with the user's"),
    ):
        reply = http.post(CHAT, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_answered")
        assert why in reply.json()["error"]["message"]


OLD, BEFORE, AFTER = ({"type": "image_url", "image_url": {"url": url(picture(width))}} for width in (32, 64, 96))


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        ([("user", ["Please describe the changes in ", BEFORE, " and ", AFTER, ".", "Briefly."])],
         [("user", "Please describe the changes in <64> and <96>.\nBriefly.")]),
        ([("user", [BEFORE, AFTER, "old"]), ("assistant", [OLD, "a picture"]), ("user", [BEFORE, "new"])],
         [("user", "old"), ("assistant", "a picture"), ("user", "<32><64>new")]),
        ([("system", [BEFORE, AFTER, "x"]), ("user", "What is this?")],
         [("system", "x"), ("user", "<64><96>What is this?")]),
        ([("user", "Draw two."), ("assistant", [BEFORE, AFTER])], [("user", "Draw two.\n<64><96>")]),
        ([("developer", "Describe what changed."), ("user", ["What changed?", OLD]), ("tool", "nothing"),
          ("user", [BEFORE]), ("assistant", [{"type": "refusal", "refusal": "I need another."}]), ("user", [AFTER])],
         [("system", "Describe what changed."), ("user", "What changed?\n<64>"), ("assistant", "I need another."),
          ("user", "<96>")]),
        ([("user", [BEFORE, " "]), ("assistant", None), ("user", [AFTER, ""])],
         [("user", f"<64><96>{TEXT.replace(IMAGE, '')}")]),
    ],
    ids=["images stay where they were sent", "only the last two count", "those of the system are the user's",
         "those of the assistant too", "tools are not read", "without a text it is a caption"],
)  # fmt: skip
def test_a_model_reads_the_conversation_in_its_turns(
    far_http: httpx2.Client, behind: Endpoint, messages: list[tuple[str, Any]], read: list[tuple[str, str]]
) -> None:
    def content_of(parts: Any) -> Any:
        if not isinstance(parts, list):
            return parts
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]

    body = {"messages": [{"role": role, "content": content_of(parts)} for role, parts in messages]}
    far_http.post(CHAT, json=body).raise_for_status()
    assert [(turn["role"], _shown(turn["content"])) for turn in behind.requests[-1]["messages"]] == read


def _shown(content: Any) -> str:
    """Text, with the width of an image in its place."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "".join(
        part["text"] if part["type"] == "text"
        else f"<{decode_image(base64.b64decode(part['image_url']['url'].partition(',')[2])).shape[1]}>"
        for part in parts
    )  # fmt: skip


@pytest.fixture(scope="module")
def far_http(vlm: str, behind: Endpoint) -> Iterator[httpx2.Client]:
    with client_of(far(vlm, behind, timeout_s=2.0)) as client:
        yield client


def test_an_endpoint_that_fails_and_what_it_does_not_do(far_http: httpx2.Client, behind: Endpoint) -> None:
    hung = threading.Event()

    def failing(status: int, text: str) -> Any:
        return lambda handler: handler.reply(status, text) or True

    def ask(text: str = "") -> tuple[int, str]:
        reply = far_http.post(CHAT, json=conversation(*map(url, FILES), text=text))
        assert behind.url not in reply.text, "the address of the endpoint is not for clients"
        return reply.status_code, reply.json().get("error", {}).get("code", "")

    for field, value, status, why in (
        ("change_map", True, 422, "cannot compute a change map"), ("beams", 2, 400, "behind the endpoint"),
    ):  # fmt: skip
        reply = far_http.post(CAPTIONS, **upload(FILES, **{field: value}))
        assert (reply.status_code, why in reply.text) == (status, True), reply.text
    (model,) = far_http.get("/v1/models").json()["data"]
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
