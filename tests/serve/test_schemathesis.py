"""The OpenAPI document is accurate: schemathesis generates valid and invalid requests from it and checks the responses.

Strings in place of images become real images in most requests, so that valid requests reach the captioner.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from serve.api import create_api
from tests.serve.bodies import PAIR, url
from tests.serve.conftest import AUTH, MODELS
from tests.serve.local import TOKEN, local_config

DOCUMENT = create_api(local_config(MODELS, auth=AUTH), None).openapi()  # type: ignore[arg-type]  # needs no backend
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
load_all_checks()


@SCHEMA.hook
def map_body(context: Any, body: Any) -> Any:
    """Replace texts by images where images belong, except those that begin with a digit, which stay invalid."""
    if isinstance(body, list):
        return [map_body(context, item) for item in body]
    if isinstance(body, dict):
        return {key: _real(context, key, value) for key, value in body.items()}
    return body


def _real(context: Any, key: str, value: Any) -> Any:
    if key in ("before", "after") and isinstance(value, list):
        return [PAIR.before for _ in value[:2]]
    if key in ("url", "model") and isinstance(value, str) and not value[:1].isdigit():
        return {"url": url(PAIR.before), "model": "demo"}[key]
    return map_body(context, value)


def test_the_document_is_what_the_server_gives(closed: httpx2.Client) -> None:
    assert closed.get("/openapi.json").json() == json.loads(json.dumps(DOCUMENT))


def generated(examples: int, *phases: Phase) -> Any:
    ignored = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, phases=phases or tuple(Phase),
        suppress_health_check=[*ignored, HealthCheck.large_base_example],
    )  # fmt: skip


def check(case: Any, closed: httpx2.Client) -> None:
    """Send it and check the answer. Not every body of the right types is a request for a caption: the images must be
    images, and one pair or several; so a refusal of one is no fault."""
    case.call_and_validate(
        base_url=str(closed.base_url), headers={"Authorization": f"Bearer {TOKEN}"},
        excluded_checks=[positive_data_acceptance], timeout=60,
    )  # fmt: skip


@SCHEMA.parametrize()
@generated(4, Phase.explicit, Phase.generate)
def test_a_few_requests(case: Any, closed: httpx2.Client) -> None:
    check(case, closed)


@pytest.mark.slow
@SCHEMA.parametrize()
@generated(100)
def test_many_requests(case: Any, closed: httpx2.Client) -> None:
    check(case, closed)
