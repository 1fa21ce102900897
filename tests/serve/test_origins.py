"""Requests that a browser sends for pages of other origins: who may ask, and who may read the answers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from serve.api import create_api
from serve.schema import ErrorAnswer
from tests.serve.bodies import upload
from tests.serve.local import TOKEN, LocalBackend, local_config, serving, tokens_of

TOOLS = "https://tools.example.org"


@pytest.fixture(scope="module")
def client(artifact: str) -> Iterator[httpx2.Client]:
    """Client of a server that accepts requests of pages from one other origin."""
    config = local_config(artifact, auth={"tokens": tokens_of(tester=TOKEN), "origins": [TOOLS]})
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        serving(create_api(config, LocalBackend(artifact))) as url,
        httpx2.Client(base_url=url, headers=headers, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),  # curl, clients of OpenAI's interface
        ({"Origin": "http://{own}", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "HTTP://{own}"}, True),  # a browser on plain http sends no Sec-Fetch-Site
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "https://captions.example.org", "Sec-Fetch-Site": "same-origin"}, True),  # a proxy changed the Host
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": f"{TOOLS}.foreign.example"}, False),
    ],
    ids=str,
)
def test_programs_and_the_served_page_are_answered_and_foreign_pages_refused(
    client: httpx2.Client, headers: dict[str, str], accepted: bool
) -> None:
    sent = {name: value.format(own=client.base_url.netloc.decode()) for name, value in headers.items()}
    for answer in (client.post("/v1/captions", **upload(), headers=sent), client.get("/metrics", headers=sent)):
        assert answer.status_code == (200 if accepted else 403)
        if not accepted:
            error = ErrorAnswer.model_validate_json(answer.content).error
            assert (error.code, "auth.origins" in error.message) == ("foreign_origin", True)
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/", headers=sent).status_code == 200, "a link from elsewhere leads to the page"


def test_scripts_of_an_allowed_origin_may_ask_and_read(client: httpx2.Client) -> None:
    sent = {"Origin": TOOLS, "Sec-Fetch-Site": "cross-site"}
    asked = {**sent, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    address = client.base_url.join("/v1/captions")
    preflight = httpx2.options(address, headers=asked)  # a browser sends it without the token
    assert httpx2.options(address, headers={**asked, "Origin": "https://foreign.example"}).status_code == 400
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    good = client.post("/v1/captions", **upload(), headers=sent)
    bad = client.post("/v1/captions", json={}, headers=sent)
    assert (preflight.status_code, good.status_code, bad.status_code) == (200, 200, 422)
    for answer in (preflight, good, bad):
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers
