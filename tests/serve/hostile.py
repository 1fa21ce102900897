"""Requests that mean no good, as data: each is to be refused with a 4xx, and the server to live on.

To a deployment, with a stop watch:

    python -m tests.serve.send_hostile http://127.0.0.1:8000 [TOKEN]
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from tests.serve.wire import CAPTIONS, CHAT, JSON, Hostile

BOUNDARY = "idc-boundary"
FORM = (("Content-Type", f"multipart/form-data; boundary={BOUNDARY}"),)


# -- parts of bodies ----------------------------------------------------------------------------------------------


def picture(width: int = 32, height: int = 24, shade: int = 90) -> bytes:
    """A good PNG."""
    pixels = np.full((height, width, 3), shade, np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (200, 30, 30)
    return saved(pixels, "PNG")


def saved(pixels: np.ndarray, kind: str) -> bytes:
    """An image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    """A data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def pair(**fields: Any) -> dict[str, Any]:
    """The JSON of a good pair, with other ``fields`` laid over it."""
    return {"before": url(picture()), "after": url(picture(shade=140)), **fields}


def dumped(value: Any) -> Callable[[], bytes]:
    """A JSON body."""
    return lambda: json.dumps(value() if callable(value) else value).encode()


def text(make: Callable[[], str | bytes]) -> Callable[[], bytes]:
    """A body that is written by hand, where ``PAIR`` is the inside of a good pair's JSON."""

    def body() -> bytes:
        made = make()
        data = made if isinstance(made, bytes) else made.encode()
        return data.replace(b"PAIR", json.dumps(pair())[1:-1].encode())

    return body


def conversation(*urls: str, **fields: Any) -> dict[str, Any]:
    """The JSON of a chat about images."""
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    content = [{"type": "text", "text": "What changed?"}, *parts]
    return {"messages": [{"role": "user", "content": content}], **fields}


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart body of (headers, content)."""
    out = b"".join(
        b"--" + BOUNDARY.encode() + b"\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    )
    return out + b"--" + BOUNDARY.encode() + b"--\r\n"


def file(name: str, data: bytes, kind: str = "image/png") -> tuple[str, bytes]:
    """A file of a form."""
    return f'Content-Disposition: form-data; name="{name}"; filename="{name}.png"\r\nContent-Type: {kind}', data


def field(name: str, value: str) -> tuple[str, bytes]:
    """A text field of a form."""
    return f'Content-Disposition: form-data; name="{name}"', value.encode()


# -- images that are none -----------------------------------------------------------------------------------------


def png(width: int, height: int, data: bytes, *extra: tuple[bytes, bytes], bits: int = 8, colour: int = 0) -> bytes:
    """A PNG by hand: ``data`` is the compressed stream of pixels, ``extra`` are further chunks before it."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@cache
def zeros(mib: int) -> bytes:
    """A zlib stream that expands to so many MiB of zeros."""
    packer, block = zlib.compressobj(9), bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(mib)) + packer.flush()


def small_pixels(width: int = 8, height: int = 8) -> bytes:
    """The stream of pixels of a small grey PNG."""
    return zlib.compress(bytes(height * (width + 1)))


def jpeg_claiming(width: int, height: int) -> bytes:
    """A small JPEG whose header says another size."""
    data = saved(np.full((16, 16, 3), 90, np.uint8), "JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def tiff_claiming(width: int, height: int) -> bytes:
    """A TIFF of one strip whose header says a huge size."""
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 4)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 12) + bytes(4) + struct.pack("<H", len(tags)) + entries + bytes(4)


_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
_EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(/etc/passwd) run showpage\n%%EOF\n"

IMAGES: dict[str, Callable[[], bytes]] = {
    "truncated PNG": lambda: picture()[: len(picture()) // 2],
    "truncated JPEG": lambda: saved(np.full((64, 64, 3), 90, np.uint8), "JPEG")[:300],
    "PNG with a damaged checksum": lambda: picture()[:-20] + b"\0\0\0\0" + picture()[-16:],
    "PNG without pixels": lambda: png(8, 8, b""),
    "PNG with a stream that is no zlib": lambda: png(8, 8, b"not compressed at all"),
    "SVG": lambda: _SVG,
    "EPS, a program": lambda: _EPS,
    "HTML": lambda: b"<!doctype html><script>alert(1)</script>",
    "ZIP": lambda: b"PK\x03\x04" + bytes(60),
    "pickle": lambda: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "one pixel": lambda: picture(1, 1),
    "one pixel high": lambda: saved(np.zeros((1, 64, 3), np.uint8), "PNG"),
    "PNG that claims 0 x 0": lambda: png(0, 0, small_pixels()),
    "PNG with a zTXt of 64 MiB": lambda: png(8, 8, small_pixels(), (b"zTXt", b"Comment\0\0" + zeros(64))),
    "PNG with an iTXt of 64 MiB": lambda: png(8, 8, small_pixels(), (b"iTXt", b"x\0\1\0\0\0" + zeros(64))),
    "PNG with an iCCP of 64 MiB": lambda: png(8, 8, small_pixels(), (b"iCCP", b"icc\0\0" + zeros(64))),
    "GIF that claims 65,535 x 65,535": lambda: (
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0"
    ),
}
"""Files that are no image, or none that may be opened; each as the image before and as the image after."""

TOO_LARGE: dict[str, Callable[[], bytes]] = {
    "20,000 pixels wide": lambda: saved(np.zeros((8, 20_000, 3), np.uint8), "PNG"),
    "20,000 x 20,000 pixels in 50 kB": lambda: png(20_000, 20_000, zeros(48), bits=1),
    "PNG that claims 100,000 x 100,000": lambda: png(100_000, 100_000, small_pixels()),
    "PNG that claims 2^31-1 x 1": lambda: png(2**31 - 1, 1, small_pixels()),
    "JPEG that claims 65,000 x 65,000": lambda: jpeg_claiming(65_000, 65_000),
    "TIFF that claims 100,000 x 100,000": lambda: tiff_claiming(100_000, 100_000),
    "BMP that claims 100,000 x 100,000": lambda: (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, 100_000, 100_000, 1, 24, 0, 0, 0, 0, 0, 0)
    ),
}
"""Images with more pixels than a server may open, really or by their headers."""

URLS = {
    "localhost": "http://localhost/a.png",
    "localhost by https": "https://localhost/a.png",
    "127.0.0.1": "https://127.0.0.1:8265/api/jobs/",
    "a number that is 127.0.0.1": "https://2130706433/a.png",
    "IPv6 loopback": "https://[::1]/a.png",
    "a cloud's metadata": "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "a cloud's metadata by name": "https://metadata.google.internal/computeMetadata/v1/",
    "a file": "file:///etc/passwd",
    "a path": "/etc/passwd",
    "a path upwards": "../../etc/passwd",
    "FTP": "ftp://example.org/a.png",
    "gopher": "gopher://127.0.0.1:6379/_FLUSHALL",
    "a host that is not allowed": "https://images.example.org/a.png",
    "another host before the @": "https://images.example.org@127.0.0.1/a.png",
    "a broken IPv6 host": "https://[::1/a.png",
    "a script": "javascript:alert(1)",
    "text as data URL": "data:text/html;base64,PGgxPg==",
    "SVG as data URL": url(_SVG, "image/svg+xml"),
    "a data URL without base64": "data:image/png,%89PNG",
    "an empty data URL": "data:image/png;base64,",
    "a data URL without a comma": "data:image/png;base64",
    "a data URL that is no base64": "data:image/png;base64,####",
    "a data URL with half of a byte": "data:image/png;base64,A",
    "blanks": "   ",
    "no base64": "hello, world!",
    "a NUL": "\0",
    "an emoji": "🙂" * 10,
}
"""What may not stand for an image."""

MODELS = {
    "a path upwards": "../../etc/passwd",
    "a path upwards, encoded": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "an absolute path": "/etc/passwd",
    "another alias": "models:/x@y",
    "another version": "models:/captioner/1",
    "a run": "runs:/0/artifact",
    "a file URL": "file:///etc",
    "a bucket": "s3://bucket/artifact",
    "a NUL": "demo\0",
    "line breaks": "demo\r\nX-Injected: 1",
    "a template": "{{7*7}}${jndi:ldap://x}",
    "SQL": "demo'; DROP TABLE models;--",
}
"""Names of models that are none of those served."""


# -- the list -----------------------------------------------------------------------------------------------------


def requests() -> list[Hostile]:
    """All of them."""
    return [*_images(), *_urls(), *_bodies(), *_values(), *_forms(), *_models(), *_headers(), *_paths(), *_chats()]


def _images() -> Iterator[Hostile]:
    for status, images in ((400, IMAGES), (413, TOO_LARGE)):
        for name, make in images.items():
            # The maker is bound as a default: the bodies are made when they are sent, not here.
            yield Hostile(f"before is {name}", status, "before", dumped(lambda make=make: pair(before=url(make()))))
            yield Hostile(
                f"after is {name}, as a file", status, "after",
                lambda make=make: form(file("before", picture()), file("after", make())), headers=FORM,
            )  # fmt: skip
    several = lambda: {"pairs": [pair(before=url(_SVG)), pair(after=url(picture(1, 1)))]}  # noqa: E731
    yield Hostile("no pair of several is readable", 400, "pairs.0.before", dumped(several))


def _urls() -> Iterator[Hostile]:
    for name, value in URLS.items():
        yield Hostile(f"before is {name}", 400, "before", dumped(lambda value=value: pair(before=value)))
        yield Hostile(
            f"a chat about {name}", 400, "messages.0.content.2.image_url.url",
            dumped(lambda value=value: conversation(url(picture()), value)), path=CHAT,
        )  # fmt: skip


def _bodies() -> Iterator[Hostile]:
    def bad(name: str, body: Callable[[], bytes], status: int = 400, param: str | None = None) -> Hostile:
        return Hostile(name, status, param, body)

    yield bad("an empty body", lambda: b"")
    yield bad("blanks", lambda: b" \r\n ")
    yield bad("half of a JSON", lambda: dumped(pair)()[:-40])
    yield bad("two JSONs", lambda: dumped(pair)() * 2)
    yield bad("JSON with a tail", lambda: dumped(pair)() + b"x")
    yield bad("100,000 brackets", lambda: b"[" * 100_000)
    yield bad("100,000 brackets, closed", lambda: b"[" * 100_000 + b"]" * 100_000)
    yield bad("deep objects", text(lambda: '{PAIR,"id":' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}"))
    yield bad("deep in a field that is ignored", lambda: b'{"messages":[],"metadata":' + b"[" * 500 + b"]" * 500 + b"}")
    yield bad("duplicate keys", text(lambda: '{PAIR,"before":"data:,"}'))
    yield bad("duplicate keys inside", text(lambda: '{"pairs":[{PAIR,"id":"a","id":"b"}]}'))
    yield bad("NaN", text(lambda: '{PAIR,"beams":NaN}'))
    yield bad("-Infinity", text(lambda: '{PAIR,"beams":-Infinity}'))
    yield bad("a number of 5,000 digits", text(lambda: '{PAIR,"beams":' + "9" * 5_000 + "}"))
    yield bad("bytes that are no UTF-8", text(lambda: b'{PAIR,"id":"\xff\xfe"}'))
    yield bad("UTF-16", lambda: json.dumps(pair()).encode("utf-16"))
    yield bad("control characters", text(lambda: '{PAIR,"id":"\x01"}'))
    yield bad("gzip", lambda: zlib.compress(dumped(pair)()))
    for name, value in {"null": None, "a list": [], "a text": "x", "a number": 1, "true": True}.items():
        yield bad(f"{name} instead of an object", dumped(value), 422)
    many = lambda: {"pairs": [{"before": "QQ==", "after": "QQ=="}] * 10_000}  # noqa: E731
    yield bad("10,000 pairs", dumped(many), 413, "pairs")
    yield bad("5 million escapes", lambda: b'{"before":"' + b"\\n" * 5_000_000 + b'"}', 422)
    yield bad("20,000 quotes in a text that does not end", lambda: b'{"before":"' + b'\\"' * 20_000)
    huge = lambda: b'{"before":"' + b"A" * (40 * 2**20) + b'"}'  # noqa: E731
    yield Hostile("40 MiB", 413, None, huge)
    yield Hostile("40 MiB in chunks", 413, None, huge, chunked=True)
    yield Hostile("a length of a terabyte", 413, headers=(*JSON, ("Content-Length", str(2**40))))
    for kind in (
        "text/plain",
        "application/xml",
        "image/png",
        "application/x-www-form-urlencoded",
        "application/jsonp",
    ):
        yield Hostile(f"JSON as {kind}", 415, None, dumped(pair), headers=(("Content-Type", kind),))
    yield Hostile("no content type", 415, None, dumped(pair), headers=())
    yield Hostile("a body packed by gzip", 415, None, dumped(pair), headers=(*JSON, ("Content-Encoding", "gzip")))


def _values() -> Iterator[Hostile]:
    def bad(name: str, param: str | None, **fields: Any) -> Hostile:
        return Hostile(name, 422, param, dumped(lambda: pair(**fields)))

    yield bad("no beams", "beams", beams=0)
    yield bad("fewer than no beams", "beams", beams=-1)
    yield bad("half a beam", "beams", beams=1.5)
    yield bad("2^70 beams", "beams", beams=2**70)
    yield bad("1e308 beams", "beams", beams=1e308)
    yield bad("a million beams", "beams", beams=1_000_000)
    yield bad("beams in words", "beams", beams="many")
    yield bad("a million candidates", "candidates", candidates=1_000_000)
    yield bad("a list of candidates", "candidates", candidates=[1])
    yield bad("a map in words", "change_map", change_map="please")
    yield bad("an unknown field", "befor", befor="x")
    yield bad("__proto__", "__proto__", __proto__={"admin": True})
    yield bad("a number as image", "before", before=7)
    yield bad("an object as image", "before", before={"url": "x"})
    yield bad("both ways at once", None, pairs=[{"before": "QQ==", "after": "QQ=="}])
    yield Hostile("no image after", 422, None, dumped(lambda: {"before": url(picture())}))
    yield Hostile("no pairs", 422, "pairs", dumped({"pairs": []}))
    yield Hostile("half a surrogate as id", 400, None, dumped(lambda: {"pairs": [pair(id="\ud800")]}))
    yield Hostile("half a surrogate as model", 400, None, text(lambda: '{PAIR,"model":"\\udfff"}'))
    yield Hostile("half a surrogate as key", 400, None, text(lambda: '{PAIR,"\\ud800":1}'))
    yield Hostile("an id of 10,000 letters", 422, "pairs.0.id", dumped(lambda: {"pairs": [pair(id="x" * 10_000)]}))
    yield Hostile("a model of 10,000 letters", 422, "model", dumped(lambda: pair(model="x" * 10_000)))


def _forms() -> Iterator[Hostile]:
    def bad(name: str, status: int, param: str | None, *parts: tuple[str, bytes]) -> Hostile:
        return Hostile(name, status, param, lambda: form(*parts), headers=FORM)

    before, after = file("before", picture()), file("after", picture())
    yield bad("a form without an image after", 422, "after", before)
    yield bad("an empty form", 422, "before")
    yield bad("a form with two images before", 422, "after", before, before, after)
    yield bad("a form with another field", 422, "befor", before, after, file("befor", picture()))
    yield bad("a form with an empty file", 400, "after", before, file("after", b""))
    yield bad("a form with a number in words", 422, "beams", before, after, field("beams", "many"))
    yield bad("a form with a text for an image", 422, "after", before, field("after", "hello, world!"))
    yield bad("a form with 2,000 fields", 400, None, before, after, *[field("id", "x")] * 2_000)
    yield bad("a form with a part without a name", 400, None, before, after, ("Content-Type: image/png", b"x"))
    yield bad("a form with a part of 64 kB of headers", 400, None, (f"X: {'x' * 65536}", b""), before, after)
    yield Hostile("a form cut in the middle", 422, "after", lambda: form(before, after)[:-120], headers=FORM)
    other = (("Content-Type", "multipart/form-data; boundary=other"),)
    yield Hostile("a form with another boundary", 400, None, lambda: form(before, after), headers=other)
    none = (("Content-Type", "multipart/form-data"),)
    yield Hostile("a form without a boundary", 400, None, lambda: form(before, after), headers=none)
    long = (("Content-Type", f"multipart/form-data; boundary={'x' * 2000}"),)
    yield Hostile("a form with a boundary of 2,000 letters", 400, None, lambda: form(before, after), headers=long)
    yield Hostile("a form to the chat", 415, None, lambda: form(before, after), path=CHAT, headers=FORM)


def _models() -> Iterator[Hostile]:
    for name, value in MODELS.items():
        yield Hostile(f"the model is {name}", 404, "model", dumped(lambda value=value: pair(model=value)))
        yield Hostile(
            f"the chat's model is {name}", 404, "model",
            dumped(lambda value=value: conversation(url(picture()), url(picture()), model=value)), path=CHAT,
        )  # fmt: skip


def _headers() -> Iterator[Hostile]:
    def bad(name: str, *headers: tuple[str, str], status: int = 422, plain: bool = False, only: Any = None) -> Hostile:
        # An empty object: what remains to be refused where the header itself is let pass.
        return Hostile(name, status, None, lambda: b"{}", headers=(*JSON, *headers), plain=plain, only=only)

    yield bad("an id with line breaks, encoded", ("X-Request-ID", "a%0d%0aSet-Cookie:x=1"))
    yield bad("an id with a folded line", ("X-Request-ID", "a\r\n Set-Cookie: x=1"), status=400, plain=True)
    yield bad("an id with a bare return", ("X-Request-ID", "a\rSet-Cookie: x=1"), status=400, plain=True)
    yield bad("an id with a NUL", ("X-Request-ID", "a\0b"), status=400, plain=True)
    yield bad("an id of 5,000 letters", ("X-Request-ID", "x" * 5_000))
    yield bad("an id that is HTML", ("X-Request-ID", "<script>alert(1)</script>"))
    yield bad("an id in Latin-1", ("X-Request-ID", "\xe9\xff"))
    yield bad("a header of 1 MiB", ("X-Large", "x" * 2**20), status=431)
    yield bad("20,000 headers", *[("X-Many", "x")] * 20_000, status=431)
    yield bad("two lengths", ("Content-Length", "2"), ("Content-Length", "3"), status=400, plain=True)
    yield bad("a negative length", ("Content-Length", "-1"), status=400, plain=True)
    yield bad("a length in words", ("Content-Length", "two"), status=400, plain=True)
    yield bad("a name with a blank", ("X Bad", "x"), status=400, plain=True)
    yield bad("another method by header", ("X-HTTP-Method-Override", "DELETE"))
    yield bad("another path by header", ("X-Original-URL", "/metrics"), ("X-Rewrite-URL", "/metrics"))
    for name, value in {
        "no scheme": "secret",
        "Basic": "Basic YTpi",
        "Bearer and nothing": "Bearer",
        "Bearer and blanks": "Bearer    ",
        "another token": "Bearer wrong",
        "a token of 4,000 letters": "Bearer " + "x" * 4_000,
        "a token in Latin-1": "Bearer \xe9\xff",
        "an empty header": "",
        "two tokens in one header": "Bearer a, Bearer b",
    }.items():
        yield bad(f"Authorization: {name}", ("Authorization", value), status=401, only="token")
    twice = (("Authorization", "Bearer wrong"), ("Authorization", "Bearer wronger"))
    yield bad("Authorization twice", *twice, status=401, only="token")
    forwarded = ("X-Forwarded-For", "127.0.0.1")
    yield bad("forwarded for this machine", ("Authorization", ""), forwarded, status=401, only="token")
    for host in (
        "evil.example.org",
        "127.0.0.1.evil.example.org",
        "localhost.evil.example.org",
        "",
        "0x7f.1",
        "a@localhost",
    ):
        yield bad(f"Host: {host or 'nothing'}", ("Host", host), status=403, only="loopback")
    yield bad("two hosts", ("Host", "localhost"), ("Host", "evil.example.org"), status=400, plain=True)
    yield bad("forwarded for another machine", ("X-Forwarded-For", "203.0.113.9"), status=403, only="loopback")
    for name, value in {
        "Sec-Fetch-Site": "cross-site",
        "sec-fetch-site": "same-site",
        "Origin": "https://evil.example.org",
        "origin": "null",
    }.items():
        yield bad(f"of a foreign page, {name}: {value}", (name, value), status=403)


def _paths() -> Iterator[Hostile]:
    def get(path: str, status: int = 404, method: str = "GET", plain: bool = False) -> Hostile:
        param = "model" if path.startswith("/v1/models/") and status == 404 else None
        return Hostile(f"{method} {path[:60]}", status, param, method=method, path=path, headers=(), plain=plain)

    for path in (
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/..%5c..%5cetc%5cpasswd",
        "/%252e%252e/etc/passwd",
        "//etc/passwd",
        "/static/../../config.py",
        "/web/..%2fconfig.py",
        "/v1/models/../../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models/%2fetc%2fpasswd",
        "/v1/models/models:/captioner@other",
        "/v1/models/%00",
        "/v1/models/%ff%fe",
        "/v1/models/" + "x" * 5_000,
        "/v1/nothing",
        "/.env",
        "/.git/config",
    ):
        yield get(path)
    for method, path in (("GET", CAPTIONS), ("PUT", CAPTIONS), ("DELETE", "/v1/models"), ("TRACE", CAPTIONS)):
        yield get(path, 405, method)
    yield get("/v1/nothing HTTP/9.9\r\nX: ", 400, plain=True)
    yield get("/v1/models\0", 400, plain=True)


def _chats() -> Iterator[Hostile]:
    def bad(name: str, status: int, param: str | None, value: Any) -> Hostile:
        return Hostile(f"a chat {name}", status, param, dumped(value), path=CHAT)

    good = lambda **fields: lambda: conversation(url(picture()), url(picture()), **fields)  # noqa: E731
    yield bad("without images", 400, "messages", conversation())
    part = {"type": "image_url"}
    yield bad(
        "with an image that is nowhere",
        422,
        "messages.0.content.0",
        {"messages": [{"role": "user", "content": [part]}]},
    )
    yield bad("about one image", 400, "messages", lambda: conversation(url(picture())))
    yield bad("without messages", 422, "messages", {"messages": []})
    yield bad("with nothing", 422, "messages", {})
    yield bad("with a text for messages", 422, "messages", {"messages": "hello"})
    yield bad("of an unknown role", 422, "messages.0.role", {"messages": [{"role": "root", "content": "x"}]})
    yield bad("with a number as content", 422, "messages.0.content", {"messages": [{"role": "user", "content": 7}]})
    part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    yield bad("with a sound", 422, "messages.0.content.0.type", {"messages": [{"role": "user", "content": [part]}]})
    yield bad("for no captions", 422, "n", good(n=0))
    yield bad("for 10^9 captions", 422, "n", good(n=10**9))
    yield bad("that wants tokens' probabilities", 400, "logprobs", good(logprobs=True))
    yield bad("that wants JSON", 400, "response_format.type", good(response_format={"type": "json_object"}))
    yield bad("that forces a tool", 400, "tool_choice", good(tool_choice="required"))
    yield bad("about a truncated PNG", 400, "messages.0.content.2.image_url.url",
              lambda: conversation(url(picture()), url(picture()[:60])))  # fmt: skip
    yield bad("about a truncated PNG, streamed", 400, "messages.0.content.1.image_url.url",
              lambda: conversation(url(picture()[:60]), url(picture()), stream=True))  # fmt: skip
    yield bad("of 100,000 turns", 413, None, {"messages": [{"role": "user", "content": "x"}] * 100_000})
