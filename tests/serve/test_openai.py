"""The real ``openai`` package against the real application: all that its clients do with two images works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import serve
from idc.captioning.contract import sentence_without_model
from idc.captioning.loading import AUTO, SHIPPED
from idc.training.artifact import artifact_identity
from serve.api import create_api
from serve.backend import EncodedPair
from tests.serve.bodies import picture, upload, url
from tests.serve.local import TOKEN, LocalBackend, local_config, serving, tokens_of

EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
PAIR = EncodedPair(picture(), picture(40, 30, shade=140))
BEFORE, AFTER = url(PAIR.before), url(PAIR.after)


@pytest.fixture(scope="module")
def address(artifact: str) -> Iterator[str]:
    """Address of a server with tokens."""
    config = local_config(artifact, auth={"tokens": tokens_of(tester=TOKEN)})
    with serving(create_api(config, LocalBackend(artifact))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    """A client as users make it."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def image(data_url: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url, "detail": "high"}}


def question(*urls: str) -> list[Any]:
    """A conversation of one turn."""
    return [{"role": "user", "content": [{"type": "text", "text": "What changed?"}, *map(image, urls)]}]


def described(address: str, pair: EncodedPair, **fields: Any) -> Any:
    """The result of ``/v1/captions`` for a pair."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    reply = httpx2.post(f"{address}/v1/captions", **upload(pair, **fields), headers=headers, timeout=60)
    return reply.json()["results"][0]


def test_a_pair_is_captioned_as_by_the_other_route(client: openai.OpenAI, address: str, artifact: str) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=question(BEFORE, AFTER), temperature=0, max_tokens=50, seed=1, stop=["#"], user="me"
    )
    (expected,) = described(address, PAIR)["candidates"]
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.role) == (expected["caption"], "assistant")
    assert choice.model_extra == {name: expected[name] for name in ("confidence", "log_probability")}
    assert (answer.model, answer.system_fingerprint) == ("demo", f"sha256:{artifact_identity(artifact)[:12]}")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == answer.usage.total_tokens == len(expected["caption"].split())
    assert answer.id == f"chatcmpl-{answer._request_id}"


def test_captions_end_before_the_first_text_of_stop(client: openai.OpenAI, address: str) -> None:
    expected = [each["caption"] for each in described(address, PAIR, candidates=3)["candidates"]]
    text = expected[0]
    for stop, end in ((text[-2:], text.index(text[-2:])), (["#", text[-1], text[0]], 0)):
        answer = client.chat.completions.create(model="demo", messages=question(BEFORE, AFTER), n=3, stop=stop)
        assert answer.choices[0].message.content == text[:end]
        assert [choice.finish_reason for choice in answer.choices] == ["stop"] * len(expected)


def test_other_interfaces_of_openai_name_the_one_that_is_served(client: openai.OpenAI, address: str) -> None:
    hint = r"client\.chat\.completions\.create"
    with pytest.raises(openai.NotFoundError, match=hint):
        client.responses.create(model="demo", input="What changed?")
    without_v1 = openai.OpenAI(base_url=address, api_key=TOKEN, max_retries=0)
    with without_v1, pytest.raises(openai.NotFoundError, match="did you mean '/v1/models'"):
        without_v1.models.list()


@pytest.mark.parametrize("source", [SHIPPED, AUTO])
def test_an_unfamiliar_pair_has_the_sentence_of_objects_alone_or_before_the_models_own(source: str) -> None:
    """``auto`` lets ``objects`` speak; a model that was named speaks after it."""
    files = [[(EXAMPLES / "photographs" / f"bottle_{n}.jpg").read_bytes() for n in ("00100", "00260")],
             [(EXAMPLES / f"color-{name}.png").read_bytes() for name in ("before", "after")]]  # fmt: skip
    unknown, seen = (list(map(url, pair)) for pair in files)
    with serving(create_api(local_config(source), LocalBackend(source))) as address:
        result, of_known = (described(address, EncodedPair(*pair), candidates=2) for pair in files)
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="demo", messages=question(*unknown), n=2)
            familiar = client.chat.completions.create(model="demo", messages=question(*seen))
    first, *others = (choice.message.content for choice in answer.choices)
    if source == AUTO:
        assert (first, others, result["captioner"]) == (result["objects_text"], [], "objects")
        assert result["caption"] == result["objects_text"]
    else:
        assert first == (
            f"{sentence_without_model(result)}\nBy the model, which has not seen such images: {result['caption']}"
        )
        assert (others, result["verdict"]) == ([result["candidates"][1]["caption"]], "unsure")
    fields = ("captioner", "claims", "objects_text", "verdict")
    assert [(answer.model_extra or {})[name] for name in fields] == [result[name] for name in fields]
    assert [(familiar.model_extra or {})[name] for name in ("claims", "objects_text")] == [None, None]
    assert familiar.choices[0].message.content == of_known["caption"]


def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=question(BEFORE, AFTER), n=2)
    chunks = list(
        client.chat.completions.create(
            model="demo", messages=question(BEFORE, AFTER), n=2, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert {(chunk.object, chunk.id) for chunk in chunks} == {("chat.completion.chunk", chunks[0].id)}
    pieces = [(chunk, piece) for chunk in chunks for piece in chunk.choices]
    for choice in whole.choices:
        of_choice = [piece for _, piece in pieces if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in of_choice) == choice.message.content
        assert [piece.delta.role for piece in of_choice if piece.delta.role] == ["assistant"]
        assert [piece.finish_reason for piece in of_choice if piece.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    for chunk, piece in pieces:
        assert (chunk.model_extra or None) == (whole.model_extra if piece.finish_reason else None)


def test_models_are_listed_and_found(client: openai.OpenAI, artifact: str) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("demo", "model")
    extra = model.model_extra or {}
    assert (extra["version"], extra["can_answer"]) == (f"sha256:{artifact_identity(artifact)[:12]}", False)
    assert extra["trained_on"] == "rendered scenes at 32x32 pixels (14 training pairs)"
    assert client.models.retrieve("demo") == model
    with pytest.raises(openai.NotFoundError, match="demo"):
        client.models.retrieve("dem")


def test_errors_are_those_of_the_package(client: openai.OpenAI, address: str) -> None:
    def ask(urls: tuple[str, ...] = (BEFORE, AFTER), model: str = "demo", **fields: Any) -> None:
        client.chat.completions.create(model=model, messages=question(*urls), **fields)

    stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(model="dmo")
    assert (unknown.value.param, unknown.value.code) == ("model", "unknown_model")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as damaged:
            ask((BEFORE, url(picture()[:60])), stream=stream)
        assert damaged.value.param == "messages.0.content.2.image_url.url"
