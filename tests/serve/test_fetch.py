"""Images by URL from a real https server: allowed hosts only, also after a redirect; limits of size and time."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve.config import LimitsConfig
from serve.errors import ApiError
from serve.fetch import Fetcher
from tests.serve.bodies import picture

IMAGE = picture()


class Images(BaseHTTPRequestHandler):
    """Responds by path, and records the requested addresses."""

    asked: list[str]
    released: threading.Event

    def do_GET(self) -> None:
        self.asked.append(f"{self.headers['Host']}{self.path}")
        port = self.server.server_address[1]
        if self.path == "/slow.png":
            self.released.wait(60)
        redirects = {
            "/there.png": f"https://localhost:{port}/image.png",
            "/elsewhere.png": f"https://127.0.0.1:{port}/image.png",
            "/plain.png": f"http://localhost:{port}/image.png",
            "/round.png": "/round.png",
        }
        if self.path in redirects:
            self.send_response(302)
            self.send_header("Location", redirects[self.path])
            self.end_headers()
            return
        self.send_response(404 if self.path == "/lost.png" else 200)
        self.end_headers()
        self.wfile.write(bytes(3 * 2**20) if self.path == "/large.png" else IMAGE)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's certificate for localhost and 127.0.0.1, and a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder: Path = tmp_path_factory.mktemp("trust")
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(pem + secret)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem")
    return server, ssl.create_default_context(cadata=pem.decode())


@pytest.fixture
def port(trust: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[int]:
    Images.asked, Images.released = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Images) as server:
        server.socket = trust[0].wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        Images.released.set()
        server.shutdown()
        thread.join()


def fetched(port: int, trust: ssl.SSLContext | None, url: str) -> bytes | str:
    """The bytes, or the code of the refusal."""
    seconds = 0.3 if "slow" in url else 60
    hosts = (f"localhost:{port}", "images.example.org")
    limits = LimitsConfig(fetch_hosts=hosts, image_mib=1, fetch_timeout_s=seconds)
    try:
        return asyncio.run(Fetcher(limits, trust).get(url.replace("PORT", str(port)), "before"))
    except ApiError as error:
        return f"{error.code} {error.param}"


def test_an_allowed_host_is_asked_and_may_send_us_on_to_itself(
    port: int, trust: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    assert fetched(port, trust[1], "https://localhost:PORT/there.png") == IMAGE


@pytest.mark.parametrize(
    ("url", "code", "asked"),
    [
        ("https://localhost:PORT/elsewhere.png", "url_not_allowed", 1),  # a redirect to a host that is not allowed
        ("https://localhost:PORT/plain.png", "url_not_allowed", 1),  # and to one without TLS
        ("https://localhost:PORT/round.png", "fetch_failed", 4),
        ("https://localhost:PORT/lost.png", "fetch_failed", 1),
        ("https://localhost:PORT/slow.png", "fetch_failed", 1),
        ("https://127.0.0.1:PORT/image.png", "url_not_allowed", 0),
        ("http://localhost:PORT/image.png", "url_not_allowed", 0),
        ("https://images.example.org@localhost:PORT/image.png", "url_not_allowed", 0),
    ],
)
def test_all_else_is_refused(
    port: int, trust: tuple[ssl.SSLContext, ssl.SSLContext], url: str, code: str, asked: int
) -> None:
    assert fetched(port, trust[1], url) == f"{code} before"
    assert len(Images.asked) == asked


def test_a_server_without_a_trusted_certificate_is_refused(port: int) -> None:
    assert fetched(port, None, "https://localhost:PORT/image.png") == "fetch_failed before"
    assert Images.asked == []


def test_what_is_too_large_is_not_read_to_its_end(port: int, trust: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    data = fetched(port, trust[1], "https://localhost:PORT/large.png")
    assert isinstance(data, bytes)
    assert 2**20 < len(data) < 2 * 2**20
