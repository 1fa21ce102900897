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
from idc.training.artifact import artifact_identity
from tests.serve.bodies import PAIR, Pair, conversation, picture, result, url
from tests.serve.local import TOKEN

EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
BOTTLES = Pair(*((EXAMPLES / "photographs" / f"bottle_{number}.jpg").read_bytes() for number in ("00100", "00260")))
RENDERED = Pair(*((EXAMPLES / f"color-{name}.png").read_bytes() for name in Pair._fields))


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
    pieces = [(chunk, piece) for chunk in chunks for piece in chunk.choices]
    for choice in whole.choices:
        of_choice = [piece for _, piece in pieces if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in of_choice) == choice.message.content
        assert [piece.delta.role for piece in of_choice if piece.delta.role] == ["assistant"]
        assert [piece.finish_reason for piece in of_choice if piece.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    for chunk, piece in pieces:
        assert (chunk.model_extra or None) == (whole.model_extra if piece.finish_reason else None)


@pytest.mark.parametrize("model", ["shipped", "auto"])
def test_an_unfamiliar_pair_has_the_sentence_of_objects_alone_or_before_the_models_own(
    package: openai.OpenAI, closed: httpx2.Client, model: str
) -> None:
    """``auto`` lets ``objects`` speak; a model that was named speaks after it."""
    unknown = result(closed, BOTTLES, model=model, candidates=2)
    answer = ask(package, *BOTTLES, model=model, n=2)
    first, *others = (choice.message.content for choice in answer.choices)
    if model == "auto":
        assert (first, others, unknown["captioner"]) == (unknown["objects_text"], [], "objects")
        assert unknown["caption"] == unknown["objects_text"]
    else:
        assert first == (
            f"{sentence_without_model(unknown)}\nBy the model, which has not seen such images: {unknown['caption']}"
        )
        assert (others, unknown["verdict"]) == ([unknown["candidates"][1]["caption"]], "unsure")
    for field in ("captioner", "claims", "objects_text", "verdict"):
        assert answer.model_extra[field] == unknown[field]
    familiar, asked = ask(package, *RENDERED, model=model), result(closed, RENDERED, model=model)
    assert familiar.choices[0].message.content == asked["caption"]
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
    assert extra["trained_on"] == "rendered scenes at 32x32 pixels (14 training pairs)"
    assert package.models.retrieve("demo") == model
    with pytest.raises(openai.NotFoundError, match="demo"):
        package.models.retrieve("dem")


def test_errors_are_those_of_the_package_and_name_the_way_out(package: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        package.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(package, model="dmo")
    assert (unknown.value.param, unknown.value.code) == ("model", "unknown_model")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as damaged:
            ask(package, PAIR.before, picture()[:60], stream=stream)
        assert damaged.value.param == "messages.0.content.2.image_url.url"
    with pytest.raises(openai.NotFoundError, match=r"client\.chat\.completions\.create"):
        package.responses.create(model="demo", input="What changed?")
    with pytest.raises(openai.NotFoundError, match="did you mean '/v1/models'"):
        package.with_options(base_url=str(package.base_url).removesuffix("v1/")).models.list()
