"""Requests that a browser sends for pages of other origins are refused in both authentication modes."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest

from serve.api import create_api
from serve.config import ServeConfig
from serve.schema import ErrorAnswer
from tests.serve.bodies import picture
from tests.serve.local import TOKEN, LocalBackend, serving, tokens_of

TOOLS = "https://tools.example.org"
FORM = [(side, (f"{side}.png", picture())) for side in ("before", "after")]


@pytest.fixture(scope="module", params=["token", "loopback"])
def client(request: pytest.FixtureRequest, artifact: str) -> Iterator[httpx2.Client]:
    """Client of a server that accepts requests of pages from one other origin."""
    auth = {
        "mode": request.param,
        "tokens": tokens_of(tester=TOKEN) if request.param == "token" else [],
        "origins": [TOOLS],
    }
    config = ServeConfig.model_validate({"models": {"demo": artifact}, "auth": auth})
    headers = {"Authorization": f"Bearer {TOKEN}"} if request.param == "token" else {}
    api = create_api(config, LocalBackend(artifact))
    with serving(api) as url, httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        yield client


def own(client: httpx2.Client) -> str:
    parts = urlsplit(str(client.base_url))
    return f"{parts.scheme}://{parts.netloc}"


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
        client.post("/v1/captions", files=FORM, headers=headers),
        client.get("/v1/models", headers=headers),
        client.get("/metrics", headers=headers),
    ):
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert (answer.status_code, error.code) == (403, "foreign_origin")
        assert "auth.origins" in error.message
        assert "access-control-allow-origin" not in answer.headers
    if "Origin" in headers:
        asked = {**headers, "Access-Control-Request-Method": "POST"}
        preflight = client.request("OPTIONS", "/v1/captions", headers=asked)
        assert preflight.status_code == 400
        assert "access-control-allow-origin" not in preflight.headers


def test_programs_and_the_served_page_are_answered(client: httpx2.Client) -> None:
    for headers in (
        {},  # curl, clients of OpenAI's interface
        {"Origin": own(client), "Sec-Fetch-Site": "same-origin"},
        {"Origin": own(client).upper()},  # a browser on plain http sends no Sec-Fetch-Site
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://captions.example.org", "Sec-Fetch-Site": "same-origin"},  # a proxy has changed the Host
    ):
        assert client.post("/v1/captions", files=FORM, headers=headers).status_code == 200, headers


def test_a_link_from_elsewhere_leads_to_the_page(client: httpx2.Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/docs", "/openapi.json"):
        assert client.get(path, headers=link).status_code == 200, path


def test_scripts_of_an_allowed_origin_may_ask_and_read(client: httpx2.Client) -> None:
    sent = {"Origin": TOOLS, "Sec-Fetch-Site": "cross-site"}
    asked = {**sent, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    bare = httpx2.Client(base_url=client.base_url, timeout=60)  # a browser sends preflights without the token
    with bare:
        preflight = bare.request("OPTIONS", "/v1/captions", headers=asked)
    assert preflight.status_code == 200
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    good = client.post("/v1/captions", files=FORM, headers=sent)
    bad = client.post("/v1/captions", json={}, headers=sent)
    assert (good.status_code, bad.status_code) == (200, 422)
    for answer in (preflight, good, bad):
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers
