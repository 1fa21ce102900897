"""Malicious and malformed requests as data: each must be refused with a 4xx, and the server must survive."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

from tests.serve.bad_images import IMAGES, SVG, geotiff_claiming
from tests.serve.bodies import FORM, conversation, dumped, field, file, form, formed, picture, url
from tests.serve.wire import CAPTIONS, CHAT, JSON, Hostile

URLS = {
    "an address": "https://127.0.0.1:8265/api/jobs/",
    "SVG as data URL": url(SVG, "image/svg+xml"),
    "a data URL that is no base64": "data:image/png;base64,####",
}
"""Texts in place of the data URL of an image."""


def requests() -> list[Hostile]:
    """All requests."""
    return [*_images(), *_urls(), *_bodies(), *_values(), *_forms(), *_headers(), *_paths(), *_chats()]


def _with_after(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """A form whose image after is made when it is sent, not here."""
    return lambda: formed(after=make())()


def _images() -> Iterator[Hostile]:
    for name, (status, make) in IMAGES.items():
        yield Hostile(f"after is {name}", status, "after", _with_after(make), headers=FORM)
    for name, claims in {
        "100,000 x 100,000 pixels": (10**5, 10**5),
        "numbers of 64 bits": (4000, 4000, 4, 64),
    }.items():
        tiff = geotiff_claiming(*claims)
        yield Hostile(
            f"GeoTIFFs that claim {name}, with polygons", 413, "before", formed(tiff, tiff, polygons="always"),
            headers=FORM,
        )  # fmt: skip
    yield Hostile("polygons of a PNG", 400, "before", formed(polygons="always"), headers=FORM)
    several = [file(name, data) for pair in ((SVG, picture()), (picture(), picture(1, 1)))
               for name, data in zip(("before", "after"), pair, strict=True)]  # fmt: skip
    yield Hostile("no pair of several is readable", 400, "pairs.0.before", lambda: form(*several), headers=FORM)


def _urls() -> Iterator[Hostile]:
    for name, value in URLS.items():
        yield Hostile(
            f"a chat about {name}", 400, "messages.0.content.2.image_url.url",
            dumped(lambda value=value: conversation(url(picture()), value)), path=CHAT,
        )  # fmt: skip
    masked = dumped(lambda: conversation(url(picture()), url(picture()), ignore="https://127.0.0.1/mask.png"))
    yield Hostile("a chat with a mask that is an address", 400, "ignore", masked, path=CHAT)


def _bodies() -> Iterator[Hostile]:
    def bad(name: str, body: Callable[[], bytes], status: int = 400, param: str | None = None) -> Hostile:
        return Hostile(name, status, param, body, path=CHAT)

    good = dumped(lambda: conversation(url(picture()), url(picture())))
    yield bad("half of a JSON", lambda: good()[:-40])
    yield bad("100,000 brackets, closed", lambda: b"[" * 100_000 + b"]" * 100_000)
    yield bad("bytes that are no UTF-8", lambda: b'{"messages":"\xff\xfe"}')
    yield bad("a list instead of an object", dumped([]), 422)
    yield bad("half a surrogate as model", lambda: good()[:-1] + b',"model":"\\udfff"}', 422, "model")
    yield bad("a million elements", lambda: b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}", 413)
    yield Hostile("a length of a terabyte", 413, headers=(*JSON, ("Content-Length", str(2**40))))
    yield Hostile("JSON as text", 422, None, good, path=CHAT, headers=(("Content-Type", "text/plain"),))
    yield Hostile("a body packed by gzip", 400, None, lambda: gzip.compress(good()), path=CHAT,
                  headers=(*JSON, ("Content-Encoding", "gzip")))  # fmt: skip
    yield Hostile("a form that is JSON", 422, "before", good)


def _values() -> Iterator[Hostile]:
    def bad(name: str, param: str, status: int = 422, **fields: Any) -> Hostile:
        return Hostile(name, status, param, formed(**fields), headers=FORM)

    yield bad("2^70 beams", "beams", beams=2**70)
    yield bad("a million candidates", "candidates", candidates=1_000_000)
    yield bad("more candidates than beams", "beams", candidates=3, beams=2)
    yield bad("an empty box", "ignore", ignore="[[5, 5, 5, 9]]")
    yield bad("65 boxes", "ignore", ignore=["0,0,1,1"] * 65)
    yield bad("boxes that are deep", "ignore", ignore="[" * 4000)
    yield bad("a path for a mask", "ignore", 400, ignore="mask.png")
    yield bad("a model of another version", "model", 404, model="models:/captioner/1")
    yield bad("a model of two lines", "model", 404, model="demo\r\nX-Injected: 1")
    yield bad("an unknown field", "befor", befor="x")
    yield bad("a model of 10,000 letters", "model", model="x" * 10_000)


def _forms() -> Iterator[Hostile]:
    def bad(name: str, status: int, param: str | None, *parts: tuple[str, bytes]) -> Hostile:
        return Hostile(name, status, param, lambda: form(*parts), headers=FORM)

    before, after = file("before", picture()), file("after", picture())
    yield bad("a form without an image after", 422, "after", before)
    yield bad("a form with two images before", 422, "after", before, before, after)
    yield bad("a form with an empty file", 400, "after", before, file("after", b""))
    yield bad("a form with 2,000 fields", 400, None, before, after, *[field("id", "x")] * 2_000)
    yield bad("a form with 65 pairs", 413, "pairs", *[before] * 65, *[after] * 65)
    yield bad("a form with a part without a name", 400, None, before, after, ("Content-Type: image/png", b"x"))
    yield bad("a form with a part of 64 kB of headers", 400, None, (f"X: {'x' * 65536}", b""), before, after)
    yield Hostile("a form cut in the middle", 422, "after", lambda: form(before, after)[:-120], headers=FORM)
    other = (("Content-Type", "multipart/form-data; boundary=other"),)
    yield Hostile("a form with another boundary", 400, None, lambda: form(before, after), headers=other)
    none = (("Content-Type", "multipart/form-data"),)
    yield Hostile("a form without a boundary", 400, None, lambda: form(before, after), headers=none)
    yield Hostile("a form to the chat", 422, None, lambda: form(before, after), path=CHAT, headers=FORM)


def _headers() -> Iterator[Hostile]:
    def bad(name: str, *headers: tuple[str, str], status: int = 422, plain: bool = False, only: Any = None) -> Hostile:
        # No form: refused if the header itself is accepted.
        param = "before" if status == 422 else None
        return Hostile(name, status, param, lambda: b"{}", headers=(*JSON, *headers), plain=plain, only=only)

    yield bad("an id with line breaks, encoded", ("X-Request-ID", "a%0d%0aSet-Cookie:x=1"))
    yield bad("an id with a folded line", ("X-Request-ID", "a\r\n Set-Cookie: x=1"), status=400, plain=True)
    yield bad("an id of 5,000 letters", ("X-Request-ID", "x" * 5_000))
    yield bad("two lengths", ("Content-Length", "2"), ("Content-Length", "3"), status=400, plain=True)
    yield bad("another path by header", ("X-Original-URL", "/metrics"), ("X-Rewrite-URL", "/metrics"))
    forwarded = ("X-Forwarded-For", "127.0.0.1")
    yield bad("forwarded for this machine", ("Authorization", ""), forwarded, status=401, only="token")
    for host in ("127.0.0.1.evil.example.org", "", "a@localhost"):
        yield bad(f"Host: {host or 'nothing'}", ("Host", host), status=403, only="loopback")
    yield bad("two hosts", ("Host", "localhost"), ("Host", "evil.example.org"), status=400, plain=True)
    yield bad("forwarded for another machine", ("X-Forwarded-For", "203.0.113.9"), status=403, only="loopback")


def _paths() -> Iterator[Hostile]:
    def get(path: str, status: int = 404, method: str = "GET") -> Hostile:
        param = "model" if path.startswith("/v1/models/") and status == 404 else None
        return Hostile(f"{method} {path[:60]}", status, param, method=method, path=path, headers=())

    for path in (
        "/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/web/..%2fconfig.py",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models/%ff%fe",
        "/v1/models/" + "x" * 5_000,
    ):
        yield get(path)
    for method, path in (("GET", CAPTIONS), ("DELETE", "/v1/models"), ("TRACE", CAPTIONS)):
        yield get(path, 405, method)


def asked(words: str) -> dict[str, Any]:
    """A conversation about a pair that ends with these words."""
    return {"messages": [*conversation(url(picture()), url(picture()))["messages"], {"role": "user", "content": words}]}


def _chats() -> Iterator[Hostile]:
    def bad(name: str, status: int, param: str | None, value: Any) -> Hostile:
        return Hostile(f"a chat {name}", status, param, dumped(value), path=CHAT)

    good = lambda **fields: lambda: conversation(url(picture()), url(picture()), **fields)  # noqa: E731
    yield bad("without images", 400, "messages", conversation())
    yield bad("of an unknown role", 422, "messages.0.role", {"messages": [{"role": "root", "content": "x"}]})
    part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    yield bad("with a sound", 422, "messages.0.content.0.type", {"messages": [{"role": "user", "content": [part]}]})
    yield bad("that samples", 422, "temperature", good(temperature=0.5))
    yield bad("that wants tokens' probabilities", 422, "logprobs", good(logprobs=True))
    yield bad("about two pairs", 400, "messages", lambda: conversation(*[url(picture())] * 4))
    yield bad("that wants JSON", 422, "response_format.type", good(response_format={"type": "json_object"}))
    yield bad("that forces a tool", 422, "tool_choice", good(tool_choice="required"))
    yield bad("about a truncated PNG, streamed", 400, "messages.0.content.1.image_url.url",
              lambda: conversation(url(picture()[:60]), url(picture()), stream=True))  # fmt: skip
    hidden = {"type": "text", "text": "x", "image_url": {"url": "data:,"}}
    turns = {"messages": [{"role": "user", "content": [hidden]}]}
    yield bad("with an image in a text", 422, "messages.0.content.0", turns)
    yield bad("with 200,000 letters", 413, "messages", lambda: asked("x" * 200_000))
    said = [{"role": role, "content": "a cube"} for _ in range(50) for role in ("assistant", "user")]
    long = lambda: {"messages": [*conversation(url(picture()), url(picture()))["messages"], *said]}  # noqa: E731
    yield bad("of 101 turns", 413, "messages", long)
    yield bad("of 200,000 turns", 413, None, {"messages": [{"role": "user", "content": "x"}] * 200_000})
