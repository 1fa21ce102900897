"""The OpenAPI document is accurate: schemathesis generates valid and invalid requests from it and checks the responses.

Strings in place of images become real images in most requests, so that valid requests reach the captioner.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from serve.api import create_api
from serve.config import ServeConfig
from tests.serve.bodies import picture, url
from tests.serve.local import TOKEN, LocalBackend, serving, tokens_of

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


def config(artifact: str) -> ServeConfig:
    """Of a server that asks for a token."""
    return ServeConfig.model_validate({"models": {"demo": artifact}, "auth": {"tokens": tokens_of(tester=TOKEN)}})


class _NoBackend:
    """A backend for the document, which does not depend on models."""


DOCUMENT = create_api(config("none"), _NoBackend()).openapi()  # type: ignore[arg-type]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
load_all_checks()


@pytest.fixture(scope="module")
def address(artifact: str) -> Iterator[str]:
    with serving(create_api(config(artifact), LocalBackend(artifact))) as address:
        yield address


@SCHEMA.hook
def map_body(context: Any, body: Any) -> Any:
    """Replace texts by images where images belong, except those that begin with a digit, which stay invalid."""
    return with_images(body)


def with_images(body: Any) -> Any:
    """A body with real images."""
    if isinstance(body, list):
        return [with_images(item) for item in body]
    if isinstance(body, dict):
        return {key: _real(key, value) for key, value in body.items()}
    return body


def _real(key: str, value: Any) -> Any:
    if key in ("before", "after") and isinstance(value, list):
        return [picture() for _ in value[:2]]
    if key in ("url", "model") and isinstance(value, str) and not value[:1].isdigit():
        return {"url": url(picture()), "model": "demo"}[key]
    return with_images(value)


def test_the_document_is_what_the_server_gives(address: str) -> None:
    assert httpx2.get(f"{address}/openapi.json").json() == json.loads(json.dumps(DOCUMENT))


def check(case: Any, address: str) -> None:
    """Send it and check the answer. Not every body of the right types is a request for a caption: the images must be
    images, and one pair or several; so a refusal of one is no fault."""
    case.call_and_validate(
        base_url=address,
        headers={"Authorization": f"Bearer {TOKEN}"},
        excluded_checks=[positive_data_acceptance],
        timeout=60,
    )


@SCHEMA.parametrize()
@settings(max_examples=4, derandomize=True, deadline=None, database=None, suppress_health_check=QUIET,
          phases=[Phase.explicit, Phase.generate])  # fmt: skip
def test_a_few_requests(case: Any, address: str) -> None:
    check(case, address)


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=QUIET)
def test_many_requests(case: Any, address: str) -> None:
    check(case, address)
