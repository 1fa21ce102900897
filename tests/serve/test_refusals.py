"""Malicious and malformed requests: each is refused with a proper error, and the servers survive. They are sent over a
bare socket, because an HTTP client would repair or refuse half of them."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any, NamedTuple

import httpx2
import numpy as np
import pytest
from pydantic import ValidationError

from serve.schema import ChatRequest, ErrorAnswer
from tests.serve.bad_images import geotiff_claiming, jpeg_of_scans
from tests.serve.bodies import CAPTIONS, CHAT, PAIR, Pair, conversation, picture, result, saved, upload, url
from tests.serve.conftest import TOOLS
from tests.serve.local import TOKEN

Body = dict[str, Any] | Callable[[], dict[str, Any]]
"""The arguments of ``httpx2.Request`` for a body, or what makes them when they are sent."""


class Bad(NamedTuple):
    """A request.

    Attributes:
        name: what is wrong with it.
        status: of the response; 0: uvicorn may refuse it itself, in its own words or by closing the connection.
        param: the field that the response must name; None if no field of the body is at fault.
        lines: of the head, in place of those of these names.
        local: whether it goes to the server for this machine alone, which takes no tokens.
    """

    name: str
    status: int
    param: str | None
    body: Body = {}  # noqa: RUF012  (not changed)
    path: str = CAPTIONS
    lines: tuple[str, ...] = ()
    local: bool = False
    method: str = "POST"


def raw(content: bytes, kind: str = "application/json") -> dict[str, Any]:
    return {"content": content, "headers": {"Content-Type": kind}}


def encoded(body: Body) -> httpx2.Request:
    return httpx2.Request("POST", "http://127.0.0.1", **(body() if callable(body) else body))


def multipart(edit: Callable[[bytes], bytes] = bytes, kind: str | None = None) -> dict[str, Any]:
    """A valid form whose bytes or type are changed."""
    form = encoded(upload())
    return raw(edit(form.read()), kind or form.headers["content-type"])


def files(*names: str, **contents: bytes) -> dict[str, Any]:
    return {"files": [(name, (f"{name}.png", contents.get(name, PAIR.before))) for name in names]}


BEFORE, AFTER = map(url, PAIR)
CHAT_TEXT = json.dumps(conversation()).encode()
JSON_FORM = raw(b"{}")  # refused because it is no form, if the head is accepted
ORIGIN = "https://elsewhere.example"
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
HIDDEN = {"type": "text", "text": "x", "image_url": {"url": "data:,"}}


def part(name: str, value: bytes, kind: str) -> dict[str, Any]:
    """A form of one part, of the type ``multipart/form-data`` and what ``kind`` adds."""
    form = b'--b\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n--b--\r\n"
    return raw(form, f"multipart/form-data; boundary=b; {kind}")


def claiming(*claims: int) -> dict[str, Any]:
    return upload(Pair(*[geotiff_claiming(*claims)] * 2), polygons="always")


def talk(words: str, turns: int = 0) -> dict[str, Any]:
    """A conversation about a pair with ``turns`` more turns, or these words."""
    said = [{"role": role, "content": words} for _ in range(turns // 2) for role in ("assistant", "user")]
    return {"messages": [*conversation()["messages"], *(said or [{"role": "user", "content": words}])]}


IMAGE_ROWS = [
    Bad(f"after is {name}", status, "after", lambda make=make: upload(Pair(PAIR.before, make())))
    for name, status, make in [
        ("a truncated PNG", 400, lambda: picture()[: len(picture()) // 2]),
        ("an SVG", 400, lambda: SVG),
        ("a JPEG of 20,000 scans", 400, lambda: jpeg_of_scans(20_000, 4992)),
        ("20,000 pixels wide", 413, lambda: saved(np.zeros((8, 20_000, 3), np.uint8))),
    ]
]
FORM_ROWS = [
    Bad(name, status, param, body)
    for name, status, param, body in [
        ("GeoTIFFs that claim 100,000 x 100,000 pixels", 413, "before", claiming(10**5, 10**5)),
        ("polygons of a PNG", 400, "before", upload(polygons="always")),
        ("no pair of several is readable", 400, "pairs.0.before",
         upload(Pair(SVG, PAIR.after), Pair(PAIR.before, picture(1, 1)))),
        ("2^70 beams", 422, "beams", upload(beams=2**70)),
        ("more candidates than beams", 422, "beams", upload(candidates=3, beams=2)),
        ("an empty box", 422, "ignore", upload(ignore="[[5, 5, 5, 9]]")),
        ("65 boxes", 422, "ignore", upload(ignore=["0,0,1,1"] * 65)),
        ("boxes that are deep", 422, "ignore", upload(ignore="[" * 4000)),
        ("a million boxes", 422, "ignore", lambda: upload(ignore=["[" + "[0,0,1,1]," * 99_999 + "[0,0,1,1]]"] * 10)),
        ("a box of 400 digits", 422, "only", upload(only=f"[[0,0,{'9' * 400},1]]")),
        ("a box outside the image in 4 x 100 kB", 422, "only", upload(only=",".join(["0" * 100_000] * 4))),
        ("masks of 75 megapixels", 413, "only",
         lambda: files("before", "after", *["only"] * 3, only=saved(np.zeros((5000, 5000), np.uint8)))),
        ("ten million escapes", 413, None, lambda: raw(b"a=" + b"%41" * 10**7, "application/x-www-form-urlencoded")),
        ("a form in punycode, quadratic", 415, None, lambda: part("model-", b"a" * 200_000, "charset=punycode")),
        ("a form in IDNA, quoted", 415, None, part("model", b"xn--a", 'Charset="IDNA"')),
        ("a form of the name of a charset", 422, "before", part("_charset_", b"punycode", "charset=UTF-8")),
        ("a form with a star", 422, "before", part("model", b"x", "charset*=punycode''x")),
        ("a path for a mask", 400, "ignore", upload(ignore="mask.png")),
        ("a model of two lines", 404, "model", upload(model="demo\r\nX-Injected: 1")),
        ("a model of 10,000 letters", 422, "model", upload(model="x" * 10_000)),
        ("an unknown field", 422, "befor", upload(befor="x")),
        ("no image after", 422, "after", files("before")),
        ("two images before", 422, "after", files("before", "before", "after")),
        ("an empty file", 400, "after", files("before", "after", after=b"")),
        ("65 pairs", 413, "pairs", files(*["before", "after"] * 65)),
        ("2,000 fields", 400, None, lambda: upload(id=["x"] * 2_000)),
        ("a part without a name", 400, None,
         raw(b"--b\r\nContent-Type: image/png\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b")),
        ("a part of 64 kB of headers", 400, None,
         raw(b"--b\r\nX: " + b"x" * 2**16 + b"\r\n\r\n\r\n--b--\r\n", "multipart/form-data; boundary=b")),
        ("cut in the middle", 422, "after", multipart(lambda form: form[:-120])),
        ("another boundary", 400, None, multipart(kind="multipart/form-data; boundary=other")),
        ("no boundary", 400, None, multipart(kind="multipart/form-data")),
        ("a form that is JSON", 422, "before", raw(CHAT_TEXT)),
    ]
]  # fmt: skip
CHAT_ROWS = [
    Bad(f"a chat: {name}", status, param, body if callable(body) or "content" in body else {"json": body}, CHAT)
    for name, status, param, body in [
        ("an address", 400, "messages.0.content.2.image_url.url", conversation(BEFORE, "https://127.0.0.1:8265/")),
        ("no base64", 400, "messages.0.content.2.image_url.url", conversation(BEFORE, "data:image/png;base64,####")),
        ("a mask that is an address", 400, "ignore", conversation(ignore="https://127.0.0.1/mask.png")),
        ("a truncated PNG, streamed", 400, "messages.0.content.1.image_url.url",
         conversation(url(picture()[:60]), AFTER, stream=True)),
        ("100,000 brackets, closed", 400, None, raw(b"[" * 100_000 + b"]" * 100_000)),
        ("bytes that are no UTF-8", 400, None, raw(b'{"messages":"\xff\xfe"}')),
        ("half a surrogate as model", 422, "model", raw(CHAT_TEXT[:-1] + b',"model":"\\udfff"}')),
        ("in UTF-16", 415, None, raw(CHAT_TEXT.decode().encode("utf-16"))),
        ("that says it is in another charset", 415, None, raw(CHAT_TEXT, "application/json; charset=punycode")),
        ("a box of 400 digits", 422, "only", conversation(only=[[0, 0, 10**400, 1]])),
        ("no name of what counts", 422, "counts", conversation(counts=[None])),
        ("names in a list in a list", 422, "counts", conversation(counts=[["scene"]])),
        ("a box of lists in lists", 422, "ignore",
         raw(CHAT_TEXT[:-1] + b',"ignore":[' + b"[" * 850 + b"]" * 851 + b"}")),
        ("a million boxes as a text", 413, None, lambda: {"json": conversation(ignore=f"[{'[0,0,1,1],' * 10**6}0]")}),
        ("15 million lists in 16,000 commas", 413, None,
         lambda: raw(CHAT_TEXT[:-1] + b',"x":[' + b",".join([b"[" * 900 + b"]" * 900] * 16_000) + b"]}")),
        ("a million elements", 413, None, lambda: raw(b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}")),
        ("JSON as text", 422, None, raw(CHAT_TEXT, "text/plain")),
        ("a form", 422, None, lambda: upload()),
        ("no images", 400, "messages", {"messages": [{"role": "user", "content": "What changed?"}]}),
        ("an unknown role", 422, "messages.0.role", {"messages": [{"role": "root", "content": "x"}]}),
        ("a sound", 422, "messages.0.content.0.type", {"messages": [{"role": "user", "content": [SOUND]}]}),
        ("an image in a text", 422, "messages.0.content.0", {"messages": [{"role": "user", "content": [HIDDEN]}]}),
        ("two pairs", 400, "messages", conversation(*[BEFORE] * 4)),
        ("samples", 422, "temperature", conversation(temperature=0.5)),
        ("wants tokens' probabilities", 422, "logprobs", conversation(logprobs=True)),
        ("wants JSON", 422, "response_format.type", conversation(response_format={"type": "json_object"})),
        ("forces a tool", 422, "tool_choice", conversation(tool_choice="required")),
        ("chooses a tool by number", 422, "tool_choice", conversation(tool_choice=3)),
        ("200,000 letters", 413, "messages", talk("x" * 200_000)),
        ("101 turns", 413, "messages", talk("a cube", turns=100)),
        ("200,000 turns", 413, None, lambda: {"json": talk("x", turns=200_000)}),
    ]
]  # fmt: skip
HEAD_ROWS = [
    Bad("a length of a terabyte", 413, None, JSON_FORM, lines=(f"Content-Length: {2**40}",)),
    Bad("packed by gzip", 415, None, raw(gzip.compress(CHAT_TEXT)), CHAT, ("Content-Encoding: gzip",)),
    *(
        Bad(name, status, "before" if status == 422 else None, JSON_FORM, lines=lines)
        for name, status, lines in [
            ("an id with a folded line", 0, ("X-Request-ID: a", " Set-Cookie: x=1")),
            ("an id of 5,000 letters", 422, (f"X-Request-ID: {'x' * 5_000}",)),
            ("two lengths", 0, ("Content-Length: 2", "Content-Length: 3")),
            ("two hosts", 0, ("Host: localhost", "Host: evil.example.org")),
            ("another path by header", 422, ("X-Original-URL: /metrics", "X-Rewrite-URL: /metrics")),
            ("forwarded for this machine", 401, ("Authorization: ", "X-Forwarded-For: 127.0.0.1")),
            ("a cross-site page", 403, ("Sec-Fetch-Site: cross-site",)),
            ("a page of no origin", 403, ("Origin: null",)),
            ("a page whose name begins as an allowed one's", 403, (f"Origin: {TOOLS}.foreign.example",)),
        ]
    ),
    *(
        Bad(f"for this machine alone: {lines[0]}", 403, None, JSON_FORM, lines=lines, local=True)
        for lines in [
            ("Host: 127.0.0.1.evil.example.org",), ("Host: ",), ("Host: a@localhost",), (f"Origin: {ORIGIN}",),
            ("X-Forwarded-For: 203.0.113.9",),
        ]
    ),
]  # fmt: skip
PATH_ROWS = [
    Bad(f"{method} {path[:60]}", status, param, path=path, method=method)
    for path, status, param, method in [
        ("/..%2f..%2f..%2f..%2fetc%2fpasswd", 404, None, "GET"),
        ("/web/..%2fconfig.py", 404, None, "GET"),
        ("/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404, "model", "GET"),
        (f"/v1/models/{'x' * 5_000}", 404, "model", "GET"),
        (CAPTIONS, 405, None, "GET"),
        (CAPTIONS, 405, None, "TRACE"),
    ]
]


def connect(client: httpx2.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def send(client: httpx2.Client, bad: Bad) -> tuple[HTTPResponse, bytes] | None:
    """The response to a request that is sent unchanged, and its body; None if there is none."""
    request = encoded(bad.body)
    body = request.read()
    fields = {"Host": client.base_url.netloc.decode(), "Content-Type": request.headers.get("content-type")}
    fields |= {"Authorization": client.headers.get("authorization"), "Content-Length": str(len(body))}
    replaced = {line.partition(":")[0] for line in bad.lines}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None and name not in replaced]
    head = "\r\n".join([f"{bad.method} {bad.path} HTTP/1.1", *lines, *bad.lines, "", ""])
    with connect(client) as connection:
        with suppress(ConnectionError):  # refused while it was being sent: the response can still be read
            connection.sendall(head.encode("latin-1") + body)
        response = HTTPResponse(connection, method=bad.method)
        try:
            response.begin()
            return response, response.read()
        except (ConnectionError, ValueError, EOFError):
            return None


@pytest.mark.parametrize("bad", [*IMAGE_ROWS, *FORM_ROWS, *CHAT_ROWS, *HEAD_ROWS, *PATH_ROWS], ids=lambda bad: bad.name)
def test_it_is_refused_with_a_proper_error(client: httpx2.Client, closed: httpx2.Client, bad: Bad) -> None:
    reply = send(client if bad.local else closed, bad)
    if not bad.status:
        assert reply is None or 400 <= reply[0].status < 500
        return
    response, body = reply
    assert response.status == bad.status, body[:500]
    answer = ErrorAnswer.model_validate_json(body)
    assert answer.error.param == bad.param, answer
    assert len(answer.error.message) > 10
    assert len(body) < 4000, "what was sent does not come back"
    assert response.getheader("x-request-id") == answer.request_id
    assert response.getheader("x-content-type-options") == "nosniff"
    assert response.getheader("set-cookie") is None


@pytest.mark.parametrize(
    ("local", "path", "line", "status"),
    [
        (False, CAPTIONS, "X: no token", 401),
        (True, CAPTIONS, f"Origin: {ORIGIN}", 403),
        (False, "/v1/nothing", f"Authorization: Bearer {TOKEN}", 404),
    ],
)
def test_a_refusal_does_not_wait_for_the_rest_of_the_body(
    client: httpx2.Client, closed: httpx2.Client, local: bool, path: str, line: str, status: int
) -> None:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", line]
    with connect(client if local else closed) as connection:
        connection.sendall(("\r\n".join(head) + "\r\n\r\n5\r\nhello\r\n").encode())
        response = HTTPResponse(connection)
        response.begin()
        assert (response.status, response.getheader("connection")) == (status, "close")
        assert ErrorAnswer.model_validate_json(response.read())
        assert connection.recv(1) == b""


@pytest.mark.parametrize("values", [["[[0, 0, 1, 1]]"] * 65, "[" + "[0, 0, 1, 1]," * 5_000, ["0,0,1,1" * 99] * 60])
def test_boxes_are_counted_before_they_are_parsed(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.schema.areas_of", None)
    with pytest.raises(ValidationError, match="more than 64 boxes and masks, or 256 characters"):
        ChatRequest.model_validate(conversation(ignore=values))


@pytest.mark.parametrize("messages", [[0] * 9, [{"role": "user", "content": [0] * 9}]])
def test_of_faulty_messages_the_first_is_named_and_no_other_kept(messages: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({"messages": messages, "logit_bias": dict.fromkeys("abc", "x")})
    assert refused.value.error_count() == 2


def test_a_request_may_say_that_it_is_in_utf_8(client: httpx2.Client) -> None:
    form = encoded(upload())
    for kind in (
        form.headers["content-type"],
        form.headers["content-type"].replace("multipart/form-data", "Multipart/Form-Data"),
    ):
        said = client.post(CAPTIONS, **raw(form.read(), f'{kind}; charset="UTF-8"'))
        assert said.json()["results"] == client.post(CAPTIONS, **upload()).json()["results"]
    assert client.post(CHAT, **raw(CHAT_TEXT, "application/json; charset=utf-8")).status_code == 200


def test_the_servers_survive(client: httpx2.Client, closed: httpx2.Client) -> None:
    """Last of this file: everything above has been sent to them."""
    assert result(client)["caption"] == result(closed)["caption"] != ""
