"""The HTTP application over a real captioner in this process: captions, limits, queues, logs, metrics."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from starlette.datastructures import Headers

from idc.captioning.loading import artifact_folder
from idc.data.images import decode_image, encode_png
from idc.systems import REGIONS
from idc.training.artifact import artifact_identity
from serve.api import create_api
from serve.backend import EncodedPair, Options
from serve.captioner import ServedCaptioner
from serve.config import AuthConfig
from serve.errors import ApiError
from serve.gate import Drain, caller_of
from serve.schema import CaptionAnswer, ErrorAnswer
from tests.serve.bodies import FORM, conversation, picture, upload, url
from tests.serve.local import HELD, HeldBackend, LocalBackend, caption, local_config, serving, tokens_of
from tests.serve.waiting import until
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk

DISKS = EncodedPair(encode_png(ground()), encode_png(with_disk(with_disk(ground(), 60, 60, RED), 260, 60, BLUE)))
PAIRS = [EncodedPair(picture(shade=40 * n), picture(40, 30, shade=40 * n + 20)) for n in range(3)]
HELD_PAIR = EncodedPair(picture(HELD, 30), picture(shade=140))
TOKENS = {"first": "a-token", "second": "another-token", "third": "one-more"}


@pytest.fixture(scope="module")
def client(artifact: str) -> Iterator[httpx2.Client]:
    api = create_api(local_config(artifact), LocalBackend(artifact))
    with serving(api) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def test_a_form_gives_what_the_captioner_gives(client: httpx2.Client, artifact: str) -> None:
    options = {"candidates": 2, "change_map": True, "objects": "always"}
    (expected,) = caption(ServedCaptioner(artifact), PAIRS[:1], [Options(beams=2, **options)])
    assert expected.description is not None
    answer = client.post("/v1/captions", **upload(PAIRS[0], **options)).raise_for_status()
    parsed = CaptionAnswer.model_validate_json(answer.content)
    (result,) = answer.json()["results"]
    written = expected.description.to_dict()
    assert {name: result[name] for name in written} == json.loads(json.dumps(written))
    assert written["objects_text"]
    change_map = decode_image(base64.b64decode(result["change_map"].removeprefix("data:image/png;base64,")))
    assert change_map.shape == (30, 40, 3)  # of the image after
    assert parsed.request_id == answer.headers["x-request-id"]
    assert parsed.version == f"sha256:{artifact_identity(artifact)[:12]}"
    assert ask(client, upload(PAIRS[0]))["claims"] is None


def test_a_part_that_does_not_count_is_left_out_in_every_form() -> None:
    """Of two disks that are new, one on the left and one on the right, by each way to say where."""
    height, width = decode_image(DISKS.after).shape[:2]
    mask = np.zeros((height, width, 3), np.uint8)
    mask[:, width // 2 :] = 255
    pixels, white = [[width // 2, 0, width, height]], encode_png(mask)
    of_a_file = upload(DISKS, ignore="0,0,9,9")
    of_a_file["files"] += [("ignore", ("mask.png", white))]
    source = artifact_folder(REGIONS)
    with (
        serving(create_api(local_config(source), LocalBackend(source))) as address,
        httpx2.Client(base_url=address, timeout=60) as disks,
    ):
        shares = ask(disks, upload(DISKS, ignore="[[0.5, 0, 1, 1]]"))
        assert ["left" in region["position"] for region in shares["regions"]] == [True]
        for form in (upload(DISKS, ignore=json.dumps(pixels)), upload(DISKS, ignore=url(white)), of_a_file):
            assert ask(disks, form) == shares
        for part in (pixels, url(white), [[0, 0, 9, 9], url(white)]):
            chat = conversation(url(DISKS.before), url(DISKS.after), ignore=part)
            answer = disks.post("/v1/chat/completions", json=chat).json()
            assert (answer["choices"][0]["message"]["content"], answer["claims"]) == (
                shares["caption"], shares["claims"],
            )  # fmt: skip
        assert ask(disks, upload(DISKS)) != shares


def ask(client: httpx2.Client, form: dict[str, Any]) -> dict[str, Any]:
    """The result of a request for one pair."""
    result: dict[str, Any] = client.post("/v1/captions", **form).raise_for_status().json()["results"][0]
    return result


def test_one_bad_pair_of_several_has_its_error_and_the_others_captions(client: httpx2.Client) -> None:
    no_image = EncodedPair(b"<svg/>", PAIRS[1].after)
    results = client.post("/v1/captions", **upload(PAIRS[0], no_image, PAIRS[2])).raise_for_status().json()["results"]
    alone = [ask(client, upload(pair))["caption"] for pair in (PAIRS[0], PAIRS[2])]
    assert [result["caption"] for result in (results[0], results[2])] == alone
    assert results[1]["error"].startswith("pairs.1.before: not a readable image")


def test_tokens_open_what_is_closed_and_their_names_are_in_the_log(
    artifact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = create_api(local_config(artifact, auth={"tokens": tokens_of(**TOKENS)}), LocalBackend(artifact))
    capsys.readouterr()
    with serving(api) as url, httpx2.Client(base_url=url, timeout=60) as client:
        for path in ("/", "/web/style.css", "/docs", "/openapi.json", "/healthz", "/readyz"):
            assert client.get(path).status_code == 200, path
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKENS['first']}"}):
            for path in ("/v1/models", "/metrics", "/v1/captions", "/nowhere"):
                answer = client.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        for name, token in TOKENS.items():
            headers = {"Authorization": f"Bearer {token}", "X-Request-ID": f"id-of-{name}"}
            answer = client.post("/v1/captions", **upload(PAIRS[0]), headers=headers).raise_for_status()
            assert answer.headers["x-request-id"] == f"id-of-{name}"
        bad = client.get("/v1/models", headers={"X-Request-ID": "not an id"})
        assert re.fullmatch("[0-9a-f]{32}", bad.headers["x-request-id"])
    printed = capsys.readouterr().out
    entries = [json.loads(line) for line in printed.splitlines()]
    assert all(entry.keys() >= {"time", "level", "event", "node", "pid"} for entry in entries), "as of jobs and workers"
    good = [entry for entry in entries if entry["status"] == 200]
    assert [(entry["caller"], entry["request_id"], entry["route"], entry["pairs"]) for entry in good] == [
        (name, f"id-of-{name}", "/v1/captions", 1) for name in TOKENS
    ]
    assert base64.b64encode(PAIRS[0].before).decode()[:40] not in printed


@pytest.mark.parametrize(
    ("address", "host", "is_local"),
    [
        ("::1", "[::1]:8000", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("192.0.2.7", "localhost", False),
        (None, "localhost", False),
    ],
)
def test_loopback_serves_this_machine_alone(address: str | None, host: str, is_local: bool) -> None:
    refused = nullcontext() if is_local else pytest.raises(ApiError, match="only requests from localhost")
    with refused:
        assert caller_of(AuthConfig(), address, Headers({"host": host})) == address


def test_queues_have_ends_for_each_and_for_all(artifact: str) -> None:
    backend = HeldBackend(artifact)
    sections = {"auth": {"tokens": tokens_of(**TOKENS)}, "limits": {"waiting_pairs": 128}}
    with (
        serving(create_api(local_config(artifact, **sections), backend)) as url,
        ThreadPoolExecutor(8) as threads,
        httpx2.Client(base_url=url, timeout=60) as client,
    ):

        def ask(name: str, pairs: int) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {TOKENS[name]}"}
            return client.post("/v1/captions", **upload(*[HELD_PAIR] * pairs), headers=headers)

        def metrics() -> str:
            return client.get("/metrics", headers={"Authorization": f"Bearer {TOKENS['first']}"}).text

        held = [threads.submit(ask, "first", 64), threads.submit(ask, "second", 40)]
        for _ in held:
            assert backend.asked.acquire(timeout=60)
        for name, pairs, status in (("first", 1, 429), ("second", 25, 429), ("third", 25, 503)):
            refused = ask(name, pairs)
            assert (refused.status_code, refused.headers["retry-after"]) == (status, "1"), (name, pairs)
        assert "idc_pairs_waiting 104.0" in metrics()
        backend.go_on.set()
        assert [one.result().status_code for one in held] == [200, 200]
        assert ask("first", 3).status_code == 200  # the room is free again
        version = f"sha256:{artifact_identity(artifact)[:12]}"
        for line in (
            "idc_pairs_waiting 0.0",
            'idc_pairs_total{outcome="captioned"} 107.0',
            'idc_requests_total{route="/v1/captions",status="429"} 2.0',
            f'idc_model_info{{model="demo",version="{version}"}} 1.0',
        ):
            assert line in metrics()


def test_a_draining_front_answers_what_it_has_accepted_and_refuses_the_rest(artifact: str) -> None:
    backend, drain = HeldBackend(artifact), Drain()
    api = create_api(local_config(artifact), backend, drain)
    with serving(api) as url, ThreadPoolExecutor(2) as threads, httpx2.Client(base_url=url, timeout=60) as client:
        drain.replaced = True  # another front takes over: clients are asked to connect again
        assert client.get("/readyz").headers["connection"] == "close"
        accepted = threads.submit(client.post, "/v1/captions", **upload(HELD_PAIR))
        assert backend.asked.acquire(timeout=60)
        assert asyncio.run(drain.finish(0.0)) == 1
        finished = threads.submit(asyncio.run, drain.finish(60))
        for path in ("/v1/captions", "/readyz", "/"):
            refused = client.get(path)
            error = ErrorAnswer.model_validate_json(refused.content).error
            assert (refused.status_code, error.code, refused.headers["retry-after"]) == (503, "ending", "5"), path
        assert client.get("/healthz").status_code == 200
        assert not finished.done()
        backend.go_on.set()
        assert accepted.result().status_code == 200
        assert finished.result() == 0


def test_what_takes_too_long_is_answered_by_504(artifact: str) -> None:
    backend = HeldBackend(artifact)
    api = create_api(local_config(artifact, limits={"timeout_s": 0.3}), backend)
    with serving(api) as url, httpx2.Client(base_url=url, timeout=60) as client:
        answer = client.post("/v1/captions", **upload(HELD_PAIR))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        backend.go_on.set()
        assert "idc_pairs_waiting 0.0" in client.get("/metrics").text


def test_a_client_that_leaves_is_no_failure(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    """While it sends its body; cancelled by Serve, while it waits; and refused by Serve's proxy, which then fails the
    reading of the body."""
    backend = HeldBackend(artifact)
    api = create_api(local_config(artifact), backend)
    with serving(api) as url, httpx2.Client(base_url=url) as client:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            head = f"POST /v1/captions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM[0][1]}\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n--".encode())
            until(lambda: client.get("/readyz").status_code == 200, "the server reads the body")
        left = 'idc_requests_total{route="/v1/captions",status="499"} 1.0'
        until(lambda: left in client.get("/metrics").text, "the request is over")

    async def cancelled() -> None:
        transport = httpx2.ASGITransport(api, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as waiting:
            request = asyncio.create_task(waiting.post("/v1/captions", **upload(HELD_PAIR)))
            await asyncio.to_thread(backend.asked.acquire)
            request.cancel()
            backend.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await request

    async def failing() -> dict[str, str]:
        raise RuntimeError("Task: 6ef4 was cancelled.")

    async def send(message: MutableMapping[str, Any]) -> None:
        raise AssertionError("nobody is left to answer")

    asyncio.run(cancelled())
    head = [(b"content-type", FORM[0][1].encode()), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/captions", "headers": head, "client": ("127.0.0.1", 1)}
    asyncio.run(api({**scope, "query_string": b""}, failing, send))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(line["level"], line["status"], line["error"], "failure" in line) for line in lines]
    assert found == [("info", 499, "client_left", False)] * 3


def test_the_document_has_every_operation_and_its_page_may_load_its_scripts(client: httpx2.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/captions", "/v1/chat/completions", "/v1/models", "/metrics"} <= set(paths)
    assert all(operation["description"] for operations in paths.values() for operation in operations.values())
    page = client.get("/docs").raise_for_status()
    policy = page.headers["content-security-policy"]
    for source in re.findall(r'(?:src|href)="(https://[^/"]+)', page.text):
        assert source in policy
    assert "https://" not in client.get("/").headers["content-security-policy"]
