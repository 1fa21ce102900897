"""``/v1/captions`` over real captioners in this process: results, GeoTIFFs, streams, who may ask, queues, logs."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.transform import Affine

from idc.captioning.apply import CaptionedPair, Pixels
from idc.captioning.class_counts import count_classes
from idc.captioning.contract import Candidate, Description, SearchOptions, draw_map
from idc.captioning.sources import SHIPPED_SATELLITE
from idc.data.images import decode_image, encode_png
from idc.geo.georeferenced_pair import PixelGrid, decode_georeferenced, georeferenced_changes
from idc.training.artifact import artifact_identity
from serve.api import create_api
from serve.backend import Options
from serve.captioner import captioned
from serve.gate import Drain
from serve.schema import CaptionAnswer, ErrorAnswer, StreamEnd
from tests.geo.scenes import ground as aerial_ground
from tests.geo.scenes import write
from tests.serve.bodies import CAPTIONS, CHAT, PAIR, Pair, conversation, picture, result, saved, upload, url
from tests.serve.conftest import TOKENS, TOOLS
from tests.serve.local import HELD, LocalBackend, client_of, described, loaded, local_config, tokens_of
from tests.serve.waiting import until
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk

WITH_MAP = SearchOptions(change_map=True)

DISKS = Pair(encode_png(ground()), encode_png(with_disk(with_disk(ground(), 60, 60, RED), 260, 60, BLUE)))
"""A disk is new on the left, and one on the right."""
HELD_PAIR = Pair(picture(HELD, 30), PAIR.after)
DAMAGED = Pair(PAIR.before, PAIR.after[:60])


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def code_of(answer: httpx2.Response) -> str | None:
    return ErrorAnswer.model_validate_json(answer.content).error.code


def entries(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# -- results


def test_each_pair_of_a_request_has_what_it_has_alone_in_python(client: httpx2.Client, artifact: str) -> None:
    """Pairs of several sizes and formats, among files that are no images."""
    random = np.random.default_rng(0)
    wide = [encode_png(random.integers(0, 255, (70, 3000, 3), dtype=np.uint8)) for _ in range(2)]
    bmp = saved(decode_image(picture(60, 50, shade=30)), "BMP")
    good = [PAIR, Pair(bmp, picture(24, 41, shade=200)), Pair(*wide)]
    bad = Pair(good[1].before[:200], PAIR.after), Pair(PAIR.before, b"<svg/>")
    form = upload(good[0], bad[0], good[1], bad[1], good[2], candidates=2, change_map=True)
    answer = client.post(CAPTIONS, **form).raise_for_status()
    parsed = CaptionAnswer.model_validate_json(answer.content)
    assert parsed.request_id == answer.headers["x-request-id"]
    assert (parsed.version, parsed.timing.largest_batch) == (f"sha256:{artifact_identity(artifact)[:12]}", 3)
    first, cut, second, text, third = answer.json()["results"]
    assert cut["error"].startswith("before: truncated image")
    assert text["error"].startswith("pairs.3.after: not a readable image")
    for served, pair in zip((first, second, third), good, strict=True):
        [own] = described(artifact, pair, candidates=2)
        for name, value in json.loads(json.dumps(own.to_dict())).items():
            if name == "candidates":
                assert [each["caption"] for each in served[name]] == [each["caption"] for each in value]
            elif name != "captioner":
                assert served[name] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), name
        shown = pixels_of(served["change_map"])[..., 0].astype(int)
        assert own.map is not None
        assert np.abs(shown - draw_map(own.map, decode_image(pair.after).shape[:2])).max() <= 1
    assert shown.shape == (24, 1024), "the map of a large image has 1024 pixels at most"


def test_a_crash_is_that_of_its_pair_and_only_in_the_log(
    client: httpx2.Client, backend: LocalBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = backend.captioner("demo").captioner
    describe = captioner.describe

    def crash(befores: Any, afters: Any, *options: Any, **region: Any) -> Any:
        if any(image.shape[1] == 39 for image in befores):
            raise RuntimeError("a fault of the program")
        return describe(befores, afters, *options, **region)

    monkeypatch.setattr(captioner, "describe", crash)
    crashing = Pair(picture(39), PAIR.after)
    together = client.post(CAPTIONS, **upload(PAIR, crashing, PAIR))
    alone = client.post(CAPTIONS, **upload(crashing))
    assert [each["error"] is None for each in together.json()["results"]] == [True, False, True]
    assert (alone.status_code, code_of(alone)) == (500, "internal_error")
    assert "a fault of the program" not in together.text + alone.text
    assert capsys.readouterr().out.count("RuntimeError: a fault of the program") == 2


def test_a_part_that_does_not_count_is_left_out_in_every_form(client: httpx2.Client) -> None:
    height, width = decode_image(DISKS.after).shape[:2]
    mask = np.zeros((height, width, 3), np.uint8)
    mask[:, width // 2 :] = 255
    pixels, white = [[width // 2, 0, width, height]], encode_png(mask)
    shares = result(client, DISKS, model="regions", ignore="[[0.5, 0, 1, 1]]")
    assert ["left" in region["position"] for region in shares["regions"]] == [True]
    for part in (json.dumps(pixels), url(white), white, ["0,0,9,9", url(white)]):
        assert result(client, DISKS, model="regions", ignore=part) == shares
    for part in (pixels, url(white), [[0, 0, 9, 9], url(white)]):
        chat = client.post(CHAT, json=conversation(*map(url, DISKS), model="regions", ignore=part)).json()
        assert chat["choices"][0]["message"]["content"] == shares["caption"]
        assert chat["claims"] == shares["claims"]
    kept, whole = (result(client, DISKS, model="regions", **parts) for parts in ({"only": json.dumps(pixels)}, {}))
    assert len({each["objects_text"] for each in (shares, kept, whole)}) == 3
    nothing = client.post(CAPTIONS, **upload(DISKS, model="regions", ignore="0,0,1,1"))
    assert (nothing.status_code, "leave nothing of the image to compare" in nothing.text) == (400, True)


# -- GeoTIFFs


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A field, at the second date with two red roofs."""
    before = aerial_ground()[:200, :200]
    after = before.copy()
    after[30:80, 20:90] = after[110:170, 120:180] = (170, 70, 55)
    folder = tmp_path_factory.mktemp("placed")
    named = zip(Pair._fields, (before, after), strict=True)
    return Pair(*(write(folder / f"{name}.tif", pixels).read_bytes() for name, pixels in named))


def pixels_of(url: str) -> np.ndarray:
    return decode_image(base64.b64decode(url.removeprefix("data:image/png;base64,")))


def of_satellite(client: httpx2.Client, *pair: bytes, **options: str) -> dict[str, Any]:
    return result(client, Pair(*pair), model="satellite", **options)


def test_polygons_and_classes_are_those_of_the_captioner(client: httpx2.Client, placed: Pair) -> None:
    form = upload(placed, model="satellite", polygons="georeferenced", change_map="true")
    answer = client.post(CAPTIONS, **form).raise_for_status()
    (served,) = CaptionAnswer.model_validate_json(answer.content).results
    pixels, grid = decode_georeferenced(placed.before, placed.after, 10**6)
    [description] = loaded(SHIPPED_SATELLITE).captioner.describe([pixels.before], [pixels.after], WITH_MAP)
    expected = georeferenced_changes(description, grid)
    assert expected.geojson["features"], "the pair must have changes, or nothing is tested"
    assert (served.scene.sentence, served.scene.geojson) == (expected.sentence, expected.geojson)
    for shown, image in zip((served.scene.before, served.scene.after), pixels.images, strict=True):
        assert np.array_equal(pixels_of(shown), image)
    assert [count.model_dump() for count in served.classes.counts] == [
        count.to_dict() for count in count_classes(description.class_map)
    ]
    assert np.array_equal(pixels_of(served.classes.map)[..., 0], description.class_map.classes)


def test_polygons_are_returned_where_they_are_asked_for(client: httpx2.Client, placed: Pair) -> None:
    """With the map or without it; a pair that is no GeoTIFF has its caption as before."""
    alone = of_satellite(client, *placed, polygons="always")
    assert alone["scene"]["geojson"]["features"]
    assert (alone["change_map"], alone["classes"]) == (None, None)
    never = of_satellite(client, *placed, change_map="true")
    assert never["scene"] is None
    assert never["classes"]["counts"][1]["name"] == "building"
    for after in (placed.after, PAIR.after):
        plain = of_satellite(client, PAIR.before, after, polygons="georeferenced")
        assert (bool(plain["caption"]), plain["scene"]) == (True, None)
    cut = upload(Pair(placed.before, placed.after[:9000]), model="satellite", polygons="always")
    refused = client.post(CAPTIONS, **cut)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


def test_without_rasterio_the_extra_is_named(
    client: httpx2.Client, placed: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)  # as if it were not installed
    refused = client.post(CAPTIONS, **upload(placed, model="satellite", polygons="georeferenced"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "extra_missing")
    assert "pip install 'idc[geo]'" in refused.json()["error"]["message"]
    assert of_satellite(client, *placed)["caption"], "a caption alone needs none"


# -- streams


def events(reply: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """(name, data) of each event; a comment has the name ``:``."""
    name = ""
    for line in reply.iter_lines():
        kind, _, text = line.partition(":")
        if kind == "event":
            name = text.strip()
        elif line:
            yield (name, json.loads(text)) if kind == "data" else (":", None)


def test_a_stream_has_the_results_as_they_are_done(client: httpx2.Client, held: LocalBackend) -> None:
    """The first pair is held back until the others have arrived, which requires that they do not wait for it."""
    with client.stream("POST", CAPTIONS, **upload(HELD_PAIR, DAMAGED, PAIR, candidates=2, stream=True)) as reply:
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        arriving = events(reply)
        early = {data["index"]: data for _, data in (next(arriving), next(arriving))}
        assert early[1]["error"]
        assert early[2] == {**result(client, PAIR, candidates=2), "index": 2}
        held.go_on.set()
        (name, data), (done, end) = arriving
    assert (name, data["index"], done) == ("result", 0, "done")
    assert StreamEnd.model_validate(end).request_id == reply.headers["x-request-id"]
    reply = client.post(CAPTIONS, **upload(DAMAGED, stream=True))
    assert (reply.status_code, code_of(reply)) == (400, "no_pair_captioned")


def test_a_stream_without_captions_names_the_first_pair_also_if_another_fails_first(
    client: httpx2.Client, held: LocalBackend
) -> None:
    late = Pair(HELD_PAIR.before, DAMAGED.after)
    with client.stream("POST", CAPTIONS, **upload(late, Pair(b"", PAIR.after), stream=True)) as reply:
        arriving = (event for event in events(reply) if event[0] != ":")
        assert next(arriving)[1]["index"] == 1
        held.go_on.set()
        ((name, data),) = arriving
    assert (name, data["error"]["code"], data["error"]["param"]) == ("error", "no_pair_captioned", "pairs.0.after")


def test_a_cold_start_is_waited_for_with_comments_and_may_fail_late(client: httpx2.Client, held: LocalBackend) -> None:
    damaged = upload(Pair(HELD_PAIR.before, DAMAGED.after), stream=True)
    with client.stream("POST", CAPTIONS, **damaged) as reply:
        assert reply.status_code == 200
        arriving = events(reply)
        assert next(arriving)[0] == ":"
        held.go_on.set()
        name, data = next(event for event in arriving if event[0] != ":")
    assert (name, data["error"]["param"], data["request_id"]) == ("error", "after", reply.headers["x-request-id"])


@pytest.mark.parametrize("pairs", [[HELD_PAIR], [HELD_PAIR, PAIR]], ids=["before the first result", "after it"])
def test_a_stream_whose_client_leaves_ends_its_work(
    client: httpx2.Client, held: LocalBackend, pairs: list[Pair]
) -> None:
    with client.stream("POST", CAPTIONS, **upload(*pairs, stream=True)) as reply:
        if len(pairs) > 1:
            assert next(events(reply))[0] == "result"
    assert held.cancelled.wait(30), "the work goes on"
    until(lambda: "idc_pairs_waiting 0.0" in client.get("/metrics").text, "its place in the queue is free again")


# -- who may ask


def test_tokens_open_what_is_closed_and_their_names_are_in_the_log(
    closed: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    ask: Callable[..., httpx2.Response] = closed.request
    for path in ("/", "/web/style.css", "/docs", "/openapi.json", "/healthz", "/readyz"):
        assert ask("GET", path, headers={"Authorization": ""}).status_code == 200, path
    for wrong in ("", "Bearer wrong", f"Basic {TOKENS['first']}"):
        for path in ("/v1/models", "/metrics", CAPTIONS, "/nowhere"):
            answer = ask("GET", path, headers={"Authorization": wrong})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
    for name in TOKENS:
        answer = ask("POST", CAPTIONS, **upload(), headers={**bearer(name), "X-Request-ID": f"id-of-{name}"})
        assert answer.raise_for_status().headers["x-request-id"] == f"id-of-{name}"
    bad = ask("GET", "/v1/models", headers={"X-Request-ID": "not an id"})
    assert re.fullmatch("[0-9a-f]{32}", bad.headers["x-request-id"])
    lines = entries(capsys)
    assert all(entry.keys() >= {"time", "level", "event", "node", "pid"} for entry in lines), "as of jobs and workers"
    good = [entry for entry in lines if entry["route"] == CAPTIONS and entry["status"] == 200]
    assert [(entry["caller"], entry["request_id"], entry["pairs"]) for entry in good] == [
        (name, f"id-of-{name}", 1) for name in TOKENS
    ]
    assert base64.b64encode(PAIR.before).decode()[:40] not in json.dumps(lines)


def test_without_tokens_this_machine_alone_is_served(backend: LocalBackend) -> None:
    api = create_api(local_config(backend.sources), backend)

    async def status(peer: str | None, host: str) -> int:
        transport = httpx2.ASGITransport(api, client=peer and (peer, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/v1/models", headers={"Host": host})).status_code

    for peer, host in (("::1", "[::1]:8000"), ("::ffff:127.0.0.1", "127.0.0.1")):
        assert asyncio.run(status(peer, host)) == 200
    for stranger in ("192.0.2.7", None):
        assert asyncio.run(status(stranger, "localhost")) == 403


def test_programs_and_the_served_page_are_answered(closed: httpx2.Client) -> None:
    address = closed.base_url.netloc.decode()
    for sent in (
        {},  # curl, clients of OpenAI's interface
        {"Origin": f"http://{address}", "Sec-Fetch-Site": "same-origin"},
        {"Origin": f"HTTP://{address}"},  # a browser on plain http sends no Sec-Fetch-Site
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://captions.example.org", "Sec-Fetch-Site": "same-origin"},  # a proxy changed the Host
    ):
        answer = closed.get("/metrics", headers=sent)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False), sent


def test_pages_of_an_allowed_origin_may_ask_and_read_and_others_neither(closed: httpx2.Client) -> None:
    sent = {"Origin": TOOLS, "Sec-Fetch-Site": "cross-site"}
    asked = {**sent, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    address = closed.base_url.join(CAPTIONS)
    preflight = httpx2.options(address, headers=asked)  # a browser sends it without the token
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    answers = preflight, closed.post(CAPTIONS, **upload(), headers=sent), closed.post(CAPTIONS, json={}, headers=sent)
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers
    foreign = {"Origin": "https://foreign.example", "Sec-Fetch-Site": "cross-site"}
    assert httpx2.options(address, headers={**asked, **foreign}).status_code == 400
    refused = closed.get("/metrics", headers=foreign)
    assert (refused.status_code, code_of(refused), "auth.origins" in refused.text) == (403, "foreign_origin", True)
    assert closed.get("/", headers=foreign).status_code == 200, "a link from elsewhere leads to the page"


# -- queues, time, ends


def test_queues_have_ends_for_each_and_for_all(held: LocalBackend, artifact: str) -> None:
    auth = {"tokens": tokens_of(**TOKENS)}
    with client_of(held, auth=auth, limits={"waiting_pairs": 128}) as client, ThreadPoolExecutor(8) as threads:

        def ask(name: str, pairs: int, seconds: float = 60) -> httpx2.Response:
            return client.post(CAPTIONS, **upload(*[HELD_PAIR] * pairs), headers=bearer(name), timeout=seconds)

        def metrics() -> str:
            return client.get("/metrics", headers=bearer("first")).text

        try:
            waiting = [threads.submit(ask, "first", 64), threads.submit(ask, "second", 40)]
            for _ in waiting:
                assert held.asked.acquire(timeout=60)
            for name, pairs, status in (("first", 1, 429), ("second", 25, 429), ("third", 25, 503)):
                refused = ask(name, pairs, 10)
                assert (refused.status_code, refused.headers["retry-after"]) == (status, "1"), (name, pairs)
            assert "idc_pairs_waiting 104.0" in metrics()
        finally:
            held.go_on.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert ask("first", 3).status_code == 200  # the room is free again
        for line in (
            "idc_pairs_waiting 0.0",
            'idc_pairs_total{outcome="captioned"} 107.0',
            'idc_requests_total{route="/v1/captions",status="429"} 2.0',
            f'idc_model_info{{model="demo",version="sha256:{artifact_identity(artifact)[:12]}"}} 1.0',
        ):
            assert line in metrics()


def test_a_draining_front_answers_what_it_has_accepted_and_refuses_the_rest(held: LocalBackend) -> None:
    drain = Drain()
    with client_of(held, drain) as client, ThreadPoolExecutor(2) as threads:
        drain.replaced = True  # another front takes over: clients are asked to connect again
        assert client.get("/readyz").headers["connection"] == "close"
        accepted = threads.submit(client.post, CAPTIONS, **upload(HELD_PAIR))
        assert held.asked.acquire(timeout=60)
        assert asyncio.run(drain.finish(0.0)) == 1
        finished = threads.submit(asyncio.run, drain.finish(60))
        for path in (CAPTIONS, "/readyz", "/"):
            refused = client.get(path)
            assert (refused.status_code, code_of(refused), refused.headers["retry-after"]) == (503, "ending", "5"), path
        assert client.get("/healthz").status_code == 200
        assert not finished.done()
        held.go_on.set()
        assert accepted.result().status_code == 200
        assert finished.result() == 0


def test_what_takes_too_long_is_answered_by_504(held: LocalBackend) -> None:
    with client_of(held, limits={"timeout_s": 0.3}) as client:
        answer = client.post(CAPTIONS, **upload(HELD_PAIR))
        assert (answer.status_code, code_of(answer)) == (504, "timeout")
        held.go_on.set()
        assert "idc_pairs_waiting 0.0" in client.get("/metrics").text


def test_a_client_that_leaves_is_no_failure(held: LocalBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """While it sends its body; and cancelled by Serve, while it waits."""
    api = create_api(local_config(held.sources), held)
    with client_of(held) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            kind = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100"
            connection.sendall(f"POST {CAPTIONS} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n--".encode())
            until(lambda: client.get("/readyz").status_code == 200, "the server reads the body")
        left = f'idc_requests_total{{route="{CAPTIONS}",status="499"}} 1.0'
        until(lambda: left in client.get("/metrics").text, "the request is over")

    async def cancelled() -> None:
        transport = httpx2.ASGITransport(api, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as waiting:
            request = asyncio.create_task(waiting.post(CAPTIONS, **upload(HELD_PAIR)))
            assert await asyncio.to_thread(held.asked.acquire, timeout=60)
            request.cancel()
            held.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await request

    asyncio.run(cancelled())
    lines = [(line["level"], line["status"], line["error"], "failure" in line) for line in entries(capsys)]
    assert lines == [("info", 499, "client_left", False)] * 2


def test_the_document_has_every_operation_and_its_page_may_load_its_scripts(client: httpx2.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {CAPTIONS, CHAT, "/v1/models", "/metrics"} <= set(paths)
    assert all(operation["description"] for operations in paths.values() for operation in operations.values())
    page = client.get("/docs").raise_for_status()
    policy = page.headers["content-security-policy"]
    for source in re.findall(r'(?:src|href)="(https://[^/"]+)', page.text):
        assert source in policy
    assert "https://" not in client.get("/").headers["content-security-policy"]


def test_a_change_without_degrees_refuses_its_pair_alone() -> None:
    """Of a coordinate system that gives longitude and latitude where it was checked, and none around a change."""
    wkt = CRS.from_string("+proj=adams_ws2 +datum=WGS84").to_wkt()
    grid = PixelGrid(Affine(1, 0, 0, 0, -1, 0), wkt, np.ones((24, 24), bool))
    changed = np.zeros((24, 24), np.float32)
    changed[20:23] = 1
    image = np.zeros((24, 24, 3), np.uint8)
    pair = CaptionedPair(Pixels(image, image), Description((Candidate("new", -1.0),), change_map=changed))
    error = captioned(pair, Options(), grid).error or ""
    assert error.startswith("after: the coordinate system ")
    assert "gives no longitude and latitude" in error
