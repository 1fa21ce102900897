"""Requests that a browser sends for pages of other origins are refused in both authentication modes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from serve.api import create_api
from serve.schema import ErrorAnswer
from tests.serve.bodies import upload
from tests.serve.local import TOKEN, LocalBackend, local_config, serving, tokens_of

TOOLS = "https://tools.example.org"


@pytest.fixture(scope="module", params=["token", "loopback"])
def client(request: pytest.FixtureRequest, artifact: str) -> Iterator[httpx2.Client]:
    """Client of a server that accepts requests of pages from one other origin."""
    tokens, headers = [], {}
    if request.param == "token":
        tokens, headers = tokens_of(tester=TOKEN), {"Authorization": f"Bearer {TOKEN}"}
    config = local_config(artifact, auth={"mode": request.param, "tokens": tokens, "origins": [TOOLS]})
    api = create_api(config, LocalBackend(artifact))
    with serving(api) as url, httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9"},
        {"Origin": "null"},
        {"Origin": f"{TOOLS}.foreign.example"},
    ],
    ids=str,
)
def test_a_foreign_page_is_refused(client: httpx2.Client, headers: dict[str, str]) -> None:
    for answer in (
        client.post("/v1/captions", **upload(), headers=headers),
        client.get("/v1/models", headers=headers),
        client.get("/metrics", headers=headers),
    ):
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert (answer.status_code, error.code, "auth.origins" in error.message) == (403, "foreign_origin", True)
        assert "access-control-allow-origin" not in answer.headers
    if "Origin" in headers:
        asked = {**headers, "Access-Control-Request-Method": "POST"}
        preflight = client.request("OPTIONS", "/v1/captions", headers=asked)
        assert (preflight.status_code, "access-control-allow-origin" in preflight.headers) == (400, False)


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, clients of OpenAI's interface
        {"Origin": "http://{own}", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "HTTP://{own}"},  # a browser on plain http sends no Sec-Fetch-Site
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://captions.example.org", "Sec-Fetch-Site": "same-origin"},  # a proxy has changed the Host
    ],
    ids=str,
)
def test_programs_and_the_served_page_are_answered(client: httpx2.Client, headers: dict[str, str]) -> None:
    sent = {name: value.format(own=client.base_url.netloc.decode()) for name, value in headers.items()}
    assert client.post("/v1/captions", **upload(), headers=sent).status_code == 200


def test_a_link_from_elsewhere_leads_to_the_page(client: httpx2.Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/docs", "/openapi.json"):
        assert client.get(path, headers=link).status_code == 200, path


def test_scripts_of_an_allowed_origin_may_ask_and_read(client: httpx2.Client) -> None:
    sent = {"Origin": TOOLS, "Sec-Fetch-Site": "cross-site"}
    asked = {**sent, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = httpx2.options(
        client.base_url.join("/v1/captions"), headers=asked
    )  # a browser sends it without the token
    assert preflight.status_code == 200
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    good = client.post("/v1/captions", **upload(), headers=sent)
    bad = client.post("/v1/captions", json={}, headers=sent)
    assert (good.status_code, bad.status_code) == (200, 422)
    for answer in (preflight, good, bad):
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers
